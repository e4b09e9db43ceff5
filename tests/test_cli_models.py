import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from dose_ood import Detector, ProductKDE, Statistics
from dose_ood.cli import app
from dose_ood.cli.models import loss_curve
from dose_ood.data.images import split
from dose_ood.errors import InputError
from dose_ood.measure import measure
from dose_ood.models.registry import load_model
from dose_ood.runs import Record
from standin import stripes


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("models")
    np.savez(path / "stripes.npz", train_x=stripes(300, size=12)[:, 0], test_x=stripes(40, seed=1, size=12)[:, 0])
    return path


@pytest.fixture
def dose(folder, monkeypatch, capsys, one_thread):
    """Run a command in the folder, and give what it prints."""

    def run(*arguments):
        monkeypatch.chdir(folder)
        app([str(argument) for argument in arguments], standalone_mode=False)
        return capsys.readouterr().out

    return run


@pytest.fixture(scope="module")
def trained(folder):
    """Two VAEs, a background VAE and a Glow, each of a few steps."""
    threads, there = torch.get_num_threads(), Path.cwd()
    torch.set_num_threads(1)
    os.chdir(folder)
    base = ["train", "stripes.npz", "--recipe", "tiny", "--epochs", "2"]
    for name, more in {
        "vae": ["--model", "vae"],
        "other": ["--model", "vae", "--seed", "1"],
        "background": ["--model", "vae", "--background"],
        "glow": ["--model", "glow"],
    }.items():
        app([*base, *more, "-o", f"runs/{name}"], standalone_mode=False)
    os.chdir(there)
    torch.set_num_threads(threads)
    return folder / "runs"


def test_training_leaves_a_model_a_checkpoint_and_a_log(trained, dose):
    assert sorted(file.name for file in (trained / "vae").iterdir()) == ["checkpoint", "log.jsonl", "model"]
    provenance = load_model(trained / "vae" / "model").provenance
    assert (provenance["seed"], provenance["background"], provenance["steps"]) == (0, None, 16)
    assert load_model(trained / "background" / "model").provenance["background"] == 0.15
    again = dose("train", "stripes.npz", "--recipe", "tiny", "--epochs", "2", "--resume", "-o", "runs/vae")
    assert "epoch        loss    held out" in again
    assert "the model is in runs/vae/model" in again
    with pytest.raises(InputError, match="already holds a run"):
        dose("train", "stripes.npz", "--recipe", "tiny", "--epochs", "2", "-o", "runs/vae")


def test_json_is_json(trained, dose):
    found = json.loads(
        dose("train", "stripes.npz", "--recipe", "tiny", "--epochs", "2", "--resume", "-o", "runs/vae", "--json")
    )
    assert found["model"]["kind"] == "vae"
    assert len(found["epochs"]) == 2


@pytest.mark.parametrize("name", ["vae", "glow"])
def test_measuring_gives_the_models_statistics_and_a_detector(trained, dose, folder, name):
    for part, rows in (("train", 270), ("held-out", 30), ("all", 300)):
        found = json.loads(
            dose("measure", f"runs/{name}", "stripes.npz", "--part", part, "-o", f"{part}.csv", "--json")
        )
        assert found["rows"] == rows
    tables = {part: Statistics.read(folder / f"{part}.csv") for part in ("train", "held-out", "all")}
    rows = split(300).held_out
    np.testing.assert_allclose(tables["held-out"].values, tables["all"].values[rows], rtol=1e-4, atol=1e-3)
    model = load_model(trained / name / "model").model
    np.testing.assert_allclose(measure(model, stripes(300, size=12)).values, tables["all"].values, rtol=1e-4, atol=1e-3)
    dose("measure", f"runs/{name}", "stripes.npz:test:vflip", "-o", "flipped.csv")
    detector = Detector.fit(tables["train"], tables["held-out"], ProductKDE())
    assert len(detector.score(Statistics.read(folder / "flipped.csv"))) == 40


def test_several_runs_are_an_ensemble(trained, dose):
    both = dose("measure", "runs/vae", "runs/other", "runs/background", "stripes.npz:test", "-o", "e.csv")
    assert all(name in both for name in ("0/iwae", "1/iwae", "background/iwae"))
    pair = json.loads(dose("measure", "runs/background", "runs/vae", "stripes.npz:test", "-o", "p.csv", "--json"))
    assert {"iwae", "background/iwae"} < set(pair["statistics"])
    with pytest.raises(InputError, match="measured beside others"):
        dose("measure", "runs/background", "stripes.npz:test", "-o", "b.csv")
    with pytest.raises(InputError, match="at most one run trained with --background, got 2"):
        dose("measure", "runs/vae", "runs/background", "runs/background", "stripes.npz:test", "-o", "b.csv")


def test_parts_need_the_very_images_of_the_training(trained, dose):
    with pytest.raises(InputError, match="needs the images that the model was trained on, and these are others"):
        dose("measure", "runs/vae", "stripes.npz:test", "--part", "held-out", "-o", "x.csv")


def test_a_run_that_has_not_finished_is_not_measured(trained, dose, folder):
    (folder / "half").mkdir(exist_ok=True)
    (folder / "half" / "log.jsonl").touch()
    with pytest.raises(InputError, match="has not finished: go on with dose train"):
        dose("measure", "half", "stripes.npz", "-o", "x.csv")


def test_samples_are_drawn(trained, dose, folder):
    for name in ("vae", "glow"):
        dose("samples", f"runs/{name}", "--data", "stripes.npz:test", "--count", 7, "-o", f"{name}.png")
        sheet = np.asarray(Image.open(folder / f"{name}.png"))
        assert sheet.shape == (2 * (1 + 5 * 13), 2 * (1 + 3 * 13), 3)
        original = sheet[2 * (1 + 3 * 13) : 2 * (1 + 3 * 13 + 12) : 2, 2 : 2 * 13 : 2, 0]
        assert np.array_equal(original, stripes(40, seed=1, size=12)[0, 0])


def test_a_likelihood_is_for_the_vae(dose):
    with pytest.raises(InputError, match="a likelihood is for the VAE"):
        dose("train", "stripes.npz", "--model", "glow", "--likelihood", "bernoulli", "-o", "runs/never")


def test_a_recipe_of_the_other_model_is_refused(dose):
    with pytest.raises(InputError, match="a glow has the recipes paper, cpu, tiny, got demo"):
        dose("train", "stripes.npz", "--model", "glow", "--recipe", "demo", "-o", "runs/never")
    with pytest.raises(InputError, match="a glow has the recipes paper, cpu, tiny, got deep"):
        dose("train", "stripes.npz", "--model", "glow", "--recipe", "deep", "-o", "runs/never")
    assert not Path("runs/never").exists()


def test_latent_dimensions_are_for_the_vae(dose):
    dose("train", "stripes.npz", "--recipe", "tiny", "--epochs", 1, "--latent", 3, "-o", "runs/three")
    assert load_model(Path("runs/three/model")).model.config.latent == 3
    with pytest.raises(InputError, match="latent dimensions are for the VAE; a Glow has as many as an image, got 3"):
        dose("train", "stripes.npz", "--model", "glow", "--latent", 3, "-o", "runs/never")


def test_the_curve_shows_epochs_from_the_highest_loss_to_the_lowest():
    log = [Record(i, 40, i // 2, 0.0, 1.0, 1.0, *((100.0 - i, 99.0 - i) if i % 2 else ())) for i in range(40)]
    lines = loss_curve(log, rows=5, width=8).splitlines()
    assert len(lines) == 6
    assert lines[1].split() == ["0", "99.00", "98.00", "████████"]
    assert lines[-1].split() == ["19", "61.00", "60.00"]


WITHOUT_TORCH = """
import sys
class Nowhere:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "torch":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Nowhere())
from dose_ood.cli import models
from dose_ood.errors import InputError
try:
    models.train("data", "out")
except InputError as error:
    print(error)
"""


def test_without_torch_one_sentence_says_what_to_install():
    done = subprocess.run([sys.executable, "-c", WITHOUT_TORCH], capture_output=True, text=True, check=False)
    assert done.stdout == 'this command needs PyTorch: pip install "dose-ood[torch]"\n', done.stderr
