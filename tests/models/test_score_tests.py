"""Score tests against autograd's gradients of a flow with one more step, and against what they are of white noise."""

import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from dose_ood.errors import InputError
from dose_ood.models.score_tests import score_tests
from dose_ood.noise import generator

SHAPE = (3, 4, 5)
CENTRE = 1


def latents(count: int, shape: tuple[int, int, int] = SHAPE) -> Tensor:
    return torch.from_numpy(generator("latents of a test").normal(size=(count, *shape)))


def log_density(z: Tensor, weight: Tensor, shift: Tensor) -> Tensor:
    """log N of what a 3×3 convolution makes of one image's latents, and the log-determinant of the convolution."""

    def step(x: Tensor) -> Tensor:
        return functional.conv2d(x, weight, shift, padding=1)

    basis = torch.eye(z.numel(), dtype=z.dtype).view(-1, *z.shape)
    matrix = (step(basis) - shift[:, None, None]).flatten(1)
    return -0.5 * step(z[None]).square().sum() + torch.linalg.slogdet(matrix).logabsdet


@pytest.mark.parametrize("shape", [SHAPE, (2, 1, 4), (2, 4, 1), (4, 2, 2)])
def test_they_are_gradients_of_one_more_step_at_the_identity(shape):
    channels, height, width = shape
    pixels = height * width
    identity = torch.zeros(channels, channels, 3, 3, dtype=torch.float64)
    identity[range(channels), range(channels), CENTRE, CENTRE] = 1
    z = latents(5, shape)
    found = score_tests(z)
    for row, image in enumerate(z):
        weight, shift = identity.clone().requires_grad_(), z.new_zeros(channels).requires_grad_()
        of_weight, of_shift = torch.autograd.grad(log_density(image, weight, shift), (weight, shift))
        expected = {
            "shift": of_shift.square().sum() / pixels / channels,
            "mix": of_weight[:, :, CENTRE, CENTRE].square().sum() / 2 / pixels / (channels * (channels + 1) / 2),
        }
        pairs = {(i, j): (height - abs(i - CENTRE)) * (width - abs(j - CENTRE)) for i in range(3) for j in range(3)}
        del pairs[CENTRE, CENTRE]
        near = [of_weight[:, :, i, j].square().sum() / many for (i, j), many in pairs.items() if many]
        expected["near"] = torch.stack(near).mean() / channels**2  # opposite directions have the same sum
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            torch.testing.assert_close(found[name][row], value.log(), rtol=1e-10, atol=1e-10)


def test_their_mean_is_one_where_latents_are_white_noise():
    many = 20_000
    for value in score_tests(latents(many)).values():
        scores = value.exp()
        assert abs(scores.mean() - 1) < 4 * scores.std() / math.sqrt(many)


def test_each_of_them_sees_what_its_layer_would_mend():
    z = latents(2_000, (4, 8, 8))
    before = {name: value.mean() for name, value in score_tests(z).items()}

    def rise(changed: Tensor) -> dict[str, float]:
        return {name: float(value.mean() - before[name]) for name, value in score_tests(changed).items()}

    moved = rise(z + 0.2)
    assert moved["shift"] > 1
    wider = rise(1.2 * z)
    assert wider["mix"] > 1.5
    assert wider["shift"] == pytest.approx(2 * math.log(1.2))
    smooth = rise((z + z.roll(1, 2) + z.roll(1, 3)) / math.sqrt(3))  # white but for its neighbours
    assert smooth["near"] > 0.8 > smooth["mix"]


def test_turning_channels_or_the_image_changes_nothing():
    z = latents(6, (4, 3, 5))
    rotation = torch.linalg.qr(latents(1, (1, 4, 4))[0, 0]).Q
    expected = score_tests(z)
    for same in (torch.einsum("ab,nbhw->nahw", rotation, z), z.flip(2), z.flip(3), -z, z.transpose(2, 3)):
        for name, value in score_tests(same).items():
            torch.testing.assert_close(value, expected[name], rtol=1e-10, atol=1e-10)


def test_a_single_pixel_has_no_neighbours():
    assert list(score_tests(latents(2, (3, 1, 1)))) == ["shift", "mix"]
    assert [len(value) for value in score_tests(latents(0)).values()] == [0, 0, 0]


def test_other_shapes_are_refused():
    with pytest.raises(InputError, match=r"latents of shape \(n, c, h, w\), got \(3, 4\)"):
        score_tests(torch.zeros(3, 4))
