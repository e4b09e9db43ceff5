"""Every ready detector that ships, and the commands that take its name."""

import hashlib
import json
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from dose_ood import Detector, InputError, zoo
from dose_ood.data.images import read_images
from dose_ood.engines import score_files
from dose_ood.guard import Guard
from dose_ood.noise import generator

ROOT = Path(__file__).parents[2]
VAE = "fashion_mnist-vae"
# Images that ship with the package, of the set an entry was trained on.
SAMPLES = {VAE: "fashion_mnist_sample:test", "mnist-vae": "mnist_sample:test"}
pytestmark = pytest.mark.usefixtures("one_thread")
each_entry = pytest.mark.parametrize("name", zoo.available())


def test_there_is_one():
    assert VAE in zoo.available()


@each_entry
def test_an_entry_is_small_and_nothing_in_it_is_code(name):
    files = sorted(zoo.path(name).iterdir())
    assert [file.name for file in files] == ["card.md", "detector.json", "estimator.safetensors", "model.safetensors"]
    assert sum(file.stat().st_size for file in files) <= 3_000_000


@each_entry
def test_a_card_tells_the_commands_and_the_very_files(name):
    folder = zoo.path(name)
    card = (folder / zoo.CARD).read_text(encoding="utf-8")
    for command in (f"dose score zoo:{name}", "dose bench ", "python benchmarks/zoo.py "):
        assert f"\n{command}" in card
    for file in folder.iterdir():
        assert file.name == zoo.CARD or hashlib.sha256(file.read_bytes()).hexdigest() in card
    estimator = Detector.load(folder).estimator
    assert f"{estimator.offset_:.6g}" in card
    assert f"{np.mean(estimator.calibration_scores_ < estimator.offset_):.2%}" in card
    for heading in ("Use", "Data", "Training", "Decision", "AUROC", "Limits", "How it was made"):
        assert f"\n## {heading}\n" in card


@each_entry
def test_noise_is_atypical_and_the_batch_does_not_matter(name):
    guard = Guard.load(f"zoo:{name}")
    noise = generator("images for ready detectors").integers(0, 256, (12, *guard.shape), dtype=np.uint8)
    assert (~guard.score(noise).is_typical).mean() > 0.9
    whole, single = guard.measure(noise), guard.measure(noise, batch=1)
    exact = guard.model.kind == "vae"  # a Glow's sums may differ in their last digit
    np.testing.assert_allclose(whole.values, single.values, rtol=0 if exact else 1e-12)


@pytest.mark.parametrize("name", SAMPLES)
def test_unseen_images_of_its_data_are_typical_as_often_as_is_promised(name):
    guard, rows = Guard.load(f"zoo:{name}"), 200
    found = guard.score(read_images(SAMPLES[name])[:rows])
    share = (~found.is_typical).mean()
    expected = guard.detector.estimator.discard
    assert share <= 0.1
    assert abs(share - expected) < 4 * np.sqrt(expected * (1 - expected) / rows)
    assert abs(found.p_value.mean() - 0.5) < 4 / np.sqrt(12 * rows)


def test_a_name_stands_for_a_directory_everywhere(dose, tmp_path):
    images = read_images(SAMPLES[VAE])[:6]
    images[4:] = 255 - images[4:]
    np.save(tmp_path / "images.npy", images)
    expected = Guard.load(f"zoo:{VAE}").score(images)
    code, text, _ = dose("score", f"zoo:{VAE}", "images.npy", "-o", "scores.parquet", "--json")
    assert (code, json.loads(text)["rows"]) == (0, 6)
    np.testing.assert_array_equal(pq.read_table(tmp_path / "scores.parquet")["score"].to_numpy(), expected.score)
    score_files(f"zoo:{VAE}", [str(tmp_path / "images.npy")], tmp_path / "parts")
    parts = pq.read_table(sorted((tmp_path / "parts").glob("*.parquet")))
    np.testing.assert_array_equal(parts["score"].to_numpy(), expected.score)
    assert (
        json.loads(dose("inspect", f"zoo:{VAE}", "--json")[1])["method"] == Detector.load(zoo.path(VAE)).estimator.kind
    )
    assert dose("export", f"zoo:{VAE}", "detector.onnx")[0] == 0


def test_without_an_output_the_least_typical_rows_are_told(dose, tmp_path):
    images = read_images(SAMPLES[VAE])[:12]
    images[3] = 255 - images[3]
    np.save(tmp_path / "images.npy", images)
    code, text, _ = dose("score", f"zoo:{VAE}", "images.npy")
    first = next(line for line in text.splitlines() if line.startswith("│"))
    assert (code, "12 rows scored" in text, "nothing is written" in text) == (0, True, True)
    assert [cell.strip() for cell in first.split("│")[1:5:3]] == ["3", "atypical"]
    found = json.loads(dose("score", f"zoo:{VAE}", "images.npy", "--json")[1])
    scores = Guard.load(f"zoo:{VAE}").score(images).score
    assert [row["row"] for row in found["least_typical"]] == np.argsort(scores)[:10].tolist()
    assert found["output"] is None
    assert [file.name for file in tmp_path.iterdir()] == ["images.npy"]
    assert "--output" in dose("score", f"zoo:{VAE}", "images.npy", "--engine", "here")[2]
    assert "--output" in dose("score", f"zoo:{VAE}", "images.npy", "--keep", "id")[2]


def test_an_unknown_name_is_told_what_there_is(dose):
    code, _, said = dose("score", "zoo:fashion_mnist_vae", "images.npy")
    assert code == 2
    assert "no ready detector 'fashion_mnist_vae'; did you mean 'fashion_mnist-vae'? there are: " in said
    for odd in ("zoo:", "zoo:../zoo", f"zoo:{VAE}/../{VAE}", "zoo:qqqqqqqq"):
        with pytest.raises(InputError, match=f"there are: .*{VAE}"):
            Detector.load(odd)
    assert dose("zoo", "elephant")[0] == 2


def test_a_name_is_not_written_to(dose, tmp_path):
    files = {file: file.read_bytes() for file in zoo.path(VAE).iterdir()}
    for name in (VAE, "mine"):
        code, _, said = dose("fit", "absent.csv", "--held-out", "absent.csv", "-o", f"zoo:{name}")
        assert (code, "only read" in said) == (2, True)
        with pytest.raises(InputError, match="only read"):
            Detector.load(f"zoo:{VAE}").save(f"zoo:{name}")
    with pytest.raises(InputError, match="only read"):
        score_files(f"zoo:{VAE}", ["absent.npy"], "zoo:scores")
    assert {file: file.read_bytes() for file in zoo.path(VAE).iterdir()} == files
    assert not list(tmp_path.iterdir())


def test_the_list_and_the_cards(dose):
    text, found = dose("zoo")[1], json.loads(dose("zoo", "--json")[1])["detectors"]
    assert [each["name"] for each in found] == [f"zoo:{name}" for name in zoo.available()]
    for each in found:
        name = each["name"].removeprefix("zoo:")
        detector = Detector.load(each["name"])
        assert each["name"] in text
        assert (each["threshold"], each["method"]) == (detector.estimator.offset_, detector.estimator.kind)
        assert each["statistics"] == list(detector.statistics)
        assert each["shape"] == list(Guard.of(detector).shape)
        assert each["bytes"] == sum(file.stat().st_size for file in zoo.path(name).iterdir())
        assert name.startswith(each["data_set"])
        card = (zoo.path(name) / zoo.CARD).read_text(encoding="utf-8")
        assert dose("zoo", name)[1] == dose("zoo", f"zoo:{name}")[1] == card
        assert json.loads(dose("zoo", name, "--json")[1])["card"] == card


def test_the_wheel_has_them(tmp_path):
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    with zipfile.ZipFile(next(tmp_path.glob("*.whl"))) as wheel:
        for name in zoo.available():
            for file in zoo.path(name).iterdir():
                assert wheel.read(f"dose_ood/zoo/{name}/{file.name}") == file.read_bytes()
