from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import false_discovery_control

from dose_ood.decision.conformal import p_values
from dose_ood.decision.selection import benjamini_hochberg
from dose_ood.errors import InputError
from dose_ood.noise import generator


@pytest.mark.parametrize("seed", range(20))
def test_agrees_with_scipy(seed):
    p = generator("bh", seed).beta(0.4, 1.0, 300)
    flagged = benjamini_hochberg(p, 0.1)
    np.testing.assert_array_equal(flagged, false_discovery_control(p) <= 0.1)
    assert 0 < np.count_nonzero(flagged) < 300


@given(st.lists(st.integers(0, 20), max_size=40), st.integers(1, 19))
def test_agrees_with_exact_arithmetic_on_a_grid(ranks, percent):
    """Conformal p-values lie on a grid, where ties and equality with the line are the rule."""
    p, rate = [Fraction(r, 20) for r in ranks], Fraction(percent, 20)
    passed = [x for i, x in enumerate(sorted(p), 1) if x * len(p) <= rate * i]
    expected = [bool(passed) and x <= passed[-1] for x in p]
    assert benjamini_hochberg([float(x) for x in p], float(rate)).tolist() == expected


def test_ends_of_the_range():
    assert benjamini_hochberg([], 0.1).shape == (0,)
    assert benjamini_hochberg([0.0, 1.0], 0.1).tolist() == [True, False]
    assert benjamini_hochberg([1.0, 1.0], 0.1).tolist() == [False, False]
    assert benjamini_hochberg([0.05, 0.05, 0.9], 0.075).tolist() == [True, True, False], "ties share their fate"


@pytest.mark.parametrize("bad", [np.nan, -0.1, 1.1])
def test_bad_p_values_are_refused(bad):
    with pytest.raises(InputError, match=r"p_values must be in \[0, 1\]"):
        benjamini_hochberg([0.5, bad], 0.1)


def test_bad_shapes_and_rates_are_refused():
    with pytest.raises(InputError, match="one dimension"):
        benjamini_hochberg([[0.5]], 0.1)
    with pytest.raises(InputError, match="rate must be in"):
        benjamini_hochberg([0.5], 1.0)


@pytest.mark.parametrize("outliers", [0, 10, 40])
def test_false_discovery_rate_with_conformal_p_values(outliers):
    """FDR = rate · (share of inliers) at most, all rows of a batch being judged by one set of held-out rows."""
    rate, runs, batch, m = 0.2, 1000, 100, 499
    random = generator("fdr", outliers)
    shift = np.where(np.arange(batch) < outliers, -4.0, 0.0)
    false, found = np.empty(runs), np.empty(runs)
    for i in range(runs):
        p = p_values(np.sort(random.normal(size=m)), random.normal(size=batch) + shift)
        flagged = benjamini_hochberg(p, rate)
        false[i] = np.count_nonzero(flagged[outliers:]) / max(1, np.count_nonzero(flagged))
        found[i] = np.count_nonzero(flagged[:outliers])
    expected = rate * (1 - outliers / batch)
    error = false.std() / np.sqrt(runs)
    assert false.mean() <= expected + 4 * error
    assert false.mean() >= expected - 4 * error - 0.03, "far below: the bound would be met by flagging nothing"
    if outliers:
        assert found.mean() > 0.8 * outliers


def test_a_lone_outlier_needs_enough_held_out_rows():
    """The docstring's m ≥ n / rate − 1."""
    scores = np.append(np.full(99, 9.0), -9.0)
    assert benjamini_hochberg(p_values(np.arange(999.0) / 999, scores), 0.1).tolist() == [False] * 99 + [True]
    assert not benjamini_hochberg(p_values(np.arange(998.0) / 998, scores), 0.1).any()
