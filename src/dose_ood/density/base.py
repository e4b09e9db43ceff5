"""The contract of a density of states."""

import warnings
from abc import ABC, abstractmethod
from typing import ClassVar, Self, final

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, OutlierMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from dose_ood.decision.conformal import check_share, p_values, threshold
from dose_ood.decision.memorisation import Memorisation, ScoreBins, expected_calibration_error, score_bins
from dose_ood.errors import DoseWarning, InputError

QUANTILES = 129  # of each statistic of held-out rows, from the lowest to the highest: what a histogram needs
Vector = NDArray[np.float64]
Matrix = NDArray[np.float64]


class DensityOfStates(OutlierMixin, BaseEstimator, ABC):  # type: ignore[misc]  # scikit-learn has no types
    """How typical a row of statistics is, given the rows of the training data: higher = more typical.

    A subclass writes `__init__` (which only stores its parameters, `discard` among them), `_fit`, `_score`,
    `_contributions` and, if what it learned could be inconsistent, `_check_state`; everything else is final. All that
    is learned is held in attributes that end in `_` and are arrays or numbers, so that one loop can save an estimator.

    `fit` takes training rows. `calibrate` takes held-out rows, and sets the threshold and the p-values; before it, the
    threshold is that of the training rows.
    """

    kind: ClassVar[str]
    minimum_columns: ClassVar[int] = 1
    discard: float

    @abstractmethod
    def _fit(self, X: Matrix) -> None:
        """Learn from training rows."""

    @abstractmethod
    def _score(self, X: Matrix) -> Vector:
        """Typicality of each row, shape (rows,)."""

    @abstractmethod
    def _contributions(self, X: Matrix) -> Matrix:
        """What each column adds to the score of each row, shape (rows, columns)."""

    def _check_state(self) -> None:
        """Refuse learned attributes, read from a file, that `_fit` cannot have left."""

    @final
    def fit(self, X: ArrayLike, y: None = None) -> Self:
        """Learn the density of training rows."""
        check_share("discard", self.discard)
        rows: Matrix = validate_data(
            self, X, dtype=np.float64, ensure_min_samples=2, ensure_min_features=self.minimum_columns
        )
        self._fit(rows)
        for name, value in vars(self).items():
            if name.endswith("_") and isinstance(value, np.ndarray):
                setattr(self, name, np.ascontiguousarray(value))  # as a file keeps it: products round the same
        scores = self._score(rows)
        bins = score_bins(scores)
        self.train_edges_, self.train_shares_, self.n_train_ = bins.edges, bins.shares, bins.rows
        self.train_mean_ = float(scores.mean())
        self.offset_ = threshold(scores, self.discard)
        self.calibration_scores_ = np.empty(0)
        self.calibration_contributions_ = self.calibration_quantiles_ = np.empty((0, rows.shape[1]))
        self.ece_ = self.ece_by_chance_ = self.ece_by_chance_95_ = self.ece_p_value_ = np.nan
        return self

    @final
    def calibrate(self, X: ArrayLike) -> Self:
        """Set the threshold, the p-values and the memorisation check from rows the model was not trained on."""
        rows = self._rows(X)
        scores, contributions = self._score(rows), self._contributions(rows)
        bins = ScoreBins(self.train_edges_, self.train_shares_, self.n_train_)
        found, offset = expected_calibration_error(bins, scores), threshold(scores, self.discard)
        self.calibration_scores_, self.calibration_contributions_ = np.sort(scores), np.sort(contributions, axis=0)
        # Values that occurred: what lies between two of them could overflow.
        self.calibration_quantiles_ = np.quantile(rows, np.linspace(0, 1, QUANTILES), axis=0, method="inverted_cdf")
        self.offset_ = offset
        self.ece_, self.ece_p_value_ = found.ece, found.p_value
        self.ece_by_chance_, self.ece_by_chance_95_ = found.by_chance, found.by_chance_95
        if found.high:
            warnings.warn(
                f"held-out scores differ from training scores: expected calibration error {found.ece:.1%}, by chance "
                f"{found.by_chance:.1%}; the model has probably memorised its training data, or the two are not alike",
                DoseWarning,
                stacklevel=2,
            )
        return self

    @final
    def score_samples(self, X: ArrayLike) -> Vector:
        """Typicality of each row; higher = more typical."""
        return self._score(self._rows(X))

    @final
    def decision_function(self, X: ArrayLike) -> Vector:
        """Score minus threshold: negative = atypical."""
        return self.score_samples(X) - self.offset_

    @final
    def predict(self, X: ArrayLike) -> NDArray[np.int64]:
        """+1 for typical rows, −1 for atypical ones."""
        return np.where(self.score_samples(X) >= self.offset_, 1, -1)

    @final
    def p_values(self, X: ArrayLike) -> Vector:
        """The conformal p-value of each row among the held-out rows: small = atypical."""
        rows = self._rows(X)
        self._require_calibration()
        return p_values(self.calibration_scores_, self._score(rows))

    @final
    def contributions(self, X: ArrayLike) -> Matrix:
        """What each column adds to the score of each row."""
        return self._contributions(self._rows(X))

    @final
    def memorisation(self) -> Memorisation:
        """The memorisation check made by `calibrate`."""
        self._require_calibration()
        return Memorisation(self.ece_, self.ece_by_chance_, self.ece_by_chance_95_, self.ece_p_value_)

    def _rows(self, X: ArrayLike) -> Matrix:
        check_is_fitted(self)
        rows: Matrix = validate_data(self, X, dtype=np.float64, reset=False)
        return rows

    def _require_calibration(self) -> None:
        check_is_fitted(self)
        if not len(self.calibration_scores_):
            raise InputError("no held-out rows yet: call calibrate(X_held_out) first")
