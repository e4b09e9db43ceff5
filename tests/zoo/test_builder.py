"""The program that makes a ready detector, on a small benchmark of stripes."""

import importlib
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from dose_ood import InputError, Statistics, zoo
from dose_ood.benchmark.keep import keep
from dose_ood.benchmark.results import Folder, Results, Study
from dose_ood.guard import Guard
from dose_ood.study.sets import open_sets
from dose_ood.study.work import Bench
from standin import stripes

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A benchmark of a data folder that has stripes under a name of the catalogue."""
    path = tmp_path_factory.mktemp("builder")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(BENCHMARKS)
        patch.setenv("DOSE_DATA", str(path))
        train, test = stripes(300, size=12)[:, 0], stripes(60, seed=1, size=12)[:, 0]
        np.savez(path / "fashion_mnist.npz", train_x=train, test_x=test)
        sets = open_sets("fashion_mnist", ["uniform", "vflip"], 50, 0)
        study = Study("fashion_mnist", dict(sets.outliers), "vae", "tiny", 1, 50, 0)
        work = Bench(Folder(path / "results"), study, sets, runs=None, float32=True, command="dose bench fashion_mnist")
        work.run(work.plan(), lambda task, left, fact="": None)
        (path / "made").mkdir()
        yield path
    torch.set_num_threads(threads)


def make(folder, *more, results="results", runs="results/runs"):
    builder = importlib.import_module("zoo")
    given = [folder / results, folder / runs, "--output", folder / "made", *more]
    return builder.make(builder.parse(list(map(str, given))))


def test_made_again_it_is_the_same(folder):
    first = {file.name: file.read_bytes() for file in make(folder).iterdir()}
    assert {file.name: file.read_bytes() for file in make(folder).iterdir()} == first
    guard = Guard.load(folder / "made" / "fashion_mnist-vae")
    assert guard.detector.provenance["zoo"]["data_set"] == "fashion_mnist"
    card = first["card.md"].decode()
    assert "270 images were trained on, 30 held out" in card
    assert "50 to fit, 30 held out to calibrate" in card
    assert "\ndose bench fashion_mnist\npython benchmarks/zoo.py " in card
    assert "licence: MIT" in card


@pytest.mark.parametrize("method", ["kde", "svm"])
def test_areas_are_those_of_the_benchmark_and_its_detector_is_this_one(folder, method):
    card = (make(folder, "--method", method, "--name", "other") / zoo.CARD).read_text()
    cells = Results.read(Folder(folder / "results").results).members("vflip", method)
    assert f"| vflip | {cells[0].auroc:.3f} |" in card
    assert card.count("| vflip |") == 1
    assert (f"vflip ({cells[0].auroc:.2f})" in card) == (cells[0].auroc < 0.9), "a weakness is said"
    guard = Guard.load(folder / "made/other")
    known = Statistics.read(Folder(folder / "results").statistics("0", "vflip"))
    sets = open_sets("fashion_mnist", ["uniform", "vflip"], 50, 0)
    found = guard.detector.score(known), guard.score(sets.images("vflip"))
    np.testing.assert_allclose(found[0].score, found[1].score, rtol=1e-3)


def test_what_does_not_belong_together_is_refused(folder):
    with pytest.raises(InputError, match="--member must be one of 0, got background"):
        make(folder, "--member", "background")
    with pytest.raises(InputError, match="expected a run of model 0"):
        make(folder, runs="made")
    shutil.copytree(folder / "results", folder / "changed", ignore=shutil.ignore_patterns("runs"))
    path = Folder(folder / "changed").statistics("0", "held_out")
    table = Statistics.read(path)
    path.unlink()
    keep(Statistics(table.names, table.values + 1), path, {})
    with pytest.raises(InputError, match="the held_out statistics of the benchmark are not what this model gives"):
        make(folder, results="changed")


def test_an_entry_too_large_is_refused_and_the_old_one_stays(folder, monkeypatch):
    before = {file.name: file.read_bytes() for file in make(folder).iterdir()}
    monkeypatch.setattr(zoo, "LIMIT", sum(map(len, before.values())) - 1)
    with pytest.raises(InputError, match=r"must have at most .* bytes, got .*: card.md"):
        make(folder)
    assert {file.name: file.read_bytes() for file in (folder / "made" / "fashion_mnist-vae").iterdir()} == before
    card = (make(folder, "--rows", "20", "--method", "svm", "--landmarks", "30") / zoo.CARD).read_text()
    assert "50 to fit, 20 held out to calibrate" in card
    assert "--method svm --discard 0.05 --landmarks 30 --rows 20" in card
    assert len(Guard.load(folder / "made/fashion_mnist-vae").detector.estimator.centres_) == 30
