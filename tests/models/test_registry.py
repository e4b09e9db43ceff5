import json
from dataclasses import asdict

import numpy as np
import pytest
import torch

from dose_ood import InputError, storage
from dose_ood.models.glow import GlowConfig
from dose_ood.models.registry import CONFIGS, MODELS, build, config_from, load_model, save_model
from dose_ood.models.vae import VAEConfig
from standin import stripes

CONFIGURATIONS = {
    "vae": VAEConfig(shape=(1, 8, 8), depth=4, components=5, likelihood="logit_normal"),
    "glow": GlowConfig(shape=(1, 8, 8), levels=2, steps=1, filters=4),
}
IMAGES = torch.from_numpy(stripes(4))


def fresh(kind):
    model = build(CONFIGURATIONS[kind], seed=7)
    if kind == "glow":
        model.initialize(IMAGES, torch.Generator().manual_seed(0))
    return model.eval()


def test_the_registry_is_closed_and_complete():
    assert set(MODELS) == set(CONFIGS) == set(CONFIGURATIONS) == {"vae", "glow"}
    assert all(model.kind == kind for kind, model in MODELS.items())


@pytest.mark.parametrize("kind", MODELS)
def test_a_model_comes_back_with_the_same_bits(tmp_path, kind):
    model = fresh(kind)
    save_model(tmp_path / "model", model, {"seed": 7})
    found = load_model(tmp_path / "model")
    assert sorted(file.name for file in (tmp_path / "model").iterdir()) == ["model.json", "model.safetensors"]
    assert found.provenance == {"seed": 7}
    assert found.model.config == model.config
    with torch.inference_mode():
        for name, column in model.measure(IMAGES).items():
            assert torch.equal(found.model.eval().measure(IMAGES)[name], column)


@pytest.mark.parametrize("kind", MODELS)
def test_arrays_that_do_not_fit_are_refused_by_name(tmp_path, kind):
    path = tmp_path / "model"
    save_model(path, fresh(kind), {})
    found = storage.load(path, kind="model")
    arrays = found.tensors["model"]
    name = next(name for name, array in arrays.items() if array.ndim > 1)
    wrong = {
        "is missing": {other: array for other, array in arrays.items() if other != name},
        "must have shape": {**arrays, name: arrays[name][:1].repeat(99, axis=0)},
        "must be float": {**arrays, name: arrays[name].astype(np.float16)},
        "holds a number that is not finite": {**arrays, name: np.full_like(arrays[name], np.nan)},
    }
    for message, spoilt in wrong.items():
        storage.save(path, found.document, {"model": spoilt}, kind="model")
        with pytest.raises(InputError, match=f"{name}.* {message}"):
            load_model(path)
    storage.save(path, found.document, {"model": {**arrays, "more": np.zeros(1)}}, kind="model")
    with pytest.raises(InputError, match="'more' is not expected"):
        load_model(path)


def test_documents_of_something_else_are_refused(tmp_path):
    path, model = tmp_path / "model", fresh("vae")
    save_model(path, model, {})
    found = storage.load(path, kind="model")
    config = json.loads(json.dumps(asdict(model.config)))
    wrong = {
        "expected a model of kind vae, glow, got 'gan'": {"kind": "gan"},
        r"expected a model of kind vae, glow, got \['vae'\]": {"kind": ["vae"]},
        "expected a glow configuration of shape, levels, steps, filters, opening, exits, noise, got": {"kind": "glow"},
        "expected a vae configuration of": {"config": {**config, "more": 1}},
        "depth must be a whole number from 1, got -1": {"config": {**config, "depth": -1}},
        "expected kind, config and provenance": {"provenance": None},
    }
    for message, change in wrong.items():
        storage.save(path, {**found.document, **change}, found.tensors, kind="model")
        with pytest.raises(InputError, match=message):
            load_model(path)


def test_a_glow_saved_before_noise_could_be_left_out_has_it(tmp_path):
    path, model = tmp_path / "model", fresh("glow")
    save_model(path, model, {})
    found = storage.load(path, kind="model")
    told = found.document["config"]
    before = {name: value for name, value in told.items() if name != "noise"}
    storage.save(path, {**found.document, "config": before}, found.tensors, kind="model")
    assert load_model(path).model.config == model.config
    with pytest.raises(InputError, match=r"exits, noise, got filters, levels, opening, shape, steps"):
        config_from("glow", {name: value for name, value in before.items() if name != "exits"}, "here")
    assert config_from("glow", {**told, "noise": False}, "here").noise is False


def test_foreign_formats_are_refused(tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    torch.save({"weights": torch.zeros(2)}, folder / "model.json")  # a pickle
    with pytest.raises(InputError, match=r"model.json is damaged"):
        load_model(folder)
    with pytest.raises(InputError, match="does not exist"):
        load_model(tmp_path / "nothing")


def test_lists_of_json_become_tuples():
    values = json.loads(json.dumps(asdict(CONFIGURATIONS["glow"])))
    assert config_from("glow", values, "here") == CONFIGURATIONS["glow"]
