"""Figures from tables of statistics, scores and results; they are returned, not written."""

from dose_ood.plots.curves import (
    calibration_panels,
    degradation_curve,
    degradation_panels,
    loss_curve,
    loss_panels,
    roc_panels,
    score_distributions,
    score_panels,
)
from dose_ood.plots.panels import Key, Panels
from dose_ood.plots.style import png_file, svg, svg_file, variable
from dose_ood.plots.tables import decision_regions, gaussian_panels, histogram_panels, histograms, region_panels

__all__ = [
    "Key",
    "Panels",
    "calibration_panels",
    "decision_regions",
    "degradation_curve",
    "degradation_panels",
    "gaussian_panels",
    "histogram_panels",
    "histograms",
    "loss_curve",
    "loss_panels",
    "png_file",
    "region_panels",
    "roc_panels",
    "score_distributions",
    "score_panels",
    "svg",
    "svg_file",
    "variable",
]
