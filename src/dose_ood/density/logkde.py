"""The logarithm of a one-dimensional Gaussian kernel density estimate: exactly, and as a certified table.

In units of the bandwidth, log f(u) = g(u) − u²/2 + constant, where g(u) = log Σ w e^{uz − z²/2} over the data z is the
cumulant generating function of the data weighted by their nearness to u. It is convex, and its derivatives are the
cumulants of the data *as seen from u*. So what is seen from two knots bounds the fourth derivative anywhere between
them, and with it the error of the cubic that interpolates log f and its slope there. `docs/kde.md` has the derivation.
"""

from dataclasses import dataclass, fields
from typing import Self

import numpy as np
from numpy.polynomial.chebyshev import chebvander
from numpy.typing import NDArray

from dose_ood.errors import InputError

Vector = NDArray[np.float64]
Matrix = NDArray[np.float64]

KNOTS = 4096  # a table has this many knots, whatever the number of rows; more only where gaps in the data ask for them
MOST_KNOTS = 1 << 17
SPACING = 0.1  # of the first knots where data are, in bandwidths
REACH = 4e6  # standard deviations from the data to the last knot, unless a tail is a single kernel before
CELL, NODES = 0.5, 16  # this many Chebyshev nodes stand for the data in a cell: error below 1e-12 up to FAR
FAR = 8.0
CUT = 100.0  # a kernel e^{−CUT/2} times the nearest one adds nothing, even 1e10 of them
BLOCK = 1 << 20
LOG_2PI = float(np.log(2 * np.pi))


def log_kde(data: Vector, u: Vector) -> Vector:
    """log Σ e^{−(u−z)²/2} − log(n √2π), summed over all the data: the oracle of the table.

    Examples
    --------
    >>> (log_kde(np.zeros(7), np.array([0.0, 1.0])) + LOG_2PI / 2).round(12)
    array([ 0. , -0.5])
    """
    result: Vector = np.empty(len(u))
    step = max(1, BLOCK // len(data))
    for start in range(0, len(u), step):
        exponents = -0.5 * (u[start : start + step, None] - data) ** 2
        top = exponents.max(axis=1)
        result[start : start + step] = top + np.log(np.exp(exponents - top[:, None]).sum(axis=1))
    result -= np.log(len(data)) + LOG_2PI / 2
    return result


@dataclass(frozen=True)
class Table:
    """A piecewise cubic: column i of `cubics` holds from knot i − 1 to knot i, in powers of the distance to the former.

    The first and the last column are the tails, the first in powers of the distance to knot 0. `error` bounds the
    distance to the exact function.
    """

    knots: Vector
    cubics: Matrix
    error: float

    def __call__(self, u: Vector) -> Vector:
        """The function at `u`."""
        piece = np.searchsorted(self.knots, u, side="right")
        distance = u - self.knots[np.maximum(piece - 1, 0)]
        constant, linear, square, cube = self.cubics
        result: Vector = cube[piece]
        for coefficient in (square, linear, constant):
            result *= distance
            result += coefficient[piece]
        return result


def tabulate(data: Vector, tolerance: float = 1e-6) -> Table:
    """A table of `log_kde` that is nowhere off by more than `tolerance` nats, plus 8 ulp of the value for rounding.

    Parameters
    ----------
    data
        The data in units of the bandwidth, sorted upwards.
    tolerance
        The largest error.

    Examples
    --------
    >>> data = np.array([-3.0, 0.0, 0.1, 400.0])
    >>> table, u = tabulate(data), np.linspace(-500.0, 900.0, 10_000)
    >>> bool(np.abs(table(u) - log_kde(data, u)).max() < 1e-6)
    True
    """
    points = _Points.of(data)
    gaps = int(np.count_nonzero(np.diff(points.data) > 4))
    if 60 * gaps > MOST_KNOTS:
        raise InputError(
            f"the bandwidth is too small for a table: {gaps:,} gaps between the data are wider than 4 bandwidths, too "
            f"many for {MOST_KNOTS:,} knots; take a larger bandwidth or method='exact'"
        )
    seen = _without_single_kernels(points.seen_from(_first_knots(data)), points, tolerance)
    while True:
        errors = _interpolation_errors(seen)
        split = errors > 0.5 * tolerance
        if not split.any():
            spare = min(KNOTS - len(errors) - 1, len(errors))
            if spare <= 0:
                break
            split[np.argsort(errors)[-spare:]] = True
        left, right = seen.u[:-1][split], seen.u[1:][split]
        seen = seen.merged(points.seen_from(left + 0.5 * (right - left)))
    return _interpolate(seen, float(errors.max()) + 0.25 * tolerance, float(points.counts.sum()))


@dataclass(frozen=True)
class _Seen:
    """The data z as seen from each point u, weighted by e^{−(u−z)²/2}: the nearest datum, the log of the weights' sum
    relative to the nearest one's, the mean minus the nearest, and the second to fourth central moments."""

    u: Vector
    nearest: Vector
    log_sum: Vector
    mean: Vector
    second: Vector
    third: Vector
    fourth: Vector

    def at(self, index: slice | NDArray[np.bool_] | NDArray[np.intp]) -> Self:
        return type(self)(*(getattr(self, field.name)[index] for field in fields(self)))

    def merged(self, other: Self) -> Self:
        both = [np.concatenate([getattr(self, f.name), getattr(other, f.name)]) for f in fields(self)]
        return type(self)(*both).at(np.argsort(both[0]))


@dataclass(frozen=True)
class _Points:
    """The data, merged where equal, and the fewer weighted nodes that stand for them where they are dense."""

    data: Vector
    counts: Vector
    nodes: Vector
    weights: Vector

    @classmethod
    def of(cls, data: Vector) -> Self:
        unique, counts = np.unique(data, return_counts=True)
        weights = counts.astype(np.float64)
        cells, first = np.unique(np.floor(unique / CELL), return_index=True)
        angles = (np.arange(NODES) + 0.5) * np.pi / NODES
        transform = 2 * np.cos(np.outer(angles, np.arange(NODES)))
        transform[:, 0] = 1
        places, shares = [], []
        for cell, start, end in zip(cells, first, np.append(first[1:], len(unique)), strict=True):
            if end - start <= NODES:
                places.append(unique[start:end])
                shares.append(weights[start:end])
            else:  # interpolating the kernel inside a cell hands each datum to the nodes, with Lagrange's weights
                inside = 2 * (unique[start:end] / CELL - cell) - 1
                places.append((cell + 0.5 + 0.5 * np.cos(angles)) * CELL)
                shares.append(transform @ (weights[start:end] @ chebvander(inside, NODES - 1)) / NODES)
        order = np.argsort(nodes := np.concatenate(places))
        return cls(unique, weights, nodes[order], np.concatenate(shares)[order])

    def seen_from(self, u: Vector) -> _Seen:
        """The view from each point of `u` (sorted upwards): over nodes near the data, over the data far from them."""
        above = np.clip(np.searchsorted(self.data, u), 1, max(1, len(self.data) - 1))
        low, high = self.data[above - 1], self.data[np.minimum(above, len(self.data) - 1)]
        nearest = np.where(u - low <= high - u, low, high)
        distance = np.abs(u - nearest)
        reach = np.sqrt(distance**2 + CUT) + CELL
        far = distance > FAR
        moments = np.empty((5, len(u)))
        for rows in np.split(np.arange(len(u)), 1 + np.flatnonzero(np.diff(np.where(far, above, -1)))):
            z, w = (self.data, self.counts) if far[rows[:1]].any() else (self.nodes, self.weights)
            start = 0
            while start < len(rows):
                part = rows[start : start + 64]
                window = slice(*np.searchsorted(z, ((u - reach)[part].min(), (u + reach)[part].max())))
                part = part[: max(1, BLOCK // (window.stop - window.start))]
                moments[:, part] = _moments(u[part], nearest[part], z[window], w[window])
                start += len(part)
        return _Seen(u, nearest, *moments)


def _moments(u: Vector, nearest: Vector, z: Vector, w: Vector) -> Matrix:
    offset = z - nearest[:, None]
    kernels = offset * (u - nearest)[:, None] - 0.5 * offset**2
    np.exp(kernels, out=kernels)
    kernels *= w
    total = kernels.sum(axis=1)
    kernels /= total[:, None]
    mean = np.einsum("ij,ij->i", kernels, offset)
    offset -= mean[:, None]
    square = offset**2
    second = np.einsum("ij,ij->i", kernels, square)
    third = np.einsum("ij,ij,ij->i", kernels, square, offset)
    fourth = np.einsum("ij,ij,ij->i", kernels, square, square)
    # Nodes can have negative weights, so rounding can leave a moment of data that are all but equal below zero.
    return np.stack([np.log(total), mean, np.maximum(second, 0), third, np.maximum(fourth, 0)])


def _first_knots(data: Vector) -> Vector:
    """Knots at equal distances where data are, at doubling distances into every gap and both tails."""
    width = 8 * SPACING
    cells = np.unique(np.unique(np.floor(data / width))[:, None] + [-1, 0, 1])
    breaks = np.diff(cells) > 1
    starts = (np.append(cells[:-1][breaks], cells[-1]) + 1) * width
    ends = np.append(cells[0], cells[1:][breaks]) * width
    doubling = 2.0 ** np.arange(-3, np.ceil(np.log2(REACH * (data.std() + 1))) + 1)
    among = (cells[:, None] * width + SPACING * np.arange(8)).ravel()
    pieces = [among, starts, ends[0] - doubling, starts[-1] + doubling]
    for start, end in zip(starts[:-1], ends[1:], strict=True):
        steps = doubling[doubling < (end - start) / 2]
        pieces += [start + steps, end - steps]
    knots: Vector = np.unique(np.concatenate(pieces))
    return knots[np.diff(knots, prepend=-np.inf) > 1e-9 * (1 + np.abs(knots))]


def _without_single_kernels(seen: _Seen, points: _Points, tolerance: float) -> _Seen:
    """Leave out all but the first knot of a tail from where on the outermost datum's kernel is all there is."""
    left = (seen.u < points.data[0]) & (seen.log_sum - np.log(points.counts[0]) < 0.25 * tolerance)
    right = (seen.u > points.data[-1]) & (seen.log_sum - np.log(points.counts[-1]) < 0.25 * tolerance)
    first = max(int(left.sum()) - 1, 0)
    return seen.at(slice(first, len(seen.u) - max(int(right.sum()) - 1, 0)))


def _interpolation_errors(seen: _Seen) -> Vector:
    """For each interval [a, b] a bound on the error of the cubic: (b−a)⁴/384 · sup |κ₄|, κ₄ the fourth cumulant.

    With y = z − mean(a), E_x[yᵏ] = N(x)/D(x), where N(x) = E_a[yᵏ e^{(x−a)y}] is convex for even k, so that
    N ≤ max(N(a), N(b)), and D(x) = E_a[e^{(x−a)y}] ≥ 1. The mean grows with x, so no more than from a to b.
    """
    a, b = seen.at(slice(None, -1)), seen.at(slice(1, None))
    width = b.u - a.u
    jump = b.nearest - a.nearest
    moved = np.maximum(jump + b.mean - a.mean, 0.0)
    log_d = b.log_sum - a.log_sum - width * a.mean + jump * (b.u - 0.5 * (a.nearest + b.nearest))
    with np.errstate(over="ignore"):
        d = np.exp(np.maximum(log_d, 0.0))
        second = np.maximum(a.second, d * (b.second + moved**2))
        fourth_b = b.fourth + 4 * moved * b.third + 6 * moved**2 * b.second + moved**4
        raw = np.maximum(a.fourth, d * fourth_b)
        fourth = raw + 4 * moved * raw**0.75 + 6 * moved**2 * second
        errors: Vector = width**4 / 384 * np.maximum(fourth, 3 * second**2)
    return np.nan_to_num(errors, nan=np.inf)


def _interpolate(seen: _Seen, error: float, count: float) -> Table:
    """Cubics through values and slopes. The kernel of the datum nearest to a, a parabola, is added to the cubic through
    the rest, so that nothing large is subtracted."""
    a, b = seen.at(slice(None, -1)), seen.at(slice(1, None))
    width = b.u - a.u
    jump = b.nearest - a.nearest
    rise = (b.log_sum - a.log_sum + jump * (b.u - 0.5 * (a.nearest + b.nearest))) / width
    slope_b = b.mean + jump
    cubics = np.zeros((4, len(width) + 2))
    cubics[1, 1:-1] = a.mean
    cubics[2, 1:-1] = (3 * rise - 2 * a.mean - slope_b) / width
    cubics[3, 1:-1] = (a.mean + slope_b - 2 * rise) / width**2
    anchored = seen.at(np.r_[0, 0 : len(seen.u)])
    away = anchored.u - anchored.nearest
    cubics[0] = anchored.log_sum - 0.5 * away**2 - np.log(count) - LOG_2PI / 2
    cubics[1] -= away
    cubics[2] -= 0.5
    return Table(seen.u, cubics, error)
