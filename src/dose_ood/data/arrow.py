"""A folder that Hugging Face's `save_to_disk` wrote, read by Arrow alone.

A set is `state.json`, which names its files, and Arrow streams. A dictionary of sets is `dataset_dict.json` and one
such folder a part.
"""

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dose_ood.data.pictures import read_picture, stack_pictures
from dose_ood.errors import InputError
from dose_ood.tables import explaining

Images: TypeAlias = NDArray[np.uint8]

STATE, PARTS = "state.json", "dataset_dict.json"
USUAL = ("image", "img")  # names of the column of pictures, if there are several


def is_saved_dataset(folder: Path) -> bool:
    """Whether a folder looks like one that `save_to_disk` wrote."""
    return (folder / STATE).is_file() or (folder / PARTS).is_file()


def read_saved_dataset(folder: Path, part: str | None) -> tuple[str, Images]:
    """Where the images were found, and the images: pictures as (n, c, h, w), arrays in the shape they have."""
    folder = _choose(folder, part)
    state = _read_json(folder / STATE)
    if state.get("_indices_files") or state.get("_indices_data_files"):
        raise InputError(f"{folder}: expected a set without a list of chosen rows; save flatten_indices() of it")
    listed = state.get("_data_files")
    if not isinstance(listed, list) or not listed:
        raise InputError(f"{folder / STATE}: expected a list of files under _data_files")
    table = pa.concat_tables([_read_stream(folder, each) for each in listed])
    name = _image_column(table.schema, str(folder))
    column, where = table.column(name), f"{name!r} in {folder}"
    if not len(column):
        raise InputError(f"{where}: expected images, found no row")
    if _is_pictures(column.type):
        names = [f"row {row} of {where}" for row in range(len(column))]
        return where, stack_pictures(_decode(column, names), names)
    return where, np.concatenate([_unnest(chunk, where) for chunk in column.chunks if len(chunk)])


def _choose(folder: Path, part: str | None) -> Path:
    if not (folder / PARTS).is_file():
        if part is not None:
            raise InputError(f"{folder} is a single set and has no part {part!r}")
        return folder
    names = _read_json(folder / PARTS).get("splits")
    if not isinstance(names, list) or not all(isinstance(name, str) and _is_plain(name) for name in names):
        raise InputError(f"{folder / PARTS}: expected a list of names under splits")
    wanted = part or ("train" if "train" in names or len(names) != 1 else names[0])
    if wanted not in names:
        raise InputError(f"{folder} has no part {wanted!r}; it has {', '.join(names) or 'none'}")
    return folder / wanted


def _is_plain(name: str) -> bool:
    return name not in ("", ".", "..") and not set(name) & set("/\\:\0")


def _read_json(path: Path) -> dict[str, object]:
    with explaining(f"cannot read {path}"):
        try:
            found = json.loads(path.read_bytes())
        except RecursionError as error:
            raise InputError(f"{path}: expected a small JSON object, got one within one within one") from error
    if not isinstance(found, dict):
        raise InputError(f"{path}: expected a JSON object, got something else")
    return found


def _read_stream(folder: Path, listed: object) -> pa.Table:
    name = listed.get("filename") if isinstance(listed, dict) else None
    if not isinstance(name, str) or not _is_plain(name):
        raise InputError(f"{folder / STATE}: expected names of files beside it, got {name!r}")
    with explaining(f"cannot read {folder / name} as an Arrow stream"), pa.memory_map(str(folder / name)) as file:
        table = pa.ipc.open_stream(file).read_all()
        table.validate(full=True)  # offsets are checked before they are followed
        return table


def _is_pictures(kind: pa.DataType) -> bool:
    if not pa.types.is_struct(kind) or kind.get_field_index("bytes") < 0:
        return False
    content = kind.field("bytes").type
    return bool(pa.types.is_binary(content) or pa.types.is_large_binary(content))


def _is_pixels(kind: pa.DataType) -> bool:
    depth = 0
    while pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        kind, depth = kind.value_type, depth + 1
    return depth in (2, 3) and bool(pa.types.is_uint8(kind))


def _image_column(schema: pa.Schema, where: str) -> str:
    names = [field.name for field in schema if _is_pictures(field.type) or _is_pixels(field.type)]
    usual = [name for name in USUAL if name in names]
    if len(names) == 1 or usual:
        return str((usual or names)[0])
    columns = ", ".join(f"{field.name} ({field.type})" for field in schema)
    raise InputError(
        f"{where}: expected one column of pictures or of uint8 arrays of one shape, got {len(names)}; it has {columns}"
    )


def _decode(column: pa.ChunkedArray, names: list[str]) -> Iterator[Images]:
    row = 0
    for chunk in column.chunks:
        for content in chunk.field("bytes") if not chunk.null_count else [pa.scalar(None)]:
            if not content.is_valid:
                raise InputError(f"{names[row]}: expected a picture in the file itself, got none or a path to one")
            yield read_picture(io.BytesIO(content.as_py()), names[row])
            row += 1


def _unnest(array: pa.Array, where: str) -> Images:
    """Lists of lists as an array, if all of them are as long as each other."""
    shape = [len(array)]
    while not pa.types.is_uint8(array.type):
        lengths = array.value_lengths()
        if array.null_count or len(lengths.unique()) > 1:
            raise InputError(f"{where}: expected arrays of one shape, without gaps")
        shape.append(lengths[0].as_py() if len(lengths) else 0)
        array = array.flatten()
    if array.null_count:
        raise InputError(f"{where}: expected arrays of one shape, without gaps")
    return np.asarray(array.to_numpy(), np.uint8).reshape(shape)
