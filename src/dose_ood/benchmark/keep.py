"""Tables and images of a benchmark as small files, each of which says what it was made from."""

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from dose_ood.errors import InputError
from dose_ood.statistics import Statistics
from dose_ood.storage import Json
from dose_ood.tables import explaining, replacing

ORIGIN = b"dose-ood origin"


def keep(table: Statistics, path: Path, origin: Mapping[str, Json], *, float32: bool = False) -> None:
    """Write a table as Parquet, whole or not at all.

    Bytes of equal weight are stored together and compressed with zstd: 7.1 instead of 8 bytes a float64 number, 3.2 as
    float32. That rounds to 24 bits: an AUROC can change in its 6th digit, and sums such as rate = xent − ent hold to
    1e-7 of their terms, far below what whitening drops (1e-5).

    Parameters
    ----------
    table
        What to write.
    path
        A .parquet file; its folder is made.
    origin
        What the rows were made from, as JSON; `origin` gives it back.
    float32
        Whether to round the numbers to half the bits.
    """
    kind = pa.float32() if float32 else pa.float64()
    columns = [pa.array(column.astype(kind.to_pandas_dtype())) for column in table.values.T]
    arrow = pa.table(columns, names=list(table.names)).replace_schema_metadata({ORIGIN: json.dumps(dict(origin))})
    with explaining(f"cannot write {path}"):
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as temporary:
            pq.write_table(arrow, temporary, compression="zstd", use_dictionary=False, use_byte_stream_split=True)


def origin(path: Path) -> Mapping[str, Json] | None:
    """What the rows of a file were made from; None if there is no file."""
    if not path.exists():
        return None
    with explaining(f"cannot read {path} as Parquet"):
        found = (pq.read_schema(path).metadata or {}).get(ORIGIN)
        made_from = None if found is None else json.loads(found)
    if not isinstance(made_from, dict):
        raise InputError(f"{path} does not say what its rows were made from: it was not written by dose bench")
    return made_from


def keep_images(path: Path, images: NDArray[np.uint8], rows: NDArray[np.int64]) -> None:
    """Write images and their rows in the set's tables, whole or not at all."""
    with explaining(f"cannot write {path}"):
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as temporary, temporary.open("wb") as file:
            np.savez_compressed(file, images=images, rows=rows)
