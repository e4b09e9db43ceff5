import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from dose_ood import Detector, InputError, ProductKDE, Statistics
from dose_ood.cli import app
from dose_ood.guard import Guard, statistics_of, with_model
from dose_ood.measure import measure
from dose_ood.models.registry import Loaded, build, save_model
from dose_ood.models.vae import VAEConfig
from dose_ood.storage import Directory
from dose_ood.tables import is_table
from standin import stripes

IMAGES = stripes(120)


@pytest.fixture(scope="module")
def model():
    return build(VAEConfig(shape=(1, 8, 8), depth=4, components=5), seed=3).eval()


@pytest.fixture(scope="module")
def detector(model):
    rows = measure(model, IMAGES)
    return Detector.fit(rows, measure(model, stripes(60, seed=1)), ProductKDE(), ("rate", "iwae"))


def test_a_detector_with_a_model_scores_images_as_it_scores_their_statistics(tmp_path, model, detector):
    with_model(detector, Loaded(model, {"seed": 3})).save(tmp_path / "detector")
    names = sorted(file.name for file in (tmp_path / "detector").iterdir())
    assert names == ["detector.json", "estimator.safetensors", "model.safetensors"]
    guard = Guard.load(tmp_path / "detector")
    fresh = stripes(20, seed=2)
    expected = detector.score(measure(model, fresh))
    found = guard.score(fresh)
    np.testing.assert_array_equal(found.score, expected.score)
    np.testing.assert_array_equal(found.p_value, expected.p_value)
    assert guard.shape == (1, 8, 8)
    assert len(set(found.score)) == 20
    again = guard.reconstruct(fresh)
    np.testing.assert_array_equal(again, model.reconstruct(torch.from_numpy(fresh)).numpy())


def test_tables_are_scored_without_the_model(tmp_path, model, detector):
    with_model(detector, Loaded(model, {})).save(tmp_path / "detector")
    rows = measure(model, stripes(20, seed=2))
    np.testing.assert_array_equal(Detector.load(tmp_path / "detector").score(rows).score, detector.score(rows).score)


def test_what_does_not_belong_together_is_refused(model, detector):
    with pytest.raises(InputError, match="holds no model"):
        Guard.of(detector)
    glow_like = Detector.fit(
        Statistics(("like", "jac"), np.random.default_rng(0).normal(size=(50, 2))),
        Statistics(("like", "jac"), np.random.default_rng(1).normal(size=(50, 2))),
        ProductKDE(),
    )
    with pytest.raises(InputError, match="and not jac, like"):
        with_model(glow_like, Loaded(model, {}))
    guard = Guard.of(with_model(detector, Loaded(model, {})))
    for wrong in (stripes(2, size=12), IMAGES.astype(np.float32)):
        with pytest.raises(InputError, match=r"expected uint8 images of shape \(n, 1, 8, 8\), got"):
            guard.score(wrong)


def test_a_forged_model_is_refused_by_name(model, detector):
    whole = with_model(detector, Loaded(model, {}))
    assert whole.model is not None
    tensors = dict(whole.model.tensors["model"])
    name = next(iter(tensors))
    less = Directory(whole.model.document, {"model": {key: value for key, value in tensors.items() if key != name}})
    with pytest.raises(InputError, match=f"{name} is missing"):
        Guard.of(replace(whole, model=less))
    other = Directory({**whole.model.document, "kind": "os.system"}, whole.model.tensors)
    with pytest.raises(InputError, match="expected a model of kind"):
        Guard.of(replace(whole, model=other))


def test_the_names_of_a_models_statistics(model):
    assert statistics_of(model) == ("xent", "ent", "rate", "distortion", "iwae")


def test_an_archive_of_pictures_is_no_table(tmp_path):
    np.savez(tmp_path / "pictures.npz", train_x=IMAGES, train_y=np.zeros(len(IMAGES)))
    np.savez(tmp_path / "columns.npz", rate=np.zeros(3), iwae=np.zeros(3))
    Statistics(("rate",), np.zeros((3, 1))).write(tmp_path / "table.npz")
    found = {name: is_table(tmp_path / name) for name in ("pictures.npz", "columns.npz", "table.npz")}
    assert found == {"pictures.npz": False, "columns.npz": True, "table.npz": True}
    assert is_table("x.csv.gz")
    assert not is_table("folder")


def test_fit_with_a_model_and_score_images(tmp_path, model, capsys):
    save_model(tmp_path / "model", model, {})
    measure(model, IMAGES).write(tmp_path / "train.parquet")
    measure(model, stripes(60, seed=1)).write(tmp_path / "held_out.parquet")
    np.save(tmp_path / "new.npy", stripes(30, seed=2))
    tables = [str(tmp_path / f"{name}.parquet") for name in ("train", "held_out", "scores", "again", "new")]
    train, held_out, scores, again, new = tables
    detector = str(tmp_path / "detector")
    app(
        ["fit", train, "--held-out", held_out, "-o", detector, "--model", str(tmp_path / "model")],
        standalone_mode=False,
    )
    capsys.readouterr()
    app(["score", detector, str(tmp_path / "new.npy"), "-o", scores, "--json"], standalone_mode=False)
    assert json.loads(capsys.readouterr().out)["rows"] == 30
    measure(model, stripes(30, seed=2)).write(new)
    app(["score", detector, new, "-o", again], standalone_mode=False)
    names = ("score", "p_value")
    assert Statistics.read(scores, names) == Statistics.read(again, names)
    with pytest.raises(InputError, match="images have no columns to keep"):
        app(["score", detector, str(tmp_path / "new.npy"), "-o", scores, "--keep", "id"], standalone_mode=False)
