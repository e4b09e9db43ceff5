"""The models there are, and a model as a safe directory: `model.json` and `model.safetensors`."""

import os
import reprlib
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import TypeAlias

from dose_ood import storage
from dose_ood.errors import InputError
from dose_ood.models.glow import Glow, GlowConfig
from dose_ood.models.vae import BetaVAE, VAEConfig
from dose_ood.models.weights import restore, weights
from dose_ood.storage import Directory, Json

KIND = "model"
Model: TypeAlias = BetaVAE | Glow
Config: TypeAlias = VAEConfig | GlowConfig
MODELS: dict[str, type[Model]] = {BetaVAE.kind: BetaVAE, Glow.kind: Glow}
CONFIGS: dict[str, type[Config]] = {BetaVAE.kind: VAEConfig, Glow.kind: GlowConfig}
BEFORE: dict[str, dict[str, Json]] = {Glow.kind: {"noise": True}}  # what was so before a configuration could say it


@dataclass(frozen=True)
class Loaded:
    """A model from a directory, and where it comes from."""

    model: Model
    provenance: Mapping[str, Json]


def build(config: Config, seed: int = 0) -> Model:
    """A fresh model of a configuration; `seed` draws its first weights."""
    if isinstance(config, VAEConfig):
        return BetaVAE(config, seed=seed)
    return Glow(config, seed=seed)


def config_from(kind: Json, values: Json, where: str) -> Config:
    """The configuration of a model, from JSON; a kind or a field that is not known is refused by name."""
    if not isinstance(kind, str) or kind not in MODELS:
        raise InputError(f"{where}: expected a model of kind {', '.join(MODELS)}, got {reprlib.repr(kind)}")
    make: Callable[..., Config] = CONFIGS[kind]
    names = [field.name for field in fields(CONFIGS[kind])]
    told = {**BEFORE.get(kind, {}), **values} if isinstance(values, Mapping) else {}
    if set(told) != set(names):
        got = ", ".join(values) if isinstance(values, Mapping) else reprlib.repr(values)
        raise InputError(f"{where}: expected a {kind} configuration of {', '.join(names)}, got {got}")
    try:
        return make(**{name: _plain(value) for name, value in told.items()})
    except TypeError as error:
        raise InputError(f"{where}: not a {kind} configuration: {error}") from None


def _plain(value: Json) -> object:
    return tuple(_plain(item) for item in value) if isinstance(value, list) else value


def model_state(model: Model, provenance: Mapping[str, Json]) -> Directory:
    """A model as data: its kind, configuration and weights, and where it comes from.

    Parameters
    ----------
    model
        A model of the registry.
    provenance
        Where it comes from, as JSON; kept and given back, not interpreted here.
    """
    document: dict[str, Json] = {"kind": model.kind, "config": asdict(model.config), "provenance": provenance}
    return Directory(document, {KIND: weights(model)})


def model_from_state(state: Directory, where: str) -> Loaded:
    """The model that has this state; anything else is refused by name.

    Parameters
    ----------
    state
        What `model_state` gave.
    where
        What messages call its source.
    """
    provenance = state.document.get("provenance")
    if set(state.document) != {"kind", "config", "provenance"} or not isinstance(provenance, Mapping):
        raise InputError(f"{where}: expected kind, config and provenance, got {', '.join(state.document)}")
    if set(state.tensors) != {KIND}:
        raise InputError(f"{where}: expected one file of arrays, {KIND}, got {', '.join(state.tensors) or 'none'}")
    model = build(config_from(state.document.get("kind"), state.document.get("config"), where))
    restore(model, state.tensors[KIND], where)
    return Loaded(model, provenance)


def save_model(path: str | os.PathLike[str], model: Model, provenance: Mapping[str, Json]) -> None:
    """Write a model's state, whole or not at all."""
    state = model_state(model, provenance)
    storage.save(path, state.document, state.tensors, kind=KIND)


def load_model(path: str | os.PathLike[str]) -> Loaded:
    """Read what `save_model` wrote; anything else is refused by name."""
    return model_from_state(storage.load(path, kind=KIND), str(path))
