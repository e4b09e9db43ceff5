"""Figures of scores and of training: ROC, calibration, superfluous statistics, losses."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Protocol

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from dose_ood.plots.panels import Draw, Key, Panels
from dose_ood.plots.style import INLIER, SHADE, SOFT, colour, dash

Vector = NDArray[np.float64]
Curve = tuple[Vector, Vector]


class Logged(Protocol):
    """A line of the log of a training run."""

    @property
    def step(self) -> int:
        """Steps done."""

    @property
    def loss(self) -> float:
        """Mean objective of training."""

    @property
    def held_out(self) -> float | None:
        """Mean objective of held-out images, at the end of an epoch."""


def roc_panels(curves: Mapping[str, Mapping[str, Curve]]) -> Panels:
    """For each outlier set and method: the share of outliers found over the share of inliers discarded with them."""

    def roc(axes: Axes, lines: Mapping[str, Curve]) -> None:
        axes.plot([0, 1], [0, 1], color=SHADE, linewidth=0.8, linestyle=":")
        for position, (alarms, found) in enumerate(lines.values()):
            axes.plot(alarms, found, color=colour(position), linestyle=dash(position), linewidth=1.3)
        axes.set(xlabel="inliers discarded", ylabel="outliers found", xlim=(-0.02, 1.02), ylim=(-0.02, 1.02))

    methods = list(next(iter(curves.values()), {}))
    keys = {label: Key(colour(i), dash(i)) for i, label in enumerate(methods)}
    return Panels({label: partial(roc, lines=lines) for label, lines in curves.items()}, keys, (2.6, 2.4))


def degradation_panels(counts: Sequence[int], curves: Mapping[str, Mapping[str, Sequence[float]]]) -> Panels:
    """AUROC over the number of superfluous statistics (Appendix D): a panel for each kind of them, a line a set."""

    def panel(axes: Axes, lines: Mapping[str, Sequence[float]]) -> None:
        axes.axhline(0.5, color=SHADE, linewidth=0.8, linestyle=":")
        for position, values in enumerate(lines.values(), 1):
            shown, line = colour(position), dash(position)
            axes.plot(counts, values, marker="o", markersize=2.6, linewidth=1.3, color=shown, linestyle=line)
        axes.set(xscale="log", ylim=(-0.03, 1.03), xlabel="superfluous statistics", ylabel="AUROC")

    labels = list(dict.fromkeys(label for lines in curves.values() for label in lines))
    keys = {label: Key(colour(i + 1), dash(i + 1)) for i, label in enumerate(labels)}
    return Panels({kind: partial(panel, lines=lines) for kind, lines in curves.items()}, keys, (3.6, 2.5))


def degradation_curve(counts: Sequence[int], curves: Mapping[str, Sequence[float]]) -> Figure:
    """The same in one panel, with its legend."""
    return degradation_panels(counts, {"": curves}).together()


def calibration_panels(
    pp: Mapping[str, Curve], band: float, bins: Mapping[str, tuple[Vector, Vector]] | None = None
) -> Panels:
    """Held-out against training scores: P-P curves of all methods, and the bins behind the calibration error.

    Parameters
    ----------
    pp
        For each method, shares of training and of held-out scores below common thresholds.
    band
        How far from the diagonal chance leads in 95 %.
    bins
        For each method, the shares expected and found in bins of training scores.
    """

    def curve(axes: Axes) -> None:
        axes.fill_between([0, 1], [-band, 1 - band], [band, 1 + band], color=SHADE, alpha=0.25, linewidth=0)
        axes.plot([0, 1], [0, 1], color=SHADE, linewidth=0.8, linestyle=":")
        for position, (train, held_out) in enumerate(pp.values()):
            axes.plot(train, held_out, color=colour(position), linestyle=dash(position), linewidth=1.3)
        axes.set(xlabel="training scores below", ylabel="held-out scores below", xlim=(0, 1), ylim=(0, 1))

    def bars(axes: Axes, expected: Vector, found: Vector, shown: str) -> None:
        places = np.arange(1, len(found) + 1)
        axes.bar(places, 100 * found, width=0.8, color=shown, alpha=0.55)
        axes.step(
            np.append(places - 0.5, places[-1] + 0.5),
            100 * np.append(expected, expected[-1]),
            where="post",
            color=SOFT,
            linewidth=1.2,
        )
        axes.set(xlabel="bin of training scores, from the least typical", ylabel="% of held-out scores")
        axes.set_xticks(places)

    draw: dict[str, Draw] = {"P–P, all methods": curve}
    for label, (expected, found) in (bins or {}).items():
        shown = colour(list(pp).index(label))
        draw[label] = partial(bars, expected=expected, found=found, shown=shown)
    keys = {label: Key(colour(i), dash(i)) for i, label in enumerate(pp)}
    return Panels(draw, {**keys, "by chance, 95 %": Key(SHADE)}, (3.1, 2.6))


def score_panels(train: Vector, held_out: Vector, outliers: Mapping[str, Vector], threshold: float) -> Panels:
    """Scores of training, held-out and outlying rows, with the threshold; the first bin holds what is further left."""

    def scores(axes: Axes) -> None:
        low, high = float(np.quantile(held_out, 0.001)), float(held_out.max())
        bins = int(np.clip(3 * np.sqrt(len(held_out)), 20, 80))
        furthest = min((float(part.min()) for part in outliers.values() if len(part)), default=low)
        edges = np.linspace(max(low - 1.5 * (high - low), min(low, furthest)), high, bins + 1)
        parts = (train, held_out, *outliers.values())
        shares = [np.histogram(np.clip(part, edges[0], edges[-1]), edges)[0] / len(part) for part in parts]
        axes.stairs(shares[0], edges, fill=True, color=INLIER, alpha=0.4)
        axes.stairs(shares[1], edges, baseline=None, color=INLIER, linewidth=1.4)
        for position, heights in enumerate(shares[2:], 1):
            axes.stairs(heights, edges, baseline=None, color=colour(position), linestyle=dash(position), linewidth=1.3)
        axes.axvline(threshold, color=SOFT, linewidth=1, linestyle="--")
        axes.set(
            xlabel="score, higher = more typical", yticks=[], ylim=(0, 1.7 * max(shares[0].max(), shares[1].max()))
        )
        axes.spines["left"].set_visible(False)

    keys = {label: Key(colour(i + 1), dash(i + 1)) for i, label in enumerate(outliers)}
    own = {"training": Key(INLIER), "held out": Key(INLIER, "-")}
    return Panels({"": scores}, {**own, **keys, "threshold": Key(SOFT, "--")}, (6.2, 2.6))


def score_distributions(train: Vector, held_out: Vector, outliers: Mapping[str, Vector], threshold: float) -> Figure:
    """The panel of `score_panels` with its legend."""
    return score_panels(train, held_out, outliers, threshold).together()


def loss_panels(logs: Mapping[str, Sequence[Logged]], points: int = 300) -> Panels:
    """The objective over the steps of training runs: pale in training, dotted line held out, at the ends of epochs."""

    def losses(axes: Axes) -> None:
        ends_of_frame: list[float] = []
        for position, log in enumerate(logs.values()):
            shown, line = colour(position), dash(position)
            kept = np.unique(np.linspace(0, len(log) - 1, min(points, len(log))).round().astype(int))
            axes.plot([log[i].step for i in kept], [log[i].loss for i in kept], color=shown, linewidth=1, alpha=0.45)
            ends = np.array([(r.step, r.held_out) for r in log if r.held_out is not None]).reshape(-1, 2)
            axes.plot(*ends.T, marker="o", linestyle=line, color=shown, markersize=2.6, linewidth=1.2)
            ends_of_frame += [*ends[:, 1], *np.quantile([record.loss for record in log], [0.02, 0.9])]
        low, high = min(ends_of_frame), max(ends_of_frame)
        margin = 0.05 * (high - low) or 1.0
        axes.set(xlabel="step", ylabel="nats per image", ylim=(low - margin, high + margin))

    keys = {label: Key(colour(i), dash(i)) for i, label in enumerate(logs)}
    return Panels({"": losses}, keys, (6.2, 2.8))


def loss_curve(log: Sequence[Logged]) -> Figure:
    """The panel of `loss_panels` for one run."""
    return loss_panels({"run": log}).together()
