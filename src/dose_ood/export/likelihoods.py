"""The likelihoods of grey levels as graphs, in float64."""

import numpy as np
import torch
from numpy.polynomial.chebyshev import cheb2poly, chebfit, chebpts1
from numpy.typing import NDArray
from scipy.special import erfcx

from dose_ood.errors import InputError
from dose_ood.export.graph import FLOAT64, INT64, Value, softplus
from dose_ood.models.distributions import (
    LEVELS,
    LOG_2PI,
    NARROW,
    NODES,
    SMALLEST_SCALE,
    SOFTPLUS_1,
    SQRT_HALF,
    Bernoulli,
    DiscretizedLogitNormal,
    Likelihood,
    LogitNormal,
    Scale,
)

PIXELS = (2, 3, 4)  # axes of (n, draws, c, h, w)
GREY = np.arange(LEVELS, dtype=np.float64)


def _polynomial(centre: float, degree: int) -> NDArray[np.float64]:
    """Coefficients, from the lowest, of (1 + 2y) erfcx(y) as a polynomial in t = (y − centre)/(y + centre)."""
    t = chebpts1(degree + 1)
    y = centre * (1 + t) / (1 - t)
    return np.asarray(cheb2poly(chebfit(t, (1 + 2 * y) * erfcx(y), degree)), np.float64)


ERFCX_CENTRE = 3.75
ERFCX = _polynomial(ERFCX_CENTRE, 20)  # relative error below 1e-14, from 0 to ∞


def log_likelihood(likelihood: Likelihood, images: Value, outputs: Value) -> Value:
    """log p(x|z) of each image and draw, shape (n, draws), the pixels added, as `BetaVAE.measure` has it.

    Parameters
    ----------
    likelihood
        Of the model.
    images
        uint8 of shape (n, c, h, w).
    outputs
        What the decoder says, float64 of shape (n, draws, outputs · c, h, w).
    """
    grey = images.expand(1)
    if isinstance(likelihood, Bernoulli):
        white = grey.cast(FLOAT64) / (LEVELS - 1)
        return (white * outputs - softplus(outputs)).sum(*PIXELS)
    if isinstance(likelihood, LogitNormal):
        return _logit_normal(grey, *_mean_and_scale(likelihood.scale, outputs))
    if isinstance(likelihood, DiscretizedLogitNormal):
        return _discretized_logit_normal(grey, *_mean_and_scale(likelihood.scale, outputs))
    raise InputError(f"expected a likelihood that can be exported, got {type(likelihood).__name__}")


def _mean_and_scale(scale: Scale, outputs: Value) -> tuple[Value, Value]:
    if scale.kind != "pixel":
        with torch.no_grad():
            _, number = scale(torch.zeros((), dtype=torch.float64))
        return outputs, outputs.lift(float(number))
    mean, raw = outputs.graph.nodes("Split", [outputs], [FLOAT64] * 2, {"axis": 2})  # two equal parts
    return mean, SMALLEST_SCALE + (scale.start - SMALLEST_SCALE) * softplus(raw + SOFTPLUS_1)


def _by_level(grey: Value, values: NDArray[np.float64]) -> Value:
    """A function of the grey level, from its 256 values."""
    return grey.graph.constant(values).take(grey.cast(INT64))


def _logit_normal(grey: Value, mean: Value, scale: Value) -> Value:
    x = (GREY + 0.5) / LEVELS
    away = (_by_level(grey, np.log(x) - np.log1p(-x)) - mean) / scale
    return (-0.5 * away.square() - scale.map("Log") - 0.5 * LOG_2PI).sum(*PIXELS)


def _discretized_logit_normal(grey: Value, mean: Value, scale: Value) -> Value:
    """log [Φ(b) − Φ(a)], by the steps of `distributions._Interval` and what they say of rounding."""
    with np.errstate(divide="ignore"):
        edges = np.log(GREY) - np.log(LEVELS - GREY), np.log(GREY + 1) - np.log(LEVELS - 1 - GREY)
        half = np.log1p(LEVELS / (GREY * (LEVELS - 1 - GREY))) / 2
    a, b = ((_by_level(grey, edge) - mean) / scale for edge in edges)
    h = _by_level(grey, half) / scale
    right = (a + b) > 0.0
    near, far = right.where(-a, b), right.where(-b, a)
    c = abs(a + b) * h
    of_near, of_far = _scaled_tail(near), _scaled_tail(far)
    log_near = _log_ndtr(near, of_near)
    in_tail = c + (of_near / of_far).map("Log")
    gap = (near < -1.0).where(in_tail, log_near - _log_ndtr(far, of_far))
    wide = log_near + (1.0 - (-gap).map("Exp")).map("Log")
    middle = -0.5 * ((near - h).square() + LOG_2PI)
    narrow = middle + (2.0 * h).map("Log") + _average(h, c).map("Log")
    return (gap < NARROW).where(narrow, wide).sum(*PIXELS)


def _average(h: Value, c: Value) -> Value:
    """The mean of φ over a narrow interval by its value at the middle, as in `distributions._average`."""
    total = h.lift(0.0)
    for u, weight in NODES:
        y = (0.5 * u) * c
        total = total + (0.5 * weight) * (-0.5 * (u * h).square()).map("Exp") * (y.map("Exp") + (-y).map("Exp"))
    return total


def _scaled_tail(x: Value) -> Value:
    """erfcx(|x|/√2): Φ(−|x|) is half of it times e^{−x²/2}.

    A polynomial in t = (y − k)/(y + k) for (1 + 2y) erfcx(y), which is near 1 from y = 0 to ∞.
    """
    y = abs(x) * SQRT_HALF
    t = 1.0 - (2 * ERFCX_CENTRE) / (y + ERFCX_CENTRE)  # 1 at ∞
    result = t.lift(ERFCX[-1])
    for coefficient in ERFCX[-2::-1]:
        result = result * t + coefficient
    return result / (1.0 + 2.0 * y)


def _log_ndtr(x: Value, tail: Value) -> Value:
    """log Φ(x), given `_scaled_tail` of x."""
    below = (0.5 * tail).map("Log") - 0.5 * x.square()
    return (x < 0.0).where(below, (1.0 - below.map("Exp")).map("Log"))
