"""What lies beside a benchmark's results: tables, scores, images, logs; what is not there is said, not guessed."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dose_ood.benchmark.methods import DOSE, estimator, plain
from dose_ood.benchmark.results import BACKGROUND, HELD_OUT, METHODS, TEST, TRAIN, Folder, Results
from dose_ood.detector import LIKELIHOODS, Detector, default_statistics
from dose_ood.errors import InputError
from dose_ood.report.curves import quietly
from dose_ood.statistics import Statistics
from dose_ood.tables import explaining

Vector = NDArray[np.float64]
Images = NDArray[np.uint8]


@dataclass(frozen=True)
class Line:
    """A line of the log of a training run; what `runs.Record` holds, read without torch."""

    step: int
    loss: float
    held_out: float | None


@dataclass(frozen=True)
class Kept:
    """Some images of a set, and their rows in its tables."""

    images: Images
    rows: NDArray[np.int64]


@dataclass(frozen=True)
class Evidence:
    """The parts of a folder that are there.

    Parameters
    ----------
    results
        The cells.
    member
        The model whose statistics and scores are shown; None without tables.
    tables
        For each set, the statistics of that model.
    detectors, scores
        For each method its detector, and for each set the scores it gives.
    images
        For each set, those kept.
    logs
        For each run, its log.
    """

    results: Results
    member: str | None
    tables: Mapping[str, Statistics]
    detectors: Mapping[str, Detector]
    scores: Mapping[str, Mapping[str, Vector]]
    images: Mapping[str, Kept]
    logs: Mapping[str, tuple[Line, ...]]

    @property
    def outliers(self) -> tuple[str, ...]:
        """The outlier sets that have a table."""
        return tuple(name for name in self.results.study.outliers if name in self.tables)


def gather(path: Path) -> Evidence:
    """Read a folder, and fit the methods again to the tables of its first model."""
    folder = Folder(path)
    if not folder.results.is_file():
        raise InputError(f"{path}: expected a folder with {folder.results.name}, as `dose bench` makes it")
    results = Results.read(folder.results)
    members = _members(folder)
    member = next((name for name in members if name != BACKGROUND), None)
    wide = {} if member is None else _wide(folder, results, member, members)
    detectors = _fit(results, wide, _own(wide))
    scores = {
        method: {name: detector.score(table).score for name, table in wide.items()}
        for method, detector in detectors.items()
    }
    tables = {name: table.select(_own(wide)) for name, table in wide.items()}
    sets = (TEST, *results.study.outliers)
    images = {name: _images(folder.images(name)) for name in sets if folder.images(name).is_file()}
    return Evidence(results, member, tables, detectors, scores, images, _logs(path / "runs"))


def sets_of(results: Results) -> tuple[str, ...]:
    """Every set a model has a table of."""
    return (TRAIN, HELD_OUT, TEST, *results.study.outliers)


def by_gain(results: Results, names: Sequence[str]) -> list[str]:
    """Outlier sets, from where the better DoSE gains most over the best other method."""

    def gain(outlier: str) -> float:
        reached = {method: auroc_of(results, outlier, method) for method in METHODS}
        ours = [value for method, value in reached.items() if method in DOSE and value is not None]
        others = [value for method, value in reached.items() if method not in DOSE and value is not None]
        return max(ours, default=0.0) - max(others, default=0.0)

    return sorted(names, key=gain, reverse=True)


def auroc_of(results: Results, outlier: str, method: str) -> float | None:
    """The number that stands for a method on a pair: the mean over models, or the ensemble's where that is all."""
    cells = results.members(outlier, method)
    if cells:
        return float(np.mean([cell.auroc for cell in cells]))
    whole = results.ensemble(outlier, method)
    return None if whole is None else whole.auroc


def _members(folder: Folder) -> list[str]:
    place = folder.path / "statistics"
    found = [each.name for each in place.iterdir() if each.is_dir()] if place.is_dir() else []
    return sorted(found, key=lambda name: (not name.isdigit(), int(name) if name.isdigit() else 0, name))


def _own(wide: Mapping[str, Statistics]) -> tuple[str, ...]:
    return plain(next(iter(wide.values())).names) if wide else ()


def _wide(folder: Folder, results: Results, member: str, members: Sequence[str]) -> dict[str, Statistics]:
    """For each set the member's columns, and beside them the likelihood of every model as `MEMBER/like`."""
    wide = {}
    for name in sets_of(results):
        if not folder.statistics(member, name).is_file():
            continue
        table = Statistics.read(folder.statistics(member, name), on_bad="flag")
        table = table.select(plain(table.names))
        like = next((known for known in LIKELIHOODS if known in table.names), None)
        for other in members if like is not None else ():
            path = folder.statistics(other, name)
            if path.is_file():
                table = table.beside(Statistics.read(path, [str(like)], on_bad="flag").prefix(f"{other}/"))
        wide[name] = table
    return wide


def _fit(results: Results, wide: Mapping[str, Statistics], own: tuple[str, ...]) -> dict[str, Detector]:
    """The methods of the results, as far as their columns are there."""
    asked = {cell.method for cell in results.cells}
    detectors = {}
    if {TRAIN, HELD_OUT, TEST} <= set(wide):
        train, held_out = _good(wide[TRAIN]), _good(wide[HELD_OUT])
        for method in METHODS:
            columns = _columns(method, own, train.names, results.study.members)
            if method in asked and columns is not None:
                with quietly():
                    detectors[method] = Detector.fit(train, held_out, estimator(method), columns)
    return detectors


def _columns(method: str, own: tuple[str, ...], names: Sequence[str], members: int) -> tuple[str, ...] | None:
    """The columns a method works on; None if they are not there."""
    if method in DOSE:
        return own
    try:
        columns = default_statistics(method, names)
    except InputError:
        return None
    return columns if method != "waic" or len(columns) == members > 1 else None


def _good(table: Statistics) -> Statistics:
    return table if not table.bad.any() else Statistics(table.names, table.values[~table.bad])


def _images(path: Path) -> Kept:
    with explaining(f"cannot read {path}"), path.open("rb") as file:
        archive = np.load(file, allow_pickle=False)
        if not isinstance(archive, np.lib.npyio.NpzFile) or not {"images", "rows"} <= set(archive):
            raise InputError(f"{path}: expected the arrays images and rows")
        images, rows = np.asarray(archive["images"]), np.asarray(archive["rows"])
    if images.dtype != np.uint8 or images.ndim != 4 or images.shape[1] not in (1, 3) or 0 in images.shape:
        raise InputError(f"{path}: expected images of shape (n, c, h, w) as uint8, got {images.dtype} {images.shape}")
    if rows.dtype.kind not in "iu" or rows.shape != images.shape[:1]:
        raise InputError(f"{path}: expected a row for each of {len(images)} images, got {rows.dtype} {rows.shape}")
    return Kept(images, rows.astype(np.int64))


def _logs(runs: Path) -> dict[str, tuple[Line, ...]]:
    found = sorted(runs.glob("*/log.jsonl"), key=lambda path: (not path.parent.name.isdigit(), path.parent.name))
    logs = {}
    for path in found:
        with explaining(f"cannot read {path}"):
            lines = [
                json.loads(line)
                for line in path.read_text(encoding="utf-8").splitlines(keepends=True)
                if line[-1] == "\n"
            ]
        if not all(isinstance(line, dict) and {"step", "loss"} <= set(line) for line in lines):
            raise InputError(f"{path}: expected lines with step and loss")
        if lines:
            logs[path.parent.name] = tuple(Line(line["step"], line["loss"], line.get("held_out")) for line in lines)
    return logs
