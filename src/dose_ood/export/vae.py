"""The β-VAE as a graph: encoder, draws and decoder in float32, densities in float64, as `BetaVAE.measure` has it."""

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dose_ood.errors import InputError
from dose_ood.export.graph import FLOAT32, FLOAT64, Value, log_softplus
from dose_ood.export.likelihoods import log_likelihood
from dose_ood.models.distributions import LEVELS, LOG_2PI, SOFTPLUS_1, MixturePrior
from dose_ood.models.vae import KERNEL, BetaVAE, Decoder, Encoder

Array = NDArray[np.floating]


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
    mean, raw = _encoded(model.encoder, images).split(1, latent, latent)
    mean, log_scale = mean.cast(FLOAT64).expand(1), log_softplus((raw + SOFTPLUS_1).cast(FLOAT64)).expand(1)
    z = mean + log_scale.map("Exp") * noise
    log_q = -((0.5 * (noise.square() + LOG_2PI) + log_scale).sum(2))
    log_r = _log_prior(model.prior, z)
    outputs = _decoded(model.decoder, z.reshape(-1, latent).cast(FLOAT32))
    channels, height, width = model.config.shape
    by_draw = outputs.reshape(-1, draws, channels * model.likelihood.outputs, height, width).cast(FLOAT64)
    log_p = log_likelihood(model.likelihood, images, by_draw)
    xent, ent = -(log_r.sum(1) / draws), -(log_q.sum(1) / draws)
    return {
        "xent": xent,
        "ent": ent,
        "rate": xent - ent,
        "distortion": log_p.sum(1) / draws,
        "iwae": (log_p + log_r - log_q).log_sum_exp(1) - math.log(draws),
    }


def _encoded(encoder: Encoder, images: Value) -> Value:
    """Shape (n, 2 · latent), float32."""
    x = (images.cast(FLOAT32) + 0.5) / (LEVELS / 2) - 1.0
    for layer in encoder.layers:
        x = _leaky(_convolution(layer, x), encoder.slope)
    return _convolution(encoder.latent, x).map("Flatten")


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
    return x.map("LeakyRelu", {"alpha": float(slope)})


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
