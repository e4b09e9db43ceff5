import numpy as np
import pytest
from scipy.stats import norm
from sklearn.metrics import roc_auc_score

from dose_ood import InputError, Likelihood, ProductKDE, Typicality, WhitenedSVM
from dose_ood.benchmark.metrics import auroc
from dose_ood.benchmark.toys import degradation, flow, gaussian
from dose_ood.noise import generator


def test_auroc_against_scikit_learn():
    random = generator("auroc")
    inlier, outlier = random.integers(0, 9, 300).astype(float), random.integers(-3, 6, 200).astype(float)
    labels = np.repeat([1, 0], [300, 200])
    assert auroc(inlier, outlier) == pytest.approx(roc_auc_score(labels, np.concatenate([inlier, outlier])))
    assert auroc([1.0], [-np.inf]) == 1.0
    with pytest.raises(InputError, match="outlier scores must be one number a row and not NaN"):
        auroc([1.0], [np.nan])


def test_gaussian_statistics_are_what_they_say():
    table = gaussian(500)
    assert np.allclose(table["like"], -0.5 * table["norm"] ** 2 - 50 * np.log(2 * np.pi))
    assert (table["max"] >= table["first"]).all()
    members = np.stack([table[f"{k}/like"] for k in range(5)])
    assert np.abs(members.mean(axis=0) - table["like"]).max() < 10
    assert (gaussian(50, scale=0.0)["like"] > table["like"].max()).all()


def test_appendix_b():
    """Outliers on a line of constant likelihood: likelihood and typicality test are blind, DoSE is not."""
    train, inlier, outlier = flow(10_000), flow(2_000, seed=1), flow(2_000, outlier=True, seed=2)
    np.testing.assert_allclose(outlier["like"], outlier["latent"] + outlier["jac"])
    found = {}
    for method in (Likelihood(), Typicality(), ProductKDE(), WhitenedSVM()):
        method.fit(train.values)
        found[method.kind] = auroc(method.score_samples(inlier.values), method.score_samples(outlier.values))
    assert found["likelihood"] == pytest.approx(0.5, abs=0.03)
    assert found["typicality"] == pytest.approx(0.5, abs=0.03)
    assert found["kde"] > 0.99
    assert found["svm"] > 0.99


def test_appendix_d():
    """Useless statistics cost nothing up to 1e4 of them, obfuscating ones lift outliers by half a nat each."""
    train, inlier, outlier = gaussian(5_000), gaussian(2_000, seed=1), gaussian(2_000, scale=0.1, seed=2)
    kde = ProductKDE().fit(train.select(("norm", "max")).values)
    scores = [kde.score_samples(part.select(("norm", "max")).values) for part in (inlier, outlier)]
    assert min(degradation(*scores, [1, 10, 100, 1_000, 10_000])) > 0.99
    distance = float(np.median(scores[0]) - np.median(scores[1]))
    few, even, many = degradation(*scores, [int(distance), int(2 * distance), int(4 * distance)], obfuscating=True)
    assert few > 0.95
    assert 0.05 < even < 0.95
    assert many < 0.05


@pytest.mark.parametrize("count", [10, 1000])
def test_degradation_follows_its_closed_form(count):
    """Inliers at 0, outliers at −d: P(χ²_k/2 differences above −d) is nearly normal with variance k."""
    distance = 1.5 * np.sqrt(count)
    found = degradation(np.zeros(20_000), np.full(20_000, -distance), [count])[0]
    assert found == pytest.approx(norm.cdf(distance / np.sqrt(count)), abs=0.01)
