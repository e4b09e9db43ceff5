"""Inputs cut into pieces of work: row groups of Parquet, whole other tables, some pictures of a folder, arrays."""

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from dose_ood.data.arrow import is_saved_dataset
from dose_ood.data.images import read_images
from dose_ood.data.pictures import PICTURES, picture_files, read_picture, stack_pictures
from dose_ood.errors import InputError
from dose_ood.statistics import Batch, OnBad, Statistics, stream
from dose_ood.tables import PAGE_BYTES, existing, explaining, is_table

PIECE_ROWS = 2**20  # rows of a Parquet file to a piece, in whole row groups
PIECE_IMAGES = 1024  # images to a piece: a multiple of a batch, so that batches are those of a single process
BATCH_ROWS = 65_536

Kind = Literal["parquet", "table", "pictures", "images"]


@dataclass(frozen=True)
class Piece:
    """Some rows of an input, as plain data that any worker can read.

    Parameters
    ----------
    source
        The file, folder or data set, as it was named.
    kind
        How to read it.
    first_row
        The row of the source that is the first here.
    units
        First and last (exclusive) row group of a Parquet file, or image of an array; (0, 0) is all.
    files
        The pictures of a folder.
    stamp
        Sizes and times of the files when the work was planned: another stamp is another input.
    """

    source: str
    kind: Kind
    first_row: int = 0
    units: tuple[int, int] = (0, 0)
    files: tuple[str, ...] = ()
    stamp: str = ""

    def to_json(self) -> str:
        """As text, equal for equal pieces."""
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """What `to_json` wrote."""
        found = json.loads(text)
        return cls(**{**found, "units": tuple(found["units"]), "files": tuple(found["files"])})


def pieces_of(sources: Sequence[str], takes_images: bool) -> list[Piece]:
    """The work that sources are, each named once; a folder of Parquet files stands for its files."""
    paths = [path for source in sources for path in _expanded(source)]
    if len(set(paths)) < len(paths):
        raise InputError(f"expected each input once, got {next(p for p in paths if paths.count(p) > 1)} twice")
    found = [piece for path in paths for piece in _pieces(path, takes_images)]
    if not found:
        raise InputError("expected at least one input, got none")
    return found


def check_columns(pieces: Iterable[Piece], names: Sequence[str], keep: Sequence[str], on_bad: OnBad) -> None:
    """Refuse tables that lack a column, or hold no numbers in it, before any work."""
    for source in dict.fromkeys(piece.source for piece in pieces if piece.kind in ("parquet", "table")):
        stream(source, names, keep=keep, on_bad=on_bad)


def batches(piece: Piece, names: Sequence[str], keep: Sequence[str], on_bad: OnBad) -> Iterator[Batch]:
    """The statistics of a piece of a table, and the columns to keep; rows are counted as in the source."""
    if piece.kind == "table":
        yield from stream(piece.source, names, keep=keep, on_bad=on_bad)
        return
    row = piece.first_row
    for batch in _row_groups(piece, list(dict.fromkeys((*names, *keep)))):
        try:
            rows = Statistics.from_table(batch, names, on_bad)
        except InputError as error:
            raise InputError(f"{piece.source}, counted from row {row}: {error}") from error
        yield Batch(rows, batch.select(list(keep)), row)
        row += len(rows)


def images(piece: Piece) -> NDArray[np.uint8]:
    """The images of a piece, uint8 of shape (n, c, h, w)."""
    if piece.kind == "pictures":
        return stack_pictures((read_picture(Path(file), file) for file in piece.files), piece.files)
    first, last = piece.units
    found = read_images(piece.source)
    return found[first:last] if last else found


def stamp_of(files: Iterable[str | os.PathLike[str]]) -> str:
    """A checksum of names, sizes and times of files; of none it is empty."""
    seen = [(os.fspath(file), (found := Path(file).stat()).st_size, found.st_mtime_ns) for file in files]
    return hashlib.sha256(json.dumps(seen).encode()).hexdigest()[:16] if seen else ""


def _expanded(source: str) -> list[str]:
    folder = Path(source)
    tables = sorted(folder.rglob("*.parquet")) if folder.is_dir() else []
    return [str(file) for file in tables if not _hidden(file.relative_to(folder))] or [source]


def _hidden(path: Path) -> bool:
    """As engines have it: files and folders that begin with a dot or an underscore are not data."""
    return any(part[0] in "._" for part in path.parts)


def _pieces(source: str, takes_images: bool) -> Iterator[Piece]:
    path = Path(source)
    if path.is_dir() and takes_images and not is_saved_dataset(path):
        yield from _pictures(path)
    elif takes_images and not is_table(source):
        yield from _arrays(source, path)
    elif existing(path)[1] == ".parquet":
        yield from _parquet(path)
    else:
        yield Piece(source, "table", stamp=stamp_of([path]))


def _parquet(path: Path) -> Iterator[Piece]:
    with explaining(f"cannot read {path} as Parquet"):
        meta = pq.read_metadata(path)
    if not meta.num_rows:
        raise InputError(f"{path} has no rows")
    stamp, start, first_row, rows = stamp_of([path]), 0, 0, 0
    for group in range(meta.num_row_groups):
        rows += meta.row_group(group).num_rows
        if rows >= PIECE_ROWS or group + 1 == meta.num_row_groups:
            yield Piece(str(path), "parquet", first_row, (start, group + 1), stamp=stamp)
            start, first_row, rows = group + 1, first_row + rows, 0


def _pictures(folder: Path) -> Iterator[Piece]:
    files = picture_files(folder)
    if not files:
        raise InputError(f"{folder}: expected pictures ({', '.join(PICTURES)}) or Parquet files, found none")
    for first in range(0, len(files), PIECE_IMAGES):
        some = tuple(map(str, files[first : first + PIECE_IMAGES]))
        yield Piece(str(folder), "pictures", first, files=some, stamp=stamp_of(some))


def _arrays(source: str, path: Path) -> Iterator[Piece]:
    """Pieces of an .npy file, which can be read in part; anything else is one piece."""
    if path.suffix.lower() != ".npy" or not path.is_file():
        yield Piece(source, "images", stamp=stamp_of([path] if path.is_file() else []))
        return
    count, stamp = len(read_images(source)), stamp_of([path])
    for first in range(0, count, PIECE_IMAGES):
        yield Piece(source, "images", first, (first, min(first + PIECE_IMAGES, count)), stamp=stamp)


def _row_groups(piece: Piece, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
    with (
        explaining(f"cannot read {piece.source} as Parquet"),
        pq.ParquetFile(piece.source, pre_buffer=False, buffer_size=PAGE_BYTES) as file,
    ):
        groups = list(range(*piece.units))
        for batch in file.iter_batches(BATCH_ROWS, groups, list(names), use_threads=False):  # a worker has one CPU
            yield batch.select(names)  # asked for "a", Parquet also gives a column called "a.b"
