"""How well scores tell inliers from outliers."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

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


def _scores(name: str, values: ArrayLike) -> Vector:
    scores = np.asarray(values, dtype=np.float64)
    if scores.ndim != 1 or not len(scores) or np.isnan(scores).any():
        raise InputError(f"{name} scores must be one number a row and not NaN, got shape {scores.shape}")
    return scores
