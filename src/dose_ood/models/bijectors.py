"""The invertible layers of a Glow, on tensors of shape (n, height, width, channels), and a fast path through them.

Every layer has `forward`, data → latent, which also gives log |det ∂y/∂x| of each sample in float64, and `inverse`.
They are written to be read. `FusedSteps` gives the same numbers as the layers one after the other, by fewer and larger
matrix products; training and measuring use it.
"""

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from dose_ood.errors import InputError
from dose_ood.models.parallel import at_once, workers

TAPS = 9  # of a 3×3 convolution
OPEN = 2.0  # a coupling's scale is σ(· + OPEN) / σ(OPEN)
LOG_MOST = math.log1p(math.exp(-OPEN))  # the logarithm of its largest scale
CLOSED = -80.0  # below, σ would be 0 in single precision
LEAST_IMAGES, MOST_IMAGES = 4, 32  # of a batch, that a thread works on at a time; more do not stay in its cache
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
        return (x - self.mean) * self.log_scale.exp(), _same_for_all(x, self.log_scale.double().sum())

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
        return x @ self.weight().to(x.dtype).T, _same_for_all(x, self.log_diagonal.double().sum())

    def inverse(self, y: Tensor) -> Tensor:
        """Undo it."""
        result: Tensor = y @ torch.linalg.inv(self.weight()).to(y.dtype).T
        return result


class AffineCoupling(nn.Module):
    """The first half a of the channels sets scale and shift of the second half b: (a, b) → (a, exp(s(a)) b + t(a)).

    The network behind s and t is three convolutions (3×3, 1×1, 3×3) with ReLUs between. The last one starts at zero,
    which makes the layer the identity, as exp(s) = σ(· + 2) / σ(2). A scale is 1.14 at most: steps that may each expand
    a value by more than that make some of a batch explode, early in training, by many orders of magnitude.

    Convolutions are held as matrices, the 3×3 taps line by line and the channels of each together: `hidden1`
    (9 a + 1, filters) and `hidden2` (filters + 1, filters), whose last rows are biases, and `last` (9 · 2 b, filters).

    References
    ----------
    *Density estimation using Real NVP (Dinh et al., 2017)*
    """

    def __init__(self, channels: int, filters: int, random: np.random.Generator) -> None:
        super().__init__()
        if channels < 2:
            raise InputError(f"a coupling needs at least 2 channels, got {channels}")
        self.kept = kept_of(channels)
        inputs = TAPS * self.kept
        self.hidden1 = nn.Parameter(_he(inputs, filters, random))
        self.hidden2 = nn.Parameter(_he(filters, filters, random))
        outputs = 2 * (channels - self.kept)
        self.last = nn.Parameter(torch.zeros(TAPS * outputs, filters))
        self.last_bias = nn.Parameter(torch.zeros(outputs))

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
        return shift, functional.logsigmoid((raw + OPEN).clamp(min=CLOSED)) + LOG_MOST

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

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """What goes on, and what does not."""
        kept = kept_of(x.shape[-1])
        return x[..., :kept], x[..., kept:]

    def inverse(self, kept: Tensor, latent: Tensor) -> Tensor:
        """Put them together."""
        return torch.cat([kept, latent], dim=-1)


class Step(nn.Module):
    """One step of the flow: ActNorm, invertible 1×1 convolution, affine coupling."""

    def __init__(self, channels: int, filters: int, random: np.random.Generator) -> None:
        super().__init__()
        self.norm = ActNorm(channels)
        self.mix = Invertible1x1(channels, random)
        self.coupling = AffineCoupling(channels, filters, random)

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


def _same_for_all(x: Tensor, each_pixel: Tensor) -> Tensor:
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


@dataclass(frozen=True)
class Folded:
    """The steps of a level as a batch meets them: nothing is left to compute that does not depend on the batch.

    Parameters
    ----------
    matrices
        ActNorm, 1×1 convolution and the coupling's largest scale in one, shape (steps, c, c + 1): one of them times
        (x, 1) is W exp(s) (x − m), its second half times 1 / σ(2).
    log_det
        The log-determinant of all of them together, for each pixel, in float64.
    weights
        Those of the coupling networks, four for each step; the last bias includes the 2 of σ(· + 2).
    """

    matrices: Tensor
    log_det: Tensor
    weights: tuple[Tensor, ...]


def fold(steps: Sequence[Step]) -> Folded:
    """Fold ActNorm and 1×1 convolution of each step into one matrix, in float64; differentiable."""
    scales = torch.stack([step.norm.log_scale for step in steps]).double()
    means = torch.stack([step.norm.mean for step in steps]).double()
    diagonals = torch.stack([step.mix.log_diagonal for step in steps]).double()
    most = torch.zeros_like(scales[0])
    most[kept_of(len(most)) :] = LOG_MOST
    mixed = lu_weights([step.mix for step in steps]) * scales.exp()[:, None, :] * most.exp()[:, None]
    matrices = torch.cat([mixed, -(mixed @ means[:, :, None])], dim=2)
    nets = [step.coupling for step in steps]
    opening = torch.zeros_like(nets[0].last_bias)
    opening[len(opening) // 2 :] = OPEN
    weights = tuple(w for net in nets for w in (net.hidden1, net.hidden2, net.last, net.last_bias + opening))
    log_det = scales.sum() + diagonals.sum() + len(steps) * most.sum()
    return Folded(matrices.to(weights[0].dtype), log_det, weights)


class FusedSteps:
    """The steps of a level as few large matrix products, in memory that is used again.

    A call gives what the steps' `forward`, one after the other, give. Images are matrices (channels, pixels of a whole
    batch), so that halves of the channels, and images shifted by a pixel, are contiguous; a last row of ones carries
    biases. A 3×3 convolution gathers: its input is each pixel's 3×3 neighbours. The last one, which has few outputs,
    scatters: the product comes first, and its rows are then added up where they belong. Gathering and scattering are
    each other's adjoint, so the gradients, written out here, are made of the same two parts.
    """

    def __init__(self) -> None:
        self.idle: list[_Workspace] = []
        self.threads = 1

    def __call__(self, steps: Folded, x: Tensor) -> Mapped:
        """What the steps make of a batch, and the log-determinants; one backward pass is possible, not two."""
        filters, count, recording = steps.weights[0].shape[1], len(steps.matrices), torch.is_grad_enabled()
        self.threads = workers(len(x), LEAST_IMAGES)
        turns = max(1, -(-len(x) // (self.threads * MOST_IMAGES)))
        parts = torch.tensor_split(x, self.threads * turns)
        spaces = [self._take(part, filters, count, recording) for part in parts]
        found = _FusedSteps.apply(self, spaces, x, steps.matrices, *steps.weights)  # type: ignore[no-untyped-call]
        y, log_det = cast(Mapped, found)
        if not recording:
            self.idle.extend(spaces)
        return y, log_det + _same_for_all(x, steps.log_det)

    def _take(self, x: Tensor, filters: int, steps: int, recording: bool) -> "_Workspace":
        """Memory for a part of a batch; what another pass left, if it fits."""
        with suppress(IndexError):  # threads take from the same list
            while True:
                found = self.idle.pop()
                if found.fits(x, recording):
                    return found
        return _Workspace(x, filters, steps, recording)


class _FusedSteps(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, fused: FusedSteps, spaces: "list[_Workspace]", x: Tensor, matrices: Tensor, *weights: Tensor
    ) -> Mapped:
        ctx.fused, ctx.spaces = fused, spaces
        ctx.save_for_backward(matrices, *weights)
        y, sizes = torch.empty_like(x), [len(space) for space in spaces]
        parts = zip(spaces, torch.split(x, sizes), torch.split(y, sizes), strict=True)
        tasks = [partial(space.forward, part, matrices, weights, out) for space, part, out in parts]
        log_dets = at_once(tasks, fused.threads)
        return y, torch.cat(log_dets)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor, g_log_det: Tensor) -> tuple[Tensor | None, ...]:
        if ctx.spaces is None:
            raise RuntimeError("the steps of a flow can be differentiated once, and their memory is in use again")
        matrices, *weights = ctx.saved_tensors
        g_x, sizes = torch.empty_like(g), [len(space) for space in ctx.spaces]
        parts = zip(ctx.spaces, *(torch.split(tensor, sizes) for tensor in (g, g_log_det, g_x)), strict=True)
        tasks = [partial(space.backward, part, log_det, matrices, weights, out) for space, part, log_det, out in parts]
        first, *others = at_once(tasks, ctx.fused.threads)
        for total, *more in zip(first, *others, strict=True):
            for part in more:
                total += part
        ctx.fused.idle.extend(ctx.spaces)
        ctx.spaces = None
        return None, None, g_x, *first


class _Workspace:
    """Buffers for one call, and views of them, made once. If there will be a backward pass, each step has its own."""

    def __init__(self, x: Tensor, filters: int, steps: int, recording: bool) -> None:
        self.recording, self.like, self.shape = recording, x.new_empty(0), x.shape
        kept = kept_of(x.shape[-1])
        moved, count = x.shape[-1] - kept, x.shape[:3].numel()
        self.images = [_Image(x, kept) for _ in range(steps + 1 if recording else 2)]
        self.activations = [_Activations(x, moved, filters, recording) for _ in range(steps if recording else 1)]
        self.near, self.taps = _Neighbours(x, kept), _Taps(x, 2 * moved)
        self.parameters = x.new_empty(2 * moved, count)
        self.shift, self.raw = self.parameters.chunk(2)
        self.scales = x.new_empty(steps, moved, count)
        self.by_sample = moved, len(x), x.shape[1] * x.shape[2]
        if recording:
            self.g_out, self.g_mixed = _Image(x, kept), _Image(x, kept)
            self.g_log_scale = x.new_empty(self.by_sample)
            self.g_taps, self.g_near = _Neighbours(x, 2 * moved), _Taps(x, kept)
            self.g_second, self.g_first = x.new_empty(count, filters), x.new_empty(count, filters)

    def __len__(self) -> int:
        """How many samples it is for."""
        return self.shape[0]

    def fits(self, x: Tensor, recording: bool) -> bool:
        """Whether this is the space that such a batch needs."""
        own = (self.like.is_inference(), self.recording, self.shape, self.like.dtype, self.like.device)
        return own == (torch.is_inference_mode_enabled(), recording, x.shape, x.dtype, x.device)

    def forward(self, x: Tensor, matrices: Tensor, weights: Sequence[Tensor], y: Tensor) -> Tensor:
        """The steps, one after the other; writes what they make of x into y and gives the log-determinants."""
        self.images[0].write(x)
        for number, (matrix, (hidden1, hidden2, last, last_bias)) in _by_step(matrices, weights):
            source, target, own = self._of_step(number)
            torch.mm(matrix, source.with_one, out=target.values)
            self.near.gather(target.a)
            torch.mm(self.near.with_one.T, hidden1, out=own.first_values).relu_()
            torch.mm(own.first, hidden2, out=own.second).relu_()
            torch.mm(last, own.second.T, out=self.taps.values)
            self.taps.scatter(last_bias[:, None], self.parameters)
            scale = torch.sigmoid(self.raw.clamp_(min=CLOSED), out=self.scales[number])
            if self.recording:
                own.b.copy_(target.b)
            torch.addcmul(self.shift, target.b, scale, out=target.b)
        target.read(y)
        log_det: Tensor = self.scales.log().view(len(self.scales), *self.by_sample).sum((0, 1, 3), dtype=torch.float64)
        return log_det

    def backward(
        self, g: Tensor, g_log_det: Tensor, matrices: Tensor, weights: Sequence[Tensor], g_x: Tensor
    ) -> list[Tensor]:
        """Gradients of what `forward` was given, in that order."""
        out, mixed = self.g_out, self.g_mixed
        out.write(g)
        each = g_log_det.to(g.dtype)[:, None]
        g_parameters, g_taps = self.g_taps.inside, self.g_taps.values
        g_shift, g_raw = g_parameters.chunk(2)
        g_matrices = torch.empty_like(matrices)
        gradients: list[Tensor] = []
        for number, (matrix, (hidden1, hidden2, last, _)) in reversed(_by_step(matrices, weights)):
            source, target, own = self._of_step(number)
            scale = self.scales[number]
            torch.mul(out.b, scale, out=mixed.b)
            scaled, b = mixed.b.view(self.by_sample), own.b.view(self.by_sample)
            g_log_scale = torch.addcmul(each, scaled, b, out=self.g_log_scale).view_as(g_raw)
            g_shift.copy_(out.b)
            torch.addcmul(g_log_scale, g_log_scale, scale, value=-1, out=g_raw)  # σ' = σ (1 − σ)
            self.g_taps.gather_inside()

            g_last, g_last_bias = g_taps @ own.second, g_parameters.sum(1)
            torch.mm(g_taps.T, last, out=self.g_second)
            _relu_backward(self.g_second, own.second)
            g_hidden2 = own.first.T @ self.g_second
            torch.mm(self.g_second, hidden2[:-1].T, out=self.g_first)
            _relu_backward(self.g_first, own.first_values)
            self.near.gather(target.a)  # again: quicker than to fetch what forward had
            g_hidden1 = self.near.with_one @ self.g_first
            torch.mm(hidden1[:-1], self.g_first.T, out=self.g_near.values)
            self.g_near.scatter(out.a, mixed.a)

            torch.mm(mixed.values, source.with_one.T, out=g_matrices[number])
            torch.mm(matrix[:, :-1].T, mixed.values, out=out.values)
            gradients = [g_hidden1, g_hidden2, g_last, g_last_bias, *gradients]
        out.read(g_x)
        return [g_matrices, *gradients]

    def _of_step(self, number: int) -> "tuple[_Image, _Image, _Activations]":
        images, own = self.images, self.activations
        return images[number % len(images)], images[(number + 1) % len(images)], own[number % len(own)]


def _by_step(matrices: Tensor, weights: Sequence[Tensor]) -> list[tuple[int, tuple[Tensor, Sequence[Tensor]]]]:
    """Number, matrix and four weights of each step."""
    nets = [weights[first : first + 4] for first in range(0, len(weights), 4)]
    return [*enumerate(zip(matrices.unbind(), nets, strict=True))]


class _Image:
    """A batch as a matrix (channels, pixels), and a row of ones."""

    def __init__(self, x: Tensor, kept: int) -> None:
        n, height, width, channels = x.shape
        self.with_one = x.new_ones(channels + 1, n * height * width)
        self.values = self.with_one[:-1]
        self.a, self.b = self.values[:kept], self.values[kept:]
        self.shape = channels, n, height, width

    def write(self, x: Tensor) -> None:
        self.values.view(self.shape).copy_(x.permute(3, 0, 1, 2))

    def read(self, x: Tensor) -> None:
        x.permute(3, 0, 1, 2).copy_(self.values.view(self.shape))


class _Activations:
    """What the backward pass of a step needs; a pixel is a row of the hidden layers.

    Products with their transposes, for the gradients of weights, are fast if a row is contiguous; without any, forward
    is faster if a column is.
    """

    def __init__(self, x: Tensor, moved: int, filters: int, recording: bool) -> None:
        count = x.shape[:3].numel()
        self.first = x.new_ones(count, filters + 1) if recording else x.new_ones(filters + 1, count).T
        self.first_values = self.first[:, :-1]
        self.second = x.new_empty(count, filters) if recording else x.new_empty(filters, count).T
        self.b = x.new_empty(moved, count)


class _Neighbours:
    """The 3×3 neighbours of each pixel of an image: the image nine times, each time shifted by another tap."""

    def __init__(self, x: Tensor, channels: int) -> None:
        n, height, width = x.shape[:3]
        count = n * height * width
        flat = x.new_zeros(channels * count + 2 * (width + 1))
        self.inside = flat[width + 1 : width + 1 + channels * count].view(channels, count)
        self.shifted = flat.as_strided((3, 3, channels * count), (width, 1, 1))
        self.with_one = x.new_ones(TAPS * channels + 1, count)
        self.values = self.with_one[:-1]
        self.taps = self.values.view(3, 3, channels * count)
        each = self.values.view(3, 3, channels * n, height, width)
        self.beyond = each[0, :, :, 0], each[2, :, :, -1], each[:, 0, :, :, 0], each[:, 2, :, :, -1]

    def gather(self, image: Tensor) -> None:
        """Those of an image."""
        self.inside.copy_(image)
        self.gather_inside()

    def gather_inside(self) -> None:
        """Those of what is in `inside`; beyond the edge, where a shift takes another line or image, zeros."""
        self.taps.copy_(self.shifted)
        for edge in self.beyond:
            edge.zero_()


class _Taps:
    """Nine parts for each pixel, one for each of its 3×3 neighbours, tap by tap."""

    def __init__(self, x: Tensor, channels: int) -> None:
        n, height, width = x.shape[:3]
        self.values = x.new_empty(TAPS * channels, n * height * width)
        above, middle, below = self.values.view(3, 3 * channels * n, height * width)
        self.up = middle[:, : (height - 1) * width], above[:, width:]
        self.down = middle[:, width:], below[:, : (height - 1) * width]
        left, self.centre, right = middle.view(3, channels, -1)
        self.edges = left.view(-1, width)[:, 0], right.view(-1, width)[:, -1]
        self.left, self.right = left.view(-1)[1:], right.view(-1)[:-1]

    def scatter(self, onto: Tensor, out: Tensor) -> None:
        """out = onto + the parts, each at its neighbour; overwrites the parts."""
        for middle, other in (self.up, self.down):
            middle += other
        for edge in self.edges:  # nothing moves to the next line
            edge.zero_()
        torch.add(onto, self.centre, out=out)
        flat = out.view(-1)
        flat[:-1] += self.left
        flat[1:] += self.right


def _relu_backward(gradient: Tensor, output: Tensor) -> None:
    """Zero in place where the ReLU let nothing through."""
    torch.ops.aten.threshold_backward(gradient, output, 0, grad_input=gradient)
