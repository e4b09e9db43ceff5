"""How well scores tell inliers from outliers. Higher scores are more typical; outliers are what is sought."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import expit, logit, ndtri

from dose_ood.errors import InputError

Vector = NDArray[np.float64]


def auroc(inlier: ArrayLike, outlier: ArrayLike) -> float:
    """The share of pairs in which the inlier has the higher score; a tie counts half.

    It is the area under the curve of detections over false alarms: 1 = perfect, 0.5 = blind, 0 = perfectly wrong.

    Examples
    --------
    >>> auroc([1.0, 2.0, 3.0], [0.0, 1.0])
    0.9166666666666666
    """
    above, below = _scores("inlier", inlier), np.sort(_scores("outlier", outlier))
    wins = np.searchsorted(below, above, side="left") + np.searchsorted(below, above, side="right")
    return float(wins.mean() / (2 * len(below)))


@dataclass(frozen=True)
class Interval:
    """A number and the interval that holds the true one with some confidence."""

    value: float
    low: float
    high: float


def auroc_interval(inlier: ArrayLike, outlier: ArrayLike, confidence: float = 0.95) -> Interval:
    """The AUROC with its confidence interval: DeLong's variance on the logit scale.

        Var[A] = Var[p(x)] / n + Var[p(y)] / m

    The placement p(x) of an inlier is the share of outliers below it, p(y) that of inliers above an outlier. On the
    logit scale an interval stays within [0, 1]. It agrees with a bootstrap, and costs two sorts.

    Where the scores separate perfectly the variance is 0, but the AUROC need not be 1: of k = min(n, m) disjoint pairs
    all are in order, which has probability A^k, so that A is at least ((1 − confidence) / 2)^(1/k).

    References
    ----------
    *Comparing the Areas under Two or More Correlated Receiver Operating Characteristic Curves* (DeLong et al., 1988)

    Examples
    --------
    >>> auroc_interval([1.0, 2.0, 3.0], [0.0])
    Interval(value=1.0, low=0.025000000000000022, high=1.0)
    """
    above, below = np.sort(_scores("inlier", inlier)), np.sort(_scores("outlier", outlier))
    value, tail = auroc(above, below), (1 - confidence) / 2
    n, m = len(above), len(below)
    if value in (0.0, 1.0):
        bound = tail ** (1 / min(n, m))
        return Interval(value, bound, 1.0) if value == 1.0 else Interval(value, 0.0, 1 - bound)
    if min(n, m) < 2:
        return Interval(value, 0.0, 1.0)
    error = math.sqrt(_placements(below, above).var(ddof=1) / n + _placements(-above, -below).var(ddof=1) / m)
    reach = -ndtri(tail) * error / (value * (1 - value))
    return Interval(value, float(expit(logit(value) - reach)), float(expit(logit(value) + reach)))


def _placements(others: Vector, scores: Vector) -> Vector:
    """The share of `others` below each score, ties counting half."""
    ordered = np.sort(others)
    below = np.searchsorted(ordered, scores, side="left") + np.searchsorted(ordered, scores, side="right")
    result: Vector = below / (2 * len(ordered))
    return result


def aupr(inlier: ArrayLike, outlier: ArrayLike) -> float:
    """The area under precision over recall for finding outliers: Σ (R_k − R_{k−1}) P_k over the distinct scores.

    Examples
    --------
    >>> aupr([1.0, 2.0, 3.0], [0.0, 1.0])
    0.8333333333333333
    """
    found, alarms = _detections(inlier, outlier)
    gained = np.diff(found, prepend=0)
    return float((gained / found[-1] * found / (found + alarms)).sum())


def fpr95(inlier: ArrayLike, outlier: ArrayLike, share: float = 0.95) -> float:
    """The share of inliers discarded by the strictest threshold that discards at least 95 % of the outliers.

    Examples
    --------
    >>> fpr95([1.0, 2.0, 3.0, 4.0], [0.0, 1.0])
    0.25
    """
    found, alarms = _detections(inlier, outlier)
    needed = math.ceil(share * found[-1] - 1e-9)
    return float(alarms[np.searchsorted(found, needed)] / alarms[-1])


def _detections(inlier: ArrayLike, outlier: ArrayLike) -> tuple[Vector, Vector]:
    """Outliers and inliers at or below each distinct score, from the least typical on."""
    above, below = np.sort(_scores("inlier", inlier)), np.sort(_scores("outlier", outlier))
    thresholds = np.unique(np.concatenate([above, below]))
    counts = (np.searchsorted(part, thresholds, side="right").astype(np.float64) for part in (below, above))
    found, alarms = counts
    return found, alarms


def _scores(name: str, values: ArrayLike) -> Vector:
    scores = np.asarray(values, dtype=np.float64)
    if scores.ndim != 1 or not len(scores) or np.isnan(scores).any():
        raise InputError(f"{name} scores must be one number a row and not NaN, got shape {scores.shape}")
    return scores
