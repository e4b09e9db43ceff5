import decimal
import gzip
import math
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

from dose_ood.errors import InputError
from dose_ood.statistics import Statistics, stream
from dose_ood.tables import GROUP_ROWS, TableSink, row_count

SUFFIXES = (".parquet", ".csv", ".csv.gz", ".npz")
EXTREMES = [-0.0, 0.0, 5e-324, -5e-324, 2.2250738585072014e-308, 1.7976931348623157e308, -1.7976931348623157e308, 0.1]

quick = settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
finite = st.floats(allow_nan=False, allow_infinity=False, width=64) | st.sampled_from(EXTREMES)
column_names = st.lists(
    st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1), min_size=1, unique=True
)


@st.composite
def tables(draw: st.DrawFn, names: st.SearchStrategy[list[str]] = column_names, min_rows: int = 1) -> Statistics:
    columns = draw(names)
    shape = (draw(st.integers(min_rows, 12)), len(columns))
    return Statistics.from_numpy(draw(arrays(np.float64, shape, elements=finite)), columns)


def bits(table: Statistics) -> tuple[tuple[str, ...], list[list[int]]]:
    return table.names, np.ascontiguousarray(table.values).view(np.int64).tolist()


def small() -> Statistics:
    return Statistics.from_columns({"like": [-1.0, -2.0, -3.0], "rate": [1.5, 2.5, 3.5], "ent": [7.0, 8.0, 9.0]})


def refusal(action: Callable[[], object]) -> str:
    with pytest.raises(InputError) as caught:
        action()
    message = str(caught.value)
    assert "\n" not in message
    return message


def text_file(folder: Path, content: str | bytes, name: str = "new.csv") -> Path:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


# The table itself


def test_values_are_read_only_contiguous_float64() -> None:
    matrix = np.arange(24).reshape(4, 6)
    for given_values in (matrix, matrix[:, ::2], matrix.T, np.asfortranarray(matrix), matrix > 3):
        table = Statistics(tuple("abcdef"[: given_values.shape[1]]), given_values)  # type: ignore[arg-type]
        assert table.values.dtype == np.float64
        assert table.values.flags.c_contiguous or table.values.flags.f_contiguous
        np.testing.assert_array_equal(table.values, given_values)
        with pytest.raises(ValueError, match="read-only"):
            table.values[0, 0] = 1
    assert matrix.flags.writeable


def test_from_numpy_copies() -> None:
    matrix = np.ones((2, 1))
    table = Statistics.from_numpy(matrix, ["a"])
    matrix[0, 0] = 5
    assert table.values[0, 0] == 1


def test_equality_length_repr_and_columns() -> None:
    table = small()
    assert len(table) == 3
    assert table == Statistics.from_table(table)
    assert table != table.select(["rate", "like", "ent"])
    assert table != table.prefix("0/")
    assert table != "a table"
    assert repr(table) == "Statistics(3 rows: 'like', 'rate', 'ent')"
    np.testing.assert_array_equal(table["rate"], [1.5, 2.5, 3.5])
    with pytest.raises(TypeError, match="unhashable"):
        hash(table)


@pytest.mark.parametrize(
    ("action", "parts"),
    [
        (lambda: Statistics((), np.empty((2, 0))), ["at least one column"]),
        (lambda: Statistics(("a", ""), np.ones((2, 2))), ["column 1", "non-empty name", "''"]),
        (lambda: Statistics(("a", 3), np.ones((2, 2))), ["column 1", "non-empty name", "3"]),  # type: ignore[arg-type]
        (lambda: Statistics(("a", "b", "a"), np.ones((2, 3))), ["one column called 'a'", "several"]),
        (lambda: Statistics(("a",), np.ones((2, 2))), ["(rows, 1)", "(2, 2)"]),
        (lambda: Statistics(("a",), np.ones(2)), ["(rows, 1)", "(2,)"]),
        (lambda: Statistics.from_numpy([["x"]], ["a"]), ["expected numbers", "<U1"]),
        (lambda: Statistics.from_numpy([[1j]], ["a"]), ["expected numbers", "complex128"]),
        (lambda: Statistics.from_columns({"a": [1.0], "b": [1.0, 2.0]}), ["column 'b'", "(2,)"]),
        (lambda: Statistics.from_columns({"a": [[1.0]]}), ["column 'a'", "(1, 1)"]),
        (lambda: Statistics.from_columns({"a": [1.0], "b": ["x"]}), ["column 'b'", "expected numbers"]),
        (lambda: Statistics.from_columns({}), ["at least one column"]),
        (
            lambda: Statistics.from_columns({"a": [1.0, 2.0], "b": [3.0, math.nan]}),
            ["row 1, column 'b' of the table: expected a finite number, got nan"],
        ),
        (lambda: Statistics.from_columns({"a": [-math.inf]}), ["row 0, column 'a'", "got -inf"]),
        (lambda: Statistics(("a",), np.ones((1, 1)), "drop"), ["on_bad", "'drop'"]),  # type: ignore[arg-type]
        (lambda: Statistics.concat([]), ["at least one table"]),
        (lambda: Statistics.concat([small(), small().select(["like", "rate"])]), ["'ent'", "every table"]),
        (lambda: Statistics.concat([small(), small().prefix("0/")]), ["no column 'like'", "'0/like'"]),
        (lambda: small().beside(small()), ["one column called 'like'"]),
        (lambda: small().beside(Statistics.from_columns({"x": [1.0]})), ["3 and 1"]),
        (lambda: small().select("like"), ["sequence of column names", "'like'"]),
        (lambda: small().select(["like", "like"]), ["one column called 'like'"]),
        (lambda: small()["latent"], ["no column 'latent'"]),
        (lambda: stream(small(), batch_rows=0), ["batch_rows must be at least 1, got 0"]),
        (lambda: stream(small(), on_bad="drop"), ["on_bad", "'drop'"]),  # type: ignore[arg-type]
    ],
)
def test_refusals_in_memory(action: Callable[[], object], parts: list[str]) -> None:
    message = refusal(action)
    for part in parts:
        assert part in message


def test_large_finite_values_are_finite() -> None:
    table = Statistics.from_columns({"a": [1.7e308, 1.7e308], "b": [-1.7e308, 1.7e308]})
    assert not table.bad.any()


@quick
@given(tables(), st.data())
def test_flagged_rows_are_those_with_a_value_that_is_not_finite(table: Statistics, data: st.DataObject) -> None:
    marks = data.draw(
        arrays(np.float64, table.values.shape, elements=st.sampled_from([0.0, 0.0, np.nan, np.inf, -np.inf]))
    )
    values = np.where(marks == 0, table.values, marks)
    flagged = Statistics.from_numpy(values, table.names, "flag")
    np.testing.assert_array_equal(flagged.bad, (marks != 0).any(axis=1))
    np.testing.assert_array_equal(flagged.values, np.where(marks == 0, table.values, np.nan))
    np.testing.assert_array_equal(Statistics.concat([table, flagged]).bad, [*table.bad, *flagged.bad])
    for name in table.names:  # a column without bad values has no bad rows
        np.testing.assert_array_equal(flagged.select([name]).bad, np.isnan(flagged[name]))


@quick
@given(tables(), st.randoms())
def test_select_undoes_a_permutation(table: Statistics, random: Random) -> None:
    shuffled = list(table.names)
    random.shuffle(shuffled)
    permuted = table.select(shuffled)
    for name in shuffled:
        np.testing.assert_array_equal(permuted[name], table[name])
    assert bits(permuted.select(table.names)) == bits(table)


@pytest.mark.parametrize(
    ("wanted", "guess"),
    [
        ("Rate", "; did you mean 'rate'?"),
        (" like", "; did you mean 'like'?"),
        ("rat", "; did you mean 'rate'?"),
        ("q", ""),
    ],
)
def test_a_missing_column_is_named_with_what_there_is(wanted: str, guess: str) -> None:
    message = refusal(lambda: small().select(["ent", wanted]))
    there = "expected 'ent', " + repr(wanted) + ", got 'like', 'rate', 'ent'"
    assert message == f"the table has no column {wanted!r}: {there}{guess}"


@quick
@given(tables(min_rows=0), st.randoms(), st.integers(0, 12))
def test_concat_puts_parts_together_by_name(table: Statistics, random: Random, cut: int) -> None:
    shuffled = list(table.names)
    random.shuffle(shuffled)
    top, bottom = Statistics(table.names, table.values[:cut]), Statistics(table.names, table.values[cut:])
    assert bits(Statistics.concat([top, bottom.select(shuffled)])) == bits(table)


def test_beside_and_prefix() -> None:
    both = small().prefix("0/").beside(small().prefix("background/"))
    assert both.names == ("0/like", "0/rate", "0/ent", "background/like", "background/rate", "background/ent")
    np.testing.assert_array_equal(both["background/rate"], small()["rate"])


# To files, tables and back


@quick
@given(table=tables())
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_file_round_trips_are_bit_equal(table: Statistics, suffix: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"t{suffix}"
        table.write(path)
        assert bits(Statistics.read(path)) == bits(table)
        assert bits(Statistics.read(path, table.names[::-1])) == bits(table.select(table.names[::-1]))
        assert [file.name for file in Path(folder).iterdir()] == [path.name]


@quick
@given(tables())
def test_table_round_trips_are_bit_equal(table: Statistics) -> None:
    assert bits(Statistics.from_table(table.to_arrow())) == bits(table)
    assert bits(Statistics.from_table(pa.table(table))) == bits(table)
    assert bits(Statistics.from_table(pl.DataFrame(table))) == bits(table)
    assert bits(Statistics.from_table(table.to_arrow().to_pandas())) == bits(table)
    assert bits(Statistics.from_columns({name: table[name] for name in table.names})) == bits(table)


def test_flagged_tables_round_trip(tmp_path: Path) -> None:
    flagged = Statistics.from_columns({"a": [1.0, np.nan], "b": [np.inf, 2.0]}, "flag")
    for suffix in SUFFIXES:
        flagged.write(tmp_path / f"t{suffix}")
        assert Statistics.read(tmp_path / f"t{suffix}", on_bad="flag") == flagged


def test_npz_of_one_array_a_name(tmp_path: Path) -> None:
    named: dict[str, NDArray[Any]] = {"0/like": np.arange(3, dtype=">i4"), "label": np.array(["x", "y", "z"])}
    text_file(tmp_path, npz_bytes(tmp_path, named), "t.npz")
    assert Statistics.read(tmp_path / "t.npz", ["0/like"]) == Statistics.from_columns({"0/like": [0.0, 1.0, 2.0]})


def test_every_kind_of_number_is_read() -> None:
    columns = {
        "bool": pa.array([True, False, True]),
        "int": pa.array([1, -(2**62), 3]),
        "uint8": pa.array([0, 255, 3], pa.uint8()),
        "half": pa.array(np.array([0.5, 1.5, 2.5], np.float16)),
        "single": pa.array(np.array([0.1, 1.5, 2.5], np.float32)),
        "decimal": pa.array([decimal.Decimal("1.25"), decimal.Decimal("-3.5"), decimal.Decimal("0.0")]),
    }
    for arrow in (pa.table(columns), pa.concat_tables([pa.table(columns).slice(0, 1), pa.table(columns).slice(1)])):
        table = Statistics.from_table(arrow)
        for name, column in columns.items():
            np.testing.assert_array_equal(table[name], np.array(column.to_pylist(), np.float64))


def test_missing_values_of_every_kind_of_number_are_bad() -> None:
    columns: dict[str, list[Any]] = {
        "bool": [True, None],
        "int": [1, None],
        "float": [1.0, None],
        "decimal": [decimal.Decimal(1), None],
        "null": [None] * 2,
    }
    for name, cells in columns.items():
        table = pa.table({"x": [1.0, 2.0], name: pa.array(cells)})
        row = cells.index(None)
        where = f"row {row}, column {name!r} of the table"
        assert refusal(lambda: Statistics.from_table(table)) == f"{where}: expected a finite number, got no value"  # noqa: B023
        np.testing.assert_array_equal(Statistics.from_table(table, on_bad="flag").bad, [cell is None for cell in cells])


@pytest.mark.parametrize(
    ("column", "kind"),
    [
        (pa.array(["a", "b"]), "string"),
        (pa.array(["a", "b"]).dictionary_encode(), "dictionary"),
        (pa.array([0, 1], pa.timestamp("ms")), "timestamp"),
        (pa.array([[1.0], [2.0]]), "list"),
    ],
)
def test_columns_that_are_not_numbers_are_refused_by_name(column: pa.Array, kind: str, tmp_path: Path) -> None:
    table = pa.table({"like": [1.0, 2.0], "label": column})
    message = refusal(lambda: Statistics.from_table(table))
    assert message.startswith(f"column 'label' of the table: expected numbers, got {kind}")
    assert message.endswith("; name the wanted columns to leave it out")
    pq.write_table(table, tmp_path / "t.parquet")
    message = refusal(lambda: stream(tmp_path / "t.parquet", ["label"], on_bad="flag"))
    assert f"column 'label' of {tmp_path}/t.parquet: expected numbers, got {kind}" in message
    assert "name the wanted" not in message
    assert Statistics.read(tmp_path / "t.parquet", ["like"]).names == ("like",)


def test_pandas_index_is_no_statistic_but_can_be_kept(tmp_path: Path) -> None:
    frame = pd.DataFrame({"like": [1.0, 2.0]}, index=pd.Index(["x", "y"], name="id"))
    assert Statistics.from_table(frame).names == ("like",)
    frame.to_parquet(tmp_path / "t.parquet")
    for source in (frame, tmp_path / "t.parquet"):
        (batch,) = stream(source, keep=["id"])
        assert batch.statistics.names == ("like",)
        assert batch.kept.to_pydict() == {"id": ["x", "y"]}


def test_tables_that_are_none_are_refused() -> None:
    assert "got ndarray" in refusal(lambda: Statistics.from_table(np.ones((2, 2))))  # type: ignore[arg-type]
    assert "'a'" in refusal(lambda: Statistics.from_table(pd.DataFrame([[1, 2]], columns=["a", "a"])))
    assert "column a" in refusal(lambda: Statistics.from_table(pd.DataFrame({"a": [1.0, "b"]})))
    assert "Series" in refusal(lambda: Statistics.from_table(pl.Series([1.0])))
    assert len(Statistics.from_table(pa.table({"a": pa.array([], pa.float64())}))) == 0


def test_reading_needs_neither_pandas_nor_polars(tmp_path: Path) -> None:
    for suffix in SUFFIXES:
        small().write(tmp_path / f"t{suffix}")
    code = f"""
import sys
class Absent:
    def find_spec(self, name, *_):
        if name in {{"pandas", "polars", "torch"}}:
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Absent())
from dose_ood.statistics import Statistics
for suffix in {SUFFIXES}:
    Statistics.read({str(tmp_path)!r} + "/t" + suffix).to_arrow()
"""
    subprocess.run([sys.executable, "-c", code], check=True)


# Batch by batch


@quick
@given(table=tables(), rows=st.integers(1, 15))
@pytest.mark.parametrize("suffix", [*SUFFIXES, ""])
def test_stream_is_the_whole_table_for_any_batch_size(table: Statistics, rows: int, suffix: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"t{suffix}"
        if suffix:
            table.write(path)
        batches = list(stream(path if suffix else table, batch_rows=rows, keep=table.names[-1:]))
    assert bits(Statistics.concat([batch.statistics for batch in batches])) == bits(table)
    assert [batch.first_row for batch in batches] == np.cumsum([0, *(len(b.statistics) for b in batches)])[:-1].tolist()
    for batch in batches:
        assert 0 < len(batch.statistics) == batch.kept.num_rows <= rows
        assert batch.kept.schema.names == [table.names[-1]]
        np.testing.assert_array_equal(batch.kept.column(0).cast("float64"), batch.statistics[table.names[-1]])


def test_kept_columns_stay_beside_their_rows(tmp_path: Path) -> None:
    ids, scores = [f"00{row}" for row in range(7)], np.arange(7.0)
    arrow = pa.table({"id": ids, "like": scores, "other": ["x"] * 7})
    pq.write_table(arrow, tmp_path / "t.parquet", row_group_size=3)
    text_file(
        tmp_path, "id,like,other\r\n" + "".join(f"{i},{s},x\r\n" for i, s in zip(ids, scores, strict=True)), "t.csv"
    )
    for source in (tmp_path / "t.parquet", tmp_path / "t.csv", arrow, pl.DataFrame(arrow)):
        batches = list(stream(source, ["like"], keep=["id"], batch_rows=2))
        assert [i for batch in batches for i in batch.kept["id"].to_pylist()] == ids
        np.testing.assert_array_equal(np.concatenate([batch.statistics["like"] for batch in batches]), scores)
        assert next(stream(source, ["like"])).kept.num_columns == 0
    assert "no column 'ID'" in refusal(lambda: stream(arrow, ["like"], keep=["ID"]))


def test_a_name_with_a_dot_is_not_a_nested_column(tmp_path: Path) -> None:
    table = Statistics.from_columns({"a": [1.0], "a.b": [2.0], "a.b.c": [3.0]})
    table.write(tmp_path / "t.parquet")
    assert Statistics.read(tmp_path / "t.parquet", ["a.b", "a"]) == table.select(["a.b", "a"])


def test_row_count(tmp_path: Path) -> None:
    for suffix, count in ((".parquet", 3), (".csv", None), (".npz", None)):
        small().write(tmp_path / f"t{suffix}")
        assert row_count(tmp_path / f"t{suffix}") == count
    assert "no such file" in refusal(lambda: row_count(tmp_path / "u.parquet"))


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("batch_rows", [1, 4, 100])
def test_bad_values_are_named_by_their_row_in_the_file(suffix: str, batch_rows: int, tmp_path: Path) -> None:
    values = np.ones((30, 2))
    values[17, 1], values[18, 0] = np.nan, -np.inf
    path = tmp_path / f"new{suffix}"
    Statistics.from_numpy(values, ["like", "rate"], "flag").write(path)
    message = f"row 17, column 'rate' of {path}: expected a finite number, got nan"
    assert refusal(lambda: list(stream(path, batch_rows=batch_rows))) == message
    flagged = list(stream(path, batch_rows=batch_rows, on_bad="flag"))
    bad = np.concatenate([batch.statistics.bad for batch in flagged])
    np.testing.assert_array_equal(bad.nonzero()[0], [17, 18])


# CSV as people write it


@pytest.mark.parametrize(
    "content",
    [
        "like,rate\n-1e5,2\n.5,-0\n",
        "like,rate\r\n-1e5,2\r\n.5,-0\r\n",
        "\ufefflike,rate\n-1e5,2\n.5,-0",
        '"like","rate"\n"-1e5","2"\n\n".5","-0"\n\n',
        "like,rate\n -1e5 ,\t2\n+.5, -0 \n",
        "like,rate\n-100000.0,2.\n5e-1,-0e0\n",
    ],
)
def test_csv_dialects(content: str, tmp_path: Path) -> None:
    expected = Statistics.from_columns({"like": [-1e5, 0.5], "rate": [2.0, -0.0]})
    assert bits(Statistics.read(text_file(tmp_path, content))) == bits(expected)
    zipped = text_file(tmp_path, gzip.compress(content.encode()), "NEW.CSV.GZ")
    assert bits(Statistics.read(zipped)) == bits(expected)


@pytest.mark.parametrize(
    ("cell", "got"),
    [
        ("abc", "'abc'"),
        ("nan", "nan"),
        ("NaN", "NaN"),
        (" -inf ", "-inf"),
        ("1e400", "1e400"),
        ("", "no value"),
        ("  ", "no value"),
        ("NA", "no value"),
        ("null", "no value"),
        ("1_000", "'1_000'"),
        ("0x10", "'0x10'"),
        ("1 2", "'1 2'"),
        ("१", "'१'"),
        ('"1,5"', "'1,5'"),
        ("true", "'true'"),
    ],
)
def test_bad_cells_of_csv(cell: str, got: str, tmp_path: Path) -> None:
    good = "".join(f"a{row},{row}.5,+{row}, {row} \n" for row in range(17))
    path = text_file(tmp_path, f"id,like,plus,rate\n{good}b,1,+1,{cell}\nc,2,2,2\n")
    names = ["like", "plus", "rate"]
    message = f"row 17, column 'rate' of {path}: expected a finite number, got {got}"
    for rows in (1, 5, 100):
        assert refusal(lambda: list(stream(path, names, batch_rows=rows))) == message  # noqa: B023
    table = Statistics.read(path, names, on_bad="flag")
    np.testing.assert_array_equal(table.bad.nonzero()[0], [17])
    np.testing.assert_array_equal(table.values[17], [1.0, 1.0, np.nan])
    np.testing.assert_array_equal(table.values[:17], np.arange(17.0)[:, None] + [0.5, 0, 0])


def test_text_column_of_csv_is_refused_with_a_hint(tmp_path: Path) -> None:
    path = text_file(tmp_path, "id,like\na17,1\na18,2\n")
    hint = "; name the wanted columns to leave it out"
    message = f"row 0, column 'id' of {path}: expected a finite number, got 'a17'{hint}"
    assert refusal(lambda: Statistics.read(path)) == message
    message = f"column 'id' of {path}: expected numbers, got string{hint}"
    assert refusal(lambda: Statistics.read(path, on_bad="flag")) == message


def test_blank_line_in_a_single_column_is_a_missing_value(tmp_path: Path) -> None:
    path = text_file(tmp_path, "like\n1\n\n2\n")
    assert "row 1, column 'like'" in refusal(lambda: Statistics.read(path))
    np.testing.assert_array_equal(Statistics.read(path, on_bad="flag").bad, [False, True, False])


def test_ragged_row_beyond_the_first_block_is_named(tmp_path: Path) -> None:
    rows = 200_000
    path = text_file(tmp_path, "like,rate,id\n" + '1.25,2.25,"a\nb"\n' * rows + "1,2\n" + "1,2,x\n" * 9)
    batches = stream(path, ["like"])
    seen = len(next(batches).statistics)
    message = refusal(lambda: list(batches))
    assert message == f"row {rows} of {path}: expected 3 cells, as in the line of names, got 2"
    assert 0 < seen <= rows


# Files that are no tables


def png(rows: int = 100) -> bytes:
    return b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + bytes(range(256)) * rows


def parquet_bytes(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    return bytes(sink.getvalue())


def duplicate() -> pa.Table:
    return pa.table([pa.array([1.0]), pa.array([2.0])], names=["a", "a"])


def npz_bytes(folder: Path, named: dict[str, NDArray[Any]]) -> bytes:
    np.savez(folder / "made.npz", **named)  # type: ignore[arg-type]
    return (folder / "made.npz").read_bytes()


@pytest.mark.parametrize(
    ("name", "content", "parts"),
    [
        ("t.parquet", png(), ["as Parquet", "not a parquet file"]),
        ("t.parquet", b"", ["as Parquet"]),
        ("t.parquet", parquet_bytes(small().to_arrow())[:-20], ["as Parquet"]),
        ("t.parquet", b"PAR1" + b"\0" * 40 + b"\xff\xff\xff\x0fPAR1", ["as Parquet"]),
        ("t.parquet", parquet_bytes(pa.table({"a": pa.array([], pa.float64())})), ["has no rows"]),
        ("t.parquet", parquet_bytes(duplicate()), ["2 columns called 'a'"]),
        ("t.csv", "a,a\n1,2\n", ["2 columns called 'a'"]),
        ("t.csv", ",like\n0,2\n", ["column 0", "non-empty name"]),
        ("t.csv", "", ["is empty", "column names"]),
        ("t.csv", "\n\r\n", ["is empty"]),
        ("t.csv", "a,b\n", ["has no rows"]),
        ("t.csv", "a,b\n1,2\n\n3,4\n1,2,3\n", ["row 2 of", "expected 2 cells", "got 3"]),
        ("t.csv", "a,b\n1,2\né\n".encode("latin-1"), ["row 1 of", "expected 2 cells", "got 1"]),
        ("t.csv", "a,b\n1\n", ["row 0 of", "expected 2 cells", "got 1"]),
        ("t.csv", "a,b\n1,2\n".encode("utf-16"), ["expected UTF-8 text, got UTF-16"]),
        ("t.csv", "a,b\n1,2\n".encode("utf-16-le"), ["expected UTF-8 text, got binary"]),
        ("t.csv", "é,b\n1,2\n".encode("latin-1"), ["as CSV", "utf-8"]),
        ("t.csv", "a,b\n1,é\n".encode("latin-1"), ["as CSV", "UTF8"]),
        ("t.csv", png(), ["as CSV", "binary content"]),
        ("t.csv.gz", b"a,b\n1,2\n", ["as CSV"]),
        ("t.csv.gz", gzip.compress(b"a,b\n" + b"1,2\n" * 999, mtime=0)[:-30], ["as CSV"]),
        ("t.npz", png(), ["as npz"]),
        ("t.npz", b"", ["as npz"]),
        ("t.npz", b"PK\x03\x04 no archive", ["as npz"]),
        ("t.txt", "a,b\n1,2\n", [".parquet, .csv, .csv.gz, .npz"]),
        ("t", "a,b\n1,2\n", [".parquet, .csv, .csv.gz, .npz"]),
    ],
)
def test_foreign_files_are_refused_in_one_sentence(
    name: str, content: str | bytes, parts: list[str], tmp_path: Path
) -> None:
    path = text_file(tmp_path, content, name)
    message = refusal(lambda: Statistics.read(path))
    for part in [str(path), *parts]:
        assert part in message


def test_foreign_npz_is_refused(tmp_path: Path) -> None:
    ragged = {"a": np.ones(2), "b": np.ones(3)}
    for named, part in (
        ({"a": np.array([{}, None])}, "allow_pickle=False"),
        (ragged, "'b' in"),
        ({"a": np.ones((2, 2))}, "'a' in"),
        ({"names": np.array(["a"]), "values": np.ones((2, 2))}, "expected 'names'"),
        ({"names": np.array([1]), "values": np.ones((2, 1))}, "expected 'names'"),
        ({"names": np.array(["a", "a"]), "values": np.ones((2, 2))}, "2 columns called 'a'"),
        ({"a": np.ones(0)}, "has no rows"),
        ({"a": np.array(["2020"], "datetime64[s]")}, "column 'a'"),
        ({"a": np.array([1j])}, "as npz"),
        ({}, "at least one column"),
    ):
        path = text_file(tmp_path, npz_bytes(tmp_path, named), "t.npz")
        message = refusal(lambda: Statistics.read(path))  # noqa: B023
        assert part in message
        assert str(path) in message
    np.save(tmp_path / "a.npy", np.ones(3))
    (tmp_path / "a.npy").rename(tmp_path / "t.npz")
    assert "got a single array" in refusal(lambda: Statistics.read(tmp_path / "t.npz"))


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_missing_files_and_directories(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"t{suffix}"
    assert refusal(lambda: stream(path)) == f"{path}: no such file"
    path.mkdir()
    assert refusal(lambda: stream(path)) == f"{path}: expected a file, got a directory"
    assert refusal(lambda: small().write(path)) == f"cannot write {path}: it is a directory"
    nowhere = tmp_path / "nowhere" / f"t{suffix}"
    assert refusal(lambda: small().write(nowhere)) == f"cannot write {nowhere}: there is no directory {nowhere.parent}"


def test_damage_inside_a_parquet_file_is_told(tmp_path: Path) -> None:
    table = Statistics.from_numpy(np.random.default_rng(0).normal(size=(50_000, 2)), ["a", "b"])
    table.write(tmp_path / "t.parquet")
    content = bytearray((tmp_path / "t.parquet").read_bytes())
    content[4:400] = b"\xff" * 396
    path = text_file(tmp_path, bytes(content), "t.parquet")
    assert f"cannot read {path} as Parquet" in refusal(lambda: Statistics.read(path))


# Results, written all or nothing


def batch_of(start: int, rows: int) -> pa.RecordBatch:
    return pa.record_batch(
        {"id": [str(row) for row in range(start, start + rows)], "score": np.arange(start, start + rows) / 7}
    )


def write_all(path: Path, batches: list[pa.RecordBatch], error: BaseException | None = None) -> None:
    with TableSink(path) as sink:
        for batch in batches:
            sink.write(batch)
        if error is not None:
            raise error


@pytest.mark.parametrize("suffix", [".parquet", ".csv", ".csv.gz"])
def test_sink_appends_batches(suffix: str, tmp_path: Path) -> None:
    path, old_mask = tmp_path / f"scores{suffix}", os.umask(0o022)
    try:
        with TableSink(path) as sink:
            for start in range(0, 50, 10):
                sink.write(batch_of(start, 10))
                assert not path.exists()
            sink.write(pa.Table.from_batches([batch_of(50, 3)]))
    finally:
        os.umask(old_mask)
    (batch,) = stream(path, ["score"], keep=["id"])
    assert batch.kept["id"].to_pylist() == [str(row) for row in range(53)]
    np.testing.assert_array_equal(batch.statistics["score"], np.arange(53) / 7)
    assert [file.name for file in tmp_path.iterdir()] == [path.name]
    assert path.stat().st_mode & 0o777 == 0o644


def test_sink_gathers_small_batches_into_row_groups(tmp_path: Path) -> None:
    step = GROUP_ROWS // 4
    with TableSink(tmp_path / "scores.parquet") as sink:
        for start in range(0, 5 * step, step):
            sink.write(pa.record_batch({"score": np.arange(float(start), start + step)}))
    assert pq.ParquetFile(tmp_path / "scores.parquet").num_row_groups == 2
    np.testing.assert_array_equal(Statistics.read(tmp_path / "scores.parquet")["score"], np.arange(5.0 * step))


@pytest.mark.parametrize("earlier", [False, True])
@pytest.mark.parametrize("written", [0, 3])
@pytest.mark.parametrize("suffix", [".parquet", ".csv", ".csv.gz"])
def test_a_failed_block_leaves_nothing(suffix: str, written: int, earlier: bool, tmp_path: Path) -> None:
    path = tmp_path / f"scores{suffix}"
    if earlier:
        path.write_bytes(b"finished")
    with pytest.raises(KeyboardInterrupt):
        write_all(path, [batch_of(start, 1) for start in range(written)], KeyboardInterrupt())
    assert [file.read_bytes() for file in tmp_path.iterdir()] == [b"finished"] * earlier


def test_a_sink_without_batches_or_with_other_columns_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "scores.csv"
    assert refusal(lambda: write_all(path, [])) == f"nothing to write to {path}: no batch came"
    for batches in ([batch_of(0, 2), pa.record_batch({"other": [1.0]})], [pa.record_batch({"list": [[1.0]]})]):
        assert refusal(lambda: write_all(path, batches)).startswith(f"cannot write {path}: ")  # noqa: B023
    assert not list(tmp_path.iterdir())
    for name in ("scores.npz", "scores.txt", "scores"):
        assert refusal(lambda: TableSink(tmp_path / name)).endswith("ending in .parquet, .csv, .csv.gz")  # noqa: B023


@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGKILL")
@pytest.mark.parametrize("suffix", [".parquet", ".csv"])
def test_a_killed_process_leaves_the_earlier_file(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"scores{suffix}"
    path.write_bytes(b"finished")
    code = (
        "import os, signal, numpy as np, pyarrow as pa; from dose_ood.tables import TableSink\n"
        f"with TableSink({str(path)!r}) as sink:\n"
        f"    sink.write(pa.record_batch({{'a': np.ones({GROUP_ROWS})}}))\n"
        "    os.kill(os.getpid(), signal.SIGKILL)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -signal.SIGKILL
    assert path.read_bytes() == b"finished"
    assert all(file.name.startswith(".") and file.suffix == ".tmp" for file in tmp_path.iterdir() if file != path)


# Memory

PEAK = """
import sys
from dose_ood.statistics import stream
rows = sum(len(batch.statistics) for batch in stream(sys.argv[1], keep=["like"]))
peak = next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(rows, int(peak) / 1024)
"""


def peak_megabytes(path: Path, rows: int) -> float:
    output = subprocess.run([sys.executable, "-c", PEAK, path], check=True, capture_output=True, text=True).stdout
    seen, megabytes = output.split()
    assert int(seen) == rows
    return float(megabytes)


def write_rows(path: Path, rows: int, one_group: bool = False) -> None:
    draws = np.random.default_rng(0).normal(size=(100_000, 5))
    block = pa.record_batch(list(draws.T), names=["like", "rate", "xent", "ent", "iwae"])
    if one_group:
        pq.write_table(pa.Table.from_batches([block] * (rows // 100_000)), path, row_group_size=rows)
        return
    with TableSink(path) as sink:
        for _ in range(rows // 100_000):
            sink.write(block)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")
@pytest.mark.parametrize(
    ("suffix", "rows", "one_group"), [(".parquet", 10**6, False), (".parquet", 10**6, True), (".csv", 3 * 10**5, False)]
)
def test_memory_does_not_grow_with_the_rows(suffix: str, rows: int, one_group: bool, tmp_path: Path) -> None:
    few, many = tmp_path / f"few{suffix}", tmp_path / f"many{suffix}"
    write_rows(few, rows, one_group)
    write_rows(many, 10 * rows, one_group)
    assert peak_megabytes(many, 10 * rows) < peak_megabytes(few, rows) + 80  # the file has 290 MB or more
