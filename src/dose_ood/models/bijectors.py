"""The invertible layers of a Glow, on tensors of shape (n, height, width, channels).

Every layer has `forward`, data → latent, which also gives log |det ∂y/∂x| of each sample in float64, and `inverse`.
They are written to be read; training and measuring go the faster way of `fused`, to the same numbers.
"""

import math
from collections.abc import Sequence
from typing import TypeAlias, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from dose_ood.errors import InputError

TAPS = 9  # of a 3×3 convolution
CLOSED = -80.0  # below, σ would be 0 in single precision
FURTHEST = 40.0  # that a logarithmic scale goes from 0; exp(88) would be infinite
Mapped: TypeAlias = tuple[Tensor, Tensor]  # what a layer makes of a batch, and the log-determinants


class ActNorm(nn.Module):
    """A scale and a shift for each channel, y = exp(s) (x − m), which start from the data's own.

    Until `initialize` has seen a training batch this is the identity. Nothing else ever sets its state.
    """

    initialised: Tensor

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.mean = nn.Parameter(torch.zeros(channels))
        self.log_scale = nn.Parameter(torch.zeros(channels))
        self.register_buffer("initialised", torch.zeros((), dtype=torch.int64))

    def initialize(self, x: Tensor) -> None:
        """Give the channels of this batch mean 0 and variance 1."""
        if self.initialised:
            raise InputError("ActNorm is initialised already: it takes the first training batch, and no other")
        with torch.no_grad():
            rows = x.detach().double().flatten(0, 2)
            self.mean.copy_(rows.mean(0))
            self.log_scale.copy_(-torch.log(rows.std(0, correction=0) + 1e-6))
            self.initialised.fill_(1)

    def forward(self, x: Tensor) -> Mapped:
        """Normalise."""
        return (x - self.mean) * self.log_scale.exp(), same_for_all(x, self.log_scale.double().sum())

    def inverse(self, y: Tensor) -> Tensor:
        """Undo it."""
        return y * (-self.log_scale).exp() + self.mean


class Invertible1x1(nn.Module):
    """A learned rotation, at first, of the channels: y = W x at every pixel.

    W = P L (U + diag(± exp d)) with P a permutation and the signs fixed, L and U triangular: so W stays invertible, and
    log |det W| = Σ d costs nothing.

    References
    ----------
    *Glow: Generative Flow with Invertible 1×1 Convolutions (Kingma and Dhariwal, 2018)*
    """

    order: Tensor
    sign: Tensor

    def __init__(self, channels: int, random: np.random.Generator) -> None:
        super().__init__()
        rotation = np.linalg.qr(random.normal(size=(channels, channels)))[0]
        permutation, lower, upper = torch.linalg.lu(torch.from_numpy(rotation))
        self.triangles = nn.Parameter((lower.tril(-1) + upper.triu(1)).float())
        self.log_diagonal = nn.Parameter(upper.diagonal().abs().log().float())
        self.register_buffer("order", permutation.argmax(1))
        self.register_buffer("sign", upper.diagonal().sign().float())

    def weight(self) -> Tensor:
        """W, in float64."""
        return lu_weights([self])[0]

    def forward(self, x: Tensor) -> Mapped:
        """Mix the channels."""
        return x @ self.weight().to(x.dtype).T, same_for_all(x, self.log_diagonal.double().sum())

    def inverse(self, y: Tensor) -> Tensor:
        """Undo it."""
        result: Tensor = y @ torch.linalg.inv(self.weight()).to(y.dtype).T
        return result


class AffineCoupling(nn.Module):
    """The first half a of the channels sets scale and shift of the second half b: (a, b) → (a, exp(s(a)) b + t(a)).

    The network behind s and t is three convolutions (3×3, 1×1, 3×3) with ReLUs between. The last one starts at zero,
    which makes the layer the identity, as exp(s) = σ(· + o) / σ(o) with o the `opening`. A scale is 1 + e⁻ᵒ at most:
    steps that may each expand a value by much more than 2 make some of a batch explode, early in training, by many
    orders of magnitude.

    Convolutions are held as matrices, the 3×3 taps line by line and the channels of each together: `hidden1`
    (9 a + 1, filters) and `hidden2` (filters + 1, filters), whose last rows are biases, and `last` (9 · 2 b, filters).

    References
    ----------
    *Density estimation using Real NVP (Dinh et al., 2017)*
    """

    def __init__(self, channels: int, filters: int, opening: float, random: np.random.Generator) -> None:
        super().__init__()
        if channels < 2:
            raise InputError(f"a coupling needs at least 2 channels, got {channels}")
        self.kept, self.opening = kept_of(channels), opening
        inputs = TAPS * self.kept
        self.hidden1 = nn.Parameter(_he(inputs, filters, random))
        self.hidden2 = nn.Parameter(_he(filters, filters, random))
        outputs = 2 * (channels - self.kept)
        self.last = nn.Parameter(torch.zeros(TAPS * outputs, filters))
        self.last_bias = nn.Parameter(torch.zeros(outputs))

    @property
    def log_most(self) -> float:
        """The logarithm of its largest scale."""
        return math.log1p(math.exp(-self.opening))

    def weights(self) -> tuple[Tensor, Tensor, Tensor]:
        """The three convolutions, without biases."""
        return self.hidden1[:-1], self.hidden2[:-1], self.last

    def network(self, a: Tensor) -> Mapped:
        """Shift and log-scale."""
        first = self.hidden1[:-1].view(3, 3, self.kept, -1).permute(3, 2, 0, 1)
        second = self.hidden2[:-1].T[:, :, None, None]
        # `last` spreads each pixel over its neighbours, so its taps are those of a transposed convolution.
        third = self.last.view(3, 3, -1, len(second)).permute(3, 2, 0, 1)
        x = functional.conv2d(a.permute(0, 3, 1, 2), first, self.hidden1[-1], padding=1).relu()
        x = functional.conv2d(x, second, self.hidden2[-1]).relu()
        x = functional.conv_transpose2d(x, third, self.last_bias, padding=1)
        shift, raw = x.permute(0, 2, 3, 1).chunk(2, dim=-1)
        return shift, functional.logsigmoid((raw + self.opening).clamp(min=CLOSED)) + self.log_most

    def forward(self, x: Tensor) -> Mapped:
        """Scale and shift the second half."""
        a, b = x[..., : self.kept], x[..., self.kept :]
        shift, log_scale = self.network(a)
        return torch.cat([a, b * log_scale.exp() + shift], dim=-1), log_scale.sum((1, 2, 3), dtype=torch.float64)

    def inverse(self, y: Tensor) -> Tensor:
        """Undo it."""
        a, b = y[..., : self.kept], y[..., self.kept :]
        shift, log_scale = self.network(a)
        return torch.cat([a, (b - shift) * (-log_scale).exp()], dim=-1)


class Squeeze(nn.Module):
    """Every block of pixels becomes one pixel with more channels; a permutation, so its log-determinant is 0.

    Parameters
    ----------
    block
        Height and width of a block; 1 leaves a side as it is.
    """

    def __init__(self, block: tuple[int, int] = (2, 2)) -> None:
        super().__init__()
        self.block = block

    def forward(self, x: Tensor) -> Tensor:
        """Fewer pixels, more channels."""
        (n, height, width, channels), (p, q) = x.shape, self.block
        blocks = x.reshape(n, height // p, p, width // q, q, channels).transpose(2, 3)
        return blocks.reshape(n, height // p, width // q, p * q * channels)

    def inverse(self, y: Tensor) -> Tensor:
        """Undo it."""
        (n, height, width, channels), (p, q) = y.shape, self.block
        blocks = y.reshape(n, height, width, p, q, channels // (p * q)).transpose(2, 3)
        return blocks.reshape(n, height * p, width * q, channels // (p * q))


class Split(nn.Module):
    """The first half of the channels goes on, the second half is latent already."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """What goes on, what does not, and log-determinants of 0."""
        kept = kept_of(x.shape[-1])
        return x[..., :kept], x[..., kept:], torch.zeros(len(x), dtype=torch.float64, device=x.device)

    def inverse(self, kept: Tensor, latent: Tensor) -> Tensor:
        """Put them together."""
        return torch.cat([kept, latent], dim=-1)


class CoupledSplit(nn.Module):
    """The first half a of the channels goes on, and the second half b leaves as exp(s(a)) b + t(a).

    So what goes on says, for each place, what detail to expect there. One 3×3 convolution gives s and t; it starts at
    zero, which makes the layer a `Split`. This scale may be anything from
    exp(−40) to exp(40), which keeps it finite; a coupling's has a bound that is felt.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.kept = kept_of(channels)
        outputs = 2 * (channels - self.kept)
        self.weight = nn.Parameter(torch.zeros(outputs, self.kept, 3, 3))
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """What goes on, what does not, and the log-determinants."""
        a, b = x[..., : self.kept], x[..., self.kept :]
        log_scale, shift = self._network(a)
        return a, b * log_scale.exp() + shift, log_scale.sum((1, 2, 3), dtype=torch.float64)

    def inverse(self, kept: Tensor, latent: Tensor) -> Tensor:
        """Undo it, and put the halves together."""
        log_scale, shift = self._network(kept)
        return torch.cat([kept, (latent - shift) * (-log_scale).exp()], dim=-1)

    def _network(self, a: Tensor) -> Mapped:
        x = functional.conv2d(a.permute(0, 3, 1, 2), self.weight, self.bias, padding=1)
        log_scale, shift = x.permute(0, 2, 3, 1).chunk(2, dim=-1)
        return log_scale.clamp(-FURTHEST, FURTHEST), shift


class Step(nn.Module):
    """One step of the flow: ActNorm, invertible 1×1 convolution, affine coupling."""

    def __init__(self, channels: int, filters: int, opening: float, random: np.random.Generator) -> None:
        super().__init__()
        self.norm = ActNorm(channels)
        self.mix = Invertible1x1(channels, random)
        self.coupling = AffineCoupling(channels, filters, opening, random)

    def forward(self, x: Tensor) -> Mapped:
        """The three layers, one after the other."""
        x, normed = self.norm(x)
        x, mixed = self.mix(x)
        x, coupled = self.coupling(x)
        return x, normed + mixed + coupled

    def inverse(self, y: Tensor) -> Tensor:
        """Undo it."""
        return self.norm.inverse(self.mix.inverse(self.coupling.inverse(y)))

    def initialize(self, x: Tensor) -> Tensor:
        """Set ActNorm from a training batch, and give what the step makes of that batch."""
        self.norm.initialize(x)
        with torch.no_grad():
            return cast(Tensor, self(x)[0])


def kept_of(channels: int) -> int:
    """How many channels are the first half."""
    return channels - channels // 2


def _he(inputs: int, outputs: int, random: np.random.Generator) -> Tensor:
    """He's normal weights, and a last row of zeros."""
    weight = torch.from_numpy(random.normal(scale=math.sqrt(2 / inputs), size=(inputs, outputs)))
    return torch.cat([weight, weight.new_zeros(1, outputs)]).float()


def same_for_all(x: Tensor, each_pixel: Tensor) -> Tensor:
    """The log-determinants of a batch whose pixels all have the same one."""
    return (x.shape[1] * x.shape[2] * each_pixel).expand(len(x))


def lu_weights(mixes: Sequence[Invertible1x1]) -> Tensor:
    """The matrices W of several layers of the same size, in float64, shape (layers, c, c)."""
    triangles = torch.stack([mix.triangles for mix in mixes]).double()
    diagonal = (
        torch.stack([mix.sign for mix in mixes]) * torch.stack([mix.log_diagonal for mix in mixes]).double().exp()
    )
    lower = triangles.tril(-1) + torch.eye(triangles.shape[1], dtype=torch.float64, device=triangles.device)
    product = lower @ (triangles.triu(1) + torch.diag_embed(diagonal))
    order = torch.stack([mix.order for mix in mixes])
    return product.gather(1, order[:, :, None].expand_as(product))
