"""The four methods the paper compares with, as functions of columns of log-likelihoods."""

import numpy as np

from dose_ood.density.base import DensityOfStates, Matrix, Vector
from dose_ood.errors import InputError


class Likelihood(DensityOfStates):
    """The log-likelihood itself, from its one-sided threshold: log q(x).

    Parameters
    ----------
    column
        Position of the log-likelihood among the columns.
    discard
        Share of held-out rows below the threshold.

    References
    ----------
    *Novelty Detection and Neural Network Validation* (Bishop, 1994)

    Examples
    --------
    >>> Likelihood().fit([[-3.0], [-2.0], [-1.0]]).score_samples([[-9.0]])
    array([-9.])
    """

    kind = "likelihood"

    def __init__(self, *, column: int = 0, discard: float = 0.05) -> None:
        self.column = column
        self.discard = discard

    def _fit(self, X: Matrix) -> None:
        _check_column("column", self.column, X)

    def _score(self, X: Matrix) -> Vector:
        return X[:, self.column].copy()

    def _contributions(self, X: Matrix) -> Matrix:
        return _only(self.column, X[:, self.column], X)


class Typicality(DensityOfStates):
    """The typicality test for one sample: −|log q(x) − mean log q|, the mean being over the training rows.

    Parameters
    ----------
    column
        Position of the log-likelihood among the columns.
    discard
        Share of held-out rows below the threshold.

    References
    ----------
    *Detecting Out-of-Distribution Inputs to Deep Generative Models Using Typicality* (Nalisnick et al., 2019)

    Examples
    --------
    >>> Typicality().fit([[-3.0], [-2.0], [-1.0]]).score_samples([[-9.0], [-2.0], [5.0]])
    array([-7., -0., -7.])
    """

    kind = "typicality"

    def __init__(self, *, column: int = 0, discard: float = 0.05) -> None:
        self.column = column
        self.discard = discard

    def _fit(self, X: Matrix) -> None:
        _check_column("column", self.column, X)
        self.mean_ = float(X[:, self.column].mean())

    def _score(self, X: Matrix) -> Vector:
        result: Vector = -np.abs(X[:, self.column] - self.mean_)
        return result

    def _contributions(self, X: Matrix) -> Matrix:
        return _only(self.column, self._score(X), X)


class WAIC(DensityOfStates):
    """The Watanabe–Akaike information criterion: the mean of the members' log-likelihoods minus their variance.

    Every column is the log-likelihood under one member of an ensemble. The variance is the population's (over K, not
    K − 1), as an expectation over members has it. A member contributes (L − (L − mean)²) / K.

    References
    ----------
    *WAIC, but Why? Generative Ensembles for Robust Anomaly Detection* (Choi et al., 2018)

    Examples
    --------
    >>> WAIC().fit([[-3.0, -1.0], [-2.0, -2.0]]).score_samples([[-3.0, -1.0], [-2.0, -2.0]])
    array([-3., -2.])
    """

    kind = "waic"

    def __init__(self, *, discard: float = 0.05) -> None:
        self.discard = discard

    def _fit(self, X: Matrix) -> None:
        pass

    def _score(self, X: Matrix) -> Vector:
        result: Vector = X.mean(axis=1) - X.var(axis=1)
        return result

    def _contributions(self, X: Matrix) -> Matrix:
        result: Matrix = (X - (X - X.mean(axis=1, keepdims=True)) ** 2) / X.shape[1]
        return result


class LikelihoodRatio(DensityOfStates):
    """The log-likelihood minus that of a background model: log q(x) − log q_background(x).

    Parameters
    ----------
    column, background
        Positions of the two log-likelihoods among the columns.
    discard
        Share of held-out rows below the threshold.

    References
    ----------
    *Likelihood Ratios for Out-of-Distribution Detection* (Ren et al., 2019)

    Examples
    --------
    >>> LikelihoodRatio().fit([[-3.0, -5.0], [-2.0, -4.0]]).score_samples([[-3.0, -1.0]])
    array([-2.])
    """

    kind = "likelihood_ratio"
    minimum_columns = 2

    def __init__(self, *, column: int = 0, background: int = 1, discard: float = 0.05) -> None:
        self.column = column
        self.background = background
        self.discard = discard

    def _fit(self, X: Matrix) -> None:
        _check_column("column", self.column, X)
        _check_column("background", self.background, X)

    def _score(self, X: Matrix) -> Vector:
        result: Vector = X[:, self.column] - X[:, self.background]
        return result

    def _contributions(self, X: Matrix) -> Matrix:
        return _only(self.column, X[:, self.column], X) - _only(self.background, X[:, self.background], X)


def _check_column(name: str, position: int, X: Matrix) -> None:
    if not 0 <= position < X.shape[1]:
        raise InputError(f"{name} must be a position from 0 to {X.shape[1] - 1}, got {position}")


def _only(column: int, values: Vector, X: Matrix) -> Matrix:
    result = np.zeros_like(X)
    result[:, column] = values
    return result
