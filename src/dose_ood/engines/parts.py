"""Parts of a result on disk: each appears whole and knows what it was made of; the result appears with the last."""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dose_ood.engines.pieces import Piece
from dose_ood.errors import InputError
from dose_ood.tables import explaining, replacing

MANIFEST, SUCCESS = "_manifest.json", "_SUCCESS"  # names that readers of Parquet folders pass over
BEGUN, ATTEMPTS = "_begun-", 4  # the mark of a part that was begun, and how often it may be
RECORD = b"dose"  # the key of a part's metadata under which its record stands


@dataclass(frozen=True)
class Record:
    """What a part holds: the key of the work it is, its rows, and how many of them have each rank among held-out rows.

    The p-value of rank r is r / (1 + held-out rows).
    """

    key: str
    source: str
    first_row: int
    rows: int
    atypical: int
    bad: int
    ranks: Mapping[str, int]

    def to_bytes(self) -> bytes:
        """As JSON."""
        return json.dumps(asdict(self), sort_keys=True).encode()

    @classmethod
    def from_bytes(cls, text: bytes) -> Self:
        """What `to_bytes` wrote."""
        return cls(**json.loads(text))


def part_name(piece: Piece) -> str:
    """The name of a part, after its input: the same wherever and whenever it is made.

    Examples
    --------
    >>> part_name(Piece("logs/May 3.parquet", "parquet", first_row=1048576))
    'May_3-7c28799d0261-000001048576.parquet'
    """
    stem = re.sub(r"\W+", "_", Path(piece.source).name.split(".")[0])[:40].strip("_") or "part"
    return f"{stem}-{hashlib.sha256(piece.source.encode()).hexdigest()[:12]}-{piece.first_row:012}.parquet"


def hidden(output: Path) -> Path:
    """Where the parts of a run are until all are there: beside the output, and the same for every attempt."""
    return output.with_name(f".{output.name}.parts")


def prepare(output: Path) -> Path:
    """The hidden folder of a new or an interrupted run."""
    if output.exists():
        raise InputError(f"{output} is there already: name another folder, or remove it first")
    if not output.parent.is_dir():
        raise InputError(f"cannot write {output}: there is no directory {output.parent}")
    folder = hidden(output)
    with explaining(f"cannot write {output}"):
        folder.mkdir(exist_ok=True)
        for mark in folder.glob(f"{BEGUN}*"):
            mark.unlink()
    return folder


def begin(folder: Path, piece: Piece) -> None:
    """Count the attempts at a piece, and refuse one that has ended every worker that tried: it would go on for ever."""
    mark = folder / f"{BEGUN}{part_name(piece)}"
    with explaining(f"cannot write {mark}"):
        if mark.exists() and mark.stat().st_size >= ATTEMPTS:
            raise InputError(
                f"{piece.source} from row {piece.first_row} on ended {ATTEMPTS} workers, perhaps by memory"
            )
        with mark.open("ab") as file:
            file.write(b".")


def complete(folder: Path, piece: Piece, key: str) -> Record | None:
    """The record of a piece's part, if it is there and was made of the same."""
    path = folder / part_name(piece)
    try:
        record = Record.from_bytes(pq.read_metadata(path).metadata[RECORD])
    except (OSError, pa.ArrowException, KeyError, TypeError, ValueError):
        return None
    return record if record.key == key else None


def write_part(folder: Path, piece: Piece, key: str, held_out: int, verdicts: Iterator[pa.RecordBatch]) -> Record:
    """Write the verdicts on a piece as one part, all or nothing, its record inside."""
    path = folder / part_name(piece)
    rows = atypical = bad = 0
    ranks = np.zeros(held_out + 2, np.int64)
    with replacing(path) as temporary:
        first = next(verdicts)
        with (
            explaining(f"cannot write {path}"),
            _writer(temporary, first.schema) as writer,
        ):
            for batch in _chain(first, verdicts):
                writer.write_batch(batch)
                rows += len(batch)
                atypical += len(batch) - (batch["is_typical"].true_count)
                bad += batch["is_bad"].true_count
                found = np.rint(np.asarray(batch["p_value"]) * (held_out + 1)).astype(np.int64)
                ranks += np.bincount(found, minlength=len(ranks))
            counts = {str(rank): int(ranks[rank]) for rank in np.flatnonzero(ranks)}
            record = Record(key, piece.source, piece.first_row, rows, atypical, bad, counts)
            writer.add_key_value_metadata({RECORD: record.to_bytes()})
    return record


def commit(output: Path, pieces: Sequence[Piece], records: Mapping[str, Record], about: Mapping[str, object]) -> None:
    """Put a complete set of parts into place: the manifest, a mark of success, and one rename."""
    folder = hidden(output)
    wanted = [part_name(piece) for piece in pieces]
    missing = [name for name in wanted if name not in records or not (folder / name).is_file()]
    if missing:
        raise InputError(f"cannot finish {output}: {len(missing)} of {len(wanted)} parts are missing")
    parts = [
        {"file": name, "source": records[name].source, "first_row": records[name].first_row, "rows": records[name].rows}
        for name in wanted
    ]
    with explaining(f"cannot write {output}"):
        for file in folder.iterdir():
            if file.name not in wanted:
                file.unlink()  # of an interrupted attempt, or of an input that is no longer asked for
        for name, text in ((MANIFEST, json.dumps({**about, "parts": parts}, indent=1) + "\n"), (SUCCESS, "")):
            with replacing(folder / name) as temporary:
                temporary.write_text(text, encoding="utf-8")
        folder.rename(output)


def _writer(path: Path, schema: pa.Schema) -> pq.ParquetWriter:
    repeating = [field.name for field in schema if field.name != "row" and not pa.types.is_floating(field.type)]
    counting = {"row": "DELTA_BINARY_PACKED"}  # numbers that count up take no space
    return pq.ParquetWriter(path, schema, use_dictionary=repeating, column_encoding=counting)


def _chain(first: pa.RecordBatch, rest: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield first
    yield from rest
