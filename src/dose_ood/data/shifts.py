"""Shifted data: what stands in for the unknown, and what a background model is trained on.

Every function takes uint8 images of shape (n, c, h, w) and returns as many of the same shape.
"""

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from dose_ood.errors import InputError
from dose_ood.noise import generator

Images: TypeAlias = NDArray[np.uint8]


def uniform_noise(images: Images, seed: int = 0) -> Images:
    """Grey levels drawn evenly from 0 to 255; only the shape of `images` is used."""
    return generator("uniform noise", seed).integers(0, 256, images.shape, dtype=np.uint8)


def gaussian_noise(images: Images, seed: int = 0, mean: float = 127.5, deviation: float = 63.75) -> Images:
    """Grey levels drawn from N(mean, deviation²), rounded and clipped; only the shape of `images` is used."""
    random = generator("gaussian noise", seed)
    shifted = np.empty(images.shape, np.uint8)
    for row in range(len(images)):  # a float for every pixel at once would take eight times the memory
        drawn = mean + deviation * random.standard_normal(images.shape[1:])
        shifted[row] = np.clip(np.rint(drawn), 0, 255)
    return shifted


def hflip(images: Images, seed: int = 0) -> Images:
    """Left and right exchanged; nothing is drawn."""
    return np.ascontiguousarray(images[..., ::-1])


def vflip(images: Images, seed: int = 0) -> Images:
    """Top and bottom exchanged; nothing is drawn."""
    return np.ascontiguousarray(images[..., ::-1, :])


def inverted(images: Images, seed: int = 0) -> Images:
    """Black and white exchanged; nothing is drawn."""
    return np.uint8(255) - images


def mutate(images: Images, random: np.random.Generator, rate: float = 0.15) -> Images:
    """Replace each value of each pixel, with probability `rate`, by a grey level drawn evenly from 0 to 255.

    This destroys what an image means and keeps most of what its background looks like. A replaced value may happen
    to stay as it was, so the share that changes is 255/256 of `rate`.

    References
    ----------
    *Likelihood Ratios for Out-of-Distribution Detection (Ren et al., 2019)*
    """
    if not 0 <= rate <= 1:
        raise InputError(f"the mutation rate must be in [0, 1], got {rate}")
    replaced = random.random(images.shape, dtype=np.float32) < rate
    return np.where(replaced, random.integers(0, 256, images.shape, dtype=np.uint8), images)


SHIFTS: dict[str, Callable[[Images, int], Images]] = {
    "uniform_noise": uniform_noise,
    "gaussian_noise": gaussian_noise,
    "hflip": hflip,
    "vflip": vflip,
    "inverted": inverted,
}
