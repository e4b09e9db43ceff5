"""A one-class SVM in the span of a few landmarks, with a certificate of how far it is from the optimum."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve, cholesky, solve_triangular
from scipy.optimize import brentq
from threadpoolctl import threadpool_limits

from dose_ood.noise import generator

Vector = NDArray[np.float64]
Matrix = NDArray[np.float64]
Positions = NDArray[np.intp]

BLOCK = 32_000  # kernel values in a block: it stays in a core's cache
SUPERBLOCK = 65_536  # rows whose factors are prepared at once
SERIAL = 250_000  # multiplications in a block: below it, BLAS does not wake other threads
JITTER = 1e-9  # added to the landmarks' kernel matrix
PILOT_ROWS, PILOT_LANDMARKS = 5_000, 250
POOL_ANY, POOL_SUPPORT = 4_500, 1_500  # rows among which landmarks are chosen: any, and of the pilot's support
GAP, PILOT_GAP, MOST_STEPS = 1e-6, 1e-3, 60
SHRINK, GROW, MOST_TRIES = 0.3, 10.0, 8  # of the proximal weight after a solved subproblem, and after so many steps
AUDIT_PAIRS, AUDIT_ROWS = 60_000_000, 1_000  # kernel values spent on the full kernel, but at least so many rows


def query(Z: Matrix, gamma: float) -> Matrix:
    """The left factor of the exponents −γ|z − c|² = query(Z) @ centre(C)."""
    return np.column_stack([2 * gamma * Z, -gamma * np.einsum("ij,ij->i", Z, Z), np.ones(len(Z))])


def centre(C: Matrix, gamma: float) -> Matrix:
    """The right factor of the exponents −γ|z − c|² = query(Z) @ centre(C)."""
    return np.column_stack([C, np.ones(len(C)), -gamma * np.einsum("ij,ij->i", C, C)]).T.copy()


def rbf(left: Matrix, right: Matrix) -> Matrix:
    """exp(−γ|z − c|²) for every row and centre."""
    result: Matrix = left @ right
    return np.exp(result, out=result)


class Blocks:
    """Kernel values between rows and centres, a block at a time, always in the same memory.

    Every block has the same number of rows, a multiple of 16, the last one being filled up: BLAS then treats all rows
    alike, and what comes of a row does not depend on its neighbours, not even in its last bit.
    """

    def __init__(self, centres: Matrix, gamma: float) -> None:
        self.gamma, self.right = gamma, centre(centres, gamma)
        width, count = self.right.shape
        self.step = 16 * max(1, min(BLOCK, SERIAL // width) // (16 * count))
        self.memory = np.empty((self.step, count))

    def exponents(self, Z: Matrix) -> Iterator[tuple[slice, Matrix]]:
        """Slices of the rows with their −γ|z − c|², which the next slice overwrites; the last is filled up."""
        for start in range(0, len(Z), SUPERBLOCK):
            left = query(Z[start : start + SUPERBLOCK], self.gamma)
            rows = len(left)
            left = np.vstack([left, np.zeros((-rows % self.step, left.shape[1]))])
            for first in range(0, rows, self.step):
                values = np.matmul(left[first : first + self.step], self.right, out=self.memory)
                yield slice(start + first, start + min(first + self.step, rows)), values

    def kernel(self, Z: Matrix) -> Iterator[tuple[slice, Matrix]]:
        """Slices of the rows with their exp(−γ|z − c|²), which the next slice overwrites; the last is filled up."""
        for part, values in self.exponents(Z):
            yield part, np.exp(values, out=values)

    def times(self, Z: Matrix, weights: Matrix) -> Matrix:
        """Σ_j weights[j] · exp(−γ|z − c_j|²) for every row z and every column of weights."""
        result = np.empty((len(Z), weights.shape[1]))
        for part, values in self.kernel(Z):
            result[part] = (values @ weights)[: part.stop - part.start]
        return result

    def transposed_times(self, Z: Matrix, weights: Vector) -> Vector:
        """Σ_i weights[i] · exp(−γ|z_i − c|²) for every centre c; rows of weight 0 cost nothing."""
        used = np.flatnonzero(weights)
        result = np.zeros(self.right.shape[1])
        weights = weights[used]
        for part, values in self.kernel(Z[used]):
            result += weights[part] @ values[: part.stop - part.start]
        return result


def choose_landmarks(pool: Matrix, gamma: float, count: int) -> Matrix:
    """Rows of the pool drawn one block at a time, each with probability ∝ its residual to the span of those before.

    References
    ----------
    *Randomly Pivoted Cholesky* (Chen, Epperly, Tropp & Webber, 2023)
    """
    random = generator("landmarks")
    left, right = query(pool, gamma), centre(pool, gamma)
    factor, residual = np.empty((len(pool), count)), np.ones(len(pool))
    chosen: list[int] = []
    while len(chosen) < count:
        candidates = np.flatnonzero(residual > 10 * JITTER)
        done = len(chosen)
        size = min(max(1, count // 12), count - done, len(candidates))
        if not size:
            break
        share = residual[candidates] / residual[candidates].sum()
        new = random.choice(candidates, size, replace=False, p=share)
        gram = rbf(left, right[:, new]) - factor[:, :done] @ factor[new, :done].T
        root = cholesky(gram[new] + JITTER * np.eye(size), lower=True)
        fresh = solve_triangular(root, gram.T, lower=True).T
        factor[:, done : done + size] = fresh
        residual -= np.einsum("ij,ij->i", fresh, fresh)
        residual[new] = 0.0
        chosen.extend(new.tolist())
    return pool[chosen]


def _shares(f: Vector, previous: Vector, level: float, weight: float) -> Vector:
    result: Vector = np.clip(previous + (level - f) / weight, 0.0, 1.0)
    return result


def fill(f: Vector, previous: Vector, weight: float, total: float) -> tuple[float, Vector]:
    """The level ρ at which α = clip(previous + (ρ − f) / weight, 0, 1) sums to `total`, and that α."""
    bottom = f - weight * previous
    count = min(int(total), len(f) - 1)
    low, high = float(bottom.min()), float(bottom.max()) + weight
    level = float(np.partition(bottom, count)[count]) + weight / 2
    for _ in range(200):
        alpha = _shares(f, previous, level, weight)
        excess = float(alpha.sum()) - total
        if abs(excess) <= 1e-13 * total:
            break
        low, high = (low, level) if excess > 0 else (level, high)
        free = np.count_nonzero((alpha > 0) & (alpha < 1))
        level = level - excess * weight / free if free else high
        if not low < level < high:
            level = (low + high) / 2
            if level in (low, high):
                break
    return level, _shares(f, previous, level, weight)


@dataclass
class _State:
    """Where the solver is: f = Φv, the dual α of weight and previous α, and Φᵀα."""

    v: Vector
    f: Vector
    level: float
    alpha: Vector
    image: Vector
    previous: Vector
    weight: float

    def gaps(self, total: float) -> tuple[float, float]:
        """(P(v, ρ) − D(α)) / |D(α)|, and the part of it that is due to v ≠ Φᵀα."""
        dual = self.image @ self.image / 2
        primal = self.v @ self.v / 2 + np.maximum(self.level - self.f, 0.0).sum() - total * self.level
        apart = self.v - self.image
        return float((primal + dual) / dual), float(apart @ apart / 2 / dual)


@dataclass(frozen=True)
class LandmarkSolution:
    """A solved landmark problem; the gaps are relative, see `docs/svm.md`."""

    centres: Matrix
    weights: Vector
    masses: Vector
    level: float
    steps: int
    duality_gap: float
    full_gap: float
    full_gap_error: float
    residual: float


class LandmarkProblem:
    """min ½|v|² + Σ_i max(0, ρ − φ_i · v) − νnρ, with φ_i = L⁻¹k(C, z_i) and LLᵀ = k(C, C) + jitter.

    A proximal-point method on the dual: α ← clip(α_previous + (ρ − f) / weight, 0, 1) with Σα = νn. Each subproblem in
    v is smooth and piecewise quadratic, and is solved by semi-smooth Newton steps with an exact line search.
    """

    def __init__(self, Z: Matrix, landmarks: Matrix, gamma: float, nu: float) -> None:
        self.Z, self.blocks = Z, Blocks(landmarks, gamma)
        gram = rbf(query(landmarks, gamma), self.blocks.right)
        gram = (gram + gram.T) / 2
        gram[np.diag_indices_from(gram)] = 1.0 + JITTER
        self.root: Matrix = cholesky(gram, lower=True)
        self.total = nu * len(Z)

    def weights(self, v: Vector) -> Vector:
        """The coefficients of the landmarks' kernels in φ(·) · v."""
        result: Vector = solve_triangular(self.root, v, lower=True, trans="T")
        return result

    def scores(self, v: Vector) -> Vector:
        """Φv."""
        return self.blocks.times(self.Z, self.weights(v)[:, None])[:, 0]

    def image(self, alpha: Vector) -> Vector:
        """Φᵀα."""
        result: Vector = solve_triangular(self.root, self.blocks.transposed_times(self.Z, alpha), lower=True)
        return result

    def solve(self, alpha: Vector, weight: float, gap: float) -> tuple[_State, float, int]:
        """From a first α and proximal weight to a solution whose relative duality gap is at most `gap`."""
        v = self.image(alpha)
        f = self.scores(v)
        state = _State(v, f, 0.0, alpha, v, alpha, weight)
        self._refill(state)
        tries = 0
        for step in range(MOST_STEPS):
            found, apart = state.gaps(self.total)
            if found <= gap:
                return state, found, step
            solved, stuck = apart < found - apart, tries == MOST_TRIES
            if solved or stuck:
                state.previous, state.weight = state.alpha, state.weight * (SHRINK if solved else GROW)
                self._refill(state)
                tries = 0
            self._newton(state)
            tries += 1
        return state, state.gaps(self.total)[0], MOST_STEPS

    def _refill(self, state: _State) -> None:
        before = state.alpha
        state.level, state.alpha = fill(state.f, state.previous, state.weight, self.total)
        state.image = state.image + self.image(state.alpha - before)

    def _newton(self, state: _State) -> None:
        free = np.flatnonzero((state.alpha > 0) & (state.alpha < 1))
        stride = max(1, len(free) // (4 * len(self.root)))
        hessian = np.eye(len(self.root))
        if len(free):
            kernel = rbf(query(self.Z[free[::stride]], self.blocks.gamma), self.blocks.right)
            features = solve_triangular(self.root, (kernel - kernel.mean(axis=0)).T, lower=True)
            hessian += (stride / state.weight) * (features @ features.T)
        direction: Vector = -cho_solve(cho_factor(hessian), state.v - state.image)
        change = self.scores(direction)
        along, across = float(state.v @ direction), float(direction @ direction)

        def slope(length: float) -> float:
            _, alpha = fill(state.f + length * change, state.previous, state.weight, self.total)
            return along + length * across - float(alpha @ change)

        length = _line_search(slope, float(direction @ (state.v - state.image)))
        state.v = state.v + length * direction
        state.f = state.f + length * change
        self._refill(state)


def _line_search(slope: Callable[[float], float], start: float) -> float:
    """A length at which the increasing function `slope`, which is `start` < 0 at 0, is about 0."""
    end = slope(1.0)
    if abs(end) <= 0.1 * abs(start):
        return 1.0
    low, high = 0.0, 1.0
    while end < 0 and high < 64:
        low, high = high, 2 * high
        end = slope(high)
    if end <= 0:
        return high
    return float(brentq(lambda length: slope(length) if length else start, low, high, xtol=1e-4, rtol=0.05))


def solve_landmarks(Z: Matrix, gamma: float, nu: float, count: int) -> LandmarkSolution:
    """Fit a one-class SVM on whitened rows: a pilot on some rows, landmarks where it has support, then all rows."""
    with threadpool_limits(limits=1, user_api="blas"):  # the work is in blocks too small to share between threads
        return _solve(Z, gamma, nu, count)


def _solve(Z: Matrix, gamma: float, nu: float, count: int) -> LandmarkSolution:
    alpha, weight = _pilot(Z, gamma, nu)
    pool = np.union1d(_evenly(np.ones(len(Z)), POOL_ANY), _evenly(alpha, POOL_SUPPORT))
    landmarks = choose_landmarks(Z[pool], gamma, count)
    problem = LandmarkProblem(Z, landmarks, gamma, nu)
    state, gap, steps = problem.solve(alpha, weight, GAP)
    dual = float(state.image @ state.image) / 2
    excess, error, residual = _audit(problem, state)
    return LandmarkSolution(
        centres=landmarks,
        weights=problem.weights(state.v),
        masses=_masses(Z, problem.blocks, state.alpha),
        level=state.level,
        steps=steps,
        duality_gap=gap,
        full_gap=gap + excess / dual,
        full_gap_error=error / dual,
        residual=residual,
    )


def _pilot(Z: Matrix, gamma: float, nu: float) -> tuple[Vector, float]:
    """A first α for all rows and a proximal weight, from the solution for evenly spaced rows."""
    some = Z[_evenly(np.ones(len(Z)), PILOT_ROWS)]
    problem = LandmarkProblem(some, choose_landmarks(some, gamma, PILOT_LANDMARKS), gamma, nu)
    flat = np.full(len(some), nu)
    spread = _spread(problem.scores(problem.image(flat)), nu)
    state, _, _ = problem.solve(flat, spread, PILOT_GAP)
    problem.Z = Z
    f = problem.scores(state.v) * (len(Z) / len(some))
    weight = _spread(f, nu) / 4
    return fill(f, np.zeros(len(Z)), weight, nu * len(Z))[1], weight


def _spread(f: Vector, nu: float) -> float:
    """The range of the scores that are near the quantile nu."""
    low, high = np.quantile(f, [nu - min(0.1, nu / 2), nu + min(0.1, (1 - nu) / 2)])
    return float(max(high - low, 0.01 * np.abs(f).max()))


def _evenly(shares: Vector, count: int) -> Positions:
    """At most `count` positions, evenly spaced in the cumulative sum of shares."""
    heights = np.cumsum(shares)
    marks = (np.arange(count) + 0.5) * (heights[-1] / count)
    return np.unique(np.minimum(np.searchsorted(heights, marks), len(shares) - 1))


def _audit(problem: LandmarkProblem, state: _State) -> tuple[float, float, float]:
    """½αᵀ(K − Q)α for the full kernel K and the landmarks' kernel Q, its standard error, and max |Kα − f|.

    Exact, with an error of 0, if all support rows are seen; else estimated from rows drawn at random.
    """
    support = np.flatnonzero(state.alpha)
    count = min(len(support), max(AUDIT_ROWS, AUDIT_PAIRS // len(support)))
    seen = support
    if count < len(support):
        seen = np.sort(generator("audit").choice(support, count, replace=False))
    Z, alpha = problem.Z, state.alpha
    full = Blocks(Z[seen], problem.blocks.gamma).transposed_times(Z, alpha)
    spanned = problem.blocks.times(Z[seen], problem.weights(state.image)[:, None])[:, 0]
    terms = alpha[seen] * (full - spanned) * (len(support) / 2)
    error = terms.std() * np.sqrt((1 - count / len(support)) / count)
    return float(terms.mean()), float(error), float(np.abs(full - state.f[seen]).max())


def _masses(Z: Matrix, landmarks: Blocks, alpha: Vector) -> Vector:
    """The dual weight of the rows nearest to each landmark."""
    result = np.zeros(landmarks.right.shape[1])
    for part, values in landmarks.exponents(Z):
        nearest = values[: part.stop - part.start].argmax(axis=1)
        result += np.bincount(nearest, alpha[part], minlength=len(result))
    return result
