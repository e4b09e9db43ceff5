"""Rank-revealing whitening of the columns of a table."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dose_ood.errors import InputError

Vector = NDArray[np.float64]
Matrix = NDArray[np.float64]

FURTHEST = 1e140  # standard deviations; beyond it squares would overflow


@dataclass(frozen=True)
class Whitening:
    """An affine map to uncorrelated columns of unit variance: z = ((x − mean) / deviation) · rotation.

    `null_directions` are rows a with a · (x − mean) = 0 on the training rows, in units of the original columns; the
    largest coefficient of each is 1. `log_volume` is log √det(BBᵀ) of the inverse map x − mean = zB: a density of z
    divided by that volume is a density of x on the plane where the training rows lie.
    """

    mean: Vector
    deviation: Vector
    rotation: Matrix
    null_directions: Matrix
    log_volume: float

    def standardise(self, X: Matrix) -> Matrix:
        """Columns in standard deviations from the training mean."""
        with np.errstate(over="ignore"):
            result: Matrix = (X - self.mean) / self.deviation
        return np.clip(result, -FURTHEST, FURTHEST, out=result)

    def __call__(self, X: Matrix) -> Matrix:
        """Whitened rows, shape (rows, rank)."""
        return self.rotate(self.standardise(X))

    def rotate(self, standardised: Matrix) -> Matrix:
        """Standardised rows to whitened rows, each by the same operations whatever the number of rows."""
        result = np.zeros((len(standardised), self.rotation.shape[1]))
        for column, coefficients in zip(standardised.T, self.rotation, strict=True):
            result += column[:, None] * coefficients
        return result


def whitening(X: Matrix, tolerance: float) -> Whitening:
    """Whiten the rows of X in its own row space, from a singular value decomposition of the standardised columns.

        (X − mean) / deviation = U S Vᵀ,    z = √(n − 1) · U = standardised · V √(n − 1) / S

    The covariance is never formed, so that a direction is judged by its singular value, not by its square. Directions
    whose singular value is at most `tolerance` times the largest, and constant columns, are dropped and named.

    Examples
    --------
    >>> rows = np.array([[1.0, 0.0, 1.0], [0.0, 2.0, 2.0], [2.0, 1.0, 3.0], [3.0, 3.0, 6.0]])
    >>> found = whitening(rows, 1e-5)
    >>> found.null_directions.round(12) + 0.0
    array([[ 1.,  1., -1.]])
    >>> np.cov(found(rows), rowvar=False).round(12) + 0.0
    array([[1., 0.],
           [0., 1.]])
    """
    n, columns = X.shape
    mean = X.mean(axis=0)
    centred = X - mean
    reach = np.abs(centred).max(axis=0)
    varies = (np.ptp(X, axis=0) > 0) & (reach > 16 * np.finfo(np.float64).eps * np.abs(mean))
    if not varies.any():
        raise InputError(f"whitening needs at least one column that varies, got {columns} constant")
    reach[~varies] = 1.0
    deviation = reach * np.sqrt(((centred / reach) ** 2).sum(axis=0) / (n - 1))
    deviation[~varies] = 1.0
    centred /= deviation
    centred[:, ~varies] = 0.0
    _, singular, directions = np.linalg.svd(np.linalg.qr(centred, mode="r"), full_matrices=True)
    rank = int(np.count_nonzero(singular > tolerance * singular[0]))
    spread = singular[:rank] / np.sqrt(n - 1)
    kept = directions[:rank]
    null = directions[rank:] / deviation
    peak = null[np.arange(len(null)), np.abs(null).argmax(axis=1)]
    inverse = spread[:, None] * kept * deviation
    return Whitening(
        mean=mean,
        deviation=deviation,
        rotation=kept.T / spread,
        null_directions=null / peak[:, None],
        log_volume=float(np.log(np.linalg.svd(inverse, compute_uv=False)).sum()),
    )
