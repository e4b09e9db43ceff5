"""Files of tables (Parquet, CSV, npz), read batch by batch and written all or nothing."""

import csv
import gzip
import io
import os
import re
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Literal, Self
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from dose_ood.errors import InputError

GROUP_ROWS = 2**17  # rows of a row group written; small groups cost speed, large ones memory
PAGE_BYTES = 2**16  # read of a Parquet column at a time: a whole column chunk would grow with the row group
BLOCK_BYTES = 2**20  # of a CSV parsed at a time; Arrow reads some tens of blocks ahead

FOREIGN = (  # what the readers of Arrow, NumPy and the standard library raise on content that is not theirs
    *(pa.ArrowException, OSError, ValueError, EOFError, MemoryError, RuntimeError),
    *(csv.Error, zipfile.BadZipFile, zlib.error),
)

Format = Literal[".parquet", ".csv", ".csv.gz", ".npz"]
FORMATS: tuple[Format, ...] = (".parquet", ".csv", ".csv.gz", ".npz")


@dataclass(frozen=True)
class Source:
    """A table that is read batch by batch.

    Parameters
    ----------
    name
        What messages call it.
    schema
        Its columns; of a CSV, the types are a guess from the first block.
    batches
        Takes names of columns and the most rows of a batch; gives the batches.
    is_text
        Whether every column comes as text.
    """

    name: str
    schema: pa.Schema
    batches: Callable[[Sequence[str], int], Iterator[pa.RecordBatch]]
    is_text: bool = False


def open_source(path: str | os.PathLike[str]) -> Source:
    """Open a .parquet, .csv, .csv.gz or .npz file for reading."""
    path, suffix = existing(path)
    if suffix == ".parquet":
        return _open_parquet(path)
    return _open_npz(path) if suffix == ".npz" else _open_csv(path)


def table_source(table: pa.Table, name: str) -> Source:
    """A table in memory as a source."""
    return Source(name, table.schema, lambda names, rows: iter(table.select(names).to_batches(max_chunksize=rows)))


def row_count(path: str | os.PathLike[str]) -> int | None:
    """The number of rows of a file, None where only reading it all would tell (CSV, npz)."""
    path, suffix = existing(path)
    if suffix != ".parquet":
        return None
    with explaining(f"cannot read {path} as Parquet"):
        return int(pq.read_metadata(path).num_rows)


def existing(path: str | os.PathLike[str]) -> tuple[Path, Format]:
    """The path of a file that is there, and its format."""
    path = Path(path)
    suffix = file_format(path)
    if path.is_dir():
        raise InputError(f"{path}: expected a file, got a directory")
    if not path.exists():
        raise InputError(f"{path}: no such file")
    return path, suffix


def file_format(path: str | os.PathLike[str], allowed: Sequence[Format] = FORMATS) -> Format:
    """The format a file's suffix names."""
    name = Path(path).name.lower()
    for suffix in allowed:
        if name.endswith(suffix):
            return suffix
    raise InputError(f"{path}: expected a file name ending in {', '.join(allowed)}")


def is_table(path: str | os.PathLike[str]) -> bool:
    """Whether a file is a table by its name; an .npz of pictures, with arrays of three dimensions and more, is not."""
    name = Path(path).name.lower()
    if not name.endswith(".npz"):
        return name.endswith(FORMATS)
    with explaining(f"cannot read {path} as npz"), zipfile.ZipFile(path) as archive:
        return all(_dimensions(archive, member) < 3 for member in archive.namelist())


def _dimensions(archive: zipfile.ZipFile, member: str) -> int:
    """Of an array in an archive, from its header alone."""
    with archive.open(member) as file:
        major, _ = np.lib.format.read_magic(file)
        read = np.lib.format.read_array_header_1_0 if major == 1 else np.lib.format.read_array_header_2_0
        return len(read(file)[0])


@contextmanager
def explaining(what: str) -> Iterator[None]:
    """Tell what a library says about foreign content or a full disk in one sentence."""
    try:
        yield
    except InputError:
        raise
    except FOREIGN as error:
        said = (str(error).splitlines() or [type(error).__name__])[0].rstrip(". ")
        raise InputError(f"{what}: {said}") from error


def _open_parquet(path: Path) -> Source:
    def batches(names: Sequence[str], rows: int) -> Iterator[pa.RecordBatch]:
        with (
            explaining(f"cannot read {path} as Parquet"),
            pq.ParquetFile(path, pre_buffer=False, buffer_size=PAGE_BYTES) as file,
        ):
            for batch in file.iter_batches(rows, columns=list(names)):
                yield batch.select(names)  # asked for "a", Parquet also gives a column called "a.b"

    with explaining(f"cannot read {path} as Parquet"):
        return Source(str(path), pq.read_schema(path), batches)


def _open_csv(path: Path) -> Source:
    with explaining(f"cannot read {path} as CSV"), _bytes(path) as stream:
        head = stream.read(4096)
        if head.startswith((b"\xff\xfe", b"\xfe\xff")):
            raise InputError(f"cannot read {path} as CSV: expected UTF-8 text, got UTF-16")
        if b"\0" in head:
            raise InputError(f"cannot read {path} as CSV: expected UTF-8 text, got binary content")
        if not head.strip(b"\xef\xbb\xbf\r\n"):
            raise InputError(f"{path} is empty: expected a line of column names and rows of numbers")
    with _csv_reader(path, pa_csv.ConvertOptions()) as reader:
        schema = reader.schema
        one_column = len(schema.names) == 1

    def batches(names: Sequence[str], rows: int) -> Iterator[pa.RecordBatch]:
        as_text = pa_csv.ConvertOptions(
            include_columns=names,
            column_types=dict.fromkeys(names, pa.string()),
            null_values=[],
            strings_can_be_null=False,
        )
        with _csv_reader(path, as_text, skip_blank=not one_column) as reader:
            for block in reader:
                yield from (block.slice(start, rows) for start in range(0, len(block), rows))

    return Source(str(path), schema, batches, is_text=True)


@contextmanager
def _csv_reader(
    path: Path, convert: pa_csv.ConvertOptions, skip_blank: bool = True
) -> Iterator[pa_csv.CSVStreamingReader]:
    """Arrow's reader of a CSV file; in a file of one column, a blank line is a row without its value."""
    parse = pa_csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=skip_blank)
    try:
        with explaining(f"cannot read {path} as CSV"), _bytes(path) as stream:
            yield pa_csv.open_csv(stream, pa_csv.ReadOptions(block_size=BLOCK_BYTES), parse, convert)
    except InputError as error:  # Arrow's handler of invalid rows would lose a row that is not UTF-8
        ragged = re.search(r"Expected (\d+) columns, got (\d+)", str(error))
        if ragged is None:
            raise
        where = f"{_ragged_row(path, int(ragged[1]))} of {path}"
        raise InputError(f"{where}: expected {ragged[1]} cells, as in the line of names, got {ragged[2]}") from error


def _ragged_row(path: Path, cells: int) -> str:
    """The first row with another number of cells; Arrow knows that there is one, but not its number."""
    opener = gzip.open if file_format(path) == ".csv.gz" else io.open
    with suppress(*FOREIGN), opener(path, "rt", encoding="utf-8", errors="replace", newline="") as text:
        records = (len(record) for record in csv.reader(text) if record)
        for row, found in enumerate(records, start=-1):
            if found != cells:
                return f"row {row}"
    return "some row"


def _bytes(path: Path) -> pa.NativeFile:
    return pa.input_stream(str(path), compression="gzip" if file_format(path) == ".csv.gz" else None)


def _open_npz(path: Path) -> Source:
    with explaining(f"cannot read {path} as npz"):
        with path.open("rb") as file:  # np.load by name leaves a broken archive open
            loaded = np.load(file, allow_pickle=False)
            if not isinstance(loaded, np.lib.npyio.NpzFile):
                raise InputError(f"cannot read {path} as npz: expected an archive of arrays, got a single array")
            arrays = {name: np.asarray(array) for name, array in loaded.items()}  # other files come as bytes
        if arrays.keys() == {"names", "values"}:
            names, values = arrays["names"], arrays["values"]
            if names.ndim != 1 or names.dtype.kind != "U" or values.ndim != 2 or len(names) != values.shape[1]:
                raise InputError(
                    f"{path}: expected 'names' as text of shape (columns,) and 'values' of shape (rows, columns), "
                    f"got {names.dtype} of shape {names.shape} and shape {values.shape}"
                )
            columns = [(str(name), values[:, position]) for position, name in enumerate(names)]
        else:
            columns = list(arrays.items())
        for name, column in columns:
            if column.ndim != 1 or len(column) != len(columns[0][1]):
                raise InputError(f"{name!r} in {path}: expected an array of shape (rows,), got {column.shape}")
        fields = [pa.array(column.astype(column.dtype.newbyteorder("="), copy=False)) for _, column in columns]
        return table_source(pa.table(fields, names=[name for name, _ in columns]), str(path))


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A hidden sibling to write to, which takes the place of `path` only when the block ends well."""
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{uuid4().hex[:12]}.tmp")
    try:
        yield temporary
        with temporary.open("r+b") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


class TableSink:
    """A Parquet or CSV file that grows batch by batch, and appears under its name only when it is complete.

    If the block raises, or the process is killed, there is nothing new at `path`; an earlier file stays as it was.

    Parameters
    ----------
    path
        A name that ends in .parquet, .csv or .csv.gz, in a directory that exists.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with TableSink(f"{folder}/scores.csv") as sink:
    ...         sink.write(pa.record_batch({"id": [7, 8], "score": [-1.5, 0.25]}))
    ...         sink.write(pa.record_batch({"id": [9], "score": [3.0]}))
    ...     Path(f"{folder}/scores.csv").read_text().split()
    ['"id","score"', '7,-1.5', '8,0.25', '9,3']
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.format = file_format(path, (".parquet", ".csv", ".csv.gz"))
        check_target(self.path)
        self._pending: list[pa.RecordBatch] = []
        self._pending_rows = 0
        self._writer: pq.ParquetWriter | pa_csv.CSVWriter | None = None

    def __enter__(self) -> Self:
        """Open the hidden file."""
        compression = "gzip" if self.format == ".csv.gz" else None
        with explaining(f"cannot write {self.path}"), ExitStack() as stack:
            temporary = stack.enter_context(replacing(self.path))
            self._file = stack.enter_context(pa.output_stream(str(temporary), compression=compression))
            self._stack = stack.pop_all()
        return self

    def write(self, batch: pa.RecordBatch | pa.Table) -> None:
        """Append rows; all batches have the columns of the first."""
        self._pending += batch.to_batches() if isinstance(batch, pa.Table) else [batch]
        self._pending_rows += batch.num_rows
        with explaining(f"cannot write {self.path}"):
            if self._writer is None:
                self._writer = self._open(batch.schema)
            if self._pending_rows >= GROUP_ROWS:
                self._flush()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Put the file into place, or remove it if the block raised."""
        if error is None:
            with explaining(f"cannot write {self.path}"), self._stack:
                if self._writer is None:
                    raise InputError(f"nothing to write to {self.path}: no batch came")
                self._flush()
                self._writer.close()
            return
        if self._writer is not None:
            with suppress(Exception):
                self._writer.close()
        self._stack.__exit__(kind, error, trace)

    def _open(self, schema: pa.Schema) -> pq.ParquetWriter | pa_csv.CSVWriter:
        if self.format != ".parquet":
            return pa_csv.CSVWriter(self._file, schema)
        repeating = [field.name for field in schema if not pa.types.is_floating(field.type)]
        return pq.ParquetWriter(self._file, schema, use_dictionary=repeating)

    def _flush(self) -> None:
        if self._pending and self._writer is not None:
            self._writer.write_table(pa.Table.from_batches(self._pending))
        self._pending, self._pending_rows = [], 0


def check_target(path: Path) -> None:
    """Refuse a place that could not be written to, before any work."""
    if path.is_dir():
        raise InputError(f"cannot write {path}: it is a directory")
    if not path.parent.is_dir():
        raise InputError(f"cannot write {path}: there is no directory {path.parent}")
