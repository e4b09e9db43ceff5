"""Figures of tables of statistics: histograms, the plane of two statistics, the paper's Gaussian."""

from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import PathPatch
from matplotlib.path import Path
from numpy.typing import NDArray

from dose_ood.density.base import DensityOfStates
from dose_ood.plots.panels import Draw, Key, Panels
from dose_ood.plots.style import INLIER, OUTLIERS, SHADE, colour, dash, plain
from dose_ood.statistics import Statistics

Vector = NDArray[np.float64]
Matrix = NDArray[np.float64]

REACH = 2.0  # how many widths of the inliers the frame extends beyond them, at most


def frame(inlier: Vector, outliers: Sequence[Vector], reach: float = REACH) -> tuple[float, float]:
    """What to show of a statistic: the inliers, and the outliers as far as the inliers stay visible.

    Examples
    --------
    >>> frame(np.linspace(0, 1, 1001), [np.full(9, 1.5), np.full(9, -1e6)])
    (-1.995, 1.5)
    """
    low, high = np.quantile(inlier, [0.001, 0.999]).tolist()
    width = (high - low) or max(abs(high), 1.0)
    ends = [np.quantile(part, [0.01, 0.99]).tolist() for part in outliers if len(part)]
    lowest, highest = min((end[0] for end in ends), default=low), max((end[1] for end in ends), default=high)
    margin = 0.0 if high > low else 0.5 * width
    return (
        min(low, max(lowest, low - reach * width)) - margin,
        max(high, min(highest, high + reach * width)) + margin,
    )


def histogram_panels(inlier: Statistics, outliers: Mapping[str, Statistics], bins: int | None = None) -> Panels:
    """Every statistic of in-distribution rows against each set of outliers (Appendix E); the ends hold the rest."""
    bins = int(np.clip(2 * np.sqrt(len(inlier)), 15, 60)) if bins is None else bins
    draw: dict[str, Draw] = {}
    for name in inlier.names:
        columns = {label: _finite(table[name]) for label, table in outliers.items()}
        draw[name] = partial(_histogram, inlier=_finite(inlier[name]), outliers=columns, bins=bins)
    keys = {label: Key(colour(i + 1), dash(i + 1)) for i, label in enumerate(outliers)}
    width = {1: 3.5, 2: 3.5, 3: 3.5, 5: 2.0}.get(len(draw), 2.6)  # a row of a page, filled
    return Panels(draw, {"in-distribution": Key(INLIER), **keys}, (width, 2.0))


def histograms(inlier: Statistics, outliers: Mapping[str, Statistics], bins: int | None = None) -> Figure:
    """The panels of `histogram_panels` as one figure."""
    return histogram_panels(inlier, outliers, bins).together()


def region_panels(
    methods: Mapping[str, DensityOfStates],
    inlier: Statistics,
    outlier: Statistics,
    x: str,
    y: str,
    *,
    sign: float = 1.0,
    grid: int = 120,
    points: int = 500,
) -> Panels:
    """What each fitted method discards in the plane of two statistics (Figure 2): shaded = atypical.

    Points beyond the frame are drawn on its edge.

    Parameters
    ----------
    methods
        By its title, a method fitted to the columns x + sign · y, x, y: the likelihood of a flow is the sum of its two
        parts, that of a VAE (its bound) the distortion minus the rate.
    inlier, outlier
        What to draw into the plane.
    x, y
        The names of the two statistics.
    sign
        Of y in the likelihood.
    grid, points
        How fine the regions are, and the most points drawn of each set.
    """
    limits = [frame(_finite(inlier[name]), [_finite(outlier[name])]) for name in (x, y)]
    limits = [(low - 0.05 * (high - low), high + 0.05 * (high - low)) for low, high in limits]
    across, up = np.meshgrid(*(np.linspace(low, high, grid) for low, high in limits))
    places = np.stack([(across + sign * up).ravel(), across.ravel(), up.ravel()], axis=1)
    sets = [(table.select((x, y)).values[:points], c) for table, c in ((inlier, INLIER), (outlier, OUTLIERS[0]))]

    def region(axes: Axes, method: DensityOfStates) -> None:
        atypical = (method.decision_function(places) < 0).reshape(grid, grid)
        axes.contourf(across, up, atypical, levels=[0.5, 1.5], colors=[SHADE], alpha=0.3)
        for values, shown in sets:
            _dots(axes, values, shown, limits)
        axes.set(xlabel=plain(x), ylabel=plain(y))

    legend = {"in-distribution": Key(INLIER), "outliers": Key(OUTLIERS[0]), "discarded": Key(SHADE)}
    return Panels({label: partial(region, method=m) for label, m in methods.items()}, legend, (2.6, 2.4))


def decision_regions(
    methods: Mapping[str, DensityOfStates], inlier: Statistics, outlier: Statistics, x: str, y: str, grid: int = 120
) -> Figure:
    """The panels of `region_panels` as one figure."""
    return region_panels(methods, inlier, outlier, x, y, grid=grid).together()


def gaussian_panels(points: Matrix, table: Statistics, dimensions: int, bins: int = 60) -> Panels:
    """Figure 1: draws of a high-dimensional Gaussian and what statistics say of them; dashed: its likeliest point.

    Parameters
    ----------
    points
        Two coordinates of some draws, shape (draws, 2).
    table
        The statistics norm, like, first and max of many draws.
    dimensions
        Of the Gaussian.
    bins
        Of the histograms.
    """
    energy = 0.5 * dimensions * float(np.log(2 * np.pi))
    statistics = {
        "(b) norm": (table["norm"], 0.0),
        "(c) negative log-likelihood": (-table["like"], energy),
        "(d) first coordinate": (table["first"], 0.0),
        "(e) largest coordinate": (table["max"], 0.0),
    }

    def cloud(axes: Axes) -> None:
        limits = [(float(values.min()), float(values.max())) for values in points.T]
        _dots(axes, points, INLIER, limits)
        _dots(axes, np.zeros((1, 2)), OUTLIERS[0], limits, size=6)
        axes.set(xlabel="first coordinate", ylabel="second coordinate")

    def histogram(axes: Axes, values: Vector, origin: float) -> None:
        _histogram(axes, values, {}, bins)
        low, high = axes.get_xlim()
        margin = 0.05 * (high - low)
        axes.set_xlim(min(low, origin - margin), max(high, origin + margin))
        axes.axvline(origin, color=OUTLIERS[0], linestyle="--", linewidth=1.2)

    draw: dict[str, Draw] = {"(a) two coordinates": cloud}
    for title, (values, origin) in statistics.items():
        draw[title] = partial(histogram, values=values, origin=origin)
    return Panels(draw, {"draws": Key(INLIER), "the origin, the likeliest point": Key(OUTLIERS[0], "--")}, (2.0, 1.9))


def _finite(values: Vector) -> Vector:
    return values[np.isfinite(values)]


def _histogram(axes: Axes, inlier: Vector, outliers: Mapping[str, Vector], bins: int) -> None:
    low, high = frame(inlier, list(outliers.values()))
    edges = np.linspace(low, high, bins + 1)
    highest = 0.0
    for position, values in enumerate((inlier, *outliers.values())):
        shares = np.histogram(np.clip(values, low, high), edges)[0] / max(len(values), 1)
        if position == 0:
            highest = float(shares.max())
            axes.stairs(shares, edges, fill=True, color=INLIER, alpha=0.5)
        else:
            axes.stairs(shares, edges, baseline=None, color=colour(position), linestyle=dash(position), linewidth=1.3)
    axes.set(yticks=[], xlim=(low, high), ylim=(0, 1.7 * highest))  # a spike of outliers may leave the frame
    axes.spines["left"].set_visible(False)
    axes.locator_params(axis="x", nbins=5)


def _dots(
    axes: Axes,
    values: Matrix,
    shown: str,
    limits: Sequence[tuple[float, float]],
    size: float = 2.2,
    faint: float = 0.75,
) -> None:
    """Points as one path of short strokes, which is small as text and takes its colour from the page."""
    lows, highs = np.array(limits).T
    inside = np.clip(values[np.isfinite(values).all(axis=1)], lows, highs)
    ends = inside + np.array([1e-3 * (highs[0] - lows[0]), 0.0])
    path = Path(np.stack([inside, ends], axis=1).reshape(-1, 2), np.tile([Path.MOVETO, Path.LINETO], len(inside)))
    path.should_simplify = False  # every stroke is a point
    stroke = PathPatch(path, fill=False, edgecolor=shown, linewidth=size, capstyle="round", alpha=faint, clip_on=False)
    stroke.set_snap(False)  # a stroke snapped to whole pixels may vanish
    axes.add_patch(stroke)
    axes.set(xlim=limits[0], ylim=limits[1])
    axes.locator_params(nbins=5)
