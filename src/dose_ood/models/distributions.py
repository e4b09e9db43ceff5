"""The distributions of a variational autoencoder: of a pixel's grey level, of a latent given an image, and its prior.

Everything is a log-density, in the precision of the tensors it is given. Grey levels are the integers 0 to 255.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx
from torch.nn.functional import logsigmoid

LEVELS = 256
LOG_2PI = math.log(2 * math.pi)
SQRT_HALF = math.sqrt(0.5)
SOFTPLUS_1 = math.log(math.e - 1)  # softplus(SOFTPLUS_1) = 1
SMALLEST_SCALE = 0.01  # of a learned logit-normal: many pixels are exactly black, and a density there has no bound
NARROW = 0.25  # below this difference of log Φ, integrate rather than subtract
NODES = [(float(u), float(w)) for u, w in zip(*np.polynomial.legendre.leggauss(6), strict=True) if u > 0]

ScaleKind = Literal["fixed", "shared", "pixel"]


def bernoulli_log_prob(grey: Tensor, logits: Tensor) -> Tensor:
    """The log-probability of a white pixel, x log p + (1 − x) log(1 − p), at the real-valued x = grey/255.

    This cross-entropy with real-valued targets is what Choi et al. train on MNIST: no pixel is rounded to black or
    white. In between it is not a density (its exponential does not integrate to 1): compare it with itself only.
    """
    x = grey.to(logits.dtype) / (LEVELS - 1)
    return x * logits - softplus(logits)


def logit_normal_log_prob(grey: Tensor, mean: Tensor, scale: Tensor) -> Tensor:
    """The log-density of x = (grey + ½)/256 in (0, 1), whose logit is normal: log N(logit x; µ, σ) − log x(1 − x)."""
    x = (grey.to(mean.dtype) + 0.5) / LEVELS
    away = (torch.logit(x) - mean) / scale
    return -0.5 * away.square() - scale.log() - (0.5 * LOG_2PI + torch.log(x * (1 - x)))


def logit_volume(grey: Tensor) -> Tensor:
    """By how much the log-density of x = (grey + ½)/256 exceeds that of its logit: −log x(1 − x), in float64."""
    x = (grey.double() + 0.5) / LEVELS
    return -torch.log(x * (1 - x))


def discretized_logit_normal_log_prob(grey: Tensor, mean: Tensor, scale: Tensor) -> Tensor:
    """The log-probability of a grey level, the integral of the logit-normal density from grey/256 to (grey + 1)/256.

    log [Φ(b) − Φ(a)] with a, b = (logit(grey/256) − µ)/σ, (logit((grey + 1)/256) − µ)/σ. It sums to 1 over the 256
    levels, and is finite at each of them however far they are from the mean.
    """
    levels = grey.to(mean.dtype)
    edges = torch.logit(levels / LEVELS), torch.logit((levels + 1) / LEVELS)  # −∞ and ∞ at the ends
    width = torch.log1p(LEVELS / (levels * (LEVELS - 1 - levels)))  # their difference, before it cancels
    shape = torch.broadcast_shapes(levels.shape, mean.shape, scale.shape)  # type: ignore[no-untyped-call]
    # The gradient has a closed form that neither cancels nor meets ∞ − ∞, and needs no memory of the steps.
    return cast(Tensor, _Interval.apply(*edges, width / 2, mean.expand(shape), scale.expand(shape)))  # type: ignore[no-untyped-call]


class _Interval(torch.autograd.Function):
    """log [Φ(b) − Φ(a)] for a, b = (lower − µ)/σ, (upper − µ)/σ; differentiable in µ and σ."""

    @staticmethod
    def forward(ctx: FunctionCtx, lower: Tensor, upper: Tensor, half: Tensor, mean: Tensor, scale: Tensor) -> Tensor:
        ctx.save_for_backward(lower, upper, half, mean, scale)
        near, h, c, gap, _ = _mirrored(lower, upper, half, mean, scale)
        wide = torch.special.log_ndtr(near) + _log_1_minus_exp(gap)
        middle = -0.5 * ((near - h).square() + LOG_2PI)  # log φ there
        return torch.where(gap < NARROW, middle + torch.log(2 * h) + torch.log(_average(h, c)), wide)

    @staticmethod
    def backward(ctx: FunctionCtx, grad: Tensor) -> tuple[None, None, None, Tensor, Tensor]:
        scale = ctx.saved_tensors[-1]  # type: ignore[attr-defined]
        near, h, c, gap, sign = _mirrored(*ctx.saved_tensors)  # type: ignore[attr-defined]
        # φ(near)/[Φ(b) − Φ(a)]; φ(far) is e^{−c} times φ(near), so that no two nearly equal numbers are subtracted.
        narrow = torch.exp(0.5 * (c - h.square())) / (2 * h * _average(h, c))
        ratio = torch.where(gap < NARROW, narrow, _hazard(near) / -torch.expm1(-gap))
        by_middle = -torch.expm1(-c) * ratio
        by_width = torch.where(torch.isinf(h), 0.0, 2 * h * torch.exp(-c) * ratio)
        return None, None, None, -grad * sign * by_middle / scale, -grad * (near * by_middle + by_width) / scale


def _mirrored(
    lower: Tensor, upper: Tensor, half: Tensor, mean: Tensor, scale: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The interval, on whichever side of the mean it is, as one on the left, where log Φ keeps its digits.

    Its edge `near` the mean, its half-width h, c = log φ(near)/φ(far), gap = log Φ(near)/Φ(far), and 1 or, if it was on
    the right, −1.
    """
    a, b, h = (lower - mean) / scale, (upper - mean) / scale, half / scale
    right = a + b > 0
    near, far = torch.where(right, -a, b), torch.where(right, -b, a)
    c = (a + b).abs() * h
    in_tail = c + torch.log(torch.special.erfcx(near * -SQRT_HALF) / torch.special.erfcx(far * -SQRT_HALF))
    gap = torch.where(near < -1, in_tail, torch.special.log_ndtr(near) - torch.special.log_ndtr(far))
    return near, h, c, gap, 1 - 2 * right.to(near.dtype)


def _average(h: Tensor, c: Tensor) -> Tensor:
    """The mean of φ over an interval by its value at the middle, ½∫ e^{−cu/2 − h²u²/2} du, by Gauss–Legendre."""
    total = torch.zeros_like(c)
    for u, weight in NODES:
        total += weight * torch.exp(-0.5 * (h * u).square()) * torch.cosh(0.5 * u * c)
    return total


def _hazard(x: Tensor) -> Tensor:
    """φ(x)/Φ(x)."""
    mills: Tensor = torch.special.erfcx(x * -SQRT_HALF) * math.sqrt(math.pi / 2)
    return mills.reciprocal()


def _log_1_minus_exp(gap: Tensor) -> Tensor:
    """log(1 − e^{−gap})."""
    return torch.where(gap < math.log(2), torch.log(-torch.expm1(-gap)), torch.log1p(-torch.exp(-gap)))


def softplus(raw: Tensor) -> Tensor:
    """log(1 + e^raw) to the last digit; torch's own gives up its tail above 20."""
    return -logsigmoid(-raw)


def log_softplus(raw: Tensor) -> Tensor:
    """log log(1 + e^raw), which is raw where e^raw is too small to tell."""
    return torch.where(raw < -40, raw, softplus(raw.clamp(min=-40)).log())


class Likelihood(nn.Module, ABC):
    """The distribution of an image's grey levels, given what the decoder says of each pixel.

    A subclass sets `outputs`, how many numbers the decoder gives for each pixel and channel, and `log_levels`, what
    turns its density into that of a grey level (0 if it is a probability already), and writes the two methods.
    """

    outputs: int
    log_levels: float

    @abstractmethod
    def log_prob(self, grey: Tensor, output: Tensor) -> Tensor:
        """The log-density of each grey level of (…, c, h, w), given outputs of shape (…, outputs · c, h, w)."""

    @abstractmethod
    def middle(self, output: Tensor) -> Tensor:
        """The grey level in the middle of each pixel's distribution, as uint8."""

    def log_volume(self, grey: Tensor) -> Tensor:
        """By how much `log_prob` exceeds the log-density of what the decoder itself describes; of all pixels, (n,)."""
        return torch.zeros(len(grey), dtype=torch.float64, device=grey.device)


class Bernoulli(Likelihood):
    """`bernoulli_log_prob` with the decoder's output as logits; its middle is the mean."""

    outputs = 1
    log_levels = 0.0

    def log_prob(self, grey: Tensor, output: Tensor) -> Tensor:
        """See `Likelihood`."""
        return bernoulli_log_prob(grey, output)

    def middle(self, output: Tensor) -> Tensor:
        """See `Likelihood`."""
        return torch.sigmoid(output).mul(LEVELS - 1).round().to(torch.uint8)


class LogitNormal(Likelihood):
    """`logit_normal_log_prob` with the decoder's output as mean; its middle is the median."""

    log_levels = math.log(LEVELS)

    def __init__(self, kind: ScaleKind = "fixed", scale: float = 1.0) -> None:
        super().__init__()
        self.scale = Scale(kind, scale)
        self.outputs = self.scale.outputs

    def log_prob(self, grey: Tensor, output: Tensor) -> Tensor:
        """See `Likelihood`."""
        return logit_normal_log_prob(grey, *self.scale(output))

    def log_volume(self, grey: Tensor) -> Tensor:
        """See `Likelihood`."""
        return logit_volume(grey).sum((1, 2, 3))

    def middle(self, output: Tensor) -> Tensor:
        """See `Likelihood`."""
        return _median(self.scale, output)


class DiscretizedLogitNormal(Likelihood):
    """`discretized_logit_normal_log_prob` with the decoder's output as mean; its middle is the median."""

    log_levels = 0.0

    def __init__(self, kind: ScaleKind = "fixed", scale: float = 1.0) -> None:
        super().__init__()
        self.scale = Scale(kind, scale)
        self.outputs = self.scale.outputs

    def log_prob(self, grey: Tensor, output: Tensor) -> Tensor:
        """See `Likelihood`."""
        return discretized_logit_normal_log_prob(grey, *self.scale(output))

    def middle(self, output: Tensor) -> Tensor:
        """See `Likelihood`."""
        return _median(self.scale, output)


class Scale(nn.Module):
    """The scale of a logit-normal: a fixed number, one learned number, or the decoder's second output for each pixel.

    Fixed to 1, likelihoods tell FashionMNIST from MNIST; with a scale for each pixel the decoder excuses what it cannot
    draw, and they do not.
    """

    def __init__(self, kind: ScaleKind, scale: float) -> None:
        super().__init__()
        self.kind, self.start = kind, scale
        self.outputs = 2 if kind == "pixel" else 1
        if kind == "shared":
            self.raw = nn.Parameter(torch.zeros(()))

    def forward(self, output: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and scale, from the decoder's output."""
        if self.kind == "fixed":
            return output, output.new_tensor(self.start)
        if self.kind == "shared":
            return output, self._positive(self.raw.to(output.dtype))
        mean, raw = output.chunk(2, dim=-3)
        return mean, self._positive(raw)

    def _positive(self, raw: Tensor) -> Tensor:
        """From SMALLEST_SCALE up, and `start` at 0."""
        return SMALLEST_SCALE + (self.start - SMALLEST_SCALE) * softplus(raw + SOFTPLUS_1)


def _median(scale: Scale, output: Tensor) -> Tensor:
    mean, _ = scale(output)
    return torch.sigmoid(mean).mul(LEVELS).floor().clamp(max=LEVELS - 1).to(torch.uint8)


@dataclass(frozen=True)
class DiagonalGaussian:
    """A normal distribution with independent coordinates, one for each row of `mean` and `log_scale`, shape (n, d)."""

    mean: Tensor
    log_scale: Tensor

    def entropy(self) -> Tensor:
        """Σ log σ + d/2 · log 2πe, shape (n,)."""
        return (self.log_scale + 0.5 * (LOG_2PI + 1)).sum(-1)

    def log_prob(self, z: Tensor) -> Tensor:
        """The log-density of row i's draws z[i], shape (n, draws) for z of shape (n, draws, d)."""
        return self._log_prob_of_noise((z - self.mean[:, None]) * torch.exp(-self.log_scale[:, None]))

    def draw(self, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Draws and their log-densities, shapes (n, draws, d) and (n, draws), from standard normal noise."""
        z = self.mean[:, None] + torch.exp(self.log_scale[:, None]) * noise
        return z, self._log_prob_of_noise(noise)  # from the noise itself: exact even where z − mean has no digits left

    def _log_prob_of_noise(self, noise: Tensor) -> Tensor:
        return -(0.5 * (noise.square() + LOG_2PI) + self.log_scale[:, None]).sum(-1)


class MixturePrior(nn.Module):
    """The learned marginal r(z): a mixture of Gaussians with diagonal scales.

    The mean and the logit of the first component are fixed to 0, which keeps the latent space where it is.

    Parameters
    ----------
    means
        Where the other components start, shape (components − 1, d). All scales start at 1, all weights equal.
    """

    first_mean: Tensor
    first_logit: Tensor

    def __init__(self, means: Tensor) -> None:
        super().__init__()
        components, latent = len(means) + 1, means.shape[1]
        self.register_buffer("first_mean", torch.zeros(1, latent))
        self.register_buffer("first_logit", torch.zeros(1))
        self.means = nn.Parameter(means.to(torch.float32))
        self.logits = nn.Parameter(torch.zeros(components - 1))
        self.raw_scales = nn.Parameter(torch.zeros(components, latent))

    def components(self, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
        """Log-weights (components,), means and log-scales (components, d)."""
        logits = torch.cat([self.first_logit, self.logits]).to(dtype)
        means = torch.cat([self.first_mean, self.means]).to(dtype)
        return logits.log_softmax(0), means, log_softplus(self.raw_scales.to(dtype) + SOFTPLUS_1)

    def log_prob(self, z: Tensor) -> Tensor:
        """log Σ_k w_k N(z; m_k, s_k), shape (…,) for z of shape (…, d)."""
        log_weights, means, log_scales = self.components(z.dtype)
        away = (z[..., None] - means.T) * torch.exp(-log_scales.T)  # components last: they are many
        constants = log_weights - (log_scales + 0.5 * LOG_2PI).sum(-1)
        return torch.logsumexp(constants - 0.5 * away.square().sum(-2), dim=-1)

    def sample(self, uniform: Tensor, noise: Tensor) -> Tensor:
        """Draws of shape (…, d): uniform numbers of shape (…,) choose components, normal ones move from their means."""
        log_weights, means, log_scales = self.components(noise.dtype)
        upper = log_weights.exp().cumsum(0)
        which = torch.searchsorted(upper, uniform.to(upper.dtype) * upper[-1], right=True)
        which = which.clamp(max=len(upper) - 1)
        return means[which] + torch.exp(log_scales[which]) * noise
