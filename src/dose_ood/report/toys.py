"""The paper's toy figures: the Gaussian of Figure 1, Appendix B's flow, Appendix D's superfluous statistics."""

import numpy as np
from numpy.typing import NDArray

from dose_ood.benchmark.metrics import auroc
from dose_ood.benchmark.results import HELD_OUT, TRAIN
from dose_ood.benchmark.toys import degradation, flow, gaussian
from dose_ood.density.kde import ProductKDE
from dose_ood.density.svm import WhitenedSVM
from dose_ood.noise import generator
from dose_ood.plots import Panels, degradation_panels, gaussian_panels, region_panels
from dose_ood.report.benchmark import Report
from dose_ood.report.curves import plane
from dose_ood.report.drawings import COUNTS
from dose_ood.statistics import Statistics

DRAWS, DIMENSIONS = 100_000, 100
SHOWN = ("norm", "max")  # what DoSE looks at in Appendix D's toy


def two_coordinates(count: int, dimensions: int = DIMENSIONS) -> NDArray[np.float64]:
    """The first two coordinates of the first points of `gaussian`."""
    return generator("gaussian toy", 0).normal(size=(count, dimensions))[:, :2]


def figure_1(draws: int = DRAWS) -> Panels:
    """What statistics say of draws of a Gaussian, and of its likeliest point."""
    table = Statistics.concat(
        [gaussian(draws // 10, seed=seed).select(("norm", "like", "first", "max")) for seed in range(10)]
    )
    return gaussian_panels(two_coordinates(1000), table, DIMENSIONS)


def appendix_b(rows: int = 20_000) -> Panels:
    """A flow whose outliers lie along a line of constant likelihood."""
    inlier, outlier = flow(rows // 10, seed=1), flow(rows // 10, outlier=True, seed=2)
    found = plane({TRAIN: flow(rows), HELD_OUT: flow(rows // 10, seed=3)})
    if found is None:
        raise AssertionError("the flow has latent and jac")
    titles = {f"{name}: AUROC {found.auroc(name, inlier, outlier):.3f}": m for name, m in found.methods.items()}
    return region_panels(titles, inlier, outlier, found.x, found.y, sign=found.sign)


def appendix_d(rows: int = 20_000) -> Panels:
    """What superfluous statistics cost, for outliers that are far away and for some that are near."""
    train, inlier = gaussian(rows).select(SHOWN), gaussian(rows // 4, seed=1).select(SHOWN)
    outliers = {
        "near the origin": gaussian(rows // 4, scale=0.1, seed=2),
        "too close": gaussian(rows // 4, scale=0.8, seed=3),
    }
    curves: dict[str, dict[str, list[float]]] = {"useless": {}, "obfuscating": {}}
    for method, label in ((ProductKDE(), "KDE"), (WhitenedSVM(), "SVM")):
        method.fit(train.values)
        own = method.score_samples(inlier.values)
        for name, table in outliers.items():
            scores = method.score_samples(table.select(SHOWN).values)
            reached = auroc(own, scores)
            for kind, lines in curves.items():
                found = degradation(own, scores, COUNTS, obfuscating=kind == "obfuscating")
                lines[f"{label}, {name} ({reached:.3f} without)"] = found
    return degradation_panels(COUNTS, curves)


def toy_figures() -> tuple[str, Report]:
    """The page of the toy figures, and the figures in it."""
    report = Report()
    report.add(
        "A Gaussian in a hundred dimensions",
        "The likeliest point of all, the origin, looks like nothing that is ever drawn: its norm, its likelihood and "
        "its largest coordinate are far from those of every draw, and only the first coordinate finds it typical. "
        "After the paper's Figure 1.",
        report.draw("figure-1", figure_1(), "Draws of a Gaussian", f"{DRAWS:,} draws, 1,000 of them in (a)."),
    )
    report.add(
        "Where the likelihood is the worst of projections",
        "The outliers of this toy flow lie along a line of constant likelihood. A threshold on the likelihood and the "
        "typicality test let them pass; DoSE does not. After the paper's Appendix B.",
        report.draw("appendix-b", appendix_b(), "Plane of latent and jac", "Shaded: discarded, at 10 % of inliers."),
    )
    report.add(
        "Superfluous statistics",
        "Useless statistics are the same for inliers and outliers; obfuscating ones give every outlier the most "
        "typical value. What they cost depends on how far apart inliers and outliers score: for the KDE thousands of "
        "nats near the origin, a few too close to it; the SVM has a scale of its own. After the paper's Appendix D.",
        report.draw("appendix-d", appendix_d(), "AUROC with superfluous statistics", "DoSE on norm and max."),
    )
    lead = "The paper's toy problems, drawn anew. The seeds are fixed: the figures are the same every time."
    return report.html("What likelihood cannot see", lead, "Made by dose figures."), report
