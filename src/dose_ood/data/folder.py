"""The folder of data sets, one NAME.npz each: where it is, what is in it, and how a set gets in."""

import json
import os
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from dose_ood.errors import InputError
from dose_ood.tables import explaining, replacing

Array: TypeAlias = NDArray[np.generic]

CACHE = "DOSE_DATA"  # the environment variable that names the folder
SAMPLES = Path(__file__).parent / "sample"  # what ships with the package
RECORD = "record"  # the array of text that says where a set came from


def data_folder() -> Path:
    """The folder that DOSE_DATA names, else the user's cache."""
    named = os.environ.get(CACHE)
    if named:
        return Path(named)
    cache = os.environ.get("XDG_CACHE_HOME", "")
    base = Path(cache) if Path(cache).is_absolute() else Path.home() / ".cache"  # a relative one is to be ignored
    return base / "dose-ood"


def path_of(name: str, folder: Path) -> Path:
    """Where a set lies, or would lie."""
    return folder / f"{name}.npz"


def names_in(folder: Path) -> list[str]:
    """The sets that are there."""
    return sorted(file.stem for file in folder.glob("*.npz") if file.name[0] != ".")


def read_arrays(path: Path) -> Iterator[tuple[str, Array]]:
    """The arrays of a set, one at a time."""
    with explaining(f"cannot read {path}"), path.open("rb") as file:
        archive = np.load(file, allow_pickle=False)
        if not isinstance(archive, np.lib.npyio.NpzFile):
            raise InputError(f"{path}: expected an archive of arrays, got something else under its name")
        for name in archive:
            yield name, np.asarray(archive[name])


def write_set(name: str, folder: Path, arrays: Mapping[str, Array], record: Mapping[str, object]) -> Path:
    """Write a set, all or nothing, with a record of where it came from."""
    path = path_of(name, folder)
    with explaining(f"cannot write {path}"):
        folder.mkdir(parents=True, exist_ok=True)
        with replacing(path) as temporary, zipfile.ZipFile(temporary, "w") as archive:
            for key, array in {**arrays, RECORD: np.array(json.dumps(record))}.items():
                with archive.open(f"{key}.npy", "w", force_zip64=True) as file:
                    np.lib.format.write_array(file, array, allow_pickle=False)
    return path


def read_record(array: Array) -> dict[str, object]:
    """What `write_set` recorded; nothing, if it is no such thing."""
    try:
        found = json.loads(str(array)) if array.dtype.kind == "U" and array.ndim == 0 else None
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
