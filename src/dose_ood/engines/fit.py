"""Fitting a detector to partitions: a summary of each, merged, and a density fitted to what they say together."""

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from pathlib import Path

import numpy as np
from sklearn.base import clone

from dose_ood.density.bandwidth import RULES, Rule, isj
from dose_ood.density.base import DensityOfStates, Matrix
from dose_ood.density.kde import ProductKDE
from dose_ood.density.svm import WhitenedSVM
from dose_ood.density.whitening import whitening
from dose_ood.detector import Detector, default_statistics
from dose_ood.engines.engine import Engine, here, working_in
from dose_ood.engines.pieces import Piece, batches, check_columns, pieces_of
from dose_ood.engines.sketch import Sketch
from dose_ood.errors import DoseWarning, InputError
from dose_ood.statistics import Statistics, stream

SAMPLE = 2**17  # rows
PROPORTIONAL = (  # what an SVM has learned that grows with the number of rows
    *("weights_", "masses_", "level_", "switch_", "total_"),
    *("train_edges_", "train_mean_"),
)


@dataclass(frozen=True)
class PieceSketcher:
    """A worker that summarises pieces of tables."""

    names: tuple[str, ...]
    size: int
    base: str

    def __call__(self, item: str) -> bytes:
        """The summary of a piece."""
        with working_in(self.base):
            parts = batches(Piece.from_json(item), self.names, (), "refuse")
            sketches = (Sketch.of(part.statistics.values, self.size) for part in parts)
            return reduce(Sketch.merge, sketches).to_bytes()


def fit_partitions(
    train: Sequence[str],
    held_out: str | os.PathLike[str],
    estimator: DensityOfStates,
    statistics: Sequence[str] | None = None,
    *,
    size: int = SAMPLE,
    engine: Engine = here,
    progress: Callable[[int, int], None] | None = None,
) -> Detector:
    """Fit a detector to the rows of many files, each of which is read once and only by a worker.

    Up to `size` rows this is `Detector.fit`. With more, the density is fitted to a uniform sample of them, the KDE with
    the bandwidth of all rows, and the SVM's scores are scaled to all rows. `docs/scale.md` says what that costs.

    Parameters
    ----------
    train
        Tables of the training rows: Parquet, CSV or npz files, or folders of Parquet files.
    held_out
        Table of rows the model was not trained on, read here.
    estimator
        A `ProductKDE` or a `WhitenedSVM`; a copy of it is fitted.
    statistics
        The columns to use; by default all of the first file.
    size
        Rows of the sample.
    engine
        Who does the work: `here`, or `RayEngine(...)`.
    progress
        Is told how many pieces are done, and of how many.
    """
    if not isinstance(estimator, ProductKDE | WhitenedSVM):
        raise InputError(f"a kde or an svm can be fitted from partitions, got {type(estimator).__name__}")
    pieces = pieces_of(train, takes_images=False)
    names = tuple(statistics or default_statistics(estimator.kind, next(stream(pieces[0].source)).statistics.names))
    check_columns(pieces, names, (), "refuse")
    fresh = Statistics.read(held_out, names)
    merged: Sketch | None = None
    make = partial(PieceSketcher, names, size, str(Path.cwd()))
    for done, result in enumerate(engine(make, [piece.to_json() for piece in pieces]), 1):
        sketch = Sketch.from_bytes(result)
        merged = sketch if merged is None else merged.merge(sketch)
        if progress is not None:
            progress(done, len(pieces))
    assert merged is not None  # noqa: S101  # pieces_of gives at least one
    return fit_sketch(merged, names, fresh, estimator)


def fit_sketch(
    sketch: Sketch, names: Sequence[str], held_out: Statistics, estimator: ProductKDE | WhitenedSVM
) -> Detector:
    """A detector of the rows that a sketch summarises."""
    rows = sketch.sample()
    if sketch.is_whole:
        return Detector.fit(Statistics(tuple(names), rows), held_out, estimator)
    if isinstance(estimator, ProductKDE):
        estimator = clone(estimator).set_params(bandwidth=factors(sketch, rows, estimator.bandwidth))
        detector = Detector.fit(Statistics(tuple(names), rows), held_out, estimator)
    else:
        rows = matched(sketch, rows, estimator.rank_tolerance)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DoseWarning)  # of scores that are not yet scaled
            detector = Detector.fit(Statistics(tuple(names), rows), held_out, estimator)
        for name in PROPORTIONAL:
            setattr(detector.estimator, name, getattr(detector.estimator, name) * (sketch.count / len(rows)))
        detector.estimator.calibrate(held_out.select(names).values)
    data = detector.provenance["data"]
    assert isinstance(data, Mapping)  # noqa: S101  # as Detector.fit leaves it
    about = {**data, "train": {"rows": sketch.count, "sample": data["train"]}}
    return replace(detector, provenance={**detector.provenance, "data": about})


def factors(sketch: Sketch, rows: Matrix, rule: Rule | float | Sequence[float]) -> tuple[float, ...]:
    """What the sample's standard deviations must be multiplied with to give the bandwidths of all rows.

    Scott's and Silverman's rules and factors need the count and the standard deviations. The improved Sheather–Jones
    bandwidth is that of the sample, shrunk as the fifth root of the number of rows.
    """
    if isinstance(rule, str) and rule not in RULES:
        raise InputError(f"bandwidth must be one of {', '.join(RULES)}, or numbers, got {rule!r}")
    spread, all_spread = rows.std(axis=0, ddof=1), np.sqrt(np.diag(sketch.covariance))
    varies = spread > 0
    if rule == "isj":
        shrink = (len(rows) / sketch.count) ** 0.2
        wanted = np.array([isj(x) * shrink if some else 1.0 for x, some in zip(rows.T, varies, strict=True)])
    else:
        known: dict[Rule | float | Sequence[float], float] = {
            "scott": sketch.count**-0.2,
            "silverman": (0.75 * sketch.count) ** -0.2,
        }
        wanted = np.asarray(known[rule] if isinstance(rule, str) else rule) * all_spread
    return tuple(np.divide(wanted, spread, out=np.ones_like(spread), where=varies).tolist())


def matched(sketch: Sketch, rows: Matrix, tolerance: float) -> Matrix:
    """The sample, moved so that its mean and covariance are those of all rows, within the plane that it spans."""
    found = whitening(rows, tolerance)
    to_white = found.rotation / found.deviation[:, None]
    wanted = np.linalg.cholesky(to_white.T @ sketch.covariance @ to_white)
    moved: Matrix = sketch.mean + (found(rows) @ wanted.T @ np.linalg.pinv(found.rotation)) * found.deviation
    return moved
