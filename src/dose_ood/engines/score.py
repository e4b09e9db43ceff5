"""Scoring files into a folder of Parquet parts, on any engine, resumable and committed as a whole."""

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

import dose_ood
from dose_ood import zoo
from dose_ood.detector import KIND, Detector
from dose_ood.engines.batch import BatchScorer, check_kept
from dose_ood.engines.engine import Engine, here, working_in
from dose_ood.engines.parts import Record, begin, commit, complete, part_name, prepare, write_part
from dose_ood.engines.pieces import PIECE_IMAGES, Piece, batches, check_columns, images, pieces_of
from dose_ood.errors import InputError
from dose_ood.statistics import OnBad

NOTHING = pa.record_batch([], names=[])


@dataclass(frozen=True)
class Job:
    """What every piece of a run has in common, as plain data."""

    detector: str
    fingerprint: str
    folder: str
    keep: tuple[str, ...]
    on_bad: OnBad
    base: str

    def key(self, piece: Piece) -> str:
        """Names a piece of work: a part with the same key need not be made again."""
        text = "\0".join((self.fingerprint, *self.keep, self.on_bad, piece.to_json()))
        return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True, eq=False)
class Totals:
    """What came of a run.

    Parameters
    ----------
    rows, atypical, bad
        Numbers of rows.
    ranks
        How many rows have each rank among the held-out rows; the p-value of rank r is r / (1 + held-out rows).
    parts, resumed
        Parts in the folder, and how many of them an interrupted run had left.
    """

    rows: int
    atypical: int
    bad: int
    ranks: NDArray[np.int64]
    parts: int
    resumed: int


class PieceScorer:
    """A worker: loads the detector once, then scores pieces into parts."""

    def __init__(self, job: Job) -> None:
        self.job = job
        if _fingerprint(job.detector) != job.fingerprint:
            raise InputError(f"{job.detector} is not the detector that the run began with")
        self.scorer = BatchScorer.load(job.detector, job.keep, job.on_bad)

    def __call__(self, item: str) -> bytes:
        """Score a piece and write its part; gives its record."""
        piece, folder = Piece.from_json(item), Path(self.job.folder)
        held_out = len(self.scorer.detector.estimator.calibration_scores_)
        with working_in(self.job.base):
            begin(folder, piece)
            return write_part(folder, piece, self.job.key(piece), held_out, self._verdicts(piece)).to_bytes()

    def _verdicts(self, piece: Piece) -> Iterator[pa.RecordBatch]:
        if piece.kind in ("pictures", "images"):
            found = images(piece)
            for first in range(0, len(found), PIECE_IMAGES):
                verdict = self.scorer.score_images(found[first : first + PIECE_IMAGES], NOTHING)
                yield _identified(verdict, piece, first)
            return
        for batch in batches(piece, self.scorer.detector.statistics, self.job.keep, self.job.on_bad):
            verdict = self.scorer.score_statistics(batch.statistics, batch.kept)
            yield _identified(verdict, piece, batch.first_row - piece.first_row)


def score_files(
    detector: str | os.PathLike[str],
    sources: Sequence[str],
    output: str | os.PathLike[str],
    *,
    keep: Sequence[str] = (),
    on_bad: OnBad = "refuse",
    engine: Engine = here,
    progress: Callable[[int, int], None] | None = None,
) -> Totals:
    """Score tables or images into a folder of Parquet files, one for each input or piece of a large input.

    Rows are `source`, `row`, the kept columns, `score`, `p_value`, `is_typical`, `is_bad`. The folder appears, with a
    manifest and `_SUCCESS`, when all parts are there; until then they are beside it, in `.NAME.parts`. The same call
    after an interruption does only what is missing: a part stays if detector, options and input are the same.

    Parameters
    ----------
    detector
        A detector's directory, which the workers can read, or `zoo:NAME`.
    sources
        Parquet, CSV or npz tables or folders of Parquet files; with a detector that holds its model, images as well.
    output
        The folder to make; it must not be there.
    keep
        Columns of the tables to hand on.
    on_bad
        Whether a value that is not a finite number is refused or its row flagged.
    engine
        Who does the work: `here`, or `RayEngine(...)`.
    progress
        Is told how many parts are done, and of how many.
    """
    check_kept(keep)
    zoo.check_output(output)
    detector = zoo.directory(detector)
    target, loaded = Path(output), Detector.load(detector)
    pieces = pieces_of(sources, takes_images=loaded.model is not None)
    if keep and any(piece.kind in ("pictures", "images") for piece in pieces):
        raise InputError("images have no columns to keep, and not every input is a table")
    check_columns(pieces, loaded.statistics, keep, on_bad)
    folder = prepare(target)
    places = [str(Path(path).absolute()) for path in (detector, folder, ".")]
    job = Job(places[0], _fingerprint(detector), places[1], tuple(keep), on_bad, places[2])
    found = {part_name(piece): complete(folder, piece, job.key(piece)) for piece in pieces}
    records = {name: record for name, record in found.items() if record is not None}
    resumed = len(records)
    missing = [piece.to_json() for piece in pieces if part_name(piece) not in records]
    names = {job.key(piece): part_name(piece) for piece in pieces}
    for result in engine(partial(PieceScorer, job), missing) if missing else ():
        record = Record.from_bytes(result)
        records[names[record.key]] = record
        if progress is not None:
            progress(len(records), len(pieces))
    held_out = len(loaded.estimator.calibration_scores_)
    totals = _totals(list(records.values()), held_out, resumed)
    commit(target, pieces, records, _about(job, totals))
    return totals


def _identified(verdict: pa.RecordBatch, piece: Piece, first: int) -> pa.RecordBatch:
    """With the columns `source` (a picture's own file, else the input) and `row` before the others."""
    rows = np.arange(first, first + len(verdict))
    if piece.files:
        source = pa.array([piece.files[row] for row in rows], pa.string())
    else:
        source = pa.repeat(pa.scalar(piece.source, pa.string()), len(verdict))
    columns = [source, pa.array(piece.first_row + rows), *verdict.columns]
    return pa.record_batch(columns, names=["source", "row", *verdict.schema.names])


def _totals(records: Sequence[Record], held_out: int, resumed: int) -> Totals:
    ranks = np.zeros(held_out + 2, np.int64)
    for record in records:
        ranks[[int(rank) for rank in record.ranks]] += list(record.ranks.values())
    sums = [sum(getattr(record, name) for record in records) for name in ("rows", "atypical", "bad")]
    return Totals(sums[0], sums[1], sums[2], ranks, len(records), resumed)


def _about(job: Job, totals: Totals) -> dict[str, object]:
    counts = {"rows": totals.rows, "atypical": totals.atypical, "bad": totals.bad}
    made_by = {"dose_ood": dose_ood.__version__, "detector": job.detector, "detector_sha256": job.fingerprint}
    return {"format": 1, **made_by, "keep": job.keep, "on_bad": job.on_bad, **counts}


def _fingerprint(detector: str | os.PathLike[str]) -> str:
    """Of the document of a detector, which holds the checksums of its arrays."""
    return hashlib.sha256(Path(detector, f"{KIND}.json").read_bytes()).hexdigest()
