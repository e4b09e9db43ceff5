"""Every estimator in onnxruntime against itself in NumPy."""

import numpy as np
import onnx
import onnxruntime
import pytest
from exported import Session, assert_same, odd_rows
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from dose_ood import WAIC, Detector, Likelihood, LikelihoodRatio, ProductKDE, Statistics, Typicality, WhitenedSVM
from dose_ood.density.registry import ESTIMATORS
from dose_ood.export.estimators import SCORES
from dose_ood.export.file import table_model
from dose_ood.export.graph import FLOAT64, INT64, Graph, count_at_most, log_softplus, softplus
from dose_ood.noise import generator

NAMES = ("rate", "xent", "ent", "like", "same")
CASES = {
    "likelihood": Likelihood(column=3),
    "typicality": Typicality(column=3),
    "waic": WAIC(),
    "likelihood_ratio": LikelihoodRatio(column=3, background=1),
    "kde": ProductKDE(),
    "kde, other bandwidths": ProductKDE(bandwidth=[0.3, 0.02, 1.0, 0.1, 0.5], discard=0.3),
    "svm, exact": WhitenedSVM(solver="exact"),
    "svm, landmarks": WhitenedSVM(solver="landmark", landmarks=200),
    "svm, few outside": WhitenedSVM(solver="landmark", landmarks=300, nu=0.05),
}


def table(rows: int, seed: int) -> np.ndarray:
    """Columns of other scales and a gap, one exactly the sum of others, one constant, heavy tails."""
    random = generator("exported table", seed)
    xent, ent = random.normal(size=rows), 50 * random.standard_t(3, size=rows) - 900
    like = 1e-3 * random.normal(size=rows) + np.where(random.random(rows) < 0.3, 1.0, 0.0)
    return np.column_stack([xent + ent, xent, ent, like, np.full(rows, 2.5)])


def fitted(estimator) -> Detector:
    parts = [Statistics(NAMES, table(rows, seed)) for rows, seed in ((2_000, 0), (700, 1))]
    return Detector.fit(*parts, estimator, NAMES)


def said(detector: Detector, rows: np.ndarray):
    with np.errstate(over="ignore"):
        return detector.score(Statistics(detector.statistics, rows, "flag"))


def test_every_kind_has_a_graph_and_a_case():
    assert set(SCORES) == set(ESTIMATORS) == {estimator.kind for estimator in CASES.values()}


@pytest.mark.parametrize("name", CASES)
def test_the_same_scores_p_values_and_verdicts_in_bulk_gaps_tails_and_for_bad_rows(name):
    detector = fitted(CASES[name])
    rows = odd_rows(table(1_500, 2), detector)
    found = Session(table_model(detector)).table(rows)
    expected = said(detector, rows)
    assert_same(found, expected, 1e-11)  # terms of both signs nearly cancel in places, and processors add differently
    np.testing.assert_array_equal(found["statistics"], rows)
    assert found["is_bad"].sum() == 7
    assert (found["score"][found["is_bad"]] == -np.inf).all()
    assert (found["p_value"][found["is_bad"]] == 1 / 701).all()
    assert 0.05 < found["is_typical"].mean() < 0.95  # it can be otherwise
    assert len(np.unique(found["score"])) > 1_000


@pytest.mark.parametrize("name", ["kde", "svm, exact", "svm, landmarks"])
def test_held_out_rows_at_the_threshold_itself_are_on_the_same_side(name):
    detector = fitted(CASES[name])
    rows = table(700, 1)
    found = Session(table_model(detector)).table(rows)
    expected = said(detector, rows)
    close = np.abs(found["score"] - detector.estimator.offset_) < 1e-9 * np.abs(detector.estimator.offset_)
    assert close.any()
    np.testing.assert_array_equal(found["is_typical"][~close], expected.is_typical[~close])
    if name == "kde":  # the same operations in the same order
        np.testing.assert_array_equal(found["is_typical"], expected.is_typical)


def test_an_exact_kde_is_exported_as_a_table_of_its_tolerance():
    detector = fitted(ProductKDE(method="exact"))
    rows = odd_rows(table(300, 2), detector)
    found, expected = Session(table_model(detector)).table(rows), said(detector, rows)
    good = ~expected.is_bad
    error = np.abs(found["score"][good] - expected.score[good])
    assert (error <= 1e-6 + 1e-14 * np.abs(expected.score[good])).all()
    assert error.max() > 0  # it is a table
    assert np.abs(found["p_value"] - expected.p_value).max() <= 1 / 701


def test_a_table_of_constant_columns():
    rows = np.full((50, 2), 3.0)
    parts = Statistics(("a", "b"), rows)
    detector = Detector.fit(parts, Statistics(("a", "b"), rows[1:]), ProductKDE())
    asked = np.array([[3.0, 3.0], [3.0, 4.0], [5.0, 4.0]])
    found = Session(table_model(detector)).table(asked)
    assert_same(found, said(detector, asked), 1e-14)
    assert len(set(found["score"])) == 3


def test_any_number_of_rows_and_each_row_by_itself():
    detector = fitted(ProductKDE())
    session, rows = Session(table_model(detector)), table(33, 3)
    whole = session.table(rows)
    for name, values in whole.items():
        alone = np.concatenate([session.table(rows[i : i + 1])[name] for i in range(len(rows))])
        np.testing.assert_array_equal(alone, values)
        assert session.table(rows[:0])[name].shape == (0, *values.shape[1:])


@settings(max_examples=60, deadline=None)
@given(rows=arrays(np.float64, (3, 5), elements=st.floats(allow_nan=True, allow_infinity=True, width=64)))
def test_no_row_is_scored_otherwise_or_not_at_all(rows):
    for session, detector in LAZY():
        found, expected = session.table(rows), said(detector, rows)
        assert_same(found, expected, 1e-12)


def lazily():
    kept = []

    def get():
        if not kept:
            kept.extend((Session(table_model(d)), d) for d in (fitted(ProductKDE()), fitted(WhitenedSVM())))
        return kept

    return get


LAZY = lazily()


def run(graph: Graph, output, given: dict[str, np.ndarray]) -> np.ndarray:
    described = graph.finish("test", {"output": (output, next(iter(given.values())).shape)})
    model = onnx.helper.make_model(described, opset_imports=[onnx.helper.make_opsetid("", 13)], ir_version=7)
    return onnxruntime.InferenceSession(model.SerializeToString()).run(None, given)[0]


@settings(max_examples=25, deadline=None)
@given(
    tables=st.lists(st.lists(st.floats(-1e300, 1e300), min_size=1, max_size=40), min_size=1, max_size=3),
    seed=st.integers(0, 1_000),
)
def test_the_search_counts_like_numpy(tables, seed):
    rising = [np.sort(np.array(values)) for values in tables]
    random = np.random.default_rng(seed)
    values = np.column_stack([np.append(random.choice(each, 20), [-np.inf, np.inf]) for each in rising])
    values[10:20] = np.nextafter(values[10:20], -np.inf)
    graph = Graph()
    found = run(graph, count_at_most(graph.input("x", FLOAT64, ["n", len(tables)]), rising), {"x": values})
    expected = [np.searchsorted(each, column, side="right") for each, column in zip(rising, values.T, strict=True)]
    assert found.dtype == INT64
    np.testing.assert_array_equal(found, np.column_stack(expected))


def test_softplus_and_its_logarithm_keep_their_digits():
    raw = np.concatenate([np.linspace(-60, 60, 4_001), [-700.0, 700.0]])
    graph = Graph()
    x = graph.input("x", FLOAT64, ["n"])
    np.testing.assert_allclose(run(graph, softplus(x), {"x": raw}), np.logaddexp(0, raw), atol=1e-15, rtol=1e-14)
    exact = np.where(raw < -30, raw, np.log(np.log1p(np.exp(np.clip(raw, -30, 650)))))
    exact[-1] = np.log(700.0)
    np.testing.assert_allclose(run(graph, log_softplus(x), {"x": raw}), exact, atol=1e-9, rtol=0)


def test_what_no_output_needs_is_left_out():
    detector = fitted(Likelihood(column=3))
    model = table_model(detector)
    graph = Graph()
    x = graph.input("x", FLOAT64, ["n"])
    unused = (x + 12345.0).map("Exp")
    assert unused.dtype == FLOAT64
    kept = graph.finish("test", {"output": (x + 1.0, ["n"])})
    assert [node.op_type for node in kept.node] == ["Add", "Identity"]
    assert len(kept.initializer) == 1
    assert {name for node in model.graph.node for name in node.input} >= {c.name for c in model.graph.initializer}
