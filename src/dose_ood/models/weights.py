"""The learned tensors of a model as named arrays, and back into a model of the same shape."""

from collections.abc import Mapping

import numpy as np
import torch
from torch import nn

from dose_ood import storage
from dose_ood.errors import InputError
from dose_ood.storage import Array, Spec


def weights(model: nn.Module) -> dict[str, Array]:
    """Every parameter and buffer by name; the arrays are copies."""
    return {name: tensor.detach().cpu().numpy().copy() for name, tensor in model.state_dict().items()}


def restore(model: nn.Module, found: Mapping[str, Array], where: str) -> None:
    """Put arrays into a model, after comparing names, dtypes and shapes with those it has.

    Parameters
    ----------
    model
        The model to fill; its memory layout stays.
    found
        The arrays by name.
    where
        What messages call their source.
    """
    own = model.state_dict()
    storage.check(found, {name: Spec.of(tensor.cpu().numpy()) for name, tensor in own.items()}, where)
    for name, array in found.items():
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise InputError(f"{where}: {name} holds a number that is not finite")
    with torch.no_grad():
        for name, tensor in own.items():
            tensor.copy_(torch.from_numpy(found[name]))
