"""Glow as a graph: ActNorm and 1×1 convolution folded into one, their log-determinants into constants."""

import math
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from dose_ood.export.graph import FLOAT32, FLOAT64, Value, joined, softplus, total
from dose_ood.models.bijectors import CLOSED, FURTHEST, CoupledSplit, Split, kept_of
from dose_ood.models.distributions import LEVELS, LOG_2PI
from dose_ood.models.glow import Glow, Level
from dose_ood.models.score_tests import neighbours

Array = NDArray[np.float32]


def glow_statistics(model: Glow, images: Value, noise: Value | float) -> dict[str, Value]:
    """like, latent, jac, those of each level and its score tests, shape (n,), by name.

    Parameters
    ----------
    model
        A trained one.
    images
        uint8 of shape (n, c, h, w).
    noise
        Uniform on [0, 1), float64 of that shape; or the same for all.
    """
    model._require_initialised()
    x = ((images.cast(FLOAT64) + noise) / LEVELS - 0.5).cast(FLOAT32)
    scaling = -math.prod(model.config.shape) * math.log(LEVELS)
    channels, height, width = model.config.shape
    latents, jacs = [], []
    tests: dict[str, Value] = {}
    levels, exits = model._each_level(), model._each_exit()
    for number, level in enumerate(levels):
        x = _squeezed(x, (channels, height, width), level.squeeze.block)
        p, q = level.squeeze.block
        channels, height, width = channels * p * q, height // p, width // q
        x, jac = _stepped(x, level, (channels, height, width))
        z, kept = x, 0
        if number < len(exits):
            kept = kept_of(channels)
            x, z, of_exit = _left(x, (kept, channels - kept), exits[number])
            jac = jac + of_exit
        jacs.append(jac if number else jac + scaling)
        shape = channels - kept, height, width
        latents.append(_log_normal(z, math.prod(shape)))
        tests |= {f"{name}/{number}": value for name, value in _score_tests(z.cast(FLOAT64), shape).items()}
        channels = kept
    latent, jac = total(latents), total(jacs)
    each_latent = {f"latent/{level}": value for level, value in enumerate(latents)}
    each_jac = {f"jac/{level}": value for level, value in enumerate(jacs)}
    return {"like": latent + jac, "latent": latent, "jac": jac, **each_latent, **each_jac, **tests}


def _score_tests(z: Value, shape: tuple[int, int, int]) -> dict[str, Value]:
    """What `score_tests` gives, of latents of this shape."""
    channels, height, width = shape
    pixels = height * width
    excess = _products(z, z, channels) - pixels * np.eye(channels)
    found = {
        "shift": z.sum(2, 3).square().sum(1) / (pixels * channels),
        "mix": excess.square().sum(1, 2) / (pixels * channels * (channels + 1)),
    }
    near = [
        _products(_window(z, *here), _window(z, *there), channels).square().sum(1, 2) / pairs
        for here, there, pairs in neighbours(height, width)
    ]
    if near:
        found["near"] = total(near) / (len(near) * channels**2)
    return {name: value.map("Log") for name, value in found.items()}


def _window(z: Value, rows: slice, columns: slice) -> Value:
    """Some rows and columns of images (n, c, h, w)."""
    return z.take(np.arange(rows.start, rows.stop), 2).take(np.arange(columns.start, columns.stop), 3)


def _products(a: Value, b: Value, channels: int) -> Value:
    """Σ a_p b_pᵀ over the pixels, shape (n, c, c)."""
    return a.reshape(0, channels, -1) @ b.reshape(0, channels, -1).transpose(0, 2, 1)


def _squeezed(x: Value, shape: tuple[int, int, int], block: tuple[int, int]) -> Value:
    """Blocks of pixels to channels, the pixels of a block before the channels, as `Squeeze` does."""
    (channels, height, width), (p, q) = shape, block
    if block == (1, 1):
        return x
    blocks = x.reshape(-1, channels, height // p, p, width // q, q).transpose(0, 3, 5, 1, 2, 4)
    return blocks.reshape(-1, p * q * channels, height // p, width // q)


def _stepped(x: Value, level: Level, shape: tuple[int, int, int]) -> tuple[Value, Value]:
    """What the steps of a level make of squeezed images, and their log-determinants."""
    channels, height, width = shape
    kept = kept_of(channels)
    with torch.no_grad():
        folded = level.fold()
    weights = [weight.detach().cpu().numpy() for weight in folded.weights]
    log_scales = []
    for number, matrix in enumerate(folded.matrices.cpu().numpy()):
        mixed = x.convolved(matrix[:, :-1, None, None], matrix[:, -1], 1, 0)
        a, b = mixed.split(1, kept, channels - kept)
        shift, raw = _coupling(a, kept, weights[4 * number : 4 * number + 4]).split(1, *[channels - kept] * 2)
        raw = raw.most(CLOSED)
        log_scales.append(-softplus(-raw))  # log σ; by how much a scale exceeds σ is folded into the matrix
        x = joined([a, shift + b * raw.map("Sigmoid")], 1)
    constant = float(folded.log_det) * height * width
    return x, total(log_scales).cast(FLOAT64).sum(1, 2, 3) + constant


def _left(x: Value, channels: tuple[int, int], split: Split | CoupledSplit) -> tuple[Value, Value, Value | float]:
    """What goes on from a level, what leaves it, and the log-determinants."""
    a, b = x.split(1, *channels)
    if isinstance(split, Split):
        return a, b, 0.0
    weight, bias = (each.detach().cpu().numpy() for each in (split.weight, split.bias))
    log_scale, shift = a.convolved(weight, bias, 1, 1).split(1, *[channels[1]] * 2)
    log_scale = log_scale.clip(-FURTHEST, FURTHEST)
    return a, b * log_scale.map("Exp") + shift, log_scale.cast(FLOAT64).sum(1, 2, 3)


def _coupling(a: Value, kept: int, weights: Sequence[Array]) -> Value:
    """The shift and the logit of the scale, side by side."""
    hidden1, hidden2, last, last_bias = weights
    first = hidden1[:-1].reshape(3, 3, kept, -1).transpose(3, 2, 0, 1)
    second = hidden2[:-1].T[:, :, None, None]
    # `last` spreads a pixel over its neighbours; gathering, as a convolution does, the taps come in the other order.
    third = last.reshape(3, 3, last_bias.size, -1).transpose(2, 3, 0, 1)[:, :, ::-1, ::-1]
    x = a.convolved(first, hidden1[-1], 1, 1).map("Relu")
    x = x.convolved(second, hidden2[-1], 1, 0).map("Relu")
    return x.convolved(third, last_bias[:, 0], 1, 1)


def _log_normal(z: Value, dimensions: int) -> Value:
    """log N(z; 0, 1) of each image."""
    return -0.5 * (z.cast(FLOAT64).square().sum(1, 2, 3) + dimensions * LOG_2PI)
