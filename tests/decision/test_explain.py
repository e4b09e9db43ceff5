import numpy as np
import pytest

from dose_ood.decision.conformal import p_values
from dose_ood.decision.explain import Explanation, Part, explain
from dose_ood.density.kde import ProductKDE
from dose_ood.errors import InputError
from dose_ood.noise import generator

NAMES = ["rate", "distortion", "iwae"]


def _explain(kde, rows, names=NAMES):
    return explain(
        kde.contributions(rows),
        kde.calibration_contributions_,
        names=names,
        values=rows,
        scores=kde.score_samples(rows),
        p_values=kde.p_values(rows),
        is_typical=kde.predict(rows) == 1,
    )


def _fitted(scale=1.0):
    random = generator("explain")
    return ProductKDE().fit(random.normal(size=(800, 3)) * scale).calibrate(random.normal(size=(400, 3)) * scale)


ROWS = np.array([[0.1, 0.2, 6.0], [0.0, 0.1, -0.1], [-9.0, 0.0, 7.0], [1.9, 1.9, -1.9]])


def test_the_guilty_statistic_comes_first():
    found = _explain(_fitted(), ROWS)
    assert [e.row for e in found] == [0, 1, 2, 3]
    assert found[0].parts[0].name == "iwae"
    assert [part.name for part in found[2].parts] == ["rate", "iwae", "distortion"], "equally rare: the farther first"
    assert [e.is_typical for e in found] == [False, True, False, False]
    assert found[0].parts[0].value == 6.0


def test_contributions_sum_to_the_score():
    kde = _fitted()
    for e in _explain(kde, ROWS):
        assert sum(part.contribution for part in e.parts) == pytest.approx(e.score, abs=1e-9)
        assert e.score == kde.score_samples(ROWS)[e.row]


def test_percentiles_are_conformal_p_values_of_contributions():
    kde = _fitted()
    rows = generator("explained").normal(size=(50, 3)) * 2
    expected = [
        p_values(kde.calibration_contributions_[:, j], kde.contributions(rows)[:, j]) for j in range(len(NAMES))
    ]
    for e in _explain(kde, rows):
        assert {part.name: part.percentile for part in e.parts} == {
            name: expected[j][e.row] for j, name in enumerate(NAMES)
        }
        percentiles = [part.percentile for part in e.parts]
        assert percentiles == sorted(percentiles)


@pytest.mark.parametrize("scale", [[1e4, 1.0, 1e-3], [-1.0, 1e-6, 50.0]])
def test_units_do_not_change_the_order(scale):
    plain, scaled = _explain(_fitted(), ROWS), _explain(_fitted(np.array(scale)), ROWS * scale)
    for a, b in zip(plain, scaled, strict=True):
        assert [part.name for part in a.parts] == [part.name for part in b.parts]
        assert a.summary == b.summary


def test_summaries():
    found = _explain(_fitted(), ROWS)
    assert found[0].summary == "atypical (p = 0.0025): iwae is less typical than 99.7 % of held-out rows"
    assert found[1].summary.endswith(": no statistic stands out")
    assert found[2].summary.endswith("rate is less typical than 99.7 % of held-out rows, iwae than 99.7 %")
    vague = Explanation(0, -9.0, 0.01, False, (Part("rate", 1.0, -3.0, 0.0625), Part("iwae", 1.0, -3.0, 0.25)))
    assert vague.summary == (
        "atypical (p = 0.01): no single statistic stands out; "
        "rate comes first, less typical than 93.7 % of held-out rows"
    )


def test_no_share_is_rounded_to_all_rows():
    part = Part("rate", 0.0, -99.0, 1 / 1_000_001)
    assert "99.9 %" in Explanation(0, -99.0, 1e-6, False, (part,)).summary


def test_infinite_contributions_are_the_most_damning():
    held_out = np.sort(generator("inf").normal(size=(9, 2)), axis=0)
    (found,) = explain(
        [[-50.0, -np.inf]],
        held_out,
        names=["a", "b"],
        values=[[0, 0]],
        scores=[-np.inf],
        p_values=[0.1],
        is_typical=[0],
    )
    assert [part.name for part in found.parts] == ["b", "a"]
    assert {part.percentile for part in found.parts} == {0.1}


def test_refusals():
    ok = {"names": ["a"], "values": [[0.0]], "scores": [0.0], "p_values": [1.0], "is_typical": [True]}
    with pytest.raises(InputError, match="call calibrate"):
        explain([[0.0]], np.empty((0, 1)), **ok)
    with pytest.raises(InputError, match="need 1 columns, got 2 and 1"):
        explain([[0.0]], [[0.0, 1.0]], **ok)
    with pytest.raises(InputError, match="need as many, got 2"):
        explain([[0.0]], [[0.0]], **ok | {"scores": [0.0, 1.0], "p_values": [1.0, 1.0], "is_typical": [1, 1]})
    with pytest.raises(InputError, match="without NaN"):
        explain([[np.nan]], [[0.0]], **ok)
