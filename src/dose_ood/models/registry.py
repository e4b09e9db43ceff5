"""The models there are, and a model as a safe directory: `model.json` and `model.safetensors`."""

import os
import reprlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import ClassVar, Protocol

import torch
from torch import Tensor, nn

from dose_ood import storage
from dose_ood.errors import InputError
from dose_ood.models.glow import Glow, GlowConfig
from dose_ood.models.vae import BetaVAE, VAEConfig
from dose_ood.storage import Array, Json, Spec

KIND = "model"
MODELS: dict[str, tuple[type[BetaVAE], type[VAEConfig]] | tuple[type[Glow], type[GlowConfig]]] = {
    BetaVAE.kind: (BetaVAE, VAEConfig),
    Glow.kind: (Glow, GlowConfig),
}


class Configured(Protocol):
    """A model that says what it is: its kind, and the values it was made from."""

    kind: ClassVar[str]
    config: object

    def state_dict(self) -> Mapping[str, Tensor]:
        """Every learned tensor by name."""
