import numpy as np
import pytest

from dose_ood import InputError
from dose_ood.data.shifts import SHIFTS, gaussian_noise, hflip, inverted, mutate, uniform_noise, vflip
from dose_ood.noise import generator

IMAGES = generator("images").integers(0, 256, (200, 3, 8, 8), dtype=np.uint8)


def test_flips_are_their_own_inverses_and_move_the_corners():
    assert np.array_equal(hflip(hflip(IMAGES)), IMAGES)
    assert np.array_equal(vflip(vflip(IMAGES)), IMAGES)
    assert np.array_equal(hflip(IMAGES)[:, :, 0, 0], IMAGES[:, :, 0, -1])
    assert np.array_equal(vflip(IMAGES)[:, :, 0, 0], IMAGES[:, :, -1, 0])


def test_noises_have_their_moments_and_no_memory_of_the_images():
    n = IMAGES.size
    uniform, gaussian = uniform_noise(IMAGES), gaussian_noise(IMAGES)
    deviation = np.sqrt((256**2 - 1) / 12)
    assert uniform.mean() == pytest.approx(127.5, abs=4 * deviation / np.sqrt(n))
    assert set(np.unique(uniform)) == set(range(256))
    assert gaussian.mean() == pytest.approx(127.5, abs=4 * 63.75 / np.sqrt(n))
    assert 55 < gaussian.std() < 63.75, "clipping takes a little away"
    for shift in (uniform_noise, gaussian_noise):
        assert np.array_equal(shift(IMAGES, seed=1), shift(np.zeros_like(IMAGES), seed=1))
        assert not np.array_equal(shift(IMAGES, seed=1), shift(IMAGES, seed=2))


def test_inverted_twice_is_the_image():
    assert np.array_equal(inverted(inverted(IMAGES)), IMAGES)
    assert inverted(np.array([0, 1, 255], np.uint8)).tolist() == [255, 254, 0]


@pytest.mark.parametrize("shift", SHIFTS.values(), ids=SHIFTS)
def test_every_shift_keeps_shape_and_type_and_leaves_its_input_alone(shift):
    before = IMAGES.copy()
    shifted = shift(IMAGES, 0)
    assert shifted.shape == IMAGES.shape
    assert shifted.dtype == np.uint8
    assert np.array_equal(IMAGES, before)
    assert not np.array_equal(shifted, IMAGES)


def test_a_mutation_replaces_its_share_of_values_evenly():
    zeros = np.zeros((500, 1, 28, 28), np.uint8)
    mutated = mutate(zeros, generator("mutation"), 0.15)
    share = 0.15 * 255 / 256
    assert (mutated != 0).mean() == pytest.approx(share, abs=4 * np.sqrt(share / zeros.size))
    assert mutated[mutated != 0].mean() == pytest.approx(128, abs=4 * 74 / np.sqrt(share * zeros.size))
    assert np.array_equal(mutate(IMAGES, generator("mutation"), 0.0), IMAGES)
    with pytest.raises(InputError, match=r"must be in \[0, 1\], got 1.5"):
        mutate(IMAGES, generator("mutation"), 1.5)
