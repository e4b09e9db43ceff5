"""The one inference loop: any model with a method `measure`, images in, a table of statistics out."""

import hashlib
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from time import monotonic
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from dose_ood.columns import listing
from dose_ood.data.images import fingerprint
from dose_ood.errors import InputError
from dose_ood.statistics import Statistics
from dose_ood.tables import check_target, explaining, file_format, replacing

MANIFEST = "manifest.json"
PART_SECONDS = 10.0  # work that a kill may cost
SAME = 1e-3  # relative to the spread of a column: batches of other shapes, threads and machines round differently


@runtime_checkable
class Measurable(Protocol):
    """A model that describes samples; its one method is all that is asked of yours.

    `measure(x)` takes a batch and gives, for each name, an array-like of shape (batch,): NumPy, torch, JAX or a list.
    What it gives for a sample should not depend on the others in the batch.
    """

    @property
    def measure(self) -> Callable[..., Mapping[str, object]]:
        """Statistics of each sample by name."""


class Progress(Protocol):
    """Is told how many samples are measured."""

    def __call__(self, done: int, total: int, /) -> None:
        """Look at the numbers."""


def measure(
    model: Measurable,
    images: NDArray[np.generic],
    path: str | os.PathLike[str] | None = None,
    *,
    batch: int = 256,
    progress: Progress | None = None,
) -> Statistics:
    """The statistics of every sample, one row each, in their order.

    A torch module is put into eval mode for the time being, and gets tensors where it lives; any other model gets the
    rows as they are. Values that are not finite are kept, and their rows marked as bad.

    With a path, rows are kept beside it as they come (`.NAME.parts`), and the file appears when it is complete. After a
    kill, the same call goes on where it was; it refuses to mix rows of another model or of other images.

    Parameters
    ----------
    model
        Anything with a method `measure`.
    images
        An array of samples, whose first axis counts them; it may be memory-mapped.
    path
        The .parquet, .csv or .csv.gz file to write.
    batch
        Samples handed to the model at a time, which bounds the memory.
    progress
        Is told after every batch how many samples are measured.
    """
    if batch < 1:
        raise InputError(f"batch must be at least 1, got {batch}")
    if not len(images):
        raise InputError("expected at least one image to measure, got none")
    if not isinstance(model, Measurable):
        raise InputError(f"expected a model with a method measure(x), got {type(model).__name__}")
    with _in_eval_mode(model):
        if path is None:
            return Statistics.concat(list(_batches(model, images, 0, batch, progress)))
        return _measure_to(Path(path), model, images, batch, progress)


def _batches(
    model: Measurable, images: NDArray[np.generic], start: int, size: int, progress: Progress | None
) -> Iterator[Statistics]:
    """The statistics of each batch from a row on."""
    names: tuple[str, ...] | None = None
    for first in range(start, len(images), size):
        rows = images[first : first + size]
        found = _checked(model.measure(_as_input(model, rows)), len(rows), type(model).__name__)
        if names is not None and set(found.names) != set(names):
            raise InputError(f"measure gave {listing(names)} for one batch and {listing(found.names)} for another")
        names = names or found.names
        yield found.select(names)
        if progress is not None:
            progress(first + len(rows), len(images))


def _checked(columns: object, rows: int, whose: str) -> Statistics:
    if not isinstance(columns, Mapping) or not columns:
        raise InputError(f"{whose}.measure must give a dictionary of named arrays, got {type(columns).__name__}")
    arrays = {}
    for name, column in columns.items():
        array = _as_array(column)
        if array.shape != (rows,) or array.dtype.kind not in "biuf":
            raise InputError(
                f"{whose}.measure: {name!r} must hold a number for each of {rows} samples, shape ({rows},), "
                f"got {array.dtype} of shape {array.shape}"
            )
        arrays[name] = array.astype(np.float64)
    return Statistics.from_columns(arrays, on_bad="flag")


# Torch, which nobody needs who has no torch model.


@contextmanager
def _in_eval_mode(model: object) -> Iterator[None]:
    if "torch" not in sys.modules:
        yield
        return
    import torch

    was = {part: part.training for part in model.modules()} if isinstance(model, torch.nn.Module) else {}
    try:
        for part in was:
            part.training = False
        with torch.inference_mode():
            yield
    finally:
        for part, training in was.items():
            part.training = training


def _as_input(model: object, rows: NDArray[np.generic]) -> object:
    if "torch" in sys.modules:
        import torch

        if isinstance(model, torch.nn.Module):
            place = next(iter(model.parameters()), torch.empty(0)).device
            return torch.from_numpy(np.require(rows, requirements=["C", "W"])).to(place)
    return rows


def _as_array(column: object) -> NDArray[np.generic]:
    if "torch" in sys.modules:
        import torch

        if isinstance(column, torch.Tensor):
            return column.detach().double().cpu().numpy() if column.is_floating_point() else column.cpu().numpy()
    return np.asarray(column)


def _weights(model: object) -> str:
    """A checksum of a torch module's weights; of other models, only the name of their class is known."""
    digest = hashlib.sha256(type(model).__qualname__.encode())
    if "torch" in sys.modules:
        import torch

        if isinstance(model, torch.nn.Module):
            for name, tensor in model.state_dict().items():
                digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
                digest.update(tensor.detach().cpu().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


# Rows on their way into a file.


@dataclass(frozen=True)
class _Manifest:
    """What the rows in a folder of parts belong to."""

    images: str
    model: str


def _measure_to(
    path: Path, model: Measurable, images: NDArray[np.generic], size: int, progress: Progress | None
) -> Statistics:
    file_format(path, (".parquet", ".csv", ".csv.gz"))
    check_target(path)
    folder = path.with_name(f".{path.name}.parts")
    manifest = _Manifest(fingerprint(images), _weights(model))
    done = _read_parts(folder, manifest)
    if done:
        _compare(done[0], model, images, folder, size)
    pending: list[Statistics] = []
    written = monotonic()
    for found in _batches(model, images, sum(map(len, done)), size, progress):
        pending.append(found)
        if monotonic() - written >= PART_SECONDS:
            done.append(_write_part(folder, manifest, pending, sum(map(len, done))))
            pending, written = [], monotonic()
    table = Statistics.concat([*done, *pending])
    table.write(path)
    shutil.rmtree(folder, ignore_errors=True)
    return table


def _read_parts(folder: Path, manifest: _Manifest) -> list[Statistics]:
    """The rows that are there already, in their order; those of something else are refused."""
    file = folder / MANIFEST
    if not file.exists():
        return []
    with explaining(f"cannot read {file}"):
        found = json.loads(file.read_text(encoding="utf-8"))
    for name, value in asdict(manifest).items():
        if not isinstance(found, dict) or found.get(name) != value:
            what = "other images" if name == "images" else "another model"
            raise InputError(
                f"{folder} holds rows of {what}, of an unfinished measurement: delete it or choose another output"
            )
    parts: list[Statistics] = []
    for file in sorted(folder.glob("rows-*.parquet")):
        if file != _part(folder, sum(map(len, parts))):
            raise InputError(f"{file} does not go on where the part before it ends: delete {folder}")
        parts.append(Statistics.read(file, on_bad="flag"))
    return parts


def _part(folder: Path, first_row: int) -> Path:
    return folder / f"rows-{first_row:012d}.parquet"


def _write_part(folder: Path, manifest: _Manifest, batches: Sequence[Statistics], first_row: int) -> Statistics:
    if first_row == 0:
        with explaining(f"cannot write to {folder}"):
            folder.mkdir(exist_ok=True)
            with replacing(folder / MANIFEST) as temporary:
                temporary.write_text(json.dumps(asdict(manifest)), encoding="utf-8")
    part = Statistics.concat(batches)
    part.write(_part(folder, first_row))
    return part


def _compare(part: Statistics, model: Measurable, images: NDArray[np.generic], folder: Path, size: int) -> None:
    """Refuse to go on if the model gives other values than before for the first rows."""
    rows = min(size, len(part))
    again = next(_batches(model, images[:rows], 0, rows, None))
    for name in part.names:
        old, new = part[name][:rows], again[name]
        if not np.allclose(old, new, rtol=SAME, atol=SAME * float(np.nanstd(part[name])), equal_nan=True):
            raise InputError(
                f"{folder} holds other values of {name!r} for the first rows than the model gives now: delete it or "
                "choose another output"
            )
