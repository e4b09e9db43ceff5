import numpy as np
import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from dose_ood.density.baselines import WAIC, Likelihood, LikelihoodRatio, Typicality
from dose_ood.noise import generator

BASELINES = [Likelihood(), Typicality(), WAIC(), LikelihoodRatio()]


def _table(name: str, rows: int = 300, columns: int = 5) -> np.ndarray:
    return generator(name).normal(-100.0, 3.0, (rows, columns))


@parametrize_with_checks(BASELINES)
def test_scikit_learn_contract(estimator, check):
    check(estimator)


@pytest.mark.parametrize("column", [0, 3])
def test_likelihood_is_its_column(column):
    rows = _table("likelihood")
    np.testing.assert_array_equal(Likelihood(column=column).fit(rows).score_samples(rows), rows[:, column])


@pytest.mark.parametrize("column", [0, 3])
def test_typicality_is_the_gap_to_the_training_entropy(column):
    """Trap 10. H = −mean log q, so |log q + H| is |log q − mean log q|; with the other sign it would rank by log q."""
    train, rows = _table("train"), _table("rows")
    entropy = -train[:, column].mean()
    scores = Typicality(column=column).fit(train).score_samples(rows)
    np.testing.assert_allclose(scores, -np.abs(rows[:, column] + entropy))
    assert abs(np.corrcoef(scores, rows[:, column])[0, 1]) < 0.3


def test_typicality_flags_both_too_unlikely_and_too_likely():
    random = generator("both")
    fitted = Typicality().fit(random.normal(-100, 1, (2000, 1))).calibrate(random.normal(-100, 1, (1000, 1)))
    assert fitted.predict([[-110.0], [-100.0], [-90.0]]).tolist() == [-1, 1, -1]
    np.testing.assert_allclose(fitted.score_samples([[fitted.mean_ - 2], [fitted.mean_ + 2]]), -2)
    assert Likelihood().fit(random.normal(-100, 1, (2000, 1))).predict([[-110.0], [-90.0]]).tolist() == [-1, 1]


def test_waic_is_mean_minus_population_variance():
    members = _table("waic")
    expected = [sum(row) / 5 - sum((x - sum(row) / 5) ** 2 for x in row) / 5 for row in members.tolist()]
    np.testing.assert_allclose(WAIC().fit(members).score_samples(members), expected)


def test_waic_of_one_member_is_its_likelihood():
    rows = _table("one", columns=1)
    np.testing.assert_array_equal(WAIC().fit(rows).score_samples(rows), rows[:, 0])


def test_waic_distrusts_disagreement():
    members = _table("waic")
    agreed, torn = np.full(5, -100.0), -100.0 + np.array([-6.0, -3.0, 0.0, 3.0, 6.0])
    agreed_score, torn_score = WAIC().fit(members).score_samples([agreed, torn])
    assert agreed_score - torn_score == pytest.approx(18)


@pytest.mark.parametrize(("column", "background"), [(0, 1), (4, 2)])
def test_likelihood_ratio(column, background):
    rows = _table("ratio")
    fitted = LikelihoodRatio(column=column, background=background).fit(rows)
    np.testing.assert_array_equal(fitted.score_samples(rows), rows[:, column] - rows[:, background])


def test_likelihood_ratio_needs_a_background():
    with pytest.raises(ValueError, match="minimum of 2 is required"):
        LikelihoodRatio().fit([[1.0], [2.0]])


@pytest.mark.parametrize(
    "estimator",
    [*BASELINES, Likelihood(column=2), Typicality(column=2), LikelihoodRatio(column=3, background=1)],
    ids=repr,
)
def test_contributions_sum_to_the_score(estimator):
    rows = _table("contributions")
    fitted = estimator.fit(rows)
    contributions = fitted.contributions(rows)
    np.testing.assert_allclose(contributions.sum(axis=1), fitted.score_samples(rows), atol=1e-9)
    used = np.flatnonzero(contributions.any(axis=0))
    moved = rows.copy()
    moved[:, np.setdiff1d(np.arange(5), used)] += 7.0
    np.testing.assert_array_equal(fitted.score_samples(moved), fitted.score_samples(rows))


@pytest.mark.parametrize("estimator", BASELINES, ids=repr)
def test_calibration_discards_its_share_of_held_out_rows(estimator):
    held_out = _table("held-out", 400)
    fitted = estimator.fit(_table("train", 2000)).calibrate(held_out)
    assert np.count_nonzero(fitted.predict(held_out) == -1) == 20
    np.testing.assert_array_equal(fitted.predict(held_out) == -1, fitted.p_values(held_out) <= 21 / 401)


@pytest.mark.parametrize("estimator", BASELINES, ids=repr)
def test_p_values_of_fresh_rows_spread_evenly(estimator):
    fitted = estimator.fit(_table("train", 2000)).calibrate(_table("held-out", 1000))
    p = fitted.p_values(_table("fresh", 2000))
    assert np.abs(np.quantile(p, [0.1, 0.5, 0.9]) - [0.1, 0.5, 0.9]).max() < 0.06
