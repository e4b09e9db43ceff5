import numpy as np
import pytest
from scipy.stats import binom, kstest

from dose_ood.decision.conformal import p_values
from dose_ood.decision.group import GroupTest
from dose_ood.errors import InputError
from dose_ood.noise import generator

HELD_OUT = generator("held-out").normal(size=500)


def _false_alarms(law: str, m: int, size: int, runs: int, *, bias: float = 0.0, alpha: float = 0.05) -> int:
    """Flagged fresh groups, each with its own training mean (of 50,000 rows) and held-out scores.

    "skewed" is −Gamma(1/2), the law of the log-likelihood of a one-dimensional Gaussian: skewness −2.8.
    The verdict depends on a group's mean alone, so a group is its mean, repeated.
    """
    random, train, alarms = generator(f"group {law} {m} {bias}", size), 50_000, 0
    for run in range(runs):
        if law == "gaussian":
            train_mean, mean = random.normal() / np.sqrt(train), random.normal() / np.sqrt(size)
            held_out = random.normal(size=m)
        else:
            train_mean, mean = -random.gamma(train / 2) / train, -random.gamma(size / 2) / size
            held_out = -random.gamma(0.5, size=m)
        check = GroupTest.from_scores(train_mean + bias, held_out, size, alpha, draws=199, seed=run)
        alarms += check.test(np.full(size, mean)).drifted
    return alarms


@pytest.mark.parametrize("law", ["gaussian", "skewed"])
@pytest.mark.parametrize("m", [500, 5000])
@pytest.mark.parametrize("size", [1, 10, 100, 1000, 10_000])
def test_fresh_groups_are_not_flagged_more_than_alpha(law, m, size):
    assert _false_alarms(law, m, size, 200) <= binom.isf(1e-4, 200, 0.05)


@pytest.mark.parametrize("law", ["gaussian", "skewed"])
@pytest.mark.parametrize("size", [10, 1000, 10_000])
def test_fresh_groups_are_not_flagged_more_than_alpha_if_training_scores_are_inflated(law, size):
    """With a shift that is large against the noise the rate is alpha itself: from above and from below."""
    count = _false_alarms(law, 500, size, 300, bias=0.2)
    assert binom.ppf(1e-4, 300, 0.05) <= count <= binom.isf(1e-4, 300, 0.05)


@pytest.mark.slow
@pytest.mark.parametrize("law", ["gaussian", "skewed"])
@pytest.mark.parametrize("bias", [0.0, 0.05, 0.2])
@pytest.mark.parametrize("size", [2, 10, 100, 1001])
def test_false_alarms_precisely(law, size, bias):
    assert _false_alarms(law, 500, size, 3000, bias=bias) <= binom.isf(1e-4, 3000, 0.05)


@pytest.mark.parametrize("size", [1, 7, 200, 5000])
def test_finds_a_drift_of_a_few_standard_errors(size):
    """Not blind: a drift of six standard errors of the noise is found, in either direction."""
    check = GroupTest.from_scores(0.0, HELD_OUT, size, 0.01)
    drift = 6 * np.sqrt(1 / size + 1 / 500) + abs(HELD_OUT.mean())
    fresh = generator("fresh", size).normal(size=size)
    centred = fresh - fresh.mean()
    assert check.test(centred + drift).drifted
    assert check.test(centred - drift).drifted
    assert not check.test(centred).drifted


def test_size_one_is_the_conformal_p_value_of_the_gap():
    check = GroupTest.from_scores(0.3, HELD_OUT, 1, 0.05)
    scores = generator("scores").normal(size=200) * 2
    found = check.stream(scores)
    np.testing.assert_array_equal(found.p_values, p_values(np.sort(-np.abs(HELD_OUT - 0.3)), -np.abs(scores - 0.3)))
    np.testing.assert_allclose(found.gaps, np.abs(-scores - (-0.3)))


@pytest.mark.parametrize("size", [1, 3, 40, 2000])
def test_drifted_gap_and_p_value_say_the_same(size):
    check = GroupTest.from_scores(0.1, HELD_OUT, size, 0.05)
    stream = generator("stream").normal(0.0, 1.5, (300, 1)) * np.sqrt(1 / size + 1 / 500) + np.zeros(size)
    found = check.stream(stream.ravel())
    np.testing.assert_array_equal(found.drifted, found.p_values <= 0.05)
    np.testing.assert_array_equal(found.drifted, found.gaps > found.threshold)
    assert 0 < np.count_nonzero(found.drifted) < 300


def test_bootstrap_and_normal_approximation_meet():
    thresholds = [GroupTest.from_scores(0.05, HELD_OUT, size, 0.05).threshold for size in (1000, 1001)]
    assert thresholds[0] == pytest.approx(thresholds[1], rel=0.03)


def test_p_values_of_gaussian_groups_are_uniform():
    random = generator("uniform p")
    p = []
    for run in range(500):
        held_out = random.normal(size=300)
        check = GroupTest.from_scores(1.0, held_out, 20, draws=199, seed=run)
        p.append(check.test(random.normal(size=20)).p_value + random.uniform(-1, 0) / 200)
    assert kstest(p, "uniform").pvalue > 1e-3


def test_a_threshold_shrinks_with_the_group_but_not_below_the_held_out_noise():
    held_out = HELD_OUT - HELD_OUT.mean()
    epsilons = [GroupTest.from_scores(0.0, held_out, size, 0.05).threshold for size in (1, 10, 100, 10_000, 1_000_000)]
    assert epsilons == sorted(epsilons, reverse=True)
    assert epsilons[-1] == pytest.approx(1.96 * held_out.std() / np.sqrt(500), rel=0.05)


@pytest.mark.parametrize("size", [1, 4, 1500])
@pytest.mark.parametrize("bad", [[-np.inf], [np.inf], [np.inf, -np.inf]])
def test_infinite_scores_are_atypical(size, bad):
    check = GroupTest.from_scores(0.0, HELD_OUT, size, 0.05)
    group = np.zeros(size)
    group[: min(size, len(bad))] = bad[:size]
    verdict = check.test(group)
    assert verdict.drifted
    assert verdict.gap == np.inf
    assert verdict.p_value == 1 / (1 + len(check.gaps))


def test_stream_says_what_it_did_not_test():
    check = GroupTest.from_scores(0.0, HELD_OUT, 10, 0.01)
    found = check.stream(np.append(np.zeros(20), np.full(17, 5.0)))
    assert found.drifted.tolist() == [False, False, True]
    assert found.rest == 7
    assert found.summary == "1 of 3 groups of 10 drifted; the last 7 scores filled no group and were not tested"
    assert check.stream(np.zeros(20)).summary == "0 of 2 groups of 10 drifted"
    assert check.stream(np.zeros(9)).summary.startswith("0 of 0 groups of 10 drifted; the last 9")


def test_refusals():
    with pytest.raises(InputError, match="groups of 10 scores, got 9"):
        GroupTest.from_scores(0.0, HELD_OUT, 10).test(np.zeros(9))
    with pytest.raises(InputError, match="scores must not be NaN, got 1"):
        GroupTest.from_scores(0.0, HELD_OUT, 2).test([0.0, np.nan])
    with pytest.raises(InputError, match="needs at least 19 held-out scores, got 18"):
        GroupTest.from_scores(0.0, HELD_OUT[:18], 1, 0.05)
    with pytest.raises(InputError, match="needs at least 99 draws, got 98"):
        GroupTest.from_scores(0.0, HELD_OUT, 2, 0.01, draws=98)
    with pytest.raises(InputError, match="held-out scores must be finite, got 1"):
        GroupTest.from_scores(0.0, [0.0, 1.0, -np.inf], 2)
    with pytest.raises(InputError, match="must differ"):
        GroupTest.from_scores(0.0, np.ones(50), 2)
    with pytest.raises(InputError, match="at least 2 held-out scores"):
        GroupTest.from_scores(0.0, [1.0], 2)
    with pytest.raises(InputError, match="train_mean must be finite"):
        GroupTest.from_scores(-np.inf, HELD_OUT, 2)
    with pytest.raises(InputError, match="size and draws"):
        GroupTest.from_scores(0.0, HELD_OUT, 0)
    with pytest.raises(InputError, match="alpha must be in"):
        GroupTest.from_scores(0.0, HELD_OUT, 2, 0.0)


def test_a_million_samples_a_group():
    check = GroupTest.from_scores(0.0, HELD_OUT - HELD_OUT.mean(), 1_000_000, 0.05)
    assert not check.test(np.linspace(-1, 1, 1_000_000)).drifted
    assert check.test(np.linspace(-1, 1, 1_000_000) + 0.2).drifted
