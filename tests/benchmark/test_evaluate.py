import subprocess
import sys
import zlib

import numpy as np
import pytest

from dose_ood import ProductKDE, Statistics, WhitenedSVM
from dose_ood.benchmark.evaluate import EXTREMES, evaluate, extremes, headline, reevaluate, score
from dose_ood.benchmark.keep import keep, origin
from dose_ood.benchmark.methods import columns_of, ensemble, methods_for, single
from dose_ood.benchmark.metrics import auroc
from dose_ood.benchmark.probes import probe, probe_auroc
from dose_ood.benchmark.results import Folder, Results, Study
from dose_ood.benchmark.toys import flow
from dose_ood.errors import InputError
from dose_ood.noise import generator

SEEDS = {"train": 0, "held_out": 1, "test": 2, "far": 3, "same": 4}
STUDY = Study("toy", {"far": "far.npz", "same": "same.npz"}, "glow", "tiny", 2, None, 0)


def rows_of(member: int, name: str, rows: int = 400) -> Statistics:
    """What a member says of a set: the flow toy, a little differently for each member, with a level's column."""
    base = flow(rows, outlier=name == "far", seed=SEEDS[name])
    noise = generator(f"member {member} {name}").normal(size=(2, rows))
    latent, jac = base["latent"] + noise[0], base["jac"] + noise[1]
    return Statistics.from_columns({"like": latent + jac, "latent": latent, "jac": jac, "jac/0": noise[0]})


def images_of(name: str, rows: int = 60) -> np.ndarray:
    random = generator(f"images {name}")
    high = 40 if name == "far" else 256
    return random.integers(0, high, (rows, 1, 6, 6), dtype=np.uint8)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    found = Folder(tmp_path_factory.mktemp("toy"))
    for number, member in enumerate(("0", "1", "background")):
        for name in SEEDS:
            keep(rows_of(number, name), found.statistics(member, name), {"images": name})
    for name in ("train", "test", "far", "same"):
        keep(probe(images_of(name)), found.probe(name), {"images": name})
    Results(STUDY, (), {}, (), (), (), {"0": {"held_out": 1.0}}, {}).write(found.study)
    return found


@pytest.fixture(scope="module")
def scored(folder):
    return tuple(score(folder, STUDY))


def test_every_method_scores_every_member_and_waic_the_ensemble_alone(scored):
    pairs = {(each.method, each.member) for each in scored}
    assert len(scored) == len(pairs) == 3 * 5 + 1
    assert {member for method, member in pairs if method == "waic"} == {"ensemble"}
    assert methods_for(1) == ("likelihood", "typicality", "likelihood_ratio", "kde", "svm")


def test_scores_are_those_of_the_definitions(scored):
    found = {(each.method, each.member): each.scores["far"] for each in scored}
    likes = np.array([rows_of(number, "far")["like"] for number in (0, 1)])
    background, mean = rows_of(2, "far")["like"], likes.mean(axis=0)
    np.testing.assert_allclose(found["likelihood", "1"], likes[1])
    np.testing.assert_allclose(found["likelihood", "ensemble"], mean)
    np.testing.assert_allclose(found["likelihood_ratio", "0"], likes[0] - background)
    np.testing.assert_allclose(found["likelihood_ratio", "ensemble"], mean - background)
    np.testing.assert_allclose(found["waic", "ensemble"], mean - ((likes - mean) ** 2).mean(axis=0))
    centre = np.mean([rows_of(number, "train")["like"] for number in (0, 1)])
    np.testing.assert_allclose(found["typicality", "ensemble"], -np.abs(mean - centre))
    np.testing.assert_allclose(found["kde", "ensemble"], found["kde", "0"] + found["kde", "1"], atol=1e-5)


def test_dose_takes_the_papers_statistics_and_not_those_of_levels(scored):
    names = ("like", "latent", "jac")
    tables = [rows_of(0, name).select(names).values for name in ("train", "test")]
    for each in scored:
        if each.member == "0" and each.method in ("kde", "svm"):
            density = {"kde": ProductKDE, "svm": WhitenedSVM}[each.method]().fit(tables[0])
            np.testing.assert_allclose(each.scores["test"], density.score_samples(tables[1]), rtol=1e-9)


def test_cells_are_the_metrics_of_these_scores(folder, scored):
    results = evaluate(folder, STUDY, scored, {}, {})
    assert len(results.cells) == 2 * len(scored)
    for each in scored:
        cells = [c for c in results.cells if (c.method, c.member) == (each.method, each.member)]
        for cell in cells:
            assert cell.auroc == auroc(each.scores["test"], each.scores[cell.outlier])
            assert cell.auroc_low < cell.auroc < cell.auroc_high or cell.auroc in (0, 1)
    areas = headline(results.cells, STUDY)
    assert areas["kde"][0] == pytest.approx(np.mean([c.auroc for c in results.members("far", "kde")]))
    assert areas["waic"][0] == results.ensemble("far", "waic").auroc


def test_outliers_along_constant_likelihood_are_found_by_dose_alone(folder, scored):
    results = evaluate(folder, STUDY, scored, {}, {})
    areas = headline(results.cells, STUDY)
    for method in ("kde", "svm"):
        assert areas[method][0] > 0.95
        assert abs(areas[method][1] - 0.5) < 0.06
    assert abs(areas["likelihood"][0] - 0.5) < 0.06
    better = {(c.method, c.other): c for c in results.comparisons}
    assert set(better) == {
        (m, o) for m in ("kde", "svm") for o in ("likelihood", "waic", "typicality", "likelihood_ratio")
    }
    for (method, other), found in better.items():
        assert found.difference == pytest.approx(np.mean(np.subtract(areas[method], areas[other])))
        assert found.p_value >= 0.5  # two pairs prove nothing


def test_members_that_agree_are_an_ensemble_of_one():
    one, background = rows_of(0, "train"), rows_of(2, "train")
    table, alone = ensemble([one, one], background), single(one, background)
    np.testing.assert_allclose(table["like"], alone["like"])
    far, names = ensemble([rows_of(0, "far")] * 2, rows_of(2, "far")), columns_of("svm", table.names)
    scores = [
        WhitenedSVM().fit(table.select(some).values).score_samples(far.select(some).values)
        for some in (names, names[:3])
    ]
    # The copies are collinear, and dropped by the whitening; what is left is larger by √2 and whitened again.
    np.testing.assert_allclose(scores[0], scores[1], rtol=1e-6)


def test_a_likelihood_is_needed():
    with pytest.raises(InputError, match="expected a log-likelihood, like or iwae, among the statistics 'jac'"):
        single(Statistics.from_columns({"jac": [1.0]}), Statistics.from_columns({"jac": [1.0]}))


def test_extremes_are_the_most_and_the_least_typical_rows(scored):
    rows = set(extremes(scored, "far").tolist())
    wanted = [each for each in scored if each.member in ("0", "ensemble")]
    for each in wanted:
        order = np.argsort(each.scores["far"], kind="stable")
        assert rows >= {*order[:EXTREMES].tolist(), *order[-EXTREMES:].tolist()}
    assert len(rows) <= 2 * EXTREMES * len(wanted)


# Probes


def test_probes_are_what_their_names_say():
    images = images_of("train")
    found = probe(images)
    pixels = images.reshape(len(images), -1).astype(float)
    np.testing.assert_allclose(found["mean"], pixels.mean(axis=1))
    np.testing.assert_allclose(found["contrast"], pixels.std(axis=1))
    assert found["size"].tolist() == [len(zlib.compress(image.tobytes(), 6)) for image in images]
    turned = np.ascontiguousarray(images.transpose(0, 1, 3, 2)).transpose(0, 1, 3, 2)
    assert probe(turned) == found


def test_a_probe_is_dose_with_one_statistic(folder):
    train, test, far = (probe(images_of(name)) for name in ("train", "test", "far"))
    density = ProductKDE(method="exact").fit(train.select(["mean"]).values)
    expected = auroc(*(density.score_samples(table.select(["mean"]).values) for table in (test, far)))
    assert probe_auroc("mean", train, test, far) == pytest.approx(expected)
    assert expected > 0.99
    assert abs(probe_auroc("mean", train, test, probe(images_of("same"))) - 0.5) < 0.12


# Files


@pytest.mark.parametrize(("float32", "rounding"), [(False, 0.0), (True, 2.0**-24)])
def test_a_table_comes_back_with_its_origin(tmp_path, float32, rounding):
    table, path = rows_of(0, "far"), tmp_path / "a" / "table.parquet"
    keep(table, path, {"images": "abc", "seconds": 1.5}, float32=float32)
    back = Statistics.read(path)
    assert back.names == table.names
    assert (np.abs(back.values - table.values) <= rounding * np.abs(table.values)).all()
    assert float32 != (back == table)
    assert origin(path) == {"images": "abc", "seconds": 1.5}
    assert origin(tmp_path / "none.parquet") is None
    table.write(path)
    with pytest.raises(InputError, match="does not say what its rows were made from"):
        origin(path)


def test_half_the_bits_keep_the_areas(folder, scored, tmp_path):
    half = Folder(tmp_path)
    for number, member in enumerate(("0", "1", "background")):
        for name in SEEDS:
            keep(rows_of(number, name), half.statistics(member, name), {}, float32=True)
    for exact, rounded in zip(scored, score(half, STUDY), strict=True):
        areas = [auroc(each.scores["test"], each.scores["far"]) for each in (exact, rounded)]
        assert areas[1] == pytest.approx(areas[0], abs=2e-4), exact.method


WITHOUT_TORCH = """
import sys
class Nowhere:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "PIL", "matplotlib"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Nowhere())
from dose_ood.cli import app
app(sys.argv[1:], standalone_mode=False)
"""


def test_cells_come_back_from_the_statistics_bit_by_bit_without_torch(folder, scored, tmp_path):
    expected = evaluate(folder, STUDY, scored, {"0": {"held_out": 1.0}}, {})
    command = [sys.executable, "-c", WITHOUT_TORCH, "bench", "--from-statistics", folder.path, "-o", tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert Results.read(tmp_path / "results.json") == expected
    assert "DoSE KDE is better by" in done.stdout
    assert not folder.results.exists()
    assert reevaluate(folder).cells == expected.cells
