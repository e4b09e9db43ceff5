import numpy as np
import pytest
from scipy.stats import norm
from sklearn.metrics import average_precision_score, roc_auc_score, roc_curve

from dose_ood import InputError
from dose_ood.benchmark.metrics import aupr, auroc, auroc_interval, fpr95
from dose_ood.noise import generator


def drawn(inliers: int, outliers: int, shift: float, digits: int | None = None, seed: int = 0):
    """Scores of inliers and outliers; few digits make ties."""
    random = generator("scores", seed)
    scores = random.normal(size=inliers), random.normal(size=outliers) - shift
    return scores if digits is None else tuple(np.round(each, digits) for each in scores)


CASES = [
    drawn(200, 300, 1.0),
    drawn(300, 50, 0.0, digits=1),
    drawn(40, 40, 3.0, digits=0),
    drawn(100, 90, -1.0, digits=1),
    (np.zeros(7), np.zeros(5)),
    (np.ones(7), np.array([-np.inf, 0.0, 1.0])),
]


@pytest.mark.parametrize(("inlier", "outlier"), CASES)
def test_areas_and_false_alarms_are_those_of_scikit_learn(inlier, outlier):
    is_outlier = np.repeat([0, 1], [len(inlier), len(outlier)])
    suspicion = -np.nan_to_num(np.concatenate([inlier, outlier]), neginf=-99)
    alarms, found, _ = roc_curve(is_outlier, suspicion)
    assert auroc(inlier, outlier) == pytest.approx(roc_auc_score(is_outlier, suspicion))
    assert aupr(inlier, outlier) == pytest.approx(average_precision_score(is_outlier, suspicion))
    assert fpr95(inlier, outlier) == pytest.approx(alarms[found >= 0.95].min())


@pytest.mark.parametrize(("inlier", "outlier"), CASES[:4])
def test_only_the_order_of_scores_matters(inlier, outlier):
    for measure in (aupr, fpr95, auroc_interval):
        assert measure(inlier, outlier) == measure(np.exp(inlier), np.exp(outlier))
    assert auroc_interval(-inlier, -outlier).value == pytest.approx(1 - auroc(inlier, outlier))
    assert auroc_interval(-inlier, -outlier).low == pytest.approx(1 - auroc_interval(inlier, outlier).high)


@pytest.mark.parametrize(
    ("inlier", "outlier"), [CASES[0], CASES[1], CASES[3], drawn(900, 800, 2.5), drawn(700, 900, 1.5, digits=0)]
)
def test_the_interval_is_that_of_a_bootstrap(inlier, outlier):
    random = generator("bootstrap of areas")
    draws = [auroc(random.choice(inlier, len(inlier)), random.choice(outlier, len(outlier))) for _ in range(3000)]
    found, (low, high) = auroc_interval(inlier, outlier), np.quantile(draws, [0.025, 0.975])
    assert (found.low, found.high) == pytest.approx((low, high), abs=0.13 * (high - low))


def test_the_variance_of_two_valued_scores_is_known():
    n, m, p, q = 60, 80, 0.7, 0.4  # A = ½ + (p − q)/2, whose variance is that of two shares, over 4
    inlier, outlier = np.repeat([1.0, 0.0], [42, 18]), np.repeat([1.0, 0.0], [32, 48])
    found = auroc_interval(inlier, outlier)
    area = 0.5 + (p - q) / 2
    error = np.sqrt((p * (1 - p) / (n - 1) + q * (1 - q) / (m - 1)) / 4)
    reach = norm.ppf(0.975) * error / (area * (1 - area))
    odds = area / (1 - area) * np.exp([-reach, reach])
    assert found.value == pytest.approx(area)
    assert (found.low, found.high) == pytest.approx(tuple(odds / (1 + odds)))


@pytest.mark.parametrize("shift", [0.0, 1.0, 2.5])
def test_the_interval_holds_the_true_area_in_95_of_100_cases(shift):
    true = norm.cdf(shift / np.sqrt(2))
    intervals = [auroc_interval(*drawn(80, 120, shift, seed=seed)) for seed in range(1000)]
    held = np.mean([each.low <= true <= each.high for each in intervals])
    assert 0.93 <= held <= 0.97


def test_perfect_separation_is_not_certainty():
    found = auroc_interval(np.arange(100.0) + 50, np.arange(50.0))
    assert (found.value, found.high) == (1.0, 1.0)
    assert found.low**50 == pytest.approx(0.025)
    assert auroc_interval(np.arange(50.0), np.arange(100.0) + 50).high == pytest.approx(1 - found.low)
    assert auroc_interval([1.0], [2.0, 0.0]).low == 0.0


@pytest.mark.parametrize("scores", [[], [np.nan], [[1.0]]])
def test_scores_are_one_number_a_row(scores):
    for measure in (auroc, aupr, fpr95, auroc_interval):
        with pytest.raises(InputError, match="outlier scores must be one number a row"):
            measure([1.0], scores)
