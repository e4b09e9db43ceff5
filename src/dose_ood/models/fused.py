"""The steps of a Glow's level as few large matrix products, the way that training and measuring go."""

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from dose_ood.models.bijectors import CLOSED, TAPS, Mapped, Step, kept_of, lu_weights, same_for_all
from dose_ood.models.parallel import at_once, workers

LEAST_IMAGES = 4  # of a batch, that a thread works on
MOST_PIXELS = 4096  # that it works on at a time; more do not stay in its cache,
MOST_VALUES = 900_000  # and neither do more values of a hidden layer
LEAST_SCALE = math.exp(CLOSED)


@dataclass(frozen=True)
class Folded:
    """The steps of a level as a batch meets them: nothing is left to compute that does not depend on the batch.

    Parameters
    ----------
    matrices
        ActNorm, 1×1 convolution and the coupling's largest scale in one, shape (steps, c, c + 1): one of them times
        (x, 1) is W exp(s) (x − m), its second half times 1 / σ(opening).
    log_det
        The log-determinant of all of them together, for each pixel, in float64.
    weights
        Those of the coupling networks, four for each step; the last bias is a column and includes the opening. Their
        precision is that in which the networks compute.
    """

    matrices: Tensor
    log_det: Tensor
    weights: tuple[Tensor, ...]


def fold(steps: Sequence[Step], dtype: torch.dtype | None = None) -> Folded:
    """Fold ActNorm and 1×1 convolution of each step into one matrix, in float64; differentiable.

    The coupling networks' convolutions are given in `dtype`, if it is told.
    """
    scales = torch.stack([step.norm.log_scale for step in steps]).double()
    means = torch.stack([step.norm.mean for step in steps]).double()
    diagonals = torch.stack([step.mix.log_diagonal for step in steps]).double()
    nets = [step.coupling for step in steps]
    most = torch.zeros_like(scales[0])
    most[kept_of(len(most)) :] = nets[0].log_most
    mixed = lu_weights([step.mix for step in steps]) * scales.exp()[:, None, :] * most.exp()[:, None]
    matrices = torch.cat([mixed, -(mixed @ means[:, :, None])], dim=2)
    opening = torch.zeros_like(nets[0].last_bias)
    opening[len(opening) // 2 :] = nets[0].opening
    biases = (torch.stack([net.last_bias for net in nets]) + opening)[:, :, None].unbind()
    convolutions = [[each.to(dtype or each.dtype) for each in (net.hidden1, net.hidden2, net.last)] for net in nets]
    weights = tuple(w for each, b in zip(convolutions, biases, strict=True) for w in (*each, b))
    log_det = scales.sum() + diagonals.sum() + len(steps) * most.sum()
    return Folded(matrices.to(opening.dtype), log_det, weights)


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
        most = max(1, min(MOST_PIXELS, MOST_VALUES // filters) // x.shape[1:3].numel())
        turns = max(1, -(-len(x) // (self.threads * most)))
        parts = torch.tensor_split(x, self.threads * turns)
        spaces = [self._take(part, filters, count, recording, steps.weights[0].dtype) for part in parts]
        found = _FusedSteps.apply(self, spaces, x, steps.matrices, *steps.weights)  # type: ignore[no-untyped-call]
        y, log_det = cast(Mapped, found)
        if not recording:
            self.idle.extend(spaces)
        return y, log_det + same_for_all(x, steps.log_det)

    def _take(self, x: Tensor, filters: int, steps: int, recording: bool, dtype: torch.dtype) -> "_Workspace":
        """Memory for a part of a batch; what another pass left, if it fits."""
        with suppress(IndexError):  # threads take from the same list
            while True:
                found = self.idle.pop()
                if found.fits(x, recording, dtype):
                    return found
        return _Workspace(x, filters, steps, recording, dtype)


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
    """Buffers for one call, and views of them, made once. If there will be a backward pass, each step has its own.

    `dtype` is that of the coupling networks; what goes through the flow itself has the precision of x.
    """

    def __init__(self, x: Tensor, filters: int, steps: int, recording: bool, dtype: torch.dtype) -> None:
        self.recording, self.like, self.shape, self.dtype = recording, x.new_empty(0), x.shape, dtype
        inner = x.new_empty(x.shape, dtype=dtype)
        kept = kept_of(x.shape[-1])
        moved, count = x.shape[-1] - kept, x.shape[:3].numel()
        self.images = [_Image(x, kept) for _ in range(steps + 1 if recording else 2)]
        self.activations = [_Activations(x, inner, moved, filters, recording) for _ in range(steps if recording else 1)]
        self.near = _Neighbours(inner, kept)
        parameters = x.new_empty(2 * moved, count)
        self.shift, self.raw = parameters.chunk(2)
        self.taps = _Taps(inner, parameters)
        self.scales = x.new_empty(steps, moved, count)
        self.scale_of = self.scales.unbind()
        self.by_sample = moved, len(x), x.shape[1] * x.shape[2]
        if recording:
            self.g_out, self.g_mixed = _Image(x, kept), _Image(x, kept)
            self.g_log_scale = x.new_empty(self.by_sample)
            self.g_parameters = _Padded(x, 2 * moved)
            self.g_taps, self.g_near = _Neighbours(inner, 2 * moved), _Taps(inner, self.g_mixed.a)
            self.g_second, self.g_first = inner.new_empty(count, filters), inner.new_empty(count, filters)

    def __len__(self) -> int:
        """How many samples it is for."""
        return self.shape[0]

    def fits(self, x: Tensor, recording: bool, dtype: torch.dtype) -> bool:
        """Whether this is the space that such a batch needs."""
        own = (self.like.is_inference(), self.recording, self.shape, self.like.dtype, self.like.device, self.dtype)
        return own == (torch.is_inference_mode_enabled(), recording, x.shape, x.dtype, x.device, dtype)

    def forward(self, x: Tensor, matrices: Tensor, weights: Sequence[Tensor], y: Tensor) -> Tensor:
        """The steps, one after the other; writes what they make of x into y and gives the log-determinants."""
        self.images[0].write(x)
        for number, (matrix, (hidden1, hidden2, last, last_bias)) in _by_step(matrices, weights):
            source, target, own = self._of_step(number)
            torch.mm(matrix, source.with_one, out=target.values)
            self.near.gather(target.shifted)
            torch.mm(self.near.rows, hidden1, out=own.first_values).relu_()
            torch.mm(own.first, hidden2, out=own.second).relu_()
            torch.mm(last, own.second_columns, out=self.taps.product)
            self.taps.scatter(last_bias)
            scale = torch.sigmoid(self.raw, out=self.scale_of[number])
            if self.recording:
                own.b.copy_(target.b)
            torch.addcmul(self.shift, target.b, scale, out=target.b)
        target.read(y)
        scales = self.scales.clamp_(min=LEAST_SCALE)
        logs = scales.log() if self.recording else scales.log_()
        log_det: Tensor = logs.view(len(logs), *self.by_sample).sum((0, 1, 3), dtype=torch.float64)
        return log_det

    def backward(
        self, g: Tensor, g_log_det: Tensor, matrices: Tensor, weights: Sequence[Tensor], g_x: Tensor
    ) -> list[Tensor]:
        """Gradients of what `forward` was given, in that order."""
        out, mixed = self.g_out, self.g_mixed
        out.write(g)
        each = g_log_det.to(g.dtype)[:, None]
        g_parameters, g_taps = self.g_parameters, self.g_taps.values
        g_shift, g_raw = g_parameters.values.chunk(2)
        g_matrices = torch.empty_like(matrices)
        gradients: list[Tensor] = []
        for number, (matrix, (hidden1, hidden2, last, _)) in reversed(_by_step(matrices, weights)):
            source, target, own = self._of_step(number)
            scale = self.scale_of[number]
            torch.mul(out.b, scale, out=mixed.b)
            scaled, b = mixed.b.view(self.by_sample), own.b.view(self.by_sample)
            g_log_scale = torch.addcmul(each, scaled, b, out=self.g_log_scale).view_as(g_raw)
            g_shift.copy_(out.b)
            torch.addcmul(g_log_scale, g_log_scale, scale, value=-1, out=g_raw)  # σ' = σ (1 − σ)
            self.g_taps.gather(g_parameters.shifted)

            g_last, g_last_bias = g_taps @ own.second, g_parameters.values.sum(1, keepdim=True)
            torch.mm(g_taps.T, last, out=self.g_second)
            _relu_backward(self.g_second, own.second)
            g_hidden2 = own.first.T @ self.g_second
            torch.mm(self.g_second, hidden2[:-1].T, out=self.g_first)
            _relu_backward(self.g_first, own.first_values)
            self.near.gather(target.shifted)  # again: quicker than to fetch what forward had
            g_hidden1 = self.near.with_one @ self.g_first
            torch.mm(hidden1[:-1], self.g_first.T, out=self.g_near.product)
            self.g_near.scatter(out.a)

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


class _Padded:
    """Rows of pixels, and the first of them as each of 3×3 neighbours sees them, which may be beyond an edge."""

    def __init__(self, x: Tensor, rows: int, seen: int | None = None) -> None:
        n, height, width, _ = x.shape
        count, edge = n * height * width, width + 1
        flat = x.new_ones(rows * count + 2 * edge)
        self.values = flat[edge:-edge].view(rows, count)
        self.shifted = flat.as_strided((3, 3, (seen or rows) * count), (width, 1, 1))


class _Image:
    """A batch as a matrix (channels, pixels), and a row of ones."""

    def __init__(self, x: Tensor, kept: int) -> None:
        n, height, width, channels = x.shape
        padded = _Padded(x, channels + 1, kept)
        self.with_one, self.shifted = padded.values, padded.shifted
        self.values = self.with_one[:-1]
        self.a, self.b = self.values[:kept], self.values[kept:]
        self.by_channel = self.values.view(channels, n, height, width)

    def write(self, x: Tensor) -> None:
        self.by_channel.copy_(x.permute(3, 0, 1, 2))

    def read(self, x: Tensor) -> None:
        x.permute(3, 0, 1, 2).copy_(self.by_channel)


class _Activations:
    """What the backward pass of a step needs; a pixel is a row of the hidden layers.

    Products with their transposes, for the gradients of weights, are fast if a row is contiguous; without any, forward
    is faster if a column is.
    """

    def __init__(self, x: Tensor, inner: Tensor, moved: int, filters: int, recording: bool) -> None:
        count = x.shape[:3].numel()
        self.first = inner.new_ones(count, filters + 1) if recording else inner.new_ones(filters + 1, count).T
        self.first_values = self.first[:, :-1]
        self.second = inner.new_empty(count, filters) if recording else inner.new_empty(filters, count).T
        self.second_columns = self.second.T
        self.b = x.new_empty(moved, count)


class _Neighbours:
    """The 3×3 neighbours of each pixel of an image: the image nine times, each time shifted by another tap."""

    def __init__(self, x: Tensor, channels: int) -> None:
        n, height, width = x.shape[:3]
        size = channels * n * height * width
        with_one = x.new_ones(TAPS * channels + 1, n * height * width)
        self.with_one, self.rows, self.values = with_one, with_one.T, with_one[:-1]
        self.taps = self.values.view(3, 3, size)
        # The first and last lines of every image, seen from below and above, and so its first and last columns.
        lines = (2, 3, channels * n, width), (6 * size + (height - 1) * width, size, height * width, 1)
        columns = (2, 3, channels * n * height), (2 * size + width - 1, 3 * size, width)
        self.beyond = with_one.as_strided(*lines), with_one.as_strided(*columns)

    def gather(self, shifted: Tensor) -> None:
        """Those of an image; beyond the edge, where a shift takes another line or image, zeros."""
        self.taps.copy_(shifted)
        for edge in self.beyond:
            edge.zero_()


class _Taps:
    """Nine parts for each pixel, one for each of its 3×3 neighbours, tap by tap, to be added up in `out`."""

    def __init__(self, x: Tensor, out: Tensor) -> None:
        n, height, width = x.shape[:3]
        channels, size = len(out), out.numel()
        self.values = out.new_empty(TAPS * channels, n * height * width)
        self.product = self.values if x.dtype == out.dtype else x.new_empty(self.values.shape)
        above, middle, below = self.values.view(3, 3 * channels * n, height * width)
        self.up = middle[:, : (height - 1) * width], above[:, width:]
        self.down = middle[:, width:], below[:, : (height - 1) * width]
        left, self.centre, right = middle.view(3, *out.shape)
        self.ends = middle.as_strided((2, size // width), (2 * size + width - 1, width))
        self.out, flat = out, out.view(-1)
        self.left, self.right = (flat[:-1], left.view(-1)[1:]), (flat[1:], right.view(-1)[:-1])

    def scatter(self, onto: Tensor) -> None:
        """out = onto + the parts, which lie in `product`, each at its neighbour; overwrites them."""
        if self.product is not self.values:
            self.values.copy_(self.product)
        for middle, other in (self.up, self.down):
            middle.add_(other)
        self.ends.zero_()  # nothing moves to the next line
        torch.add(onto, self.centre, out=self.out)
        for pixels, neighbours in (self.left, self.right):
            pixels.add_(neighbours)


def _relu_backward(gradient: Tensor, output: Tensor) -> None:
    """Zero in place where the ReLU let nothing through."""
    torch.ops.aten.threshold_backward(gradient, output, 0, grad_input=gradient)
