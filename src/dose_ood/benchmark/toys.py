"""The paper's toy problems: what is typical is known, so what a method says can be checked."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dose_ood.benchmark.metrics import auroc
from dose_ood.noise import generator
from dose_ood.statistics import Statistics

Vector = NDArray[np.float64]
Matrix = NDArray[np.float64]

MEMBERS = 5
AWAY = 240  # how far the flow's outliers are along each statistic


def gaussian(rows: int, *, dimensions: int = 100, scale: float = 1.0, shift: float = 0.0, seed: int = 0) -> Statistics:
    """Figure 1: statistics of points of a high-dimensional normal distribution, and of an ensemble of models of it.

    `norm`, `first` (coordinate) and `max` (coordinate) describe a point x ~ N(shift · e₁, scale²); `like` is its
    log-density under N(0, 1), the in-distribution. `k/like` are log-densities under members of an ensemble, each
    N(0, 1) up to the error of fitting 1,000 points; `background/like` that under the wider N(0, 1.2²).

    Examples
    --------
    >>> gaussian(3, scale=0.0)["norm"]
    array([0., 0., 0.])
    """
    points = scale * generator("gaussian toy", seed).normal(size=(rows, dimensions))
    points[:, 0] += shift
    like = _log_normal(points, 1.0)
    columns = {"norm": np.sqrt((points**2).sum(axis=1)), "like": like, "first": points[:, 0], "max": points.max(axis=1)}
    for member in range(MEMBERS):
        fitted = 1 + generator("gaussian toy member", member).normal(size=dimensions) / np.sqrt(2000)
        columns[f"{member}/like"] = _log_normal(points, fitted)
    columns["background/like"] = _log_normal(points, 1.2)
    return Statistics.from_columns(columns)


def flow(rows: int, *, outlier: bool = False, seed: int = 0) -> Statistics:
    """Appendix B: a flow's `latent` and `jac` move together, their sum `like` does not tell the outliers.

    The outliers lie along the line of constant likelihood: in the space of statistics they are far away.
    """
    random = generator("flow toy", seed)
    along, across = random.normal(size=(2, rows))
    latent = -4000 + 60 * (along - across) / np.sqrt(2) + (AWAY if outlier else 0)
    jac = -2000 + 60 * (along + across) / np.sqrt(2) - (AWAY if outlier else 0)
    return Statistics.from_columns({"like": latent + jac, "latent": latent, "jac": jac})


def degradation(
    inlier: Vector, outlier: Vector, counts: Sequence[int], *, obfuscating: bool = False, seed: int = 0
) -> list[float]:
    """Appendix D: the AUROC after adding the log-densities of superfluous statistics to DoSE scores.

    A useless statistic is N(0, 1) for inliers and outliers alike. An obfuscating one is N(0, 1) for inliers, while all
    outliers have its most typical value, 0. The sum over k of them is −k log √2π − χ²_k / 2, so it is drawn at once.

    Useless ones add noise of √(k/2) nats, obfuscating ones lift outliers by k/2 nats: what they cost depends on how
    many nats lie between inliers and outliers, not on the AUROC alone.

    Parameters
    ----------
    inlier, outlier
        DoSE scores.
    counts
        Numbers of statistics to add.
    obfuscating
        Which of the two kinds.
    seed
        Of the draws.

    Examples
    --------
    >>> degradation(np.zeros(4), np.full(4, -1e3), [1, 100])
    [1.0, 1.0]
    """
    random = generator("degradation", seed)
    result = []
    for count in counts:
        added = -0.5 * random.chisquare(count, len(inlier))
        hidden = np.zeros(len(outlier)) if obfuscating else -0.5 * random.chisquare(count, len(outlier))
        result.append(auroc(inlier + added, outlier + hidden))
    return result


def _log_normal(points: Matrix, deviation: float | Vector) -> Vector:
    result: Vector = (-0.5 * (points / deviation) ** 2 - np.log(deviation) - 0.5 * np.log(2 * np.pi)).sum(axis=1)
    return result
