import json

import numpy as np
import pytest

from dose_ood import Detector, InputError, ProductKDE, Statistics, WhitenedSVM
from dose_ood.benchmark.metrics import auroc
from dose_ood.benchmark.toys import gaussian
from dose_ood.cli import app
from dose_ood.decision.conformal import threshold
from dose_ood.density.baselines import Likelihood
from dose_ood.density.whitening import whitening
from dose_ood.engines import fit_partitions
from dose_ood.engines.fit import factors, fit_sketch, matched
from dose_ood.engines.sketch import Sketch
from dose_ood.noise import generator

NAMES = ("norm", "like", "first", "max")
ESTIMATORS = {
    "kde": ProductKDE(),
    "silverman": ProductKDE(bandwidth="silverman"),
    "isj": ProductKDE(bandwidth="isj"),
    "factors": ProductKDE(bandwidth=(0.1, 0.2, 0.3, 0.4)),
    "svm": WhitenedSVM(),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("fit")
    table = gaussian(12_000).select(NAMES)
    table.write(place / "all.parquet")
    for number, rows in enumerate(np.split(table.values, [500, 4000, 9000])):
        Statistics(NAMES, rows).write(place / f"{number}.parquet")
    gaussian(1000, seed=1).select(NAMES).write(place / "held_out.parquet")
    return place


def partitions(folder):
    return [str(folder / f"{number}.parquet") for number in (2, 0, 3, 1)]


@pytest.mark.parametrize("kind", ESTIMATORS)
def test_with_room_for_all_rows_it_is_the_single_machine_fit(folder, kind):
    found = fit_partitions(partitions(folder), folder / "held_out.parquet", ESTIMATORS[kind], size=12_000)
    held_out = Statistics.read(folder / "held_out.parquet")
    expected = Detector.fit(Statistics.read(folder / "all.parquet"), held_out, ESTIMATORS[kind])
    rows = gaussian(500, seed=2)
    np.testing.assert_array_equal(found.score(rows).score, expected.score(rows).score)
    np.testing.assert_array_equal(found.score(rows).p_value, expected.score(rows).p_value)
    assert found.estimator.get_params() == expected.estimator.get_params()


@pytest.mark.parametrize("kind", ESTIMATORS)
def test_a_sample_does_not_depend_on_the_partitions_and_comes_close(folder, kind):
    estimator, held_out = ESTIMATORS[kind], folder / "held_out.parquet"
    parts = fit_partitions(partitions(folder), held_out, estimator, size=3000)
    whole = fit_partitions([str(folder / "all.parquet")], held_out, estimator, size=3000)
    full = Detector.fit(Statistics.read(folder / "all.parquet"), Statistics.read(held_out), estimator)
    fresh, odd = gaussian(2000, seed=2).select(NAMES), gaussian(2000, seed=3, shift=1.0).select(NAMES)
    scores = {name: each.score(fresh).score for name, each in (("parts", parts), ("whole", whole), ("full", full))}
    np.testing.assert_allclose(scores["parts"], scores["whole"], rtol=1e-6)
    spread = np.subtract(*np.quantile(scores["full"], [0.9, 0.1]))
    assert np.median(np.abs(scores["parts"] - scores["full"])) < 0.05 * spread
    areas = [auroc(each.score(fresh).score, each.score(odd).score) for each in (parts, full)]
    assert abs(areas[0] - areas[1]) < 0.01
    assert 0.5 < areas[1] < 1
    assert parts.provenance["data"]["train"]["rows"] == 12_000
    assert parts.provenance["data"]["train"]["sample"]["rows"] == 3000


@pytest.mark.parametrize("bandwidth", ["scott", "silverman", 0.3, (0.1, 0.2, 0.3, 0.4)])
def test_bandwidths_are_those_of_all_rows(folder, bandwidth):
    rows = Statistics.read(folder / "all.parquet").values
    sketch = Sketch.of(rows, 1000)
    sample = sketch.sample()
    found = ProductKDE(bandwidth=factors(sketch, sample, bandwidth)).fit(sample).bandwidth_
    np.testing.assert_allclose(found, ProductKDE(bandwidth=bandwidth).fit(rows).bandwidth_, rtol=1e-10)


def test_whitening_is_that_of_all_rows():
    rows = generator("whitened").normal(size=(20_000, 3)) @ np.array([[1, 2, 0], [0, 1e-3, 5], [3, 0, 1.0]])
    rows = np.column_stack([rows, rows[:, 0] - 2 * rows[:, 1], np.full(len(rows), 0.1)])  # an identity, a constant
    sketch = Sketch.of(rows, 500)
    moved = matched(sketch, sketch.sample(), 1e-5)
    one, other = whitening(moved, 1e-5), whitening(rows, 1e-5)
    assert one.rotation.shape == other.rotation.shape == (5, 3)
    np.testing.assert_allclose(one.mean, other.mean, atol=1e-9)
    np.testing.assert_allclose(np.cov(moved.T), np.cov(rows.T), atol=1e-9 * np.cov(rows.T).max())
    distances = [(each(rows[:50]) ** 2).sum(axis=1) for each in (one, other)]
    np.testing.assert_allclose(*distances, rtol=1e-6)


def test_scores_of_an_svm_are_in_the_units_of_all_rows():
    """A sketch of every row four times over has the scores of the rows times four."""
    rows, held_out = gaussian(3000).select(NAMES), gaussian(500, seed=1).select(NAMES)
    sketch = Sketch.of(np.tile(rows.values, (4, 1)), 3000)
    assert len(sketch.sample()) == 3000
    found, expected = fit_sketch(sketch, NAMES, held_out, WhitenedSVM()), Detector.fit(rows, held_out, WhitenedSVM())
    fresh = gaussian(300, seed=2)
    np.testing.assert_allclose(found.score(fresh).score, 4 * expected.score(fresh).score, rtol=1e-2)
    scores = found.score(held_out).score
    assert found.estimator.offset_ == threshold(scores, 0.05)
    np.testing.assert_array_equal(found.estimator.calibration_scores_, np.sort(scores))


def test_a_column_that_is_constant_in_the_sample():
    rows = np.column_stack([generator("half constant").normal(size=5000), np.full(5000, 2.0)])
    held_out = Statistics(("a", "b"), rows[:300])
    full = Detector.fit(Statistics(("a", "b"), rows), held_out, ProductKDE())
    found = fit_sketch(Sketch.of(rows, 2000), ("a", "b"), held_out, ProductKDE())
    odd = Statistics(("a", "b"), np.array([[0.0, 2.0], [0.0, 3.0]]))
    np.testing.assert_allclose(found.score(odd).score, full.score(odd).score, atol=1.0)
    assert np.diff(found.score(odd).score) < -7


def test_saved_and_loaded(folder, tmp_path):
    found = fit_partitions(partitions(folder), folder / "held_out.parquet", WhitenedSVM(), size=3000)
    found.save(tmp_path / "detector")
    rows = gaussian(50, seed=5)
    np.testing.assert_array_equal(Detector.load(tmp_path / "detector").score(rows).score, found.score(rows).score)


def test_what_cannot_be_fitted(folder):
    with pytest.raises(InputError, match="a kde or an svm can be fitted from partitions, got Likelihood"):
        fit_partitions(partitions(folder), folder / "held_out.parquet", Likelihood())
    with pytest.raises(InputError, match="bandwidth must be one of scott, silverman, isj"):
        fit_partitions(partitions(folder), folder / "held_out.parquet", ProductKDE(bandwidth="scot"), size=100)


def test_the_command(folder, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    app(
        [
            "fit",
            *partitions(folder),
            "--held-out",
            "held_out.parquet",
            "-o",
            "kde",
            "--engine",
            "here",
            "--sample",
            "2000",
        ],
        standalone_mode=False,
    )
    rows = len(Statistics.read(folder / "all.parquet"))
    assert f"2,000 to fit (a sample of {rows:,})" in " ".join(capsys.readouterr().out.split())
    assert len(Detector.load("kde").estimator.bandwidth) == len(NAMES)
    app(["fit", "all.parquet", "--held-out", "held_out.parquet", "-o", "one", "--json"], standalone_mode=False)
    found = json.loads(capsys.readouterr().out)
    assert (found["method"], found["rows"]["read"], found["rows"]["train"]) == ("kde", rows, rows)
    with pytest.raises(InputError, match="need --engine"):
        app(["fit", *partitions(folder), "--held-out", "held_out.parquet", "-o", "two"], standalone_mode=False)
