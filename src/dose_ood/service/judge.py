"""Samples in, verdicts out: what the one worker of the service does with a batch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from dose_ood.detector import Detector, Scores
from dose_ood.errors import InputError
from dose_ood.statistics import Statistics

if TYPE_CHECKING:
    from dose_ood.guard import Guard

Images = NDArray[np.uint8]
Matrix = NDArray[np.float64]

TABLE_ROWS = 8192  # of a table at a time


@dataclass(frozen=True, eq=False)
class Samples:
    """What one request asks about: images, or rows of statistics in the detector's order; never both.

    Parameters
    ----------
    images
        uint8 of shape (n, c, h, w).
    values
        Statistics, shape (n, columns); what is not finite marks a bad row.
    reconstruct
        Whether to give the model's reconstructions of the images too.
    """

    images: Images | None = None
    values: Matrix | None = None
    reconstruct: bool = False

    def __len__(self) -> int:
        """The number of samples."""
        return len(self._rows)

    def pieces(self, batch: int) -> "list[Samples]":
        """The same in parts, each of which fits a batch."""
        step = batch if self.values is None else TABLE_ROWS
        return [self._part(slice(first, first + step)) for first in range(0, len(self), step)]

    def share(self, batch: int) -> float:
        """How much of a batch it fills."""
        return len(self) / (batch if self.values is None else TABLE_ROWS)

    def _part(self, rows: slice) -> "Samples":
        images = None if self.images is None else self.images[rows]
        return replace(self, images=images, values=None if self.values is None else self.values[rows])

    @property
    def _rows(self) -> NDArray[np.generic]:
        found = self.images if self.values is None else self.values
        if found is None:
            raise InputError("expected images or statistics, got neither")
        return found


@dataclass(frozen=True, eq=False)
class Verdicts:
    """What was found out about samples, in arrays whose first axis counts them.

    Parameters
    ----------
    values, contributions
        The statistics and what each adds to the score, shape (n, columns); contributions of bad rows are NaN.
    scores
        Score, p-value and verdict.
    images, reconstructions
        What was judged and what the model makes of it, if there is such a thing.
    """

    values: Matrix
    contributions: Matrix
    scores: Scores
    images: Images | None = None
    reconstructions: Images | None = None

    def __len__(self) -> int:
        """The number of samples."""
        return len(self.values)

    def at(self, rows: "slice | NDArray[np.int64]") -> "Verdicts":
        """Some of them."""
        scores = Scores(*(getattr(self.scores, each.name)[rows] for each in fields(Scores)))
        images, again = (part if part is None else part[rows] for part in (self.images, self.reconstructions))
        return Verdicts(self.values[rows], self.contributions[rows], scores, images, again)

    @classmethod
    def joined(cls, parts: "Sequence[Verdicts]") -> "Verdicts":
        """The verdicts on the pieces of one request."""
        if len(parts) == 1:
            return parts[0]
        scores = Scores(*(np.concatenate([getattr(p.scores, each.name) for p in parts]) for each in fields(Scores)))
        return cls(
            np.concatenate([part.values for part in parts]),
            np.concatenate([part.contributions for part in parts]),
            scores,
            _joined([part.images for part in parts]),
            _joined([part.reconstructions for part in parts]),
        )


def _joined(parts: Sequence[Images | None]) -> Images | None:
    there = [part for part in parts if part is not None]
    return np.concatenate(there) if there else None


class Judge:
    """A detector, and the model it holds, as a function of a batch.

    A verdict does not depend on the other samples of the batch, but for the rounding of sums in float32 (images) and of
    matrix products: noise depends on a sample's content alone.

    Parameters
    ----------
    detector
        Gives the verdicts; if it holds a model, images can be judged too, which needs torch.
    """

    def __init__(self, detector: Detector) -> None:
        self.detector = detector
        self.guard = None if detector.model is None else _guard(detector)

    @property
    def shape(self) -> tuple[int, ...] | None:
        """Channels, height and width of images; None if only tables can be judged."""
        return None if self.guard is None else self.guard.shape

    @property
    def reconstructs(self) -> bool:
        """Whether the model loses something on the way: a flow gives every image back."""
        return self.guard is not None and self.guard.model.kind != "glow"

    def __call__(self, batch: Sequence[Samples]) -> list[Verdicts]:
        """The verdicts on each request's samples, all computed as one batch."""
        images = [samples.images for samples in batch if samples.images is not None]
        measured = iter(self._measure(np.concatenate(images) if images else None, [len(part) for part in images]))
        parts = [next(measured) if samples.values is None else samples.values for samples in batch]
        whole = self._verdicts(np.concatenate(parts))
        found, first = [], 0
        for samples in batch:
            each = whole.at(slice(first, first + len(samples)))
            first += len(samples)
            found.append(each if samples.images is None else self._with_images(each, samples))
        return found

    def _measure(self, images: Images | None, sizes: Sequence[int]) -> list[Matrix]:
        if images is None:
            return []
        if self.guard is None:
            raise InputError("the detector holds no model, so it takes tables of statistics, not images")
        table = self.guard.measure(images, batch=len(images)).select(self.detector.statistics)
        return np.split(table.values, np.cumsum(sizes)[:-1])

    def _verdicts(self, values: Matrix) -> Verdicts:
        table = Statistics(self.detector.statistics, values, "flag")
        scores = self.detector.score(table)
        contributions = np.full(values.shape, np.nan)
        if not scores.is_bad.all():
            contributions[~scores.is_bad] = self.detector.estimator.contributions(table.values[~scores.is_bad])
        return Verdicts(table.values, contributions, scores)

    def _with_images(self, verdicts: Verdicts, samples: Samples) -> Verdicts:
        again = None
        if samples.reconstruct and self.guard is not None and self.reconstructs and samples.images is not None:
            again = self.guard.reconstruct(samples.images.copy())  # torch wants to own what it reads
        return replace(verdicts, images=samples.images, reconstructions=again)


def _guard(detector: Detector) -> "Guard":
    try:
        from dose_ood.guard import Guard
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "torch":
            raise
        raise InputError('the detector holds a model, which needs PyTorch: pip install "dose-ood[torch]"') from None
    return Guard.of(detector)


def columns_of(table: Mapping[str, NDArray[np.float64]], names: Sequence[str]) -> Matrix:
    """Columns by name, in the detector's order."""
    return Statistics.from_columns(table, "flag").select(names).values
