"""The figure at the top of RESULTS.md: what likelihood and DoSE find of each pair, and what DoSE finds in the paper."""

import math
from collections.abc import Sequence
from typing import NamedTuple

from matplotlib.figure import Figure

from dose_ood.plots.style import INLIER, OUTLIERS, SHADE, styled

ROW = 0.17  # inches


class Pair(NamedTuple):
    """AUROCs of one set of outliers; a VAE has no score tests."""

    trained_on: str
    shown: str
    likelihood: float
    dose: float
    with_score_tests: float | None
    paper: float


def glance(pairs: Sequence[Pair]) -> Figure:
    """A line for each pair, grouped by what the models were trained on."""
    groups = list(dict.fromkeys(pair.trained_on for pair in pairs))
    places = [row + 0.8 * groups.index(pair.trained_on) for row, pair in enumerate(pairs)]
    # By name: values, a marker, its size, its colour and that of its middle.
    series: dict[str, tuple[Sequence[float | None], str, float, str, str]] = {
        "likelihood": ([pair.likelihood for pair in pairs], "|", 8.0, SHADE, SHADE),
        "DoSE": ([pair.dose for pair in pairs], "o", 4.5, INLIER, INLIER),
        "DoSE with score tests": ([pair.with_score_tests for pair in pairs], "D", 4.5, INLIER, "none"),
        "DoSE in the paper": ([pair.paper for pair in pairs], "o", 7.5, OUTLIERS[0], "none"),
    }
    with styled():
        figure = Figure(figsize=(7.2, ROW * (places[-1] + 5)), layout="constrained")
        axes = figure.subplots()
        for place, pair in zip(places, pairs, strict=True):
            axes.plot([pair.likelihood, pair.dose], [place, place], color=SHADE, linewidth=0.8, alpha=0.6)
        for label, (values, marker, size, colour, middle) in series.items():
            across = [math.nan if value is None else value for value in values]
            axes.plot(
                across, places, marker, label=label, markersize=size, markeredgecolor=colour, markerfacecolor=middle
            )
        axes.axvline(0.5, color=SHADE, linewidth=0.8, linestyle=":")
        axes.set_yticks(places, [f"{pair.trained_on} → {pair.shown}" for pair in pairs])
        axes.set(xlim=(0, 1.02), ylim=(places[-1] + 1, -1), xlabel="AUROC; dotted: chance")
        axes.tick_params(axis="y", length=0)
        figure.legend(loc="outside upper center", ncols=len(series))
    return figure
