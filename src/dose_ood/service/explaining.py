"""Verdicts for people: why each sample is what it is, and what the page draws it on."""

import base64
import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dose_ood.decision.explain import explain
from dose_ood.density.kde import ProductKDE
from dose_ood.detector import Detector
from dose_ood.service.judge import Images, Verdicts

Vector = NDArray[np.float64]

POINTS = 121  # of a curve
BINS = 36
DEPTH = 7.0  # a curve goes down to e^−7 of its height
TAIL = 0.005  # of held-out rows, which share the first bin so that one outlier does not flatten the rest


def samples_of(detector: Detector, verdicts: Verdicts, rows: Sequence[int]) -> list[dict[str, object]]:
    """A description of some samples, each with its statistics from the most to the least damning."""
    chosen = verdicts.at(np.asarray(rows, np.int64))
    good = np.flatnonzero(~chosen.scores.is_bad)
    estimator = detector.estimator
    told = explain(
        chosen.contributions[good],
        estimator.calibration_contributions_,
        names=detector.statistics,
        values=chosen.values[good],
        scores=chosen.scores.score[good],
        p_values=chosen.scores.p_value[good],
        is_typical=chosen.scores.is_typical[good],
    )
    by_row = dict(zip(good.tolist(), told, strict=True))
    found: list[dict[str, object]] = []
    for place, row in enumerate(rows):
        if place in by_row:
            parts = [vars(part) for part in by_row[place].parts]
            summary = by_row[place].summary
        else:
            parts, summary = _bad(detector, chosen.values[place], float(chosen.scores.p_value[place]))
        found.append(
            {
                "row": int(row),
                "score": finite(chosen.scores.score[place]),
                "p_value": float(chosen.scores.p_value[place]),
                "is_typical": bool(chosen.scores.is_typical[place]),
                "is_bad": bool(chosen.scores.is_bad[place]),
                "summary": summary,
                "parts": parts,
                "image": _picture(chosen.images, place),
                "reconstruction": _picture(chosen.reconstructions, place),
            }
        )
    return found


def _bad(detector: Detector, values: Vector, p_value: float) -> tuple[list[dict[str, object]], str]:
    bad = [name for name, value in zip(detector.statistics, values, strict=True) if not math.isfinite(value)]
    order = sorted(zip(detector.statistics, values.tolist(), strict=True), key=lambda part: part[0] not in bad)
    parts: list[dict[str, object]] = [
        {"name": name, "value": finite(value), "contribution": None, "percentile": None} for name, value in order
    ]
    are = "is not a finite number" if len(bad) == 1 else "are not finite numbers"
    return parts, f"atypical (p = {p_value:.2g}): {', '.join(bad)} {are}"


def _picture(images: Images | None, place: int) -> dict[str, object] | None:
    if images is None:
        return None
    pixels = np.ascontiguousarray(images[place])
    return {"shape": list(pixels.shape), "pixels": base64.b64encode(pixels.tobytes()).decode()}


def finite(value: float) -> float | None:
    """A number for JSON: None if it is not finite."""
    return float(value) if math.isfinite(value) else None


def charts(detector: Detector) -> dict[str, object]:
    """What samples are drawn on: held-out scores, and for each statistic what the detector knows of its values.

    A KDE knows the density of the training data along each statistic. Of other estimators, and of constant columns,
    the histogram of held-out contributions is drawn.
    """
    estimator = detector.estimator
    statistics: dict[str, object] = {}
    for column, name in enumerate(detector.statistics):
        curve = _density(estimator, column) if isinstance(estimator, ProductKDE) else None
        held_out = estimator.calibration_contributions_[:, column]
        statistics[name] = curve or {"of": "contribution", **histogram(held_out)}
    return {"score": histogram(estimator.calibration_scores_), "statistics": statistics}


def histogram(values: Vector) -> dict[str, object]:
    """Counts of sorted values in bins of equal width; the rarest on the low side share the first."""
    low, high = float(np.quantile(values, TAIL)), float(values[-1])
    if not high > low:
        low, high = low - 0.5, high + 0.5
    counts, edges = np.histogram(np.clip(values, low, None), BINS, (low, high))
    return {"low": float(edges[0]), "high": float(edges[-1]), "counts": counts.tolist()}


def _density(kde: ProductKDE, column: int) -> dict[str, object] | None:
    """The density of training data along one statistic, None if it is constant."""
    if kde.slack_[column] >= 0:
        return None

    def log_density(x: Vector) -> Vector:
        rows = np.tile(kde.center_, (len(x), 1))
        rows[:, column] = x
        found: Vector = kde.contributions(rows)[:, column]
        return found

    low = high = float(kde.center_[column])
    reach = float(kde.bandwidth_[column])
    for _ in range(40):  # until both ends are far below the top
        low, high = kde.center_[column] - reach, kde.center_[column] + reach
        heights = log_density(np.linspace(low, high, 4 * POINTS))
        if max(heights[0], heights[-1]) < heights.max() - 2 * DEPTH:
            break
        reach *= 1.6
    grid = np.linspace(low, high, 4 * POINTS)
    inside = grid[heights > heights.max() - DEPTH]
    x = np.linspace(inside[0], inside[-1], POINTS)
    y = np.exp(log_density(x) - heights.max())
    top = float(y.max())
    return {"of": "value", "low": float(x[0]), "high": float(x[-1]), "heights": [round(float(h) / top, 4) for h in y]}
