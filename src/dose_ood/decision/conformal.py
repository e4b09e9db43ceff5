"""The threshold and the p-values that held-out scores give."""

import math

import numpy as np
from numpy.typing import NDArray

from dose_ood.errors import InputError

Vector = NDArray[np.float64]


def check_share(name: str, share: float) -> None:
    """Refuse a share outside (0, 1)."""
    if not 0 < share < 1:
        raise InputError(f"{name} must be in (0, 1), got {share}")


def threshold(scores: Vector, discard: float) -> float:
    """The score below which the share `discard` of `scores` lies (step 6 of the paper's procedure).

    Exactly ⌊discard · n⌋ of the given scores are below it, fewer if scores tie there. A fresh score from the same
    distribution is below it with probability (⌊discard · n⌋ + 1) / (n + 1), less if scores tie.

    Examples
    --------
    >>> threshold(np.array([4.0, 1.0, 3.0, 2.0]), 0.5)
    3.0
    """
    check_share("discard", discard)
    if not len(scores):
        raise InputError("a threshold needs scores, got none")
    _check_numbers("scores", scores)
    count = min(math.floor(discard * len(scores) + 1e-9), len(scores) - 1)  # 0.29 * 100 is 28.999…
    return float(np.partition(scores, count)[count])


def p_values(calibration: Vector, scores: Vector) -> Vector:
    """Conformal p-values (1 + rank) / (1 + n), the rank being the number of calibration scores that are no higher.

    If a score and the n calibration scores are exchangeable, P(p ≤ a) ≤ a for every a: a small p-value is evidence
    that the sample is not from the calibration distribution.

    Parameters
    ----------
    calibration
        Scores of held-out rows, sorted upwards.
    scores
        Scores to judge.

    Examples
    --------
    >>> p_values(np.array([1.0, 2.0, 3.0]), np.array([0.0, 2.0, 9.0]))
    array([0.25, 0.75, 1.  ])
    """
    if not len(calibration):
        raise InputError("p-values need held-out scores, got none: call calibrate first")
    _check_numbers("held-out scores", calibration)
    _check_numbers("scores", scores)
    rank = np.searchsorted(calibration, scores, side="right")
    result: Vector = (1 + rank.astype(np.float64)) / (1 + len(calibration))
    return result


def _check_numbers(name: str, scores: Vector) -> None:
    """Refuse NaN, which sorts above every number and would count as typical."""
    if np.isnan(scores).any():
        raise InputError(f"{name} must not be NaN, got {np.count_nonzero(np.isnan(scores))} that are")
