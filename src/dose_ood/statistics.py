"""The table of summary statistics: one row a sample, one named column a statistic."""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import InitVar, dataclass, field
from pathlib import Path
from typing import Literal, Protocol, final, get_args

import numpy as np
import pyarrow as pa
from numpy.typing import ArrayLike, NDArray

from dose_ood.columns import bad_cell, check_numeric, checked_names, listing, numbers, positions
from dose_ood.errors import InputError
from dose_ood.tables import TableSink, check_target, explaining, file_format, open_source, replacing, table_source

Vector = NDArray[np.float64]
Matrix = NDArray[np.float64]
Mask = NDArray[np.bool_]
OnBad = Literal["refuse", "flag"]


class ArrowTable(Protocol):
    """A table of pandas (2.2 or later), Polars (1.3 or later), Arrow or anything else that gives an Arrow stream."""

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """The table as an Arrow C stream."""


@final
@dataclass(frozen=True, eq=False, repr=False)
class Statistics:
    """Summary statistics of samples: `values` of shape (rows, columns), a name for each column.

    Every value is a finite number. With `on_bad="flag"`, rows with other values are kept: `bad` marks them, and the
    cells that are not finite hold NaN. A float64 matrix is not copied, but it cannot be written through `values`.

    Parameters
    ----------
    names
        The names of the columns, all different.
    values
        A number for each row and column.
    on_bad
        What to do with a value that is not finite.

    Examples
    --------
    >>> table = Statistics.from_columns({"rate": [1.0, 2.0], "like": [-5.0, -6.0]})
    >>> table.select(["like", "rate"]).values
    array([[-5.,  1.],
           [-6.,  2.]])
    """

    names: tuple[str, ...]
    values: Matrix
    on_bad: InitVar[OnBad] = "refuse"
    bad: Mask = field(init=False)

    def __post_init__(self, on_bad: OnBad) -> None:
        """Check names, shape and values."""
        flags = _flags(on_bad)
        names, values = checked_names(self.names, "the table"), np.asarray(self.values)
        if values.ndim != 2 or values.shape[1] != len(names):
            raise InputError(f"expected values of shape (rows, {len(names)}), one column a name, got {values.shape}")
        if values.dtype.kind not in "biuf":
            raise InputError(f"expected numbers, got values of dtype {values.dtype}")
        values = np.asarray(values, np.float64)
        if not (values.flags.c_contiguous or values.flags.f_contiguous):
            values = values.copy()
        bad: Mask = np.broadcast_to(np.False_, (len(values),))
        finite = np.isfinite(values)
        if not finite.all():
            if not flags:
                row, column = _first_bad(values)
                raise bad_cell(row, names[column], values[row, column], "the table")
            bad = np.logical_not(finite.all(axis=1, keepdims=True))[:, 0]
            values = np.where(finite, values, np.nan)
        for name, value in (("names", names), ("values", values.view()), ("bad", bad.view())):
            object.__setattr__(self, name, value)
        self.values.flags.writeable = self.bad.flags.writeable = False

    @classmethod
    def from_numpy(cls, array: ArrayLike, names: Sequence[str], on_bad: OnBad = "refuse") -> "Statistics":
        """A copy of a matrix of shape (rows, columns)."""
        return cls(tuple(names), np.array(array), on_bad)

    @classmethod
    def from_columns(cls, columns: Mapping[str, ArrayLike], on_bad: OnBad = "refuse") -> "Statistics":
        """A column for each name, all of shape (rows,)."""
        arrays = {name: np.asarray(column) for name, column in columns.items()}
        rows = next((array.shape for array in arrays.values()), ())
        for name, array in arrays.items():
            if array.ndim != 1 or array.shape != rows:
                raise InputError(f"column {name!r}: expected shape (rows,), the same for all, got {array.shape}")
            if array.dtype.kind not in "biuf":
                raise InputError(f"column {name!r}: expected numbers, got values of dtype {array.dtype}")
        values = np.empty((*rows, len(arrays)), order="F")
        for position, array in enumerate(arrays.values()):
            values[:, position] = array
        return cls(tuple(arrays), values, on_bad)

    @classmethod
    def from_table(
        cls, table: ArrowTable, names: Sequence[str] | None = None, on_bad: OnBad = "refuse"
    ) -> "Statistics":
        """Columns of a pandas, Polars or Arrow table; all of them if no names are given, but not a pandas index."""
        arrow = _arrow_table(table)
        chosen = _chosen_names(arrow.schema, names, "the table")
        check_numeric(arrow.schema, chosen, "the table", _hint(names))
        return _from_arrow(arrow.select(chosen), chosen, on_bad, "the table")

    @classmethod
    def read(
        cls, path: str | os.PathLike[str], names: Sequence[str] | None = None, on_bad: OnBad = "refuse"
    ) -> "Statistics":
        """Columns of a .parquet, .csv, .csv.gz or .npz file; all of them if no names are given."""
        return cls.concat([batch.statistics for batch in stream(path, names, on_bad=on_bad)])

    @classmethod
    def concat(cls, parts: Sequence["Statistics"]) -> "Statistics":
        """The rows of all parts, which have the same columns; their order is that of the first."""
        if not parts:
            raise InputError("expected at least one table to concatenate, got none")
        names = parts[0].names
        for part in parts:
            if len(part.names) != len(names):
                raise InputError(f"expected the columns {listing(names)} in every table, got {listing(part.names)}")
        values = np.empty((sum(map(len, parts)), len(names)), order="F")
        return cls(names, np.concatenate([part.select(names).values for part in parts], out=values), "flag")

    def select(self, names: Sequence[str]) -> "Statistics":
        """The named columns, in the order asked for."""
        if tuple(names) == self.names:
            return self
        return Statistics(tuple(names), self.values[:, positions(names, self.names, "the table")], "flag")

    def beside(self, other: "Statistics") -> "Statistics":
        """The columns of both tables, which have the same rows and no name in common."""
        if len(self) != len(other):
            raise InputError(f"expected tables of as many rows side by side, got {len(self)} and {len(other)}")
        return Statistics(self.names + other.names, np.hstack([self.values, other.values]), "flag")

    def prefix(self, text: str) -> "Statistics":
        """The same columns with `text` before each name."""
        return Statistics(tuple(text + name for name in self.names), self.values, "flag")

    def to_arrow(self) -> pa.Table:
        """The Arrow table, which pandas, Polars and others read; without a copy if the columns are contiguous."""
        return pa.table([pa.array(column) for column in self.values.T], names=list(self.names))

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """The table as an Arrow C stream: `polars.DataFrame(statistics)` and `pyarrow.table(statistics)` work."""
        return self.to_arrow().__arrow_c_stream__(requested_schema)

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write a .parquet, .csv, .csv.gz or .npz file, whole or not at all; `read` gives back the same bits."""
        if file_format(path) != ".npz":
            with TableSink(path) as sink:
                sink.write(self.to_arrow())
            return
        check_target(Path(path))
        with explaining(f"cannot write {path}"), replacing(path) as temporary, temporary.open("wb") as file:
            np.savez(file, names=np.array(self.names), values=self.values)

    def __getitem__(self, name: str) -> Vector:
        """The column of that name, shape (rows,)."""
        return self.values[:, positions([name], self.names, "the table")[0]]

    def __len__(self) -> int:
        """The number of rows."""
        return len(self.values)

    def __eq__(self, other: object) -> bool:
        """Whether names, their order and values agree; NaN equals NaN."""
        if not isinstance(other, Statistics):
            return NotImplemented
        return self.names == other.names and np.array_equal(self.values, other.values, equal_nan=True)

    __hash__ = None  # type: ignore[assignment]  # compared by value, and too large to hash

    def __repr__(self) -> str:
        """Rows and names, short."""
        bad = f", {self.bad.sum()} bad" if self.bad.any() else ""
        return f"Statistics({len(self)} rows{bad}: {listing(self.names)})"


@dataclass(frozen=True)
class Batch:
    """Some rows of a table.

    Parameters
    ----------
    statistics
        The statistics of these rows.
    kept
        The columns to keep beside them, unread.
    first_row
        The row of the whole table that is the first here; rows are counted from 0.
    """

    statistics: Statistics
    kept: pa.RecordBatch
    first_row: int


def stream(
    table: str | os.PathLike[str] | ArrowTable,
    names: Sequence[str] | None = None,
    *,
    keep: Sequence[str] = (),
    batch_rows: int = 65_536,
    on_bad: OnBad = "refuse",
) -> Iterator[Batch]:
    """Read a file or a table batch by batch; the memory does not grow with the rows of a Parquet or CSV file.

    Whatever can be known from the head of the file is refused at the call, the rest when its batch is reached.

    Parameters
    ----------
    table
        A .parquet, .csv, .csv.gz or .npz file, or a pandas, Polars or Arrow table.
    names
        The columns that are statistics, in the order wanted; all of them if None, but not a pandas index.
    keep
        Columns of any type to hand on beside the statistics; those of a CSV file are text, as written.
    batch_rows
        The most rows of a batch.
    on_bad
        Whether a value that is not a finite number is refused or its row flagged.
    """
    if batch_rows < 1:
        raise InputError(f"batch_rows must be at least 1, got {batch_rows}")
    flags = _flags(on_bad)
    if isinstance(table, str | os.PathLike):
        source = open_source(table)
    else:
        source = table_source(_arrow_table(table), "the table")
    chosen = _chosen_names(source.schema, names, source.name)
    positions(keep, source.schema.names, source.name)
    if not source.is_text or (names is None and flags):
        check_numeric(source.schema, chosen, source.name, _hint(names))

    def batches() -> Iterator[Batch]:
        first_row = 0
        for batch in source.batches(list(dict.fromkeys((*chosen, *keep))), batch_rows):
            statistics = _from_arrow(batch.select(chosen), chosen, on_bad, source.name, first_row, _hint(names))
            yield Batch(statistics, batch.select(list(keep)), first_row)
            first_row += batch.num_rows
        if first_row == 0:
            raise InputError(f"{source.name} has no rows")

    return batches()


def _arrow_table(table: ArrowTable) -> pa.Table:
    kind = type(table).__name__
    if not hasattr(table, "__arrow_c_stream__"):
        raise InputError(f"expected a pandas (2.2 or later), Polars (1.3 or later) or Arrow table, got {kind}")
    with explaining(f"cannot read {kind} as a table"):
        return pa.RecordBatchReader.from_stream(table).read_all()


def _chosen_names(schema: pa.Schema, names: Sequence[str] | None, where: str) -> tuple[str, ...]:
    """The names wanted, all of which are there once."""
    if names is None:
        with explaining(f"cannot read the pandas metadata of {where}"):
            index = (schema.pandas_metadata or {}).get("index_columns", [])
        names = [name for name in schema.names if name not in index]
    positions(names, schema.names, where)
    return checked_names(names, where)


def _flags(on_bad: OnBad) -> bool:
    if on_bad not in get_args(OnBad):
        raise InputError(f"on_bad must be 'refuse' or 'flag', got {on_bad!r}")
    return on_bad == "flag"


def _hint(names: Sequence[str] | None) -> str:
    return "; name the wanted columns to leave it out" if names is None else ""


def _from_arrow(
    table: pa.Table | pa.RecordBatch,
    names: tuple[str, ...],
    on_bad: OnBad,
    where: str,
    first_row: int = 0,
    hint: str = "",
) -> Statistics:
    values = np.empty((table.num_rows, len(names)), order="F")
    for position, column in enumerate(table.columns):
        row = 0
        for chunk in column.chunks if isinstance(column, pa.ChunkedArray) else [column]:
            values[row : row + len(chunk), position] = numbers(chunk)
            row += len(chunk)
    statistics = Statistics(names, values, "flag")
    if not _flags(on_bad) and statistics.bad.any():
        row, position = _first_bad(values)
        cell = table.column(position)[row].as_py()
        raise bad_cell(first_row + row, names[position], cell, where, hint)
    return statistics


def _first_bad(values: Matrix) -> tuple[int, int]:
    bad = ~np.isfinite(values)
    row = int(bad.any(axis=1).argmax())
    return row, int(bad[row].argmax())
