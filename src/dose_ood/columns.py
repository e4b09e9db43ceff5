"""Columns of a table: which are meant, whether they hold numbers, and what is said if not."""

import difflib
import re
import string
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from dose_ood.errors import InputError

Vector = NDArray[np.float64]

MISSING = ("", "NA", "null")  # how a CSV writes that there is no value
NUMBER = r"^[+-]?(([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?|(?i:inf|infinity|nan))$"


def positions(wanted: Sequence[str], there: Sequence[str], where: str) -> list[int]:
    """Where the wanted columns are: the one place where names meet positions."""
    if isinstance(wanted, str):
        raise InputError(f"expected a sequence of column names, got the text {wanted!r}")
    for name in wanted:
        if name not in there:
            alike = {other.strip().casefold(): other for other in there}
            close = difflib.get_close_matches(str(name).strip().casefold(), alike, n=1)
            guess = f"; did you mean {alike[close[0]]!r}?" if close else ""
            raise InputError(f"{where} has no column {name!r}: expected {listing(wanted)}, got {listing(there)}{guess}")
        if there.count(name) > 1:
            raise InputError(f"{where} has {there.count(name)} columns called {name!r}, expected one")
    return [there.index(name) for name in wanted]


def checked_names(names: Sequence[object], where: str) -> tuple[str, ...]:
    """The names of columns, each non-empty and different from the others."""
    checked: dict[str, None] = {}
    for position, name in enumerate(names):
        if not isinstance(name, str) or not name or "\0" in name:
            raise InputError(f"column {position} of {where}: expected a non-empty name, got {name!r}")
        if name in checked:
            raise InputError(f"{where}: expected one column called {name!r}, got several")
        checked[name] = None
    if not checked:
        raise InputError(f"{where}: expected at least one column, got none")
    return tuple(checked)


def check_numeric(schema: pa.Schema, names: Sequence[str], where: str, hint: str) -> None:
    """Refuse columns that are not numbers."""
    is_number = (pa.types.is_floating, pa.types.is_integer, pa.types.is_boolean, pa.types.is_decimal, pa.types.is_null)
    for name in names:
        kind = schema.field(name).type
        if not any(check(kind) for check in is_number):
            raise InputError(f"column {name!r} of {where}: expected numbers, got {kind}{hint}")


def numbers(column: pa.Array) -> Vector:
    """The numbers of a column, NaN where there is none."""
    if pa.types.is_string(column.type):
        column = _parsed(column)
    elif not pa.types.is_float64(column.type):
        column = column.cast(pa.float64(), safe=False)
    if column.null_count:
        column = column.fill_null(float("nan"))
    values: Vector = np.asarray(np.from_dlpack(column), np.float64)  # unlike to_numpy, does not import pandas
    return values


def _parsed(text: pa.Array) -> pa.Array:
    """Text as numbers, null where it is none."""
    text = pc.ascii_trim_whitespace(text)
    try:
        return text.cast(pa.float64())
    except pa.ArrowInvalid:
        text = pc.if_else(pc.match_substring_regex(text, NUMBER), text, None)
        return pc.replace_substring_regex(text, r"^\+", "").cast(pa.float64())


def bad_cell(row: int, name: str, cell: object, where: str, hint: str = "") -> InputError:
    """What to say of a cell that is not a finite number; rows are counted from 0."""
    if isinstance(cell, str):
        text = cell.strip(string.whitespace)
        got = "no value" if text in MISSING else text if re.match(NUMBER, text) else f"{text[:40]!r}{hint}"
    else:
        got = "no value" if cell is None else str(cell)
    return InputError(f"row {row}, column {name!r} of {where}: expected a finite number, got {got}")


def listing(names: Sequence[str]) -> str:
    """Names for a message, not all if they are many."""
    shown = ", ".join(map(repr, names[:12]))
    return shown if len(names) <= 12 else f"{shown}, … ({len(names)} in all)"
