"""Methods against each other over many pairs of data sets: average ranks and a permutation test."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dose_ood.errors import InputError
from dose_ood.noise import generator

Vector = NDArray[np.float64]

EXACT_PAIRS = 14  # up to so many pairs all 2^n patterns of signs are looked at
DRAWS = 100_000
DIGITS = 3  # of an AUROC; what prints alike is a tie


def average_ranks(aurocs: Mapping[str, Sequence[float]], alone: Sequence[str] = ("kde", "svm")) -> dict[str, float]:
    """The average rank of each method over the pairs, 1 = best; methods that tie share the best rank.

    As in the paper, a DoSE method is ranked among the others "excluding the other" one. The other methods are ranked
    with the first of `alone` that is there. AUROCs are compared as printed, to three digits.

    Parameters
    ----------
    aurocs
        For each method its AUROC on each pair, in the same order.
    alone
        Methods of which only one is ranked at a time.

    Examples
    --------
    >>> average_ranks({"likelihood": [0.9, 0.5], "kde": [0.9, 0.8], "svm": [0.95, 0.4]})
    {'likelihood': 1.5, 'kde': 1.0, 'svm': 1.5}
    """
    first = next((method for method in alone if method in aurocs), None)
    ranks = {}
    for method, own in aurocs.items():
        kept = method if method in alone else first
        field = np.array([values for name, values in aurocs.items() if name not in alone or name == kept])
        better = np.round(field, DIGITS) > np.round(np.asarray(own), DIGITS)
        ranks[method] = float((1 + better.sum(axis=0)).mean())
    return ranks


def sign_flip_p_value(differences: ArrayLike) -> float:
    """The probability of so large a mean difference, in either direction, if each could as well have the other sign.

    Exact over all 2^n patterns of signs up to 14 pairs; beyond, from 100,000 drawn patterns, (1 + hits) / (1 + draws).

    Examples
    --------
    >>> sign_flip_p_value([0.1, 0.2, 0.3])
    0.25
    """
    values = np.asarray(differences, dtype=np.float64)
    if values.ndim != 1 or not len(values) or not np.isfinite(values).all():
        raise InputError(f"expected a finite difference for each pair, got shape {values.shape}")
    count, reached = len(values), np.abs(values.sum()) - 1e-12  # equality must survive rounding
    if count <= EXACT_PAIRS:
        bits = np.arange(2**count)[:, None] >> np.arange(count) & 1
        return float((np.abs((1 - 2 * bits) @ values) >= reached).mean())
    random, hits = generator("sign flips"), 0
    for start in range(0, DRAWS, 1000):
        signs = 1 - 2 * random.integers(0, 2, (min(1000, DRAWS - start), count))
        hits += int((np.abs(signs @ values) >= reached).sum())
    return (1 + hits) / (1 + DRAWS)
