"""The figures of a benchmark's report, as far as its folder has what they show."""

from collections.abc import Mapping

from dose_ood.benchmark.methods import DOSE
from dose_ood.benchmark.results import HELD_OUT, METHODS, TEST, TRAIN
from dose_ood.benchmark.toys import degradation
from dose_ood.plots import (
    Panels,
    calibration_panels,
    degradation_panels,
    histogram_panels,
    loss_panels,
    region_panels,
    roc_panels,
    score_panels,
    svg,
    variable,
)
from dose_ood.report.curves import Plane, band, pp, roc, shares
from dose_ood.report.evidence import Evidence
from dose_ood.report.html import legend, panels

COUNTS = (1, 3, 10, 30, 100, 300, 1_000, 3_000, 10_000, 30_000, 100_000, 300_000)
DASHES = {"": "", "-": "none", "--": "6 3", ":": "2 3"}


def drawn(drawing: Panels, what: str, caption: str) -> str:
    """A drawing as a block: panels that flow, their legend, and what to see."""
    parts = [svg(figure, f"{what}: {title}" if title else what) for title, figure in drawing.each().items()]
    keys = {label: (variable(key.colour), DASHES[key.dash]) for label, key in drawing.legend.items()}
    return panels(parts, legend(keys) if keys else "", caption)


def histograms(evidence: Evidence) -> Panels:
    """Every statistic, in-distribution against each outlier set (Appendix E)."""
    outliers = {name: evidence.tables[name] for name in evidence.outliers}
    return histogram_panels(evidence.tables[TEST], outliers)


def rocs(evidence: Evidence) -> Panels:
    """ROC curves: a panel for each outlier set."""
    curves = {}
    for outlier in evidence.outliers:
        scores = {METHODS[method]: found for method, found in evidence.scores.items()}
        curves[outlier] = {label: roc(found[TEST], found[outlier]) for label, found in scores.items()}
    return roc_panels(curves)


def regions(evidence: Evidence, plane: Plane, outlier: str) -> Panels:
    """What likelihood, typicality test and DoSE discard in the plane of two statistics (Figure 2)."""
    inlier, outlying = evidence.tables[TEST], evidence.tables[outlier]
    titles = {f"{name}: AUROC {plane.auroc(name, inlier, outlying):.3f}": m for name, m in plane.methods.items()}
    return region_panels(titles, inlier, outlying, plane.x, plane.y, sign=plane.sign)


def calibration(evidence: Evidence) -> Panels:
    """Training against held-out scores: P-P curves, and the bins of the calibration error of DoSE."""
    scores = {METHODS[method]: (found[TRAIN], found[HELD_OUT]) for method, found in evidence.scores.items()}
    rows = (len(evidence.tables[TRAIN]), len(evidence.tables[HELD_OUT]))
    bins = {METHODS[method]: shares(*scores[METHODS[method]]) for method in DOSE if method in evidence.scores}
    return calibration_panels({label: pp(*pair) for label, pair in scores.items()}, band(*rows), bins)


def score_histogram(evidence: Evidence, method: str) -> Panels:
    """Scores of all sets by one method, and its threshold."""
    found = evidence.scores[method]
    outliers = {name: found[name] for name in evidence.outliers}
    return score_panels(found[TRAIN], found[HELD_OUT], outliers, evidence.detectors[method].estimator.offset_)


def superfluous(evidence: Evidence) -> Panels:
    """AUROC of DoSE KDE with more and more useless or obfuscating statistics (Appendix D)."""
    scores = evidence.scores["kde"]
    curves: Mapping[str, Mapping[str, list[float]]] = {
        kind: {
            name: degradation(scores[TEST], scores[name], COUNTS, obfuscating=kind == "obfuscating")
            for name in evidence.outliers
        }
        for kind in ("useless", "obfuscating")
    }
    return degradation_panels(COUNTS, curves)


def losses(evidence: Evidence) -> Panels:
    """The loss of every run."""
    return loss_panels({_run(name): log for name, log in evidence.logs.items()})


def _run(name: str) -> str:
    return f"model {name}" if name.isdigit() else name
