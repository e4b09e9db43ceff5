"""From statistics to results: fits every method, scores every set, and counts. Needs no model and no images."""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dose_ood.benchmark.methods import DOSE, columns_of, ensemble, estimator, methods_for, single
from dose_ood.benchmark.metrics import aupr, auroc_interval, fpr95
from dose_ood.benchmark.probes import PROBES, probe_auroc
from dose_ood.benchmark.results import (
    BACKGROUND,
    ENSEMBLE,
    HELD_OUT,
    METHODS,
    TEST,
    TRAIN,
    Cell,
    Comparison,
    Folder,
    Memorisation,
    Probe,
    Results,
    Study,
)
from dose_ood.benchmark.significance import average_ranks, sign_flip_p_value
from dose_ood.detector import Detector
from dose_ood.errors import DoseWarning
from dose_ood.statistics import Statistics
from dose_ood.storage import Json

Vector = NDArray[np.float64]
EXTREMES = 16  # the images of a set that a method finds most typical, and least


@dataclass(frozen=True, eq=False)
class Scored:
    """What a method on a member says.

    Parameters
    ----------
    method, member
        As in a `Cell`.
    scores
        For the test set and each outlier set, the score of each row; higher = more typical.
    memorisation
        Held-out against training scores.
    """

    method: str
    member: str
    scores: Mapping[str, Vector]
    memorisation: Memorisation


def score(folder: Folder, study: Study, progress: Callable[[int, int], None] | None = None) -> Iterator[Scored]:
    """Fit every method to the training rows of every member and of the ensemble, and score every set.

    The density is fitted to `train` and calibrated on `held_out`; outliers are scored, and nothing else.
    """
    sets = (TRAIN, HELD_OUT, TEST, *study.outliers)
    names = [str(number) for number in range(study.members)]
    found = {m: {s: read(folder, m, s) for s in sets} for m in (*names, BACKGROUND)}
    tables = {m: {s: single(found[m][s], found[BACKGROUND][s]) for s in sets} for m in names}
    if study.members > 1:
        tables[ENSEMBLE] = {s: ensemble([found[m][s] for m in names], found[BACKGROUND][s]) for s in sets}
    work = [
        (method, member)
        for member in tables
        for method in methods_for(study.members)
        if method != "waic" or member == ENSEMBLE
    ]
    for done, (method, member) in enumerate(work, start=1):
        yield _score(method, member, tables[member], (TEST, *study.outliers))
        if progress is not None:
            progress(done, len(work))


def read(folder: Folder, member: str, name: str) -> Statistics:
    """The statistics that a model gives for a set."""
    return Statistics.read(folder.statistics(member, name), on_bad="flag")


def _score(method: str, member: str, tables: Mapping[str, Statistics], scored: Sequence[str]) -> Scored:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "held-out scores differ", DoseWarning)  # it is one of the results
        columns = columns_of(method, tables[TRAIN].names)
        detector = Detector.fit(tables[TRAIN], tables[HELD_OUT], estimator(method), columns)
    check = detector.estimator.memorisation()
    memorisation = Memorisation(method, member, check.ece, check.by_chance, check.p_value)
    return Scored(method, member, {name: detector.score(tables[name]).score for name in scored}, memorisation)


def extremes(scored: Sequence[Scored], name: str) -> NDArray[np.int64]:
    """The rows of a set that some method, on the first member or the ensemble, finds most typical or least."""
    rows: set[int] = set()
    for each in scored:
        if each.member in ("0", ENSEMBLE):
            order = np.argsort(each.scores[name], kind="stable")
            rows |= {*order[:EXTREMES].tolist(), *order[-EXTREMES:].tolist()}
    return np.array(sorted(rows), dtype=np.int64)


def evaluate(
    folder: Folder,
    study: Study,
    scored: Sequence[Scored],
    training: Mapping[str, Mapping[str, float]],
    provenance: Mapping[str, Json],
) -> Results:
    """Everything that follows from the scores and the probes."""
    cells = tuple(cell_of(each.method, each.member, each.scores, name) for each in scored for name in study.outliers)
    aurocs = headline(cells, study)
    others = [method for method in aurocs if method not in DOSE]
    return Results(
        study=study,
        cells=cells,
        ranks=average_ranks(aurocs),
        comparisons=tuple(_compare(aurocs, method, other) for method in DOSE for other in others),
        memorisation=tuple(each.memorisation for each in scored),
        probes=tuple(_probes(folder, study)),
        training=training,
        provenance=provenance,
    )


def reevaluate(folder: Folder, progress: Callable[[int, int], None] | None = None) -> Results:
    """Every cell anew from the statistics that are kept; needs neither models nor images nor torch."""
    found = Results.read(folder.results if folder.results.exists() else folder.study)
    scored = tuple(score(folder, found.study, progress))
    return evaluate(folder, found.study, scored, found.training, found.provenance)


def headline(cells: Sequence[Cell], study: Study) -> dict[str, list[float]]:
    """The AUROC of each method on each outlier set: the mean over single models, or the ensemble's for WAIC."""
    result: dict[str, list[float]] = {}
    for method in methods_for(study.members):
        own = [c for c in cells if c.method == method and (c.member == ENSEMBLE) == (method == "waic")]
        result[method] = [float(np.mean([c.auroc for c in own if c.outlier == name])) for name in study.outliers]
    return {method: result[method] for method in METHODS if method in result}


def cell_of(method: str, member: str, scores: Mapping[str, Vector], outlier: str) -> Cell:
    """How well scores tell an outlier set from the test set."""
    inlier_scores, outlier_scores = scores[TEST], scores[outlier]
    area = auroc_interval(inlier_scores, outlier_scores)
    return Cell(
        outlier=outlier,
        method=method,
        member=member,
        auroc=area.value,
        auroc_low=area.low,
        auroc_high=area.high,
        aupr=aupr(inlier_scores, outlier_scores),
        fpr95=fpr95(inlier_scores, outlier_scores),
        inliers=len(inlier_scores),
        outliers=len(outlier_scores),
    )


def _compare(aurocs: Mapping[str, Sequence[float]], method: str, other: str) -> Comparison:
    differences = np.subtract(aurocs[method], aurocs[other])
    return Comparison(method, other, float(differences.mean()), sign_flip_p_value(differences))


def _probes(folder: Folder, study: Study) -> Iterator[Probe]:
    tables = {name: Statistics.read(folder.probe(name)) for name in (TRAIN, TEST, *study.outliers)}
    for outlier in study.outliers:
        for statistic in PROBES:
            area = probe_auroc(statistic, tables[TRAIN], tables[TEST], tables[outlier])
            yield Probe(outlier, statistic, area)
