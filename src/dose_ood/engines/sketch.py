"""Mergeable summaries of rows: exact moments, and a uniform sample that does not depend on how rows were divided."""

import io
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from dose_ood.errors import InputError

Vector = NDArray[np.float64]
Matrix = NDArray[np.float64]
Keys = NDArray[np.uint64]
Counts = NDArray[np.int64]

ODD = 0x9E3779B97F4A7C15  # 2⁶⁴ / golden ratio, the increment of SplitMix64
MIX = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))


@dataclass(frozen=True, eq=False)
class Sketch:
    """A summary of rows, such that the summary of two parts is made of the parts' summaries.

    It holds the number of rows, the columns' means and the matrix M2 of summed products of deviations, and the `size`
    different rows with the smallest keys, with how often each occurs. A key is a hash of the row's content, so that the
    sample is the same however rows are ordered, divided and merged, and copies of a row neither crowd it nor get lost.

    References
    ----------
    *Updating Formulae and a Pairwise Algorithm for Computing Sample Variances* (Chan, Golub & LeVeque, 1979)
    *Summarizing Data Using Bottom-k Sketches* (Cohen & Kaplan, 2007)

    Examples
    --------
    >>> rows = np.random.default_rng(0).normal(size=(1000, 2))
    >>> parts = Sketch.of(rows[700:], 100).merge(Sketch.of(rows[:700], 100))
    >>> whole = Sketch.of(rows, 100)
    >>> bool((parts.sample() == whole.sample()).all()), bool(np.allclose(parts.covariance, np.cov(rows.T)))
    (True, True)
    """

    size: int
    count: int
    mean: Vector
    m2: Matrix
    keys: Keys
    rows: Matrix
    counts: Counts

    @classmethod
    def of(cls, X: Matrix, size: int) -> Self:
        """The summary of the rows of X."""
        if size < 2:
            raise InputError(f"the size of a sample must be at least 2, got {size}")
        mean = X.mean(axis=0)
        centred = X - mean
        keys = row_keys(X)
        few = keys <= np.partition(keys, size - 1)[size - 1] if len(keys) > size else np.ones(len(keys), np.bool_)
        kept = _smallest(keys[few], X[few], np.ones(int(few.sum()), np.int64), size)
        # Among the smallest `size` keys there may be copies; other rows must then come in.
        if len(kept[0]) < size and not few.all():
            kept = _smallest(keys, X, np.ones(len(keys), np.int64), size)
        return cls(size, len(X), mean, centred.T @ centred, *kept)

    def merge(self, other: "Sketch") -> "Sketch":
        """The summary of both parts' rows."""
        if self.size != other.size or len(self.mean) != len(other.mean):
            raise InputError(
                f"expected sketches of {self.size} rows and {len(self.mean)} columns, "
                f"got {other.size} and {len(other.mean)}"
            )
        count = self.count + other.count
        gap = other.mean - self.mean
        kept = _smallest(
            np.concatenate([self.keys, other.keys]),
            np.concatenate([self.rows, other.rows]),
            np.concatenate([self.counts, other.counts]),
            self.size,
        )
        m2 = self.m2 + other.m2 + np.outer(gap, gap) * (self.count * other.count / count)
        return Sketch(self.size, count, self.mean + gap * (other.count / count), m2, *kept)

    @property
    def covariance(self) -> Matrix:
        """The covariance of the columns, of all rows."""
        return self.m2 / (self.count - 1)

    @property
    def is_whole(self) -> bool:
        """Whether the sample is all rows."""
        return int(self.counts.sum()) == self.count <= self.size

    def sample(self) -> Matrix:
        """At most `size` rows: those kept, as often as they occur; if that is too many, evenly spaced among them."""
        ends = np.cumsum(self.counts)
        total = int(ends[-1])
        wanted = min(total, self.size)
        marks = ((2 * np.arange(wanted) + 1) * total) // (2 * wanted)
        found = self.rows[np.searchsorted(ends, marks, side="right")]
        return np.asfortranarray(found)  # as tables are read, so that sums round alike

    def to_bytes(self) -> bytes:
        """As an .npz archive."""
        file = io.BytesIO()
        np.savez(file, allow_pickle=False, **{name: np.asarray(value) for name, value in vars(self).items()})
        return file.getvalue()

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """What `to_bytes` wrote."""
        with np.load(io.BytesIO(data), allow_pickle=False) as found:
            arrays = {name: found[name] for name in ("mean", "m2", "keys", "rows", "counts")}
            return cls(size=int(found["size"]), count=int(found["count"]), **arrays)


def row_keys(X: Matrix) -> Keys:
    """64 bits for each row, a hash of its numbers: SplitMix64's mixer over the columns' bits.

    Examples
    --------
    >>> one, other, same = row_keys(np.array([[0.0, 1.0], [1.0, 0.0], [-0.0, 1.0]]))
    >>> bool(one == same), bool(one == other)
    (True, False)
    """
    keys = np.full(len(X), ODD, np.uint64)
    for column in X.T:
        keys ^= np.ascontiguousarray(column + 0.0).view(np.uint64)  # −0 equals 0
        keys += np.uint64(ODD)
        for shift, factor in MIX:
            keys = (keys ^ (keys >> np.uint64(shift))) * np.uint64(factor)
        keys ^= keys >> np.uint64(31)
    return keys


def _smallest(keys: Keys, rows: Matrix, counts: Counts, size: int) -> tuple[Keys, Matrix, Counts]:
    """The rows of the `size` smallest different keys, in their order, and how often each occurs."""
    different, first, place = np.unique(keys, return_index=True, return_inverse=True)
    occurring = np.zeros(len(different), np.int64)
    np.add.at(occurring, place, counts)
    return different[:size], np.ascontiguousarray(rows[first[:size]]), occurring[:size]
