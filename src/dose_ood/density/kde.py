"""DoSE_KDE: a product of one-dimensional kernel density estimates."""

from collections.abc import Iterator, Sequence
from typing import Literal

import numpy as np

from dose_ood.density.bandwidth import RULES, Rule
from dose_ood.density.base import DensityOfStates, Matrix, Vector
from dose_ood.density.logkde import Table, log_kde, tabulate
from dose_ood.errors import InputError

ROWS = 8192  # scored at a time, so that what is computed stays in the processor's cache


class ProductKDE(DensityOfStates):
    """The sum over columns of the log of a Gaussian kernel density estimate (Eq. 1 of the paper, DoSE_KDE).

        score(x) = Σ_d log 1/(n h_d) Σ_i φ((x_d − x_id) / h_d)

    The log-density of a column is kept as a table, whose error `max_error_` is certified when it is made; it holds
    from the midst of the data to 4e6 standard deviations away from them, inside gaps as well. What is beyond float64
    is not promised: a value of −5e13 nats, a million standard deviations out, is itself rounded to 0.008 nats.

    A constant column is a statistic with one value: it adds log n/(n+1) to rows that have this value and
    log 1/(n+1) to others, by Laplace's rule of succession. It neither decides alone nor hides the other columns.

    Parameters
    ----------
    bandwidth
        "scott" (SciPy's default: the column's standard deviation times n^(−1/5)), "silverman", "isj" (improved
        Sheather–Jones), a number or one per column to multiply the standard deviation with, as in SciPy.
    method
        "table", or "exact": all training rows are kept, and summed over for every score.
    tolerance
        The largest error of a table's score, over all columns together, in nats.
    discard
        Share of held-out rows below the threshold.

    References
    ----------
    *Density of States Estimation for Out-of-Distribution Detection* (Morningstar et al., 2020)

    Examples
    --------
    >>> rows = np.random.default_rng(0).normal(size=(1000, 3))
    >>> kde = ProductKDE().fit(rows)
    >>> bool((kde.score_samples(rows) > kde.score_samples([[9.0, 0.0, 0.0]])).all())
    True
    >>> bool(kde.max_error_.sum() < 1e-6)
    True
    """

    kind = "kde"

    def __init__(
        self,
        *,
        bandwidth: Rule | float | Sequence[float] = "scott",
        method: Literal["table", "exact"] = "table",
        tolerance: float = 1e-6,
        discard: float = 0.05,
    ) -> None:
        self.bandwidth = bandwidth
        self.method = method
        self.tolerance = tolerance
        self.discard = discard

    def _fit(self, X: Matrix) -> None:
        if self.method not in ("table", "exact"):
            raise InputError(f"method must be 'table' or 'exact', got {self.method!r}")
        if not 1e-9 <= self.tolerance <= 1:
            raise InputError(f"tolerance must be from 1e-9 to 1 nat, got {self.tolerance}")
        self.n_rows_, columns = X.shape
        X = np.sort(X, axis=0)  # so that the order of rows cannot matter, not even by rounding
        self.center_ = np.median(X, axis=0)
        rounding = 8 * np.finfo(np.float64).eps * np.abs(X).max(axis=0)
        self.slack_ = np.where(X.std(axis=0) <= rounding, rounding, -1.0)  # of a constant column; −1: not constant
        self.bandwidth_ = self._bandwidths(X)
        self.max_error_ = np.zeros(columns)
        self.data_ = np.empty((0, columns))
        self.knots_, self.cubics_ = np.empty(0), np.empty((4, 0))
        self.knot_counts_ = np.zeros(columns, dtype=np.int64)
        scaled = (X - self.center_) / self.bandwidth_
        if self.method == "exact":
            self.data_ = scaled
            return
        share = max(self.tolerance / columns, 1e-9)
        tables = {c: tabulate(scaled[:, c], share) for c in range(columns) if self.slack_[c] < 0}
        for c, table in tables.items():
            self.knot_counts_[c], self.max_error_[c] = len(table.knots), table.error
        self.knots_ = np.concatenate([self.knots_, *(table.knots for table in tables.values())])
        self.cubics_ = np.concatenate([self.cubics_, *(table.cubics for table in tables.values())], axis=1)

    def _check_state(self) -> None:
        tabulated = (self.slack_ < 0) & (self.method == "table")
        rising = [np.diff(knots) > 0 for knots in np.split(self.knots_, np.cumsum(self.knot_counts_)[:-1])]
        rules = {
            "n_rows_ must be 2 or more": self.n_rows_ >= 2,
            "bandwidth_ must be positive": bool((self.bandwidth_ > 0).all()),
            "max_error_ must not be negative": bool((self.max_error_ >= 0).all()),
            "knot_counts_ must be positive where there is a table, else 0": np.array_equal(
                self.knot_counts_ > 0, tabulated
            ),
            "knot_counts_ must add up to the number of knots_": self.knot_counts_.sum() == len(self.knots_),
            "cubics_ must be one more than knots_ a table": self.cubics_.shape[1] == len(self.knots_) + tabulated.sum(),
            "knots_ must rise": all(rise.all() for rise in rising),
            "data_ must be the training rows of the exact method": len(self.data_)
            == self.n_rows_ * (self.method == "exact"),
        }
        for rule, kept in rules.items():
            if not kept:
                raise InputError(f"kde: {rule}")

    def _bandwidths(self, X: Matrix) -> Vector:
        """One bandwidth a column, in its units; 1 for a constant column."""
        varies = self.slack_ < 0
        if isinstance(self.bandwidth, str):
            if self.bandwidth not in RULES:
                raise InputError(f"bandwidth must be one of {', '.join(RULES)}, or numbers, got {self.bandwidth!r}")
            rule = RULES[self.bandwidth]
            return np.array([rule(X[:, c]) if varies[c] else 1.0 for c in range(X.shape[1])])
        factors = np.asarray(self.bandwidth, dtype=np.float64)
        if factors.shape not in ((), (X.shape[1],)) or not (np.isfinite(factors) & (factors > 0)).all():
            raise InputError(f"bandwidth must be a positive number or {X.shape[1]} of them, got {self.bandwidth}")
        return np.where(varies, factors * X.std(axis=0, ddof=1), 1.0)

    def _score(self, X: Matrix) -> Vector:
        result = np.zeros(len(X))
        for rows, _, values in self._log_densities(X):
            result[rows] += values
        return result

    def _contributions(self, X: Matrix) -> Matrix:
        result = np.empty_like(X)
        for rows, column, values in self._log_densities(X):
            result[rows, column] = values
        return result

    def _log_densities(self, X: Matrix) -> Iterator[tuple[slice, int, Vector]]:
        """The log-density of each column, a block of rows at a time."""
        tables = self._tables()
        for start in range(0, len(X), ROWS):
            rows = slice(start, start + ROWS)
            for c, table in enumerate(tables):
                x = X[rows, c] - self.center_[c]
                if self.slack_[c] >= 0:
                    same = np.abs(x) <= self.slack_[c]
                    yield rows, c, np.where(same, np.log(self.n_rows_), 0.0) - np.log(self.n_rows_ + 1)
                    continue
                # Beyond 1e150 bandwidths, the squared distance is no longer a float.
                u = np.clip(x / self.bandwidth_[c], -1e150, 1e150)
                values = log_kde(self.data_[:, c], u) if table is None else table(u)
                yield rows, c, values - np.log(self.bandwidth_[c])

    def _tables(self) -> list[Table | None]:
        """The table of each column; none for an exact method or a constant column."""
        tables: list[Table | None] = []
        knot = piece = 0
        for error, count in zip(self.max_error_.tolist(), self.knot_counts_.tolist(), strict=True):
            if not count:
                tables.append(None)
                continue
            tables.append(Table(self.knots_[knot : knot + count], self.cubics_[:, piece : piece + count + 1], error))
            knot, piece = knot + count, piece + count + 1
        return tables
