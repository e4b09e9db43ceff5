"""Verdicts for people: why each sample is what it is, and what the page draws it on."""

import base64
import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dose_ood.decision.explain import explain
from dose_ood.detector import Detector
from dose_ood.service.judge import Images, Verdicts

Vector = NDArray[np.float64]

BINS = 36
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
    """What samples are drawn on: histograms of held-out scores, and of the values of each statistic of held-out data.

    Of a detector that was saved without those values, what each statistic adds to held-out scores.
    """
    estimator = detector.estimator
    values, added = estimator.calibration_quantiles_, estimator.calibration_contributions_
    statistics: dict[str, object] = {
        name: {"of": "value", **_from_quantiles(values[:, column])}
        if len(values)
        else {"of": "contribution", **histogram(added[:, column])}
        for column, name in enumerate(detector.statistics)
    }
    return {"score": histogram(estimator.calibration_scores_), "statistics": statistics}


def histogram(values: Vector) -> dict[str, object]:
    """Counts of sorted values in bins of equal width; the rarest on the low side share the first."""
    low, high = float(np.quantile(values, TAIL)), float(values[-1])
    if not high > low:
        low, high = low - 0.5, high + 0.5
    counts, edges = np.histogram(np.clip(values, low, None), BINS, (low, high))
    return {"low": float(edges[0]), "high": float(edges[-1]), "counts": counts.tolist()}


def _from_quantiles(quantiles: Vector) -> dict[str, object]:
    """Shares of values, of which evenly spaced quantiles are known, in bins of equal width; the rarest at both ends."""
    levels, low, high = np.linspace(0, 1, len(quantiles)), quantiles[1], quantiles[-2]
    if not high > low:
        low, high = low - 0.5, high + 0.5
    below = np.interp(np.linspace(low, high, BINS + 1), quantiles, levels)
    below[0], below[-1] = 0.0, 1.0
    return {"low": float(low), "high": float(high), "counts": np.diff(below).round(6).tolist()}
