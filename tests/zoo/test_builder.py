"""The program that makes a ready detector, on a small model of stripes."""

import importlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from dose_ood import InputError, zoo
from dose_ood.benchmark.results import Cell, Folder, Results, Study
from dose_ood.data.images import read_images, split
from dose_ood.guard import Guard
from dose_ood.measure import measure
from dose_ood.models.registry import build, load_model, save_model
from dose_ood.recipes import RECIPES
from dose_ood.train import train
from standin import stripes

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A trained model, its two tables, and a data folder that has its images under a name of the catalogue."""
    path = tmp_path_factory.mktemp("builder")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(BENCHMARKS)
        patch.setenv("DOSE_DATA", str(path))
        np.savez(path / "fashion_mnist.npz", train_x=stripes(300, size=12)[:, 0])
        np.savez(path / "mnist.npz", train_x=stripes(300, seed=1, size=12)[:, 0])
        images, recipe = read_images("fashion_mnist"), replace(RECIPES["vae"]["tiny"], epochs=2)
        model = build(recipe.config("fashion_mnist", images.shape[1:], None), 0)
        save_model(path / "model", model, train(model, images, recipe, path / "run"))
        parts = split(len(images))
        measure(model, images[parts.train]).write(path / "train.parquet")
        measure(model, images[parts.held_out]).write(path / "held_out.parquet")
        (path / "made").mkdir()
        yield path
    torch.set_num_threads(threads)


def make(folder, *more, tables=("train", "held_out"), data="fashion_mnist"):
    builder = importlib.import_module("zoo")
    files = [str(folder / f"{name}.parquet") for name in tables]
    base = [str(folder / "model"), *files, "--data", data, "--output", str(folder / "made")]
    return builder.make(builder.parse([*base, *map(str, more)]))


def write_results(path, held_out, inlier="fashion_mnist"):
    cells = tuple(
        Cell(outlier, method, member, area, area - 0.01, min(1.0, area + 0.01), 0.9, 0.25, 100, 90)
        for outlier, area in (("mnist", 0.987), ("hflip", 0.612))
        for method in ("kde", "svm")
        for member in ("0", "ensemble")
    )
    study = Study(inlier, {"mnist": "mnist:test", "hflip": "fashion_mnist:test:hflip"}, "vae", "tiny", 1, None, 0)
    path.mkdir()
    Results(study, cells, {}, (), (), (), {"0": {"held_out": held_out}}, {}).write(Folder(path).results)
    return path


def test_made_again_it_is_the_same(folder):
    first = {file.name: file.read_bytes() for file in make(folder).iterdir()}
    assert {file.name: file.read_bytes() for file in make(folder).iterdir()} == first
    guard = Guard.load(folder / "made" / "fashion_mnist-vae")
    assert guard.detector.provenance["zoo"]["data_set"] == "fashion_mnist"
    card = first["card.md"].decode()
    assert "270 images were trained on, 30 held out" in card
    assert "--recipe tiny --epochs 2 -o RUN" in card
    assert "licence: MIT" in card
    assert "## AUROC" not in card


def test_areas_come_from_the_benchmark_of_this_very_model(folder):
    known = load_model(folder / "model").provenance["epochs"][-1]["held_out"]
    results = write_results(folder / "results", known)
    card = (make(folder, "--method", "svm", "--results", results) / zoo.CARD).read_text()
    assert "| mnist | 0.987 | 0.977–0.997 | 25.0% | 90 |" in card
    assert "Weak against hflip (0.61)" in card
    assert card.count("| hflip |") == 1
    for name, other in {
        "loss": write_results(folder / "loss", known + 1),
        "set": write_results(folder / "set", known, "x"),
    }.items():
        with pytest.raises(InputError, match=f"{name}.* is not the model of this run"):
            make(folder, "--results", other)


def test_what_does_not_belong_together_is_refused(folder):
    with pytest.raises(InputError, match="not trained on mnist"):
        make(folder, data="mnist")
    with pytest.raises(InputError, match="all 270 train images, got 30"):
        make(folder, tables=("held_out", "train"))


def test_an_entry_too_large_is_refused_and_the_old_one_stays(folder, monkeypatch):
    before = {file.name: file.read_bytes() for file in make(folder).iterdir()}
    monkeypatch.setattr(zoo, "LIMIT", sum(map(len, before.values())) - 1)
    with pytest.raises(InputError, match=r"must have at most .* bytes, got .*: card.md"):
        make(folder)
    assert {file.name: file.read_bytes() for file in (folder / "made" / "fashion_mnist-vae").iterdir()} == before
    assert make(folder, "--rows", "20", "--method", "svm", "-s", "rate", "-s", "iwae").is_dir()
