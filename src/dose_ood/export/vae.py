"""The β-VAE as a graph: the decoder in float32 but for the likeliest draw, all else in float64, as `measure` has it."""

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dose_ood.errors import InputError
from dose_ood.export.graph import FLOAT32, FLOAT64, Value, log_softplus, total
from dose_ood.export.likelihoods import log_likelihood
from dose_ood.models.distributions import LEVELS, LOG_2PI, SOFTPLUS_1, MixturePrior
from dose_ood.models.vae import KERNEL, BetaVAE, Decoder, Encoder

Array = NDArray[np.floating]
Size = tuple[int, int]  # height and width


def vae_statistics(model: BetaVAE, images: Value, noise: Value) -> dict[str, Value]:
    """The five statistics of each image, shape (n,), by name.

    Parameters
    ----------
    model
        A trained one.
    images
        uint8 of shape (n, c, h, w).
    noise
        Standard normal, float64 of shape (n, draws, latent).
    """
    latent, draws = model.config.latent, model.config.draws
    mean, raw = _encoded(model.encoder, images, model.config.shape).split(1, latent, latent)
    mean, log_scale = mean.expand(1), log_softplus(raw + SOFTPLUS_1).expand(1)
    z = mean + log_scale.map("Exp") * noise
    log_q = -((0.5 * (noise.square() + LOG_2PI) + log_scale).sum(2))
    log_r = _log_prior(model.prior, z)
    channels, height, width = model.config.shape
    outputs = channels * model.likelihood.outputs
    every = _decoded(model.decoder, z.reshape(-1, latent).cast(FLOAT32)).cast(FLOAT64)
    log_p = log_likelihood(model.likelihood, images, every.reshape(-1, draws, outputs, height, width))
    best = log_p.highest_at(1).equals(np.arange(draws))
    likeliest = _exactly_decoded(model.decoder, best.expand(2).where(z, 0.0).sum(1))
    exact = log_likelihood(model.likelihood, images, likeliest.reshape(-1, 1, outputs, height, width))
    log_p = best.where(exact, log_p)
    xent, ent = -(log_r.sum(1) / draws), -(log_q.sum(1) / draws)
    return {
        "xent": xent,
        "ent": ent,
        "rate": xent - ent,
        "distortion": log_p.sum(1) / draws,
        "iwae": (log_p + log_r - log_q).log_sum_exp(1) - math.log(draws),
    }


def _encoded(encoder: Encoder, images: Value, shape: tuple[int, int, int]) -> Value:
    """Shape (n, 2 · latent), float64."""
    channels, size = shape[0], shape[1:]
    pixels = images.transpose(0, 2, 3, 1).reshape(-1, math.prod(size), channels)
    x = (pixels.cast(FLOAT64) + 0.5) / (LEVELS / 2) - 1.0
    for layer in encoder.layers:
        x, size = _exactly(layer, x, size)
        x = _leaky(x, encoder.slope)
    kernel = _array(encoder.latent.weight).transpose(2, 3, 1, 0)
    return x.map("Flatten") @ _exact(x, kernel.reshape(-1, kernel.shape[-1])) + _array(encoder.latent.bias)


def _exactly(layer: nn.Module, x: Value, size: Size) -> tuple[Value, Size]:
    """A layer of pixels (n, height · width, channels), and the new size: in float64, where onnxruntime has none.

    It is a sum of matrix products, one for each row of the kernel: for all of it at once the pixels would be there 25
    times.
    """
    kernel, bias, seen = _windows(layer, size)
    height, width = seen.shape[:2]
    padded, places = x.zero_after(1), height * width

    def row(number: int) -> Value:
        weight = kernel[number].reshape(-1, kernel.shape[-1])
        under = padded.take(seen[:, :, number].reshape(places, -1), 1)
        return under.reshape(-1, places, len(weight)) @ _exact(x, weight)

    return total([row(number) for number in range(len(kernel))]) + bias, (height, width)


def _windows(layer: nn.Module, size: Size) -> tuple[Array, Array, NDArray[np.int64]]:
    """Kernel (height, width, inputs, outputs), bias, and the pixels seen at each place; one past the last is a 0."""
    pixels, nothing = np.arange(math.prod(size)).reshape(size), math.prod(size)
    if isinstance(layer, nn.Conv2d):
        kernel, stride = _array(layer.weight).transpose(2, 3, 1, 0), layer.stride[0]
        margins = [(int(side), int(side)) for side in layer.padding]
    elif isinstance(layer, nn.ConvTranspose2d):  # a convolution of pixels that have zeros between them
        kernel, stride = _array(layer.weight).transpose(2, 3, 0, 1)[::-1, ::-1], 1
        apart = np.full([layer.stride[0] * (side - 1) + 1 for side in size], nothing)
        apart[:: layer.stride[0], :: layer.stride[0]] = pixels
        pixels, before = apart, [KERNEL - 1 - int(side) for side in layer.padding]
        margins = [(side, side + more) for side, more in zip(before, layer.output_padding, strict=True)]
    else:
        raise InputError(f"expected a layer that can be exported, got {type(layer).__name__}")
    padded = np.pad(pixels, margins, constant_values=nothing)
    seen = np.lib.stride_tricks.sliding_window_view(padded, kernel.shape[:2])[::stride, ::stride]
    return kernel, _array(layer.bias), seen


def _exact(x: Value, weight: Array) -> Value:
    """Weights that the file holds in their own precision, in that of x."""
    return x.graph.constant(np.ascontiguousarray(weight)).cast(x.dtype)


def _decoded(decoder: Decoder, z: Value) -> Value:
    """Shape (rows, outputs, height, width), float32."""
    height, width, channels = decoder.block
    # Channels first, so that nothing is left to transpose when it runs.
    order = np.arange(height * width * channels).reshape(decoder.block).transpose(2, 0, 1).reshape(-1)
    weight, bias = _array(decoder.first.weight)[order].T, _array(decoder.first.bias)[order]
    x = _leaky(z @ weight + bias, decoder.slope).reshape(-1, channels, height, width)
    for layer in decoder.layers:
        x = _leaky(_convolution(layer, x), decoder.slope)
    return x.convolved(_array(decoder.last.weight), _array(decoder.last.bias), 1, KERNEL // 2)


def _exactly_decoded(decoder: Decoder, z: Value) -> Value:
    """Shape (rows, outputs, height, width), float64."""
    size, channels = decoder.block[:2], decoder.block[2]
    x = _leaky(z @ _exact(z, _array(decoder.first.weight).T) + _array(decoder.first.bias), decoder.slope)
    x = x.reshape(-1, math.prod(size), channels)
    for layer in decoder.layers:
        x, size = _exactly(layer, x, size)
        x = _leaky(x, decoder.slope)
    x, size = _exactly(decoder.last, x, size)
    return x.transpose(0, 2, 1).reshape(-1, decoder.last.out_channels, *size)


def _convolution(layer: nn.Module, x: Value) -> Value:
    if isinstance(layer, nn.Conv2d):
        return x.convolved(_array(layer.weight), _array(layer.bias), layer.stride[0], int(layer.padding[0]))
    if not isinstance(layer, nn.ConvTranspose2d):
        raise InputError(f"expected a layer that can be exported, got {type(layer).__name__}")
    attributes = {
        "strides": list(layer.stride),
        "pads": [int(side) for side in layer.padding] * 2,
        "output_padding": list(layer.output_padding),
    }
    operands = [x, x.lift(_array(layer.weight)), x.lift(_array(layer.bias))]
    return x.graph.nodes("ConvTranspose", operands, [x.dtype], attributes)[0]


def _leaky(x: Value, slope: float) -> Value:
    if x.dtype == FLOAT32:
        return x.map("LeakyRelu", {"alpha": float(slope)})
    return x.most(0.0) + slope * x.least(0.0)  # opset 13 has no other LeakyRelu


def _log_prior(prior: MixturePrior, z: Value) -> Value:
    """log r(z), shape (n, draws), for z of shape (n, draws, d)."""
    with torch.no_grad():
        log_weights, means, log_scales = (_array(part) for part in prior.components(torch.float64))
    precisions: Array = np.exp(-log_scales.T)
    away = (z.expand(3) - means.T) * precisions
    constants: Array = log_weights - (log_scales + 0.5 * LOG_2PI).sum(-1)
    return (-0.5 * away.square().sum(2) + constants).log_sum_exp(2)


def _array(tensor: Tensor | None) -> Array:
    if tensor is None:
        raise InputError("expected layers with biases, got one without")
    found: Array = tensor.detach().cpu().numpy()
    return found
