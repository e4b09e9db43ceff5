import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import gamma, gaussian_kde, norm, spearmanr
from sklearn.neighbors import KernelDensity
from sklearn.utils.estimator_checks import parametrize_with_checks

from dose_ood.benchmark.toys import gaussian
from dose_ood.density import logkde
from dose_ood.density.bandwidth import isj
from dose_ood.density.kde import ProductKDE
from dose_ood.density.logkde import log_kde, tabulate
from dose_ood.errors import InputError
from dose_ood.noise import generator
from problems import shapes

ULP = 8 * np.finfo(float).eps


@parametrize_with_checks([ProductKDE(), ProductKDE(method="exact")])
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.SkipTestWarning")
def test_scikit_learn_contract(estimator, check):
    check(estimator)


@pytest.mark.parametrize("method", ["table", "exact"])
@pytest.mark.parametrize("rule", ["scott", "silverman", 0.3])
def test_equals_scipy(method, rule):
    train, new = (np.stack(list(shapes(400, seed).values())[:4], axis=1) for seed in (0, 1))
    expected = sum(gaussian_kde(train[:, c], bw_method=rule).logpdf(new[:, c]) for c in range(4))
    scores = ProductKDE(bandwidth=rule, method=method).fit(train).score_samples(new)
    np.testing.assert_allclose(scores, expected, atol=1e-6, rtol=1e-12)


def hard_points(z):
    """Where a table could be wrong: among data, around the middle of every large gap, and in the tails."""
    random = generator("hard points")
    gaps = np.diff(z)
    wide = np.argsort(gaps)[-20:]
    middle = (z[wide] + z[wide + 1]) / 2
    narrow = np.linspace(-6, 6, 49) / np.maximum(gaps[wide], 1)[:, None]
    tails = z.std() * 10 ** random.uniform(-6, 6, 400)
    return np.concatenate(
        [
            random.choice(z, 500) + random.normal(size=500),
            random.uniform(z[0] - 30, z[-1] + 30, 1500),
            (middle + narrow.T).ravel(),
            z[0] - tails,
            z[-1] + tails,
            z[[0, -1]],
        ]
    )


@pytest.mark.parametrize("rows", [2, 3, 30, 3000])
@pytest.mark.parametrize("name", shapes(3))
def test_certificate_holds_everywhere(name, rows):
    x = shapes(rows)[name]
    if x.std() == 0:
        pytest.skip("constant")
    z = np.sort((x - np.median(x)) / (x.std(ddof=1) * rows**-0.2))
    table, u = tabulate(z, 1e-6), hard_points(z)
    exact = log_kde(z, u)
    assert table.error <= 1e-6
    assert (np.abs(table(u) - exact) <= table.error + ULP * np.abs(exact)).all()


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.floats(-300, 300), min_size=2, max_size=40),
    st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=50),
    st.sampled_from([1e-6, 1e-8]),
)
def test_certificate_holds_for_any_data(data, queries, tolerance):
    z = np.sort(np.array(data))
    table = tabulate(z, tolerance)
    u = np.concatenate([queries, hard_points(z)[::7]])
    exact = log_kde(z, u)
    assert (np.abs(table(u) - exact) <= table.error + ULP * np.abs(exact)).all()
    assert table.error <= tolerance


@pytest.mark.parametrize("u", [-3e6, -40.0, 0.0, 99.9995, 100.0, 100.01, 160.0, 2e7])
def test_oracle_and_table_against_high_precision(u):
    z = np.array([-1.0, 0.0, 0.5, 200.0, 200.0])
    mpmath.mp.dps = 60
    terms = [mpmath.exp(-((mpmath.mpf(u) - mpmath.mpf(x)) ** 2) / 2) for x in z]
    truth = float(mpmath.log(mpmath.fsum(terms) / (5 * mpmath.sqrt(2 * mpmath.pi))))
    allowed = ULP * abs(truth)
    assert abs(log_kde(z, np.array([u]))[0] - truth) <= 1e-13 + allowed
    assert abs(tabulate(z)(np.array([u]))[0] - truth) <= 1e-6 + allowed


def test_table_does_not_grow_with_rows():
    sizes = [len(ProductKDE().fit(shapes(n)["normal"][:, None]).knots_) for n in (1_000, 10_000, 300_000)]
    assert sizes == [logkde.KNOTS] * 3


def test_far_points_neither_tie_nor_underflow():
    kde = ProductKDE().fit(shapes(5000)["normal"][:, None])
    scores = kde.score_samples(10.0 ** np.linspace(0.7, 149, 2000)[:, None])
    assert np.isfinite(scores).all()
    assert (np.diff(scores) < 0).all()


def test_scores_are_sums_of_logs_not_logs_of_sums():
    train = np.stack([shapes(500)["normal"], shapes(500)["bounded"]], axis=1)
    row = np.array([[30.0, 1.0]])
    logs = [gaussian_kde(train[:, c]).logpdf(row[:, c])[0] for c in (0, 1)]
    score = ProductKDE().fit(train).score_samples(row)[0]
    assert score == pytest.approx(sum(logs))
    assert score < np.logaddexp(*logs) - 100


def test_bandwidth_has_the_columns_scale():
    """scikit-learn's "scott" leaves the standard deviation out, so columns of mixed scale are ranked differently."""
    random = generator("scales")
    train, new = (random.normal(size=(n, 3)) * [1e-2, 1.0, 1e3] for n in (1000, 500))
    ours = ProductKDE().fit(train).score_samples(new)
    theirs = sum(KernelDensity(bandwidth="scott").fit(train[:, [c]]).score_samples(new[:, [c]]) for c in range(3))
    truth = norm.logpdf(new / [1e-2, 1.0, 1e3]).sum(axis=1)
    assert spearmanr(ours, truth).statistic > 0.97
    assert spearmanr(theirs, truth).statistic < 0.7


def test_density_integrates_to_one():
    x = shapes(1000)["two modes"]
    kde = ProductKDE().fit(x[:, None])
    grid = np.linspace(x.min() - 60, x.max() + 60, 200_001)
    assert np.trapezoid(np.exp(kde.score_samples(grid[:, None])), grid) == pytest.approx(1, abs=1e-7)


@pytest.mark.parametrize(("components", "rows"), [([(1.0, 0.0, 1.0)], 20_000), ([(0.5, -5, 0.2), (0.5, 5, 1)], 20_000)])
def test_improved_sheather_jones_finds_the_optimum(components, rows):
    """The bandwidth of least asymptotic error, 1/(2√π n ∫f″²)^(1/5), known for a mixture of normals."""
    random = generator("isj")
    choice = random.choice(len(components), rows, p=[c[0] for c in components])
    x = np.array([components[k][1] for k in choice]) + random.normal(size=rows) * [components[k][2] for k in choice]
    grid = np.linspace(-12, 12, 200_001)
    curvature = sum(p * norm.pdf(grid, m, s) * (((grid - m) / s) ** 2 - 1) / s**2 for p, m, s in components)
    optimum = (2 * np.sqrt(np.pi) * rows * np.trapezoid(curvature**2, grid)) ** -0.2
    assert isj(x) == pytest.approx(optimum, rel=0.06)
    assert ProductKDE(bandwidth="isj").fit(x[:, None]).bandwidth_[0] == isj(x)


def test_constant_column_neither_crashes_nor_hides_the_others():
    x = shapes(200)["normal"][:, None]
    alone, beside = ProductKDE().fit(x), ProductKDE().fit(np.hstack([x, np.full_like(x, 42.0)]))
    new = np.linspace(-9, 9, 50)[:, None]
    same, other = (beside.score_samples(np.hstack([new, np.full_like(new, v)])) for v in (42.0, 43.0))
    np.testing.assert_allclose(same, alone.score_samples(new) + np.log(200 / 201), atol=1e-6)
    np.testing.assert_allclose(other, alone.score_samples(new) + np.log(1 / 201), atol=1e-6)
    assert np.isfinite(ProductKDE().fit(np.full((9, 2), 3.0)).score_samples([[3.0, 4.0]])).all()


def test_order_batches_and_scale_do_not_matter():
    train, new = (np.stack(list(shapes(n).values())[:5], axis=1) for n in (3000, 700))
    kde = ProductKDE().fit(train)
    scores = kde.score_samples(new)
    shuffled = generator("shuffle").permutation(train)
    assert np.array_equal(ProductKDE().fit(shuffled).score_samples(new), scores)
    assert np.array_equal([kde.score_samples(row[None])[0] for row in new[:50]], scores[:50])
    assert np.array_equal(np.concatenate([kde.score_samples(part) for part in np.split(new, 7)]), scores)
    factor, shift = np.array([1e-6, 3.0, 1e6, 7.0, 1e-3]), np.array([0.0, 5.0, -4.0, 1e3, 2.0])
    rescaled = ProductKDE().fit(train * factor + shift).score_samples(new * factor + shift)
    np.testing.assert_allclose(rescaled + np.log(factor).sum(), scores, atol=3e-6)


def test_contributions_add_up():
    train = np.stack([shapes(500)["normal"], shapes(500)["skewed"], np.full(500, 7.0)], axis=1)
    kde = ProductKDE().fit(train)
    np.testing.assert_allclose(kde.contributions(train).sum(axis=1), kde.score_samples(train), rtol=1e-14)


def test_density_of_states_of_a_gaussian():
    """Appendix A: u = −log p(x) minus its least value is Gamma(D/2) distributed; the KDE smooths it."""
    rows, ground = 100_000, 50 * np.log(2 * np.pi)
    kde = ProductKDE().fit(-gaussian(rows).select(("like",)).values)
    h = kde.bandwidth_[0]
    grid = gamma.ppf(np.linspace(0.001, 0.999, 50), 50)
    steps = np.linspace(-8, 8, 2001) * h
    smoothed = np.trapezoid(gamma.pdf(grid[:, None] - steps, 50) * norm.pdf(steps, scale=h), steps)
    error = np.sqrt(1 / (2 * np.sqrt(np.pi) * rows * h * smoothed))  # standard deviation of the estimate's log
    deviations = (kde.score_samples(grid[:, None] + ground) - np.log(smoothed)) / error
    assert np.abs(deviations).max() < 4.5


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"bandwidth": "wide"}, "bandwidth must be one of scott, silverman, isj"),
        ({"bandwidth": -1.0}, "bandwidth must be a positive number or 2 of them, got -1.0"),
        ({"bandwidth": [1.0, 2.0, 3.0]}, "bandwidth must be a positive number or 2 of them"),
        ({"method": "fast"}, "method must be 'table' or 'exact', got 'fast'"),
        ({"tolerance": 0}, "tolerance must be from 1e-9 to 1 nat, got 0"),
        ({"discard": 1.5}, r"discard must be in \(0, 1\), got 1.5"),
        ({"bandwidth": 1e-7}, "the bandwidth is too small for a table"),
    ],
)
def test_bad_parameters(parameters, message):
    rows = generator("bad").normal(size=(20_000, 2))
    with pytest.raises(InputError, match=message):
        ProductKDE(**parameters).fit(rows)


def test_isj_without_a_solution():
    with pytest.raises(InputError, match="no solution for a column of 4 rows with 2 distinct values"):
        isj(np.array([0.0, 1.0, 0.0, 1.0]))
