"""Would one more step of the flow help? Rao's score tests of the latents of a level, for each image alone."""

from typing import TypeAlias

import torch
from torch import Tensor

from dose_ood.errors import InputError

DIRECTIONS = ((0, 1), (1, 0), (1, 1), (1, -1))  # down and right; the other four pair the same pixels
Window: TypeAlias = tuple[slice, slice]  # rows and columns


def score_tests(z: Tensor) -> dict[str, Tensor]:
    """How much the parameters of one more step would move for an image, by name, shape (n,), float64.

    Latents that are standard normal leave a further step of the flow nothing to do: the gradient of log q(x) with
    respect to its parameters, where the step is the identity, is then noise of known variance. With P pixels z_p of C
    channels, and P_δ pairs of pixels that are neighbours in direction δ, of D directions:

        shift = log  |Σ z_p|² / (P C)                              a shift of each channel, as of ActNorm
        mix   = log  |Σ z_p z_pᵀ − P|² / (P C (C + 1))             a 1×1 convolution, which has ActNorm's scale in it
        near  = log  Σ_δ |Σ z_p z_{p+δ}ᵀ|² / P_δ / (D C²)          a 3×3 convolution, but for its middle

    Each is the logarithm of a mean that is 1 where the model is right. A level of one pixel has no `near`.

    Parameters
    ----------
    z
        Latents, shape (n, c, h, w).

    References
    ----------
    *Large sample tests of statistical hypotheses concerning several parameters (Rao, 1948)*

    Examples
    --------
    >>> white = torch.randn(4, 12, 64, 64, generator=torch.Generator().manual_seed(0))
    >>> found = score_tests(white)
    >>> [round(float(value.exp().mean())) for value in found.values()]
    [1, 1, 1]
    >>> bool((score_tests(1.1 * white)["mix"] > 2 + found["mix"]).all())
    True
    """
    if z.ndim != 4:
        raise InputError(f"expected latents of shape (n, c, h, w), got {tuple(z.shape)}")
    z = z.double()
    channels, height, width = z.shape[1:]
    pixels = height * width
    excess = _products(z, z) - pixels * torch.eye(channels, dtype=z.dtype, device=z.device)
    found = {
        "shift": z.sum((2, 3)).square().sum(1) / (pixels * channels),
        "mix": excess.square().sum((1, 2)) / (pixels * channels * (channels + 1)),
    }
    near = [
        _products(z[:, :, here[0], here[1]], z[:, :, there[0], there[1]]).square().sum((1, 2)) / pairs
        for here, there, pairs in neighbours(height, width)
    ]
    if near:
        found["near"] = torch.stack(near).mean(0) / channels**2
    return {name: value.log() for name, value in found.items()}


def neighbours(height: int, width: int) -> list[tuple[Window, Window, int]]:
    """For each direction in which an image has neighbours: the pixels that have one, these, and how many there are.

    Examples
    --------
    >>> neighbours(1, 3)
    [((slice(0, 1, None), slice(0, 2, None)), (slice(0, 1, None), slice(1, 3, None)), 2)]
    """
    found: list[tuple[Window, Window, int]] = []
    for down, right in DIRECTIONS:
        rows, columns = height - down, width - abs(right)
        if rows > 0 and columns > 0:
            left, other = max(0, -right), max(0, right)
            here = slice(0, rows), slice(left, left + columns)
            there = slice(down, height), slice(other, other + columns)
            found.append((here, there, rows * columns))
    return found


def _products(a: Tensor, b: Tensor) -> Tensor:
    """Σ a_p b_pᵀ over the pixels, shape (n, c, c)."""
    return a.flatten(2) @ b.flatten(2).transpose(1, 2)
