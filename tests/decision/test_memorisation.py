import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom, gaussian_kde

from dose_ood.decision.memorisation import Memorisation, ScoreBins, expected_calibration_error, score_bins
from dose_ood.density.baselines import Likelihood
from dose_ood.errors import DoseWarning, InputError
from dose_ood.noise import generator


def test_formula_by_hand():
    bins = score_bins(np.arange(8.0), bins=4)
    np.testing.assert_array_equal(bins.edges, [2, 4, 6])
    np.testing.assert_array_equal(bins.shares, [0.25] * 4)
    # found: 3/5 below 2, 1/5 in [2, 4), none in [4, 6), 1/5 above: (0.35 + 0.05 + 0.25 + 0.05) / 4
    assert expected_calibration_error(bins, np.array([-9.0, 0.0, 1.9, 2.0, 6.0])).ece == pytest.approx(0.175)


@given(st.lists(st.integers(0, 6), min_size=2, max_size=80).map(lambda xs: np.array(xs, dtype=np.float64)))
def test_training_scores_have_no_error_against_themselves(scores):
    bins = score_bins(scores)
    found = expected_calibration_error(bins, scores, draws=20)
    assert bins.shares.sum() == pytest.approx(1)
    assert len(bins.edges) + 1 == len(bins.shares)
    assert found.ece == pytest.approx(0, abs=1e-12)
    assert found.p_value == 1


def test_chance_level_is_the_documented_one():
    m, n = 6000, 54_000
    found = expected_calibration_error(ScoreBins(np.arange(9.0), np.full(10, 0.1), n), np.arange(m) % 10 - 0.5)
    assert found.by_chance == pytest.approx(np.sqrt(2 / np.pi * 0.09 * (1 / m + 1 / n)), rel=0.02)
    assert found.by_chance == pytest.approx(0.0033, abs=1e-4)
    assert found.by_chance < found.by_chance_95 < 0.01


@pytest.mark.parametrize(("n", "m"), [(15, 40), (300, 60), (2000, 200), (400, 4000)])
def test_p_values_are_honest_under_the_null(n, m):
    random, runs = generator("ece null", n), 400
    p = np.array(
        [
            expected_calibration_error(score_bins(random.gumbel(size=n)), random.gumbel(size=m), draws=199).p_value
            for _ in range(runs)
        ]
    )
    for level in (0.05, 0.2, 0.5):
        assert np.count_nonzero(p <= level + 1e-9) <= binom.isf(1e-4, runs, level)
    if m >= 200:  # below, the error has few values and the p-value is conservative
        for level in (0.2, 0.5):
            assert np.count_nonzero(p <= level + 1e-9) >= binom.ppf(1e-4, runs, 0.85 * level)


def _kde_p_values(n: int, m: int, factor: float | str, runs: int) -> list[Memorisation]:
    random = generator(f"ece kde {factor}", n)
    found = []
    for _ in range(runs):
        train, fresh = random.normal(size=n), random.normal(size=m)
        kde = gaussian_kde(train, factor)
        found.append(expected_calibration_error(score_bins(kde.logpdf(train)), kde.logpdf(fresh), draws=199))
    return found


def test_self_inclusion_of_a_wide_kernel_goes_unseen_and_of_a_narrow_one_does_not():
    """Training rows are inside the KDE. At Scott's bandwidth that is harmless; a KDE that memorises is found out."""
    assert not any(found.high for found in _kde_p_values(500, 500, "scott", 10))
    assert all(found.high for found in _kde_p_values(500, 500, 0.001, 5))


@pytest.mark.slow
def test_p_values_are_honest_for_a_kde():
    p = np.array([found.p_value for found in _kde_p_values(2000, 222, "scott", 300)])
    for level in (0.05, 0.2, 0.5):
        count = np.count_nonzero(p <= level + 1e-9)
        assert binom.ppf(1e-4, 300, 0.85 * level) <= count <= binom.isf(1e-4, 300, level)


@pytest.mark.parametrize("seed", range(5))
def test_inflated_training_scores_are_detected(seed):
    random = generator("inflated", seed)
    bins = score_bins(random.normal(0.4, 1.0, 5000))
    assert expected_calibration_error(bins, random.normal(0.0, 1.0, 600)).high
    assert not expected_calibration_error(bins, random.normal(0.4, 1.0, 600)).high


def test_high_is_both_material_and_not_chance():
    assert Memorisation(0.05, 0.01, 0.02, 0.001).high
    assert not Memorisation(0.015, 0.001, 0.002, 0.0001).high, "real, but small"
    assert not Memorisation(0.05, 0.05, 0.07, 0.4).high, "large, but chance"


def test_calibrate_warns_of_memorisation():
    random = generator("calibrate")
    estimator = Likelihood().fit(random.normal(0.5, 1.0, (5000, 1)))
    with pytest.warns(DoseWarning, match="memorised"):
        estimator.calibrate(random.normal(0.0, 1.0, (600, 1)))
    assert estimator.memorisation().high


@pytest.mark.parametrize("seed", range(10))
def test_calibrate_does_not_warn_otherwise(seed):
    random = generator("calibrate honestly", seed)
    estimator = Likelihood().fit(random.normal(size=(5000, 1)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        estimator.calibrate(random.normal(size=(600, 1)))
    assert estimator.memorisation().ece > 0


def test_memorisation_is_unknown_before_calibration():
    with pytest.raises(InputError, match="call calibrate"):
        Likelihood().fit([[1.0], [2.0]]).memorisation()
    with pytest.raises(InputError, match="got none"):
        expected_calibration_error(score_bins(np.arange(9.0)), np.empty(0))


@pytest.mark.parametrize(
    ("ece", "p_value", "says"),
    [(0.03, 0.001, "likely"), (0.0146, 0.002, "more than chance"), (0.03, 0.3, "no sign"), (0.001, 0.9, "no sign")],
)
def test_an_error_beyond_chance_is_never_called_no_sign(ece, p_value, says):
    assert Memorisation(ece, 0.008, 0.011, p_value).verdict.startswith(says)
