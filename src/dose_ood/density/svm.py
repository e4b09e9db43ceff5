"""DoSE_SVM: whitening followed by a one-class support vector machine."""

import math
import warnings
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike
from sklearn.svm import OneClassSVM

from dose_ood.density.base import DensityOfStates, Matrix, Vector
from dose_ood.density.landmark import Blocks, LandmarkSolution, solve_landmarks
from dose_ood.density.whitening import Whitening, whitening
from dose_ood.errors import DoseWarning, InputError

EXACT_COST = 12_500_000  # "auto" is exact up to this νn²: libsvm takes about a second
SATURATION = 1e-13  # of the level ρ: the weight of the distance that ranks rows where all kernels vanish
BLEND = 30.0  # the ratio of the scores between which f gives way to the positive mixture
ROWS = 16_384  # whose contributions are found at once
NODES, WEIGHTS = np.polynomial.legendre.leggauss(24)


class WhitenedSVM(DensityOfStates):
    """PCA-whitening and a one-class SVM with a Gaussian kernel, the paper's DoSE_SVM.

        f(z) = Σ_i α_i exp(−γ|z − z_i|²),    γ = 1 / (rank · variance of z),    0 ≤ α_i ≤ 1,  Σα = νn

    The score is f(z) − 1e-13 · ρ · log(1 + |z|): scikit-learn's `score_samples` after `PCA(whiten=True)` and
    `OneClassSVM(nu=nu)`, and a term below its rounding that ranks rows so far out that every kernel vanishes.

    Directions without variance (collinear or constant columns) are dropped before whitening, and named in
    `null_directions_`. `solver="exact"` is libsvm; its cost is quadratic. `solver="landmark"` seeks f in the span of
    kernels at some training rows, at a cost linear in n, and states how far from the optimum it may be:
    `duality_gap_` of the landmarks' problem, `full_duality_gap_` of the full kernel's (an estimate if its standard
    error `full_duality_gap_error_` is positive). `docs/svm.md` has the mathematics.

    Parameters
    ----------
    nu
        Share of the training rows that may lie outside the learned support.
    solver
        "exact", "landmark", or "auto": exact if νn² ≤ 12,500,000 (5,000 rows at ν = 0.5), else landmark.
    landmarks
        Number of landmarks. If None: 600; 1,200 if the rank is above 10; 1,500 if nu < 0.25.
    rank_tolerance
        Directions whose singular value is at most this share of the largest are dropped.
    discard
        Share of held-out rows below the threshold.

    References
    ----------
    *Estimating the Support of a High-Dimensional Distribution* (Schölkopf et al., 2001)
    *Density of States Estimation for Out-of-Distribution Detection* (Morningstar et al., 2020)

    Examples
    --------
    >>> rows = np.random.default_rng(0).normal(size=(500, 2))
    >>> inside, outside, further = WhitenedSVM().fit(rows).score_samples([[0, 0], [9, 9], [99, 99]])
    >>> bool(inside > outside > further)
    True
    """

    kind = "svm"

    def __init__(
        self,
        *,
        nu: float = 0.5,
        solver: Literal["auto", "exact", "landmark"] = "auto",
        landmarks: int | None = None,
        rank_tolerance: float = 1e-5,
        discard: float = 0.05,
    ) -> None:
        self.nu = nu
        self.solver = solver
        self.landmarks = landmarks
        self.rank_tolerance = rank_tolerance
        self.discard = discard

    def _fit(self, X: Matrix) -> None:
        self._check_parameters()
        exact = self.solver == "exact" or (self.solver == "auto" and self.nu * len(X) ** 2 <= EXACT_COST)
        if not exact:
            X = X[np.lexsort(X.T[::-1])]  # so that the order of the rows cannot matter
        map_ = whitening(X, self.rank_tolerance)
        self.mean_, self.deviation_, self.rotation_ = map_.mean, map_.deviation, map_.rotation
        self.null_directions_, self.log_volume_ = map_.null_directions, map_.log_volume
        self.rank_ = map_.rotation.shape[1]
        Z = map_(X)
        self.gamma_ = float(1.0 / (self.rank_ * Z.var()))
        self.total_ = self.nu * len(X)
        found = self._solve_exactly(Z) if exact else self._solve_by_landmarks(Z)
        self.centres_, self.weights_, self.masses_ = found.centres, found.weights, found.masses
        self.level_, self.n_steps_ = found.level, found.steps
        self.duality_gap_, self.full_duality_gap_ = found.duality_gap, found.full_gap
        self.full_duality_gap_error_ = found.full_gap_error
        self.switch_ = 0.0 if exact else float(np.clip(10 * found.residual, 1e-6 * found.level, 0.1 * found.level))

    def _check_parameters(self) -> None:
        _require(self, "nu", isinstance(self.nu, Real) and 0 < self.nu < 1, "a number in (0, 1)")
        _require(self, "solver", self.solver in ("auto", "exact", "landmark"), '"auto", "exact" or "landmark"')
        counted = isinstance(self.landmarks, Integral) and self.landmarks > 0
        _require(self, "landmarks", self.landmarks is None or counted, "a positive integer or None")
        small = isinstance(self.rank_tolerance, Real) and 0 < self.rank_tolerance < 1
        _require(self, "rank_tolerance", small, "a number in (0, 1)")

    def _solve_exactly(self, Z: Matrix) -> LandmarkSolution:
        machine = OneClassSVM(nu=self.nu, gamma=self.gamma_).fit(Z)
        weights, level = machine.dual_coef_[0].copy(), float(machine.offset_[0])
        f = Blocks(machine.support_vectors_, self.gamma_).times(Z, weights[:, None])[:, 0]
        alpha = np.zeros(len(Z))
        alpha[machine.support_] = weights
        gap = float((alpha * (f - level) + np.maximum(level - f, 0.0)).sum() / (alpha @ f / 2))
        return LandmarkSolution(
            centres=machine.support_vectors_.copy(),
            weights=weights,
            masses=weights,
            level=level,
            steps=int(machine.n_iter_),
            duality_gap=gap,
            full_gap=gap,
            full_gap_error=0.0,
            residual=0.0,
        )

    def _solve_by_landmarks(self, Z: Matrix) -> LandmarkSolution:
        count = self.landmarks
        if count is None:
            count = 1_500 if self.nu < 0.25 else 1_200 if self.rank_ > 10 else 600
        found = solve_landmarks(Z, self.gamma_, self.nu, min(count, len(Z)))
        if found.duality_gap > 1e-3:
            message = f"the landmark solver stopped at a relative duality gap of {found.duality_gap:.1e}, above 1e-3"
            warnings.warn(message, DoseWarning, stacklevel=4)
        return found

    def _whitening(self) -> Whitening:
        return Whitening(self.mean_, self.deviation_, self.rotation_, self.null_directions_, self.log_volume_)

    def _field(self) -> "_Field":
        blocks = Blocks(self.centres_, self.gamma_)
        return _Field(blocks, self.centres_, self.weights_, self.masses_, self.switch_, SATURATION * self.level_)

    def _score(self, X: Matrix) -> Vector:
        return self._field().score(self._whitening()(X))

    def _contributions(self, X: Matrix) -> Matrix:
        """Integrated gradients from the mean row: they sum to score(x) − score(mean).

        The integral is over the line from the training mean to the row, by Gauss–Legendre quadrature in y with
        |z| = sinh(y) / √γ, which sees the data from near and the void from afar. What the quadrature misses is shared
        out in proportion to the contributions' sizes. Collinear columns share by the gradient of least norm, in units
        of standard deviations.
        """
        field, origin = self._field(), np.zeros((1, self.rank_))
        result = np.empty_like(X)
        for start in range(0, len(X), ROWS):
            part = slice(start, start + ROWS)
            standard = self._whitening().standardise(X[part])
            Z = self._whitening().rotate(standard)
            found = standard * (field.mean_gradient(Z) @ self.rotation_.T)
            size = np.abs(found)
            share = size / np.maximum(size.sum(axis=1, keepdims=True), np.finfo(np.float64).tiny)
            missed = field.score(Z) - field.score(origin) - found.sum(axis=1)
            result[part] = found + share * missed[:, None]
        return result

    def _check_state(self) -> None:
        rules = {
            "deviation_ must be positive": bool((self.deviation_ > 0).all()),
            "rank_ must be the number of columns of rotation_": self.rank_ == self.rotation_.shape[1],
            "null_directions_ and rank_ must add up to the columns": (
                len(self.null_directions_) + self.rank_ == len(self.mean_)
            ),
            "gamma_, total_ and level_ must be positive": min(self.gamma_, self.total_, self.level_) > 0,
            "masses_ must not be negative": bool((self.masses_ >= 0).all()),
            "switch_ must not be negative": self.switch_ >= 0,
            "there must be at least one centre": len(self.centres_) > 0,
        }
        for rule, holds in rules.items():
            if not holds:
                raise InputError(f"svm: {rule}")

    def log_density(self, X: ArrayLike) -> Vector:
        """log of f as a density: log f(z) − log(νn) − rank/2 · log(π/γ) − log √det(BBᵀ), with x − mean = zB.

        It is a density on the plane that the training rows span. Never −∞, however far the row.
        """
        Z = self._whitening()(self._rows(X))
        norm = math.log(self.total_) + self.rank_ / 2 * math.log(math.pi / self.gamma_) + self.log_volume_
        result: Vector = self._field().log(Z) - norm
        return result


@dataclass(frozen=True)
class _Field:
    """The score as a function of whitened rows.

    f is a sum of kernels whose weights may be negative, true to a small error; g, with the weights' positive masses,
    is less exact but never vanishes or turns. Where g is above `switch` the score is f, where it is below
    switch / BLEND the score is g, and in between it passes smoothly from one to the other.
    """

    blocks: Blocks
    centres: Matrix
    weights: Vector
    masses: Vector
    switch: float
    pull: float

    def score(self, Z: Matrix) -> Vector:
        f, g = self.blocks.times(Z, np.column_stack([self.weights, self.masses])).T
        share, _ = self._share(g)
        result: Vector = share * f + (1 - share) * g - self.pull * np.log1p(_norm(Z))
        return result

    def log(self, Z: Matrix) -> Vector:
        """log of the score without the pull of the distance."""
        result = np.empty(len(Z))
        both = np.column_stack([self.weights, self.masses])
        for part, values in self.blocks.exponents(Z):
            top = values.max(axis=1)
            values -= top[:, None]
            f, g = (np.exp(values, out=values) @ both).T
            share, _ = self._share(g * np.exp(top))
            height = top + np.log(np.maximum(share * f + (1 - share) * g, 1e-3 * g))
            result[part] = height[: part.stop - part.start]
        return result

    def mean_gradient(self, Z: Matrix) -> Matrix:
        """The mean of the score's gradient over the line from 0 to each row."""
        distance = _norm(Z)
        unit = Z / np.maximum(distance, np.finfo(np.float64).tiny)[:, None]
        width = 1 / math.sqrt(self.blocks.gamma)
        reach = _norm(self.centres).max() + 7 * width  # where the last kernel has fallen to e⁻⁴⁹
        end = np.arcsinh(np.minimum(distance, reach) / width)
        result = np.zeros_like(Z)
        for node, weight in zip((NODES + 1) / 2, WEIGHTS / 2, strict=True):
            at = width * np.sinh(node * end)
            speed = weight * end * width * np.cosh(node * end)
            result += speed[:, None] * self._gradient(at[:, None] * unit)
        result -= (self.pull * np.log1p(distance))[:, None] * unit
        result /= np.maximum(distance, np.finfo(np.float64).tiny)[:, None]
        return result

    def _gradient(self, Z: Matrix) -> Matrix:
        """The gradient of the score without the pull of the distance."""
        rank = Z.shape[1]
        columns = [self.weights[:, None], self.masses[:, None]]
        sums = self.blocks.times(Z, np.hstack([*columns, *(column * self.centres for column in columns)]))
        f, g = sums[:, :1], sums[:, 1:2]
        slope_f = sums[:, 2 : 2 + rank] - Z * f
        slope_g = sums[:, 2 + rank :] - Z * g
        share, turn = self._share(g)
        result: Matrix = 2 * self.blocks.gamma * (share * slope_f + (1 - share + turn * (f - g)) * slope_g)
        return result

    def _share(self, g: Matrix) -> tuple[Matrix, Matrix]:
        """The share of f in the score, and its derivative by g."""
        if not self.switch:
            return np.ones_like(g), np.zeros_like(g)
        low, width = self.switch / BLEND, math.log(BLEND)
        g = np.clip(g, low, self.switch)
        u = np.log(g / low) / width
        return u * u * (3 - 2 * u), 6 * u * (1 - u) / (g * width)


def _norm(Z: Matrix) -> Vector:
    result: Vector = np.sqrt(np.einsum("ij,ij->i", Z, Z))
    return result


def _require(estimator: WhitenedSVM, name: str, fine: bool, expected: str) -> None:
    if not fine:
        raise InputError(f"{name} must be {expected}, got {getattr(estimator, name)!r}")
