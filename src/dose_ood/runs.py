"""The directory of a training run: `checkpoint/`, replaced as a whole, and `log.jsonl`, which never falls behind it."""

import json
import os
import warnings
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TextIO, TypeAlias

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from dose_ood import storage
from dose_ood.errors import DoseWarning, InputError
from dose_ood.models.weights import restore, weights
from dose_ood.storage import Array, Json
from dose_ood.tables import explaining, replacing

KIND = "run"
CHECKPOINT, LOG = "checkpoint", "log.jsonl"
Memory: TypeAlias = MutableMapping[torch.Tensor, dict[str, torch.Tensor]]  # of an optimiser


class TrainingError(InputError):
    """Training that cannot go on; the last good checkpoint is intact."""


@dataclass(frozen=True)
class Record:
    """How far a run is, and how good; a line of the log.

    Parameters
    ----------
    step, steps
        Steps done, and in all.
    epoch
        The epoch of the last step, counted from 0.
    loss
        Mean objective in nats per image, without the penalty on weights.
    bits_per_dim
        The same per pixel value and in bits; while a VAE's β is above 1, its rate counts β times.
    images_per_s
        Training speed.
    epoch_loss
        Mean objective over the whole epoch; None but at its end.
    held_out
        Mean objective of the held-out images (a VAE's with β = 1); None but at the end of an epoch.
    """

    step: int
    steps: int
    epoch: int
    loss: float
    bits_per_dim: float
    images_per_s: float
    epoch_loss: float | None = None
    held_out: float | None = None


@dataclass
class State:
    """All that a run consists of beside its identity, the model and the optimisers.

    Parameters
    ----------
    step
        Steps done.
    best
        The lowest loss of a line of the log since the objective last changed.
    worse
        Steps since the loss was last near it.
    total
        The sum of the losses of the epoch so far.
    epochs
        Loss and held-out loss of each epoch done.
    """

    step: int = 0
    best: float | None = None
    worse: int = 0
    total: float = 0.0
    epochs: tuple[Mapping[str, Json], ...] = ()


@dataclass(frozen=True)
class Run:
    """The directory of a run, and what may be done in it.

    Parameters
    ----------
    folder
        The directory.
    identity
        What the run is, as JSON: model, recipe, seeds, data. A checkpoint of anything else is refused.
    """

    folder: Path
    identity: Mapping[str, Json]

    def begin(self, resume: bool) -> None:
        """Make the directory, or refuse one that holds something else."""
        with explaining(f"cannot write to {self.folder}"):
            self.folder.mkdir(parents=True, exist_ok=True)
            there = {file.name for file in self.folder.iterdir() if file.name[0] != "."}  # what a kill left is hidden
        if there and not there & {LOG, CHECKPOINT}:
            raise InputError(f"{self.folder} is not empty and holds no run: choose a new directory")
        if there and not resume:
            raise InputError(f"{self.folder} already holds a run: resume it or choose a new directory")

    def load(self, model: nn.Module, optimisers: Sequence[torch.optim.Optimizer]) -> State:
        """Put the last checkpoint into model and optimisers; without one, leave them as they are."""
        path = self.folder / CHECKPOINT
        if not path.exists() and not path.with_name(f".{CHECKPOINT}.dose-old").exists():
            return State()
        found = storage.load(path, kind=KIND)
        document = found.document
        for name, value in json.loads(json.dumps(self.identity)).items():
            if document.get(name) != value:
                raise InputError(f"{path} is of another run: its {name} is {document.get(name)}, expected {value}")
        step, best, worse, total, epochs = (document.get(field.name) for field in fields(State))
        if (
            not isinstance(step, int)
            or not isinstance(best, float | None)
            or not isinstance(worse, int)
            or not isinstance(total, float)
            or not isinstance(epochs, list)
            or set(found.tensors) != {"model", "moments"}
        ):
            raise InputError(
                f"{path}: expected step, best, worse, total, epochs, and arrays of the model and its moments"
            )
        if document.get("workers") != _workers():
            warnings.warn(
                f"this run had {document.get('workers')}, now it has {_workers()}: "
                "it will not end with the same bits as without the interruption",
                DoseWarning,
                stacklevel=3,
            )
        restore(model, found.tensors["model"], str(path))
        _restore_moments(model, optimisers, found.tensors["moments"], str(path))
        return State(step, best, worse, total, tuple(epochs))

    def save(self, model: nn.Module, optimisers: Sequence[torch.optim.Optimizer], state: State, log: TextIO) -> None:
        """Write a checkpoint, unless something in it is not finite."""
        learned, moments = weights(model), _moments(model, optimisers)
        for name, array in {**learned, **moments}.items():
            if not np.isfinite(array).all():
                raise self.error(f"{name} is not finite after step {state.step:,}")
        os.fsync(log.fileno())
        document: dict[str, Json] = {**self.identity, **vars(state), "workers": _workers()}
        storage.save(self.folder / CHECKPOINT, document, {"model": learned, "moments": moments}, kind=KIND)

    @contextmanager
    def log(self, step: int) -> Iterator[TextIO]:
        """The log, cut to the lines up to a step, to write on."""
        path = self.folder / LOG
        kept = []
        with explaining(f"cannot write {path}"):
            for leftover in self.folder.glob(f".{LOG}.*.tmp"):
                leftover.unlink()  # of a run killed right here
            for line in path.read_text(encoding="utf-8").splitlines(keepends=True) if path.exists() else []:
                if not line.endswith("\n") or json.loads(line)["step"] > step:
                    break  # cut off by a kill, or of steps that will be done again
                kept.append(line)
            with replacing(path) as temporary:
                temporary.write_text("".join(kept), encoding="utf-8")
            with path.open("a", encoding="utf-8") as log:
                yield log

    def error(self, what: str) -> TrainingError:
        """Why training cannot go on, and what is left."""
        path = self.folder / CHECKPOINT
        kept = f"the last good checkpoint is in {path}" if path.exists() else "there was no checkpoint yet"
        return TrainingError(f"{what}; {kept}; try a lower learning rate or another seed")


def share() -> tuple[int, int]:
    """Which of how many processes this is."""
    joined = dist.is_available() and dist.is_initialized()
    return (dist.get_rank(), dist.get_world_size()) if joined else (0, 1)


def _workers() -> str:
    return f"{share()[1]} × {torch.get_num_threads()} threads"


def write_line(log: TextIO, record: Record) -> None:
    """Add a line to a log."""
    log.write(json.dumps(asdict(record)) + "\n")
    log.flush()


def read_log(directory: str | os.PathLike[str]) -> tuple[Record, ...]:
    """The log of a run."""
    path = Path(directory, LOG)
    with explaining(f"cannot read {path}"):
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
        return tuple(Record(**json.loads(line)) for line in lines if line.endswith("\n"))


def _moved(model: nn.Module, optimisers: Sequence[torch.optim.Optimizer]) -> dict[str, tuple[torch.Tensor, Memory]]:
    """What the optimisers move, in the memory of which parameter, and where they remember something of it."""
    names = {parameter.data_ptr(): name for name, parameter in model.named_parameters()}
    return {
        names[tensor.data_ptr()]: (tensor, optimiser.state)
        for optimiser in optimisers
        for group in optimiser.param_groups
        for tensor in group["params"]
    }


def _moments(model: nn.Module, optimisers: Sequence[torch.optim.Optimizer]) -> dict[str, Array]:
    """What the optimisers remember of each parameter, as `parameter/quantity`."""
    return {
        f"{name}/{quantity}": value.detach().cpu().numpy().copy()
        for name, (tensor, memory) in _moved(model, optimisers).items()
        for quantity, value in memory.get(tensor, {}).items()
    }


def _restore_moments(
    model: nn.Module, optimisers: Sequence[torch.optim.Optimizer], found: Mapping[str, Array], where: str
) -> None:
    moved = _moved(model, optimisers)
    for key, array in found.items():
        name, _, quantity = key.rpartition("/")
        if name not in moved:
            raise InputError(f"{where}: the moment {key!r} belongs to no parameter of the model")
        tensor, memory = moved[name]
        count = quantity == "step"
        shape = () if count else tuple(tensor.shape)
        if array.dtype != np.float32 or array.shape != shape:
            raise InputError(f"{where}: {key!r} must be float32 of shape {shape}, got {array.dtype} {array.shape}")
        value = torch.from_numpy(array)
        memory[tensor][quantity] = value if count else torch.empty_like(tensor.detach()).copy_(value)
