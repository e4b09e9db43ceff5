"""Every density of states as a graph: the same arithmetic as its `score_samples`, in float64."""

import math
from collections.abc import Callable
from typing import cast

import numpy as np

from dose_ood.density.base import DensityOfStates
from dose_ood.density.baselines import Likelihood, LikelihoodRatio, Typicality
from dose_ood.density.kde import ProductKDE
from dose_ood.density.landmark import centre
from dose_ood.density.logkde import Table, tabulate
from dose_ood.density.svm import BLEND, SATURATION, WhitenedSVM
from dose_ood.density.whitening import FURTHEST
from dose_ood.export.graph import FLOAT64, Value, count_at_most, joined, total

Build = Callable[[DensityOfStates, Value], Value]
FURTHEST_BANDWIDTHS = 1e150  # as in ProductKDE: beyond it, the squared distance is no longer a float
LARGEST = float(np.finfo(np.float64).max)


def verdict(estimator: DensityOfStates, rows: Value) -> dict[str, Value]:
    """What `Detector.score` says of rows: score, p_value, is_typical and is_bad, each of shape (n,).

    Parameters
    ----------
    estimator
        Calibrated.
    rows
        float64 of shape (n, columns), in the estimator's order.
    """
    good = (abs(rows) <= LARGEST).cast(FLOAT64).lowest(1) > 0.5
    harmless = good.expand(1).where(rows, 0.0)
    raw = SCORES[estimator.kind](estimator, harmless)
    # A row that is not finite, or whose score is none, is the least typical there is.
    score = (good & raw.is_nan().map("Not")).where(raw, -math.inf)
    calibration = estimator.calibration_scores_
    rank = count_at_most(score.expand(1), [calibration]).squeeze(1)
    return {
        "score": score,
        "p_value": (1.0 + rank.cast(FLOAT64)) / (1 + len(calibration)),
        "is_typical": (score >= estimator.offset_) & good,
        "is_bad": good.map("Not"),
    }


def _column(rows: Value, position: int) -> Value:
    """One column, shape (n,)."""
    return rows.take(np.array(position, np.int64), axis=1)


def _likelihood(estimator: DensityOfStates, rows: Value) -> Value:
    return _column(rows, cast(Likelihood, estimator).column)


def _typicality(estimator: DensityOfStates, rows: Value) -> Value:
    own = cast(Typicality, estimator)
    return -abs(_column(rows, own.column) - float(own.mean_))


def _waic(estimator: DensityOfStates, rows: Value) -> Value:
    columns = int(estimator.n_features_in_)
    mean = rows.sum(1, keep=True) / columns
    return mean.squeeze(1) - (rows - mean).square().sum(1) / columns


def _likelihood_ratio(estimator: DensityOfStates, rows: Value) -> Value:
    own = cast(LikelihoodRatio, estimator)
    return _column(rows, own.column) - _column(rows, own.background)


def _kde(estimator: DensityOfStates, rows: Value) -> Value:
    own = cast(ProductKDE, estimator)
    centred = rows - own.center_
    varies, constant = np.flatnonzero(own.slack_ < 0), np.flatnonzero(own.slack_ >= 0)
    parts = []
    if len(varies):
        scaled = centred.take(varies, axis=1) / own.bandwidth_[varies]
        u = scaled.clip(-FURTHEST_BANDWIDTHS, FURTHEST_BANDWIDTHS)
        parts.append(_interpolated(u, tables_of(own)) - np.log(own.bandwidth_[varies]))
    if len(constant):
        same = abs(centred.take(constant, axis=1)) <= rows.lift(own.slack_[constant])
        chances = np.log(own.n_rows_) - np.log(own.n_rows_ + 1), -np.log(own.n_rows_ + 1)
        parts.append(same.where(rows.lift(chances[0]), chances[1]))
    columns = joined(parts, 1).split(1, *[1] * len(own.slack_))
    # One after the other, as ProductKDE adds them: even the last bit is the same, and that in any batch.
    ordered = [columns[position] for position in np.argsort(np.concatenate([varies, constant]))]
    return total(ordered).squeeze(1)


def tables_of(kde: ProductKDE) -> list[Table]:
    """The table of each column that varies; an exact KDE, which has none, gets those of its `tolerance`."""
    if kde.method == "table":
        return [table for table in kde._tables() if table is not None]
    varies = np.flatnonzero(kde.slack_ < 0)
    share = max(kde.tolerance / len(kde.slack_), 1e-9)
    return [tabulate(np.ascontiguousarray(kde.data_[:, column]), share) for column in varies]


def _interpolated(u: Value, tables: list[Table]) -> Value:
    """Each column of u by the cubics of its table, as `Table.__call__` has it."""
    knots = [table.knots for table in tables]
    piece = count_at_most(u, knots)
    counts = np.array([len(each) for each in knots], np.int64)
    first = np.cumsum(counts) - counts
    distance = u - u.graph.constant(np.concatenate(knots)).take((piece - 1).most(0) + first)
    at = piece + (first + np.arange(len(tables)))  # a table has one more piece than it has knots
    constant, linear, square, cube = np.concatenate([table.cubics for table in tables], axis=1)
    result = u.graph.constant(cube).take(at)
    for coefficients in (square, linear, constant):
        result = result * distance + u.graph.constant(coefficients).take(at)
    return result


def _svm(estimator: DensityOfStates, rows: Value) -> Value:
    own = cast(WhitenedSVM, estimator)
    standardised = ((rows - own.mean_) / own.deviation_).clip(-FURTHEST, FURTHEST)
    z = standardised @ own.rotation_
    squared = z.square().sum(1, keep=True)
    # −γ|z − c|² as a product and a constant for each centre, like `landmark.query` and `landmark.centre`.
    *right, constants = centre(own.centres_, own.gamma_)
    exponents = joined([(2 * own.gamma_) * z, -own.gamma_ * squared], 1) @ np.stack(right) + constants
    kernels = exponents.map("Exp")
    f, g = (kernels @ np.column_stack([own.weights_, own.masses_])).split(1, 1, 1)
    mixed = _blended(f, g, own.switch_)
    pull = SATURATION * own.level_
    return (mixed - pull * (1.0 + squared.map("Sqrt")).map("Log")).squeeze(1)


def _blended(f: Value, g: Value, switch: float) -> Value:
    """f where g is above `switch`, g where it is far below, and in between a passage from one to the other."""
    if not switch:
        return f
    low = switch / BLEND
    u = (g.clip(low, switch) / low).map("Log") / math.log(BLEND)
    share = u * u * (3.0 - 2.0 * u)
    return share * f + (1.0 - share) * g


SCORES: dict[str, Build] = {
    "likelihood": _likelihood,
    "typicality": _typicality,
    "waic": _waic,
    "likelihood_ratio": _likelihood_ratio,
    "kde": _kde,
    "svm": _svm,
}
