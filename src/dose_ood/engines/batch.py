"""The core of every engine: an Arrow batch in, an Arrow batch of verdicts out."""

import io
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dose_ood.columns import positions
from dose_ood.data.pictures import read_picture, stack_pictures
from dose_ood.detector import Detector
from dose_ood.errors import InputError
from dose_ood.statistics import OnBad, Statistics

if TYPE_CHECKING:
    from dose_ood.guard import Guard

IMAGE = "image"  # the column of a batch that holds images
IDENTITY = ("source", "row")
VERDICT = ("score", "p_value", "is_typical", "is_bad")


@dataclass(frozen=True, eq=False)
class BatchScorer:
    """Scores Arrow batches, of statistics or, if the detector holds its model, of images.

    A batch has the detector's columns, or a column `image` of encoded pictures (binary) or of uint8 tensors of shape
    (c, h, w) (Arrow's fixed_shape_tensor). Images are measured with torch, tables are scored without it.

    Parameters
    ----------
    detector
        Fitted and calibrated.
    keep
        Columns to hand on, before the verdict.
    on_bad
        Whether a value that is not a finite number is refused or its row flagged.

    Examples
    --------
    >>> from dose_ood import ProductKDE
    >>> random = np.random.default_rng(0)
    >>> tables = [Statistics(("rate", "like"), random.normal(size=(1000, 2))) for _ in range(2)]
    >>> scorer = BatchScorer(Detector.fit(*tables, ProductKDE()), keep=("id",))
    >>> found = scorer.score_batch(pa.record_batch({"id": ["a", "b"], "like": [0.0, 9.0], "rate": [0.0, 0.0]}))
    >>> found.schema.names
    ['id', 'score', 'p_value', 'is_typical', 'is_bad']
    >>> found["is_typical"].to_pylist()
    [True, False]
    """

    detector: Detector
    keep: tuple[str, ...] = ()
    on_bad: OnBad = "refuse"

    def __post_init__(self) -> None:
        """Refuse to keep a column whose name the output needs."""
        check_kept(self.keep)

    @classmethod
    def load(cls, path: str | os.PathLike[str], keep: Sequence[str] = (), on_bad: OnBad = "refuse") -> Self:
        """Read the detector's directory, once for each worker."""
        return cls(Detector.load(path), tuple(keep), on_bad)

    @cached_property
    def guard(self) -> "Guard":
        """The detector with its model, built when the first image comes."""
        from dose_ood.guard import Guard

        return Guard.of(self.detector)

    def score_batch(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The kept columns and the verdict, a row for each row of the batch, in their order."""
        positions(self.keep, batch.schema.names, "the batch")
        kept = batch.select(list(self.keep))
        if IMAGE in batch.schema.names and self.detector.model is not None:
            return self.score_images(images_of(batch[IMAGE]), kept)
        return self.score_statistics(Statistics.from_table(batch, self.detector.statistics, self.on_bad), kept)

    def score_images(self, images: NDArray[np.uint8], kept: pa.RecordBatch) -> pa.RecordBatch:
        """The same of images, uint8 of shape (n, c, h, w)."""
        return self.score_statistics(self.guard.measure(images), kept)

    def score_statistics(self, rows: Statistics, kept: pa.RecordBatch) -> pa.RecordBatch:
        """The same of rows of statistics."""
        found = self.detector.score(rows).to_arrow()
        return pa.record_batch([*kept.columns, *found.columns], names=[*kept.schema.names, *found.schema.names])


def check_kept(keep: Sequence[str]) -> None:
    """Refuse columns that would have the name of one that the output has of its own, or that come twice."""
    taken = {*IDENTITY, *VERDICT}
    for place, name in enumerate(keep):
        if name in taken:
            raise InputError(f"cannot keep a column called {name!r}: the output has one of its own")
        if name in keep[:place]:
            raise InputError(f"expected each column to keep once, got {name!r} twice")


def images_of(column: pa.Array) -> NDArray[np.uint8]:
    """The images of a column, uint8 of shape (n, c, h, w)."""
    if isinstance(column, pa.FixedShapeTensorArray) and column.type.value_type == pa.uint8():
        return np.asarray(column.to_numpy_ndarray(), np.uint8)
    if pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type):
        names = [f"row {row} of column {IMAGE!r}" for row in range(len(column))]
        for name, cell in zip(names, column, strict=True):
            if not cell.is_valid:
                raise InputError(f"{name}: expected a picture, got no value")
        streams = (io.BytesIO(cell.as_py()) for cell in column)
        return stack_pictures((read_picture(file, name) for file, name in zip(streams, names, strict=True)), names)
    raise InputError(f"column {IMAGE!r}: expected pictures as binary or as tensors of uint8, got {column.type}")
