"""Which rows of a batch to flag, with a bound on the share of false flags."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dose_ood.decision.conformal import check_share
from dose_ood.errors import InputError


def benjamini_hochberg(p_values: ArrayLike, rate: float) -> NDArray[np.bool_]:
    """Flag rows as atypical so that at most the share `rate` of the flagged ones is expected to be typical.

        k = max { i : p_(i) ≤ rate · i / n },  flagged: every row with p ≤ p_(k)

    The bound on the false-discovery rate holds for independent p-values and for positively dependent ones (PRDS).
    Conformal p-values of rows judged by one shared set of held-out rows are of the second kind, so it holds for them.
    It is an average over held-out sets and batches: a given batch may have more false flags.

    The smallest conformal p-value is 1 / (1 + m) with m held-out rows, so a lone outlier among n rows can be flagged
    only if m ≥ n / rate − 1; with fewer held-out rows, outliers must come in numbers to be found.

    Parameters
    ----------
    p_values
        One p-value a row, in [0, 1].
    rate
        Bound on the false-discovery rate, in (0, 1).

    References
    ----------
    *Controlling the False Discovery Rate* (Benjamini & Hochberg, 1995)
    *Testing for Outliers with Conformal p-Values* (Bates et al., 2021)

    Examples
    --------
    >>> benjamini_hochberg([0.9, 0.01, 0.04, 0.03], 0.1)
    array([False,  True,  True,  True])
    """
    check_share("rate", rate)
    p = np.asarray(p_values, dtype=np.float64)
    if p.ndim != 1:
        raise InputError(f"p_values must have one dimension, got shape {p.shape}")
    if not np.all((p >= 0) & (p <= 1)):  # refuses NaN too
        raise InputError(f"p_values must be in [0, 1], got {p[~((p >= 0) & (p <= 1))][0]}")
    levels, counts = np.unique(p, return_counts=True)
    cut, _ = discoveries(levels, counts, rate)
    return p <= cut


def discoveries(levels: ArrayLike, counts: ArrayLike, rate: float) -> tuple[float, int]:
    """The largest p-value that `benjamini_hochberg` flags in a batch too large to hold, and how many rows it flags.

    Conformal p-values have few distinct levels, so counting them is enough. If no row is flagged, the cut is −1.

    Parameters
    ----------
    levels
        Distinct p-values, upwards.
    counts
        Number of rows that have each.
    rate
        Bound on the false-discovery rate, in (0, 1).

    Examples
    --------
    >>> discoveries([0.01, 0.03, 0.04, 0.9], [1, 1, 1, 1], 0.1)
    (0.04, 3)
    """
    check_share("rate", rate)
    p, below = np.asarray(levels, dtype=np.float64), np.cumsum(counts)
    allowed = rate * below / max(1, below[-1] if len(below) else 0) * (1 + 1e-12)  # equality must survive rounding
    passed = np.flatnonzero((p <= allowed) & (below > 0))
    return (float(p[passed[-1]]), int(below[passed[-1]])) if len(passed) else (-1.0, 0)
