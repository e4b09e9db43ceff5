import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from dose_ood.errors import InputError
from dose_ood.models.bijectors import (
    ActNorm,
    AffineCoupling,
    CoupledSplit,
    Invertible1x1,
    Split,
    Squeeze,
    Step,
)
from dose_ood.models.fused import FusedSteps, fold
from dose_ood.noise import generator

pytestmark = pytest.mark.usefixtures("one_thread")
SHAPES = [(2, 3, 4), (1, 1, 2), (3, 2, 5), (7, 1, 3)]  # height, width, channels
each_shape = pytest.mark.parametrize("shape", SHAPES, ids=str)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.from_numpy(generator("test", seed).normal(size=shape))


def disturbed(module: nn.Module, by: float = 0.2) -> nn.Module:
    """In float64, with every parameter, zeros too, moved somewhere else."""
    module.double()
    with torch.no_grad():
        for number, parameter in enumerate(module.parameters()):
            parameter += by * normal(*parameter.shape, seed=number)
    return module


def bijectors(channels: int) -> list[nn.Module]:
    random = generator("bijectors")
    layers = [ActNorm(channels), Invertible1x1(channels, random), AffineCoupling(channels, 6, 0.5, random)]
    return [disturbed(layer) for layer in [*layers, Step(channels, 6, 0.5, random)]]


def jacobian_log_det(function, x: Tensor) -> float:
    """log |det| of a map of one sample, from its Jacobian by automatic differentiation, a row at a time."""
    rows = []
    for index in range(x.numel()):
        leaf = x.clone().requires_grad_()
        function(leaf).reshape(-1)[index].backward()
        rows.append(leaf.grad.reshape(-1))
    return torch.linalg.slogdet(torch.stack(rows)).logabsdet.item()


@each_shape
@pytest.mark.parametrize("number", range(4), ids=["ActNorm", "Invertible1x1", "AffineCoupling", "Step"])
def test_log_determinant_is_that_of_the_jacobian(shape, number):
    layer = bijectors(shape[-1])[number]
    x = normal(3, *shape)
    _, log_det = layer(x)
    assert log_det.shape == (3,)
    assert log_det.dtype == torch.float64
    for sample, found in zip(x, log_det, strict=True):
        expected = jacobian_log_det(lambda leaf: layer(leaf[None])[0], sample)
        assert abs(expected) > 1e-3  # a layer that does nothing proves nothing
        assert found.item() == pytest.approx(expected, rel=1e-9, abs=1e-9)


@each_shape
@pytest.mark.parametrize("number", range(4), ids=["ActNorm", "Invertible1x1", "AffineCoupling", "Step"])
def test_inverse_undoes_forward_and_forward_undoes_inverse(shape, number):
    layer = bijectors(shape[-1])[number]
    x = normal(3, *shape)
    torch.testing.assert_close(layer.inverse(layer(x)[0]), x, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(layer(layer.inverse(x))[0], x, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("block", [(2, 2), (1, 2), (2, 1), (1, 1)])
def test_squeeze_moves_each_block_into_one_pixel(block):
    squeeze, x = Squeeze(block), normal(2, 4, 6, 3)
    y = squeeze(x)
    assert y.shape == (2, 4 // block[0], 6 // block[1], 3 * block[0] * block[1])
    first = x[:, : block[0], : block[1]].reshape(2, -1)
    assert torch.equal(y[:, 0, 0], first)
    assert torch.equal(squeeze.inverse(y), x)


@pytest.mark.parametrize("channels", [2, 5])
@pytest.mark.parametrize("coupled", [False, True])
def test_a_split_gives_two_halves_and_takes_them_back(channels, coupled):
    x, layer = normal(2, 3, 3, channels), CoupledSplit(channels).double() if coupled else Split()
    kept, latent, log_det = layer(x)
    assert (kept.shape[-1], latent.shape[-1]) == (channels - channels // 2, channels // 2)
    assert torch.equal(log_det, torch.zeros(2, dtype=torch.float64)), "a fresh one leaves values as they are"
    assert torch.equal(layer.inverse(kept, latent), x)


def test_an_exit_scales_by_what_goes_on():
    layer, x = disturbed(CoupledSplit(5).double()), normal(3, 4, 4, 5)
    kept, latent, log_det = layer(x)
    torch.testing.assert_close(layer.inverse(kept, latent), x, rtol=1e-9, atol=1e-9)
    for sample, found in zip(x, log_det, strict=True):
        expected = jacobian_log_det(lambda leaf: torch.cat(layer(leaf[None])[:2], dim=-1)[0], sample)
        assert abs(expected) > 1e-3
        assert found.item() == pytest.approx(expected, rel=1e-9, abs=1e-9)
    far = layer.float()(1e6 * x.float())
    assert all(torch.isfinite(each).all() for each in far[1:])


def test_actnorm_normalises_its_first_batch_and_no_other():
    layer, x = ActNorm(3).double(), 5 + torch.tensor([1.0, 2.0, 1e-3]) * normal(64, 2, 2, 3)
    torch.testing.assert_close(layer(x)[0], x)
    assert not layer.initialised
    layer.initialize(x)
    rows = layer(x)[0].flatten(0, 2)
    torch.testing.assert_close(rows.mean(0), torch.zeros(3, dtype=torch.float64), atol=1e-6, rtol=0)
    torch.testing.assert_close(rows.var(0, correction=0), torch.ones(3, dtype=torch.float64), atol=3e-3, rtol=0)
    with pytest.raises(InputError, match="initialised already"):
        layer.initialize(x)


def test_actnorm_bears_a_constant_channel():
    layer = ActNorm(2)
    layer.initialize(torch.zeros(4, 2, 2, 2))
    y, log_det = layer(torch.ones(1, 2, 2, 2))
    assert torch.isfinite(y).all()
    assert torch.isfinite(log_det).all()


@pytest.mark.parametrize("channels", [1, 2, 12, 48])
def test_a_fresh_mixing_is_a_rotation(channels):
    weight = Invertible1x1(channels, generator("rotation")).weight()
    torch.testing.assert_close(weight @ weight.T, torch.eye(channels, dtype=torch.float64), atol=2e-6, rtol=0)
    assert channels == 1 or (weight - torch.eye(channels)).abs().max() > 0.1


@pytest.mark.parametrize("opening", [2.0, 0.0, -1.0])
def test_a_fresh_coupling_is_the_identity_and_a_trained_one_is_bounded(opening):
    layer, x = AffineCoupling(4, 8, opening, generator("coupling")).double(), normal(2, 3, 3, 4)
    y, log_det = layer(x)
    torch.testing.assert_close(y, x)
    torch.testing.assert_close(log_det, torch.zeros(2, dtype=torch.float64), atol=1e-12, rtol=0)
    _, log_scale = disturbed(layer, by=100.0).network(1e6 * normal(2, 3, 3, 2))
    assert log_scale.max().exp().item() == pytest.approx(1 + math.exp(-opening))
    assert torch.isfinite(log_scale).all()


def test_a_coupling_needs_two_channels():
    with pytest.raises(InputError, match="at least 2 channels, got 1"):
        AffineCoupling(1, 4, 0.0, generator("coupling"))


def test_folded_is_actnorm_mixing_and_largest_scale_in_one_matrix():
    largest = 1 + math.exp(-0.5)
    most = torch.tensor([1.0, 1.0, 1.0, largest, largest], dtype=torch.float64)
    steps = [disturbed(Step(5, 4, 0.5, generator(f"{number}"))) for number in range(3)]
    folded = fold(steps)
    x = normal(2, 3, 3, 5)
    for step, matrix in zip(steps, folded.matrices, strict=True):
        expected = step.mix(step.norm(x)[0])[0] * most
        torch.testing.assert_close(x @ matrix[:, :-1].T + matrix[:, -1], expected, rtol=1e-12, atol=1e-12)
    expected = sum(step.norm(x)[1] + step.mix(step.norm(x)[0])[1] + 9 * 2 * math.log(largest) for step in steps)
    torch.testing.assert_close((9 * folded.log_det).expand(2), expected)


class Fused:
    """Folds and runs, in memory of its own."""

    def __init__(self) -> None:
        self.run = FusedSteps()

    def __call__(self, steps: list[Step], x: Tensor) -> tuple[Tensor, Tensor]:
        return self.run(fold(steps), x)


def several(channels: int, filters: int = 6, count: int = 3) -> list[Step]:
    return [disturbed(Step(channels, filters, 0.5, generator(f"step {number}"))) for number in range(count)]


def one_by_one(steps: list[Step], x: Tensor) -> tuple[Tensor, Tensor]:
    log_det = torch.zeros(len(x), dtype=torch.float64)
    for step in steps:
        x, part = step(x)
        log_det = log_det + part
    return x, log_det


def some_loss(y: Tensor, log_det: Tensor) -> Tensor:
    """Something whose gradient is another one at every place."""
    weights = torch.linspace(-1, 2, y.numel(), dtype=y.dtype).view_as(y)
    return (weights * y).sin().sum() + (torch.arange(1, len(y) + 1) * log_det).sum()


@each_shape
def test_the_fused_steps_are_the_steps(shape):
    steps, x = several(shape[-1]), normal(4, *shape).requires_grad_()
    fused = Fused()
    leaves = [x, *(parameter for step in steps for parameter in step.parameters())]
    expected = one_by_one(steps, x)
    gradients = torch.autograd.grad(some_loss(*expected), leaves)
    for _ in range(2):  # the second time in the memory of the first
        found = fused(steps, x)
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(torch.autograd.grad(some_loss(*found), leaves), gradients, rtol=1e-8, atol=1e-8)
        with torch.no_grad():
            torch.testing.assert_close(fused(steps, x), expected, rtol=1e-10, atol=1e-10)


def test_fused_gradients_are_those_of_finite_differences():
    steps, fused = several(4, count=2), Fused()
    x = normal(2, 2, 3, 4).requires_grad_()
    leaves = [x, steps[0].mix.triangles, steps[1].coupling.hidden1, steps[0].coupling.last, steps[1].norm.mean]
    for leaf, gradient in zip(leaves, torch.autograd.grad(some_loss(*fused(steps, x)), leaves), strict=True):
        direction = normal(*leaf.shape, seed=7)
        values = []
        for sign in (1, -1):
            with torch.no_grad():
                leaf += sign * 1e-6 * direction
                values.append(some_loss(*fused(steps, x)).item())
                leaf -= sign * 1e-6 * direction
        slope = (values[0] - values[1]) / 2e-6
        assert (gradient * direction).sum().item() == pytest.approx(slope, rel=1e-5, abs=1e-5)


def test_two_passes_at_a_time_do_not_share_memory():
    steps, fused = several(4), Fused()
    inputs = [normal(3, 2, 2, 4, seed=seed).requires_grad_() for seed in (1, 2)]
    losses = [some_loss(*fused(steps, x)) for x in inputs]
    for x, loss in reversed([*zip(inputs, losses, strict=True)]):
        expected = torch.autograd.grad(some_loss(*one_by_one(steps, x)), x)
        torch.testing.assert_close(torch.autograd.grad(loss, x), expected)


def test_what_fused_steps_gave_stays_as_it_was():
    steps, fused = several(4), Fused()
    for context in (torch.no_grad, torch.enable_grad, torch.inference_mode):
        with context():
            first, _ = fused(steps, normal(3, 2, 2, 4, seed=1))
            copy = first.detach().clone()
            fused(steps, normal(3, 2, 2, 4, seed=2))
            assert torch.equal(first, copy)


def test_a_second_backward_pass_is_refused():
    steps, x = several(4), normal(3, 2, 2, 4).requires_grad_()
    loss = some_loss(*Fused()(steps, x))
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="differentiated once"):
        loss.backward()


def test_a_sample_without_sense_does_not_touch_the_others():
    steps, fused, x = several(4), Fused(), normal(3, 3, 3, 4)
    spoilt = x.clone()
    spoilt[1] = np.nan
    with torch.no_grad():
        expected, log_det = fused(steps, x)
        found, other = fused(steps, spoilt)
        again, _ = fused(steps, x)
    torch.testing.assert_close(found[[0, 2]], expected[[0, 2]])
    torch.testing.assert_close(other[[0, 2]], log_det[[0, 2]])
    assert torch.equal(again, expected)
    assert found[1].isnan().any()
