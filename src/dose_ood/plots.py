"""Figures from tables of statistics and scores; they are returned, not written."""

import io
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from dose_ood.density.base import DensityOfStates
from dose_ood.statistics import Statistics

if TYPE_CHECKING:
    from dose_ood.runs import Record

Vector = NDArray[np.float64]

INLIER = "#2a6fbb"
OUTLIERS = ("#d1495b", "#e8963a", "#6a994e", "#8e5ea2", "#3d8b8b", "#8c6d46")
STYLE = {
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 10,
    "font.size": 9,
    "legend.frameon": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "dose",
}


def svg(figure: Figure) -> str:
    """A figure as text to put into a page."""
    buffer = io.StringIO()
    with mpl.rc_context(STYLE):
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    text = buffer.getvalue()
    return text[text.index("<svg") :]


def histograms(inlier: Statistics, outliers: Mapping[str, Statistics], bins: int = 80) -> Figure:
    """Every statistic of in-distribution rows against each set of outliers (Figure 1 and Appendix E)."""
    columns = min(len(inlier.names), 4)
    rows = -(-len(inlier.names) // columns)
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(2.9 * columns, 2.3 * rows), layout="constrained")
        for position, name in enumerate(inlier.names):
            axes = figure.add_subplot(rows, columns, position + 1)
            everything = np.concatenate([inlier[name], *(table[name] for table in outliers.values())])
            low, high = np.quantile(everything, [0.001, 0.999]).tolist()
            edges = np.linspace(low, high, bins + 1).tolist()
            heights, *_ = axes.hist(
                inlier[name], edges, density=True, color=INLIER, alpha=0.75, label="in-distribution"
            )
            for colour, (label, table) in zip(OUTLIERS, outliers.items(), strict=False):
                axes.hist(table[name], edges, density=True, histtype="step", linewidth=1.4, color=colour, label=label)
            axes.set(title=name, yticks=[], ylim=(0, 2 * np.max(heights)))  # a spike of outliers may leave the frame
        handles, labels = figure.axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=len(labels))
    return figure


def decision_regions(
    methods: Mapping[str, DensityOfStates], inlier: Statistics, outlier: Statistics, x: str, y: str, grid: int = 200
) -> Figure:
    """What each fitted method discards in the plane of two statistics (Figure 2): shaded = atypical.

    The methods are fitted to the columns x + y, x, y, as the likelihood of a flow is the sum of its two parts.
    """
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(3.4 * len(methods), 3.3), layout="constrained")
        both = [np.concatenate([inlier[name], outlier[name]]) for name in (x, y)]
        limits = [(values.min() - 0.2 * values.std(), values.max() + 0.2 * values.std()) for values in both]
        across, up = np.meshgrid(*(np.linspace(low, high, grid) for low, high in limits))
        points = np.stack([(across + up).ravel(), across.ravel(), up.ravel()], axis=1)
        for position, (label, method) in enumerate(methods.items()):
            axes = figure.add_subplot(1, len(methods), position + 1)
            atypical = (method.decision_function(points) < 0).reshape(grid, grid)
            axes.contourf(across, up, atypical, levels=[0.5, 1.5], colors=["#9aa0a6"], alpha=0.45)
            for table, colour in ((inlier, INLIER), (outlier, OUTLIERS[0])):
                axes.plot(table[x][:600], table[y][:600], ".", color=colour, markersize=2.5, alpha=0.7)
            axes.set(title=label, xlabel=x, ylabel=y if position == 0 else "")
    return figure


def degradation_curve(counts: Sequence[int], curves: Mapping[str, Sequence[float]]) -> Figure:
    """AUROC over the number of superfluous statistics (Appendix D)."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(5.2, 3.0), layout="constrained")
        axes = figure.add_subplot()
        for colour, (label, values) in zip((INLIER, *OUTLIERS), curves.items(), strict=False):
            axes.plot(counts, values, "o-", markersize=3, color=colour, label=label)
        axes.set(xscale="log", xlabel="superfluous statistics", ylabel="AUROC", ylim=(-0.03, 1.03))
        axes.axhline(0.5, color="#9aa0a6", linewidth=0.8, linestyle=":")
        axes.legend()
    return figure


def score_distributions(train: Vector, held_out: Vector, outliers: Mapping[str, Vector], threshold: float) -> Figure:
    """Scores of training, held-out and outlying rows, with the threshold."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(6.2, 3.0), layout="constrained")
        axes = figure.add_subplot()
        low, high = float(np.quantile(held_out, 0.001)), float(held_out.max())
        edges = np.linspace(low - 1.5 * (high - low), high, 101).tolist()
        heights, *_ = axes.hist(train, edges, density=True, color=INLIER, alpha=0.35, label="training")
        axes.hist(held_out, edges, density=True, color=INLIER, histtype="step", linewidth=1.4, label="held out")
        for colour, (label, scores) in zip(OUTLIERS, outliers.items(), strict=False):
            clipped = np.maximum(scores, edges[0])
            axes.hist(clipped, edges, density=True, color=colour, histtype="step", linewidth=1.4, label=label)
        axes.axvline(threshold, color="#5f6368", linewidth=1, linestyle="--", label="threshold")
        axes.set(xlabel="score (higher = more typical; everything further left is in the first bin)", yticks=[])
        axes.set_ylim(0, 2 * np.max(heights))
        axes.legend()
    return figure


def loss_curve(log: Sequence["Record"]) -> Figure:
    """The objective over the steps of a training run, with the held-out one at the end of each epoch."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(5.2, 3.0), layout="constrained")
        axes = figure.add_subplot()
        axes.plot([r.step for r in log], [r.loss for r in log], color=INLIER, linewidth=1, label="training")
        ends = [(r.step, r.held_out) for r in log if r.held_out is not None]
        axes.plot(*np.array(ends).T, "o-", color=OUTLIERS[0], markersize=3, label="held out")
        axes.set(xlabel="step", ylabel="nats per image", yscale="symlog")
        axes.legend()
    return figure
