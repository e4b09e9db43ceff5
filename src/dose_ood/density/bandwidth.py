"""Bandwidths of one-dimensional Gaussian kernel density estimates, in units of the data."""

from collections.abc import Callable
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.fft import dct
from scipy.optimize import brentq

from dose_ood.errors import InputError

Vector = NDArray[np.float64]
Rule = Literal["scott", "silverman", "isj"]


def scott(x: Vector) -> float:
    """SciPy's default: the standard deviation times n^(−1/5).

    Examples
    --------
    >>> scott(np.array([-1.0, 0.0, 1.0])) == 3 ** (-1 / 5)
    True
    """
    return float(x.std(ddof=1) * len(x) ** -0.2)


def silverman(x: Vector) -> float:
    """The standard deviation times (3n/4)^(−1/5), as in SciPy."""
    return float(x.std(ddof=1) * (0.75 * len(x)) ** -0.2)


def isj(x: Vector, bins: int = 4096) -> float:
    """The improved Sheather–Jones plug-in bandwidth: it does not assume a normal density, so it keeps modes apart.

    The squared bandwidth t, relative to the range of a histogram, solves t = ξγ⁽⁵⁾(t), a fixed point built from
    estimates of the norms of the density's derivatives, which are sums over the histogram's cosine transform.

    References
    ----------
    *Kernel Density Estimation via Diffusion* (Botev, Grotowski & Kroese, 2010)
    """
    low, high = float(x.min()), float(x.max())
    margin = 0.1 * (high - low)
    counts, edges = np.histogram(x, bins=bins, range=(low - margin, high + margin))
    squares = np.arange(1, bins, dtype=np.float64) ** 2
    power = (dct(counts / len(x), type=2)[1:] / 2) ** 2
    distinct = len(np.unique(x))

    def norm(order: int, t: float) -> float:
        """Squared L2 norm of the derivative of this order, smoothed by t."""
        weights = squares**order * power * np.exp(-squares * np.pi**2 * t)
        return float(2 * np.pi ** (2 * order) * weights.sum())

    def excess(t: float) -> float:
        f = norm(7, t)
        for order in range(6, 1, -1):
            odd = np.prod(np.arange(1, 2 * order, 2)) / np.sqrt(2 * np.pi)
            constant = (1 + 0.5 ** (order + 0.5)) / 3
            f = norm(order, (2 * constant * odd / (distinct * f)) ** (2 / (3 + 2 * order)))
        return float(t - (2 * distinct * np.sqrt(np.pi) * f) ** -0.4)

    grid = np.geomspace(1e-10, 0.1, 41)
    with np.errstate(all="ignore"):
        signs = np.sign([excess(t) for t in grid])
        crossings = np.flatnonzero((signs[:-1] < 0) & (signs[1:] > 0))
        if not len(crossings):
            raise InputError(
                f"the improved Sheather–Jones bandwidth has no solution for a column of {len(x)} rows with {distinct} "
                "distinct values; take bandwidth='scott'"
            )
        t = brentq(excess, grid[crossings[0]], grid[crossings[0] + 1], xtol=1e-14)
    return float(np.sqrt(t) * (edges[-1] - edges[0]))


RULES: dict[Rule, Callable[[Vector], float]] = {"scott": scott, "silverman": silverman, "isj": isj}
