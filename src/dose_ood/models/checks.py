"""What models refuse by name: configurations that nothing can be built from, and what is no image of theirs."""

import torch
from torch import Tensor

from dose_ood.errors import InputError


def check_shape(shape: object) -> None:
    """That it is (channels, height, width)."""
    if not isinstance(shape, tuple) or len(shape) != 3 or not all(_is_count(size) for size in shape):
        raise InputError(f"shape must be (channels, height, width), got {shape!r}")


def check_counts(config: object, *names: str) -> None:
    """That these settings are whole numbers from 1."""
    for name in names:
        if not _is_count(getattr(config, name)):
            raise InputError(f"{name} must be a whole number from 1, got {getattr(config, name)!r}")


def check_images(x: Tensor, shape: tuple[int, int, int]) -> None:
    """That these are uint8 images of (channels, height, width)."""
    if x.dtype != torch.uint8 or x.ndim != 4 or x.shape[1:] != shape:
        expected = ", ".join(map(str, shape))
        raise InputError(f"expected uint8 images of shape (n, {expected}), got {x.dtype} of {tuple(x.shape)}")


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1
