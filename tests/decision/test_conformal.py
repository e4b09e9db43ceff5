import math
from fractions import Fraction
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom

from dose_ood.decision.conformal import check_share, p_values, threshold
from dose_ood.errors import InputError
from dose_ood.noise import generator

tied_scores = st.lists(st.integers(-5, 5), min_size=1, max_size=60).map(lambda xs: np.array(xs, dtype=np.float64))
shares = st.integers(1, 99).map(lambda percent: Fraction(percent, 100))


@given(st.integers(1, 500), shares)
def test_threshold_discards_exactly_the_share_of_distinct_scores(n, discard):
    scores = generator("distinct", n).permutation(n).astype(np.float64)
    below = np.count_nonzero(scores < threshold(scores, float(discard)))
    assert below == math.floor(discard * n)


@given(tied_scores, shares)
def test_threshold_discards_no_more_than_the_share_of_tied_scores(scores, discard):
    cut = threshold(scores, float(discard))
    allowed = math.floor(discard * len(scores))
    assert np.count_nonzero(scores < cut) <= allowed
    assert np.count_nonzero(scores <= cut) > allowed, "a higher threshold would have been allowed"


def test_threshold_of_all_but_everything_is_a_score():
    assert threshold(np.array([1.0, 2.0]), 1 - 1e-12) == 2.0


@pytest.mark.parametrize("share", [0.0, 1.0, -0.1, 1.5, math.nan])
def test_shares_outside_the_unit_interval_are_refused(share):
    with pytest.raises(InputError, match=r"discard must be in \(0, 1\)"):
        check_share("discard", share)


def test_nan_is_refused_not_typical():
    with pytest.raises(InputError, match="scores must not be NaN, got 1"):
        p_values(np.array([1.0, 2.0]), np.array([0.0, np.nan]))
    with pytest.raises(InputError, match="held-out scores must not be NaN"):
        p_values(np.array([1.0, np.nan]), np.array([0.0]))
    with pytest.raises(InputError, match="NaN"):
        threshold(np.array([1.0, np.nan]), 0.5)


def test_no_scores_are_refused():
    with pytest.raises(InputError, match="call calibrate"):
        p_values(np.empty(0), np.array([0.0]))
    with pytest.raises(InputError, match="got none"):
        threshold(np.empty(0), 0.5)


@given(tied_scores, tied_scores)
def test_p_values_count_by_hand(calibration, scores):
    expected = [(1 + sum(c <= x for c in calibration)) / (1 + len(calibration)) for x in scores]
    np.testing.assert_array_equal(p_values(np.sort(calibration), scores), expected)


def test_p_values_are_in_reach_at_the_ends():
    p = p_values(np.arange(9.0), np.array([-np.inf, -1.0, 8.0, np.inf]))
    np.testing.assert_array_equal(p, [0.1, 0.1, 1.0, 1.0])


@pytest.mark.parametrize("pool", [(0, 1, 2, 3, 4), (0, 0, 1, 1, 2), (0, 0, 0, 0, 0), (0, 1, 1, 1, 2)])
def test_exact_law_for_exchangeable_scores_with_ties(pool):
    """Over all orders of a pool, the last being the fresh one, P(p ≤ k/5) ≤ k/5, with equality if no scores tie."""
    found = np.array(
        [p_values(np.sort(np.array(o[:-1], float)), np.array(o[-1:], float))[0] for o in permutations(pool)]
    )
    for k in range(1, 6):
        share = np.count_nonzero(found <= k / 5 + 1e-12) / len(found)
        assert share <= k / 5 + 1e-12
        if len(set(pool)) == 5:
            assert share == pytest.approx(k / 5)


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("level", [0.01, 0.05, 0.2])
def test_p_values_are_super_uniform(ties, level):
    random, runs, m = generator("super-uniform", int(ties)), 4000, 99
    draws = random.poisson(3.0, (runs, m + 1)) if ties else random.gumbel(size=(runs, m + 1))
    p = np.array([p_values(np.sort(row[:-1]), row[-1:])[0] for row in draws.astype(np.float64)])
    count = np.count_nonzero(p <= level + 1e-12)
    assert count <= binom.isf(1e-4, runs, level)
    if not ties:  # level · (m + 1) is whole, so the law is exact
        assert count >= binom.ppf(1e-4, runs, level)


@pytest.mark.parametrize(("m", "discard"), [(100, 0.05), (999, 0.1), (37, 0.3)])
def test_false_alarms_on_fresh_data(m, discard):
    random, runs = generator("false alarms", m), 4000
    scores = random.standard_t(3, (runs, m + 1))
    alarms = sum(row[-1] < threshold(row[:-1], discard) for row in scores)
    expected = (math.floor(discard * m) + 1) / (m + 1)
    assert binom.ppf(1e-4, runs, expected) <= alarms <= binom.isf(1e-4, runs, expected)


@given(tied_scores, shares)
def test_threshold_and_p_values_agree(calibration, discard):
    """A score is below the threshold if and only if its p-value is at most (⌊discard · n⌋ + 1) / (n + 1)."""
    n = len(calibration)
    scores = np.arange(-6.0, 7.0)
    level = (math.floor(discard * n) + 1) / (n + 1)
    below = scores < threshold(calibration, float(discard))
    np.testing.assert_array_equal(below, p_values(np.sort(calibration), scores) <= level + 1e-12)
