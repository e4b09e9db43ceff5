import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom
from sklearn.base import clone

from dose_ood import (
    WAIC,
    Detector,
    InputError,
    Likelihood,
    LikelihoodRatio,
    ProductKDE,
    Statistics,
    Typicality,
    WhitenedSVM,
)
from dose_ood.benchmark.metrics import auroc
from dose_ood.benchmark.toys import gaussian
from dose_ood.density.registry import LATER
from dose_ood.errors import DoseWarning
from dose_ood.noise import generator

GOLDEN = Path(__file__).parent / "golden"
NAMES = ("norm", "like", "first", "max")
METHODS = [
    ProductKDE(),
    ProductKDE(bandwidth=[0.2, 0.3, 0.1, 0.4], method="exact"),
    WhitenedSVM(solver="exact"),
    WhitenedSVM(solver="landmark", landmarks=50),
    Likelihood(),
    Typicality(),
    WAIC(),
    LikelihoodRatio(),
]


def statistics_of(estimator):
    return NAMES if estimator.kind in ("kde", "svm") else None


@pytest.fixture(scope="module")
def tables():
    return gaussian(1500), gaussian(500, seed=1), gaussian(2000, seed=2)


@pytest.mark.parametrize("estimator", METHODS, ids=repr)
def test_round_trip_is_bit_equal(estimator, tables, tmp_path):
    detector = Detector.fit(*tables[:2], estimator, statistics_of(estimator))
    detector.save(tmp_path / "d")
    loaded = Detector.load(tmp_path / "d")
    before, after = detector.score(tables[2]), loaded.score(tables[2])
    assert all(np.array_equal(getattr(before, name), getattr(after, name)) for name in vars(before))
    assert loaded.explain(tables[2])[:20] == detector.explain(tables[2])[:20]
    assert loaded.provenance == detector.provenance
    assert loaded.estimator.get_params().keys() == estimator.get_params().keys()


@pytest.mark.parametrize("estimator", METHODS, ids=repr)
def test_false_alarms_on_fresh_data_are_as_promised(estimator, tables):
    train, held_out, fresh = tables
    detector = Detector.fit(train, held_out, clone(estimator).set_params(discard=0.1), statistics_of(estimator))
    flagged = int((~detector.score(fresh).is_typical).sum())
    low, high = binom.ppf([1e-5, 1 - 1e-5], len(fresh), [0.1 - 0.05, 0.1 + 0.05])  # ± what 500 held-out rows leave open
    assert low < flagged < high
    assert abs((~detector.score(held_out).is_typical).sum() - 50) <= 1


def test_columns_are_matched_by_name(tables):
    train, held_out, fresh = tables
    detector = Detector.fit(train, held_out, ProductKDE(), NAMES)
    shuffled = fresh.select(tuple(reversed(fresh.names)))
    assert np.array_equal(detector.score(shuffled).score, detector.score(fresh).score)
    with pytest.raises(InputError, match="no column 'max'"):
        detector.score(fresh.select(("norm", "like", "first")))


def test_bad_rows_are_the_least_typical(tables):
    train, held_out, _ = tables
    detector = Detector.fit(train, held_out, ProductKDE(), ("norm", "like"))
    table = Statistics(("norm", "like"), np.array([[10.0, -140.0], [np.nan, -140.0], [1e9, -140.0]]), "flag")
    found = detector.score(table)
    assert found.is_bad.tolist() == [False, True, False]
    assert found.is_typical.tolist() == [True, False, False]
    assert found.score[1] == -np.inf
    assert found.p_value[1] == 1 / 501
    with pytest.raises(InputError, match="row 1 is atypical because its 'norm' is not a finite number"):
        detector.explain(table)
    with pytest.raises(InputError, match="row 1 of the train table has a value that is not a finite number"):
        Detector.fit(table, held_out, ProductKDE(), ("norm",))


def test_explanations_name_the_culprit(tables):
    train, held_out, _ = tables
    odd = gaussian(200, shift=5.5, seed=9)
    for estimator in (ProductKDE(), WhitenedSVM()):
        explained = Detector.fit(train, held_out, estimator, NAMES).explain(odd)
        culprits = [e.parts[0].name for e in explained]
        assert sum(name in ("first", "max") for name in culprits) > 190
    kde = Detector.fit(train, held_out, ProductKDE(), NAMES).explain(odd)
    assert all(sum(part.contribution for part in e.parts) == pytest.approx(e.score) for e in kde)


def test_selection_and_drift(tables):
    train, held_out, fresh = tables
    detector = Detector.fit(train, held_out, ProductKDE(), NAMES)
    odd = gaussian(100, scale=1.6, seed=5)
    chosen = detector.select(Statistics.concat([fresh, odd]), 0.1)
    assert chosen[-100:].mean() > 0.9
    assert chosen[:-100].sum() <= 30
    slight = gaussian(500, scale=1.05, seed=6)
    assert (~detector.score(slight).is_typical).mean() < 0.2  # few single rows stand out
    test = detector.group_test(500)
    assert test.test(detector.score(slight).score).drifted
    assert not test.test(detector.score(gaussian(500, seed=7)).score).drifted


def test_defaults_choose_the_log_likelihoods(tables):
    train, held_out, _ = tables
    assert Detector.fit(train, held_out, Likelihood()).statistics == ("like",)
    assert Detector.fit(train, held_out, WAIC()).statistics == tuple(f"{k}/like" for k in range(5))
    assert Detector.fit(train, held_out, LikelihoodRatio()).statistics == ("like", "background/like")
    with pytest.raises(InputError, match="the waic method expects '0/like', '1/like', …"):
        Detector.fit(train.select(NAMES), held_out, WAIC())


@pytest.mark.parametrize("name", ["kde", "svm", "typicality"])
def test_golden_detectors_of_format_1_still_load(name):
    """Made by tests/golden/make.py; never made anew for an existing format."""
    detector = Detector.load(GOLDEN / name)
    expected = Statistics.read(GOLDEN / f"{name}.csv")
    found = detector.score(expected)
    np.testing.assert_allclose(found.score, expected["score"], rtol=1e-12, atol=1e-12)
    assert np.array_equal(found.p_value, expected["p_value"])


def test_a_signed_forgery_is_refused_by_name(tables, tmp_path):
    """Checksums find damage, not forgery: the content is checked as well."""
    from dose_ood import storage

    Detector.fit(*tables[:2], ProductKDE(), NAMES).save(tmp_path / "d")
    good = storage.load(tmp_path / "d", kind="detector")
    forgeries = {
        "kind of estimator must be one of": {"estimator": {"kind": "os.system", "params": {}}},
        "is not a parameter": {
            "estimator": {"kind": "kde", "params": {**good.document["estimator"]["params"], "x": 1}}
        },
        "expected 4 different names": {"statistics": ["a", "a", "b", "c"]},
        "expected statistics, an estimator": {"provenance": 7},
    }
    for message, change in forgeries.items():
        storage.save(tmp_path / "f", {**good.document, **change}, good.tensors, kind="detector")
        with pytest.raises(InputError, match=message):
            Detector.load(tmp_path / "f")
    for name in good.tensors["estimator"]:
        changed = {k: v for k, v in good.tensors["estimator"].items() if k != name}
        storage.save(tmp_path / "f", good.document, {"estimator": changed}, kind="detector")
        if name not in LATER:
            with pytest.raises(InputError, match=name):
                Detector.load(tmp_path / "f")
        changed[name] = np.zeros((2, 3, 4))
        storage.save(tmp_path / "f", good.document, {"estimator": changed}, kind="detector")
        with pytest.raises(InputError, match=name):
            Detector.load(tmp_path / "f")


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_damage_is_refused(data, tmp_path_factory):
    """Any bit flipped, any file cut short: refused with a sentence, and nothing else happens."""
    folder = tmp_path_factory.mktemp("fuzz")
    shutil.copytree(GOLDEN / "typicality", folder / "d")
    file = data.draw(st.sampled_from(sorted((folder / "d").iterdir())))
    content = bytearray(file.read_bytes())
    if data.draw(st.booleans()):
        place = data.draw(st.integers(0, 8 * len(content) - 1))
        content[place // 8] ^= 1 << (place % 8)
    else:
        del content[data.draw(st.integers(0, len(content) - 1)) :]
    file.write_bytes(bytes(content))
    with pytest.raises(InputError):
        Detector.load(folder / "d")


def test_document_is_readable(tables, tmp_path):
    Detector.fit(*tables[:2], Typicality()).save(tmp_path / "d")
    document = json.loads((tmp_path / "d" / "detector.json").read_text())
    assert document["format"] == 1
    assert document["document"]["estimator"] == {"kind": "typicality", "params": {"column": 0, "discard": 0.05}}
    assert document["document"]["provenance"]["data"]["train"]["rows"] == 1500


def test_figure_1():
    """Likelihood takes the origin for the most typical point of all; typicality and DoSE find it every time."""
    train, fresh, origin = gaussian(5000), gaussian(1000, seed=1), gaussian(500, scale=0.0, seed=2)
    random = generator("origin jitter")
    near = Statistics(origin.names, origin.values + 1e-3 * random.normal(size=origin.values.shape))
    found = {}
    for estimator in (
        Likelihood(),
        Typicality(),
        ProductKDE(),
        WhitenedSVM(solver="landmark"),
        WhitenedSVM(solver="exact"),
    ):
        detector = Detector.fit(train, gaussian(500, seed=3), estimator, statistics_of(estimator))
        found[repr(estimator)] = auroc(detector.score(fresh).score, detector.score(near).score)
    assert list(found.values()) == [0.0, 1.0, 1.0, 1.0, 1.0]


def test_calibrating_on_the_training_rows_is_warned_of():
    rows = Statistics(("rate",), generator("rows").normal(size=(300, 1)))
    with pytest.warns(DoseWarning, match="the held-out rows are the training rows"):
        Detector.fit(rows, rows, ProductKDE())
