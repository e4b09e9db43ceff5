"""The adapter for Spark: a DataFrame in, a DataFrame of verdicts out. Needs pyspark when it runs."""

import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from dose_ood import zoo
from dose_ood.columns import positions
from dose_ood.detector import Detector
from dose_ood.engines.batch import IMAGE, VERDICT, BatchScorer
from dose_ood.statistics import OnBad

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

TYPES = ("double", "double", "boolean", "boolean")  # of a verdict


def score_frame(
    frame: "DataFrame", detector: str | os.PathLike[str], keep: Sequence[str] = (), on_bad: OnBad = "refuse"
) -> "DataFrame":
    """The kept columns and the verdict on every row, `score`, `p_value`, `is_typical` and `is_bad`.

    Lazy, as everything in Spark; every partition reads the detector once.

    Parameters
    ----------
    frame
        With the detector's columns or, if it holds its model, a column `image` of encoded pictures (binary).
    detector
        Its directory, or `zoo:NAME`; every machine needs the package, and the same paths.
    keep
        Columns to hand on, before the verdict.
    on_bad
        Whether a value that is not a finite number is refused, which ends the job, or its row flagged.
    """
    place = str(zoo.directory(detector).resolve())
    scorer = BatchScorer(Detector.load(place), tuple(keep), on_bad)  # refuses here what no worker could do
    needed = () if IMAGE in frame.columns and scorer.detector.model is not None else scorer.detector.statistics
    positions([*keep, *needed], frame.columns, "the frame")

    def score(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        worker = BatchScorer.load(place, keep, on_bad)
        return map(worker.score_batch, batches)

    kept = [f"`{field.name}` {field.dataType.simpleString()}" for field in frame.select(*keep).schema]
    verdict = [f"{name} {kind}" for name, kind in zip(VERDICT, TYPES, strict=True)]
    return frame.mapInArrow(score, ", ".join([*kept, *verdict]))
