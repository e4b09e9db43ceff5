"""The tables of a benchmark's report."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from dose_ood.benchmark.paper import RANKS, paper_auroc
from dose_ood.benchmark.results import ENSEMBLE, METHODS, Cell, Memorisation, Results
from dose_ood.report.evidence import auroc_of
from dose_ood.report.html import NOTHING, details, grid, td, th

PLACES = {"bits_per_dim": 3, "seconds": 0, "epochs": 0}  # digits behind the point
Paper = Callable[[str, str], float | None]  # outlier set, method -> the paper's AUROC


def paper_of(results: Results) -> Paper:
    """The paper's numbers for the data and the model of a study."""
    inlier = Path(results.study.inlier.partition(":")[0]).stem
    return lambda outlier, method: paper_auroc(inlier, outlier, method, results.study.model)


def methods_of(results: Results) -> list[str]:
    """The methods that have cells, in the order of the paper's table."""
    return [method for method in METHODS if any(cell.method == method for cell in results.cells)]


def outliers_of(results: Results) -> list[str]:
    """The outlier sets that have cells."""
    return list(dict.fromkeys(cell.outlier for cell in results.cells))


def auroc_table(results: Results, paper: Paper) -> str:
    """For each outlier set: mean and spread over models, the ensemble, the paper's number and the difference."""
    methods = methods_of(results)
    bodies = []
    for outlier in outliers_of(results):
        rows = _auroc_rows(results, outlier, methods, paper)
        lines = []
        for position, (name, cells) in enumerate(rows.items()):
            head = th(outlier, "rowgroup", len(rows)) if position == 0 else ""
            lines.append(f"<tr>{head}{th(name, mark='text')}{''.join(cells)}</tr>")
        bodies.append(f'<tbody class="pair">{"".join(lines)}</tbody>')
    spread = "; ± is the standard deviation over models" if _models(results) > 1 else ""
    caption = (
        f"AUROC of telling the test set from each outlier set{spread}. Marked: the best of a row. "
        "The difference is that of the models' mean from the paper (of the ensemble for a method that needs one). "
        "Rest on a number for its 95 % interval."
    )
    return grid(["outliers", "", *(METHODS[method] for method in methods)], bodies, caption, "grouped", words=2)


def _models(results: Results) -> int:
    return len({cell.member for cell in results.cells} - {ENSEMBLE})


def _auroc_rows(results: Results, outlier: str, methods: Sequence[str], paper: Paper) -> dict[str, list[str]]:
    members = {method: results.members(outlier, method) for method in methods}
    whole = {method: results.ensemble(outlier, method) for method in methods}
    known = {method: paper(outlier, method) for method in methods}
    means = {m: float(np.mean([c.auroc for c in cells])) for m, cells in members.items() if cells}
    count = max(map(len, members.values()), default=0)
    rows: dict[str, list[str]] = {}
    if means:
        best = max(round(mean, 3) for mean in means.values())
        rows["1 model" if count == 1 else f"{count} models"] = [_mean_cell(members[m], best) for m in methods]
    found = [cell for cell in whole.values() if cell is not None]
    if found:
        best = max(round(cell.auroc, 3) for cell in found)
        rows["ensemble"] = [_ensemble_cell(whole[m], best) for m in methods]
    if any(value is not None for value in known.values()):
        ours = {m: auroc_of(results, outlier, m) for m in methods}
        rows["paper"] = [td(_number(known[m])) for m in methods]
        rows["difference"] = [td(_difference(ours[m], known[m])) for m in methods]
    return rows


def _mean_cell(cells: Sequence[Cell], best: float) -> str:
    if not cells:
        return td(NOTHING)
    values = np.array([cell.auroc for cell in cells])
    hint = "; ".join(f"model {c.member}: {c.auroc:.4f}, {c.auroc_low:.4f} to {c.auroc_high:.4f}" for c in cells)
    small = f"± {values.std(ddof=1):.3f}" if len(values) > 1 else ""
    return td(f"{values.mean():.3f}", "best" if round(float(values.mean()), 3) == best else "", hint, small)


def _ensemble_cell(cell: Cell | None, best: float) -> str:
    if cell is None:
        return td(NOTHING)
    hint = f"95 % interval {cell.auroc_low:.4f} to {cell.auroc_high:.4f}"
    return td(f"{cell.auroc:.3f}", "best" if round(cell.auroc, 3) == best else "", hint)


def _number(value: float | None, digits: int = 3) -> str:
    return NOTHING if value is None else f"{value:.{digits}f}"


def _difference(ours: float | None, theirs: float | None) -> str:
    return NOTHING if ours is None or theirs is None else signed(round(ours, 3) - theirs)


def signed(value: float) -> str:
    """A difference with its sign.

    Examples
    --------
    >>> signed(-0.0123), signed(0.05), signed(-0.0001)
    ('−0.012', '+0.050', '0.000')
    """
    text = f"{abs(value):.3f}"
    return text if text == "0.000" else f"{'+' if value > 0 else '−'}{text}"


def other_measures(results: Results) -> str:
    """AUPR and FPR95, the mean over models or the ensemble's."""
    methods, bodies = methods_of(results), []
    for outlier in outliers_of(results):
        chosen = {m: results.members(outlier, m) or _one(results.ensemble(outlier, m)) for m in methods}
        lines = []
        for position, (label, field, best_of) in enumerate((("AUPR", "aupr", max), ("FPR95", "fpr95", min))):
            values = {m: round(float(np.mean([getattr(c, field) for c in chosen[m]])), 3) for m in methods if chosen[m]}
            best = best_of(values.values())
            cells = [td(_number(values.get(m)), "best" if values.get(m) == best else "") for m in methods]
            head = th(outlier, "rowgroup", 2) if position == 0 else ""
            lines.append(f"<tr>{head}{th(label, mark='text')}{''.join(cells)}</tr>")
        bodies.append(f'<tbody class="pair">{"".join(lines)}</tbody>')
    caption = (
        "AUPR: area under precision over recall, outliers being what is sought (higher is better; it depends on how "
        "many rows the two sets have). FPR95: the share of inliers discarded where 95 % of outliers are (lower is "
        "better)."
    )
    return grid(["outliers", "", *(METHODS[method] for method in methods)], bodies, caption, "grouped", words=2)


def _one(cell: Cell | None) -> tuple[Cell, ...]:
    return () if cell is None else (cell,)


def every_cell(results: Results) -> str:
    """Every number there is, with its interval."""
    header = ["outliers", "method", "model", "AUROC", "95 % interval", "AUPR", "FPR95", "inliers", "outliers"]
    lines = []
    for cell in results.cells:
        texts = (METHODS.get(cell.method, cell.method), cell.member)
        numbers = (f"{cell.auroc:.4f}", f"{cell.auroc_low:.4f} to {cell.auroc_high:.4f}", f"{cell.aupr:.4f}")
        rest = (f"{cell.fpr95:.4f}", f"{cell.inliers:,}", f"{cell.outliers:,}")
        cells = [*(td(text, "text") for text in texts), *(td(text) for text in (*numbers, *rest))]
        lines.append(f"<tr>{th(cell.outlier)}{''.join(cells)}</tr>")
    table = grid(header, [f"<tbody>{''.join(lines)}</tbody>"], "Every pair, method and model.", words=3)
    return details(f"All {len(results.cells):,} numbers with their intervals", table)


def rank_table(results: Results) -> str:
    """Average ranks, beside the paper's."""
    best = min((round(rank, 2) for rank in results.ranks.values()), default=0.0)
    lines = []
    for method in (m for m in METHODS if m in results.ranks):
        rank = results.ranks[method]
        cells = td(f"{rank:.2f}", "best" if round(rank, 2) == best else "") + td(_number(RANKS.get(method), 2))
        lines.append(f"<tr>{th(METHODS[method])}{cells}</tr>")
    caption = (
        "Average rank over the outlier sets, 1 = best. Each DoSE is ranked without the other, as in the paper, "
        "whose ranks are over all its pairs."
    )
    return grid(["method", "rank", "paper"], [f"<tbody>{''.join(lines)}</tbody>"], caption)


def comparison_table(results: Results) -> str:
    """DoSE against each other method: mean differences and permutation tests."""
    lines = []
    for each in results.comparisons:
        cells = (
            td(METHODS.get(each.other, each.other), "text") + td(signed(each.difference)) + td(f"{each.p_value:.3g}")
        )
        lines.append(f"<tr>{th(METHODS.get(each.method, each.method))}{cells}</tr>")
    caption = (
        "Mean difference in AUROC over the outlier sets, and the probability of one so large, in either direction, "
        "if each pair's difference could as well have the other sign (permutation test)."
    )
    return grid(["method", "against", "difference", "p"], [f"<tbody>{''.join(lines)}</tbody>"], caption, words=2)


def memorisation_table(items: Sequence[Memorisation]) -> str:
    """The expected calibration error of each method on each model."""
    lines = []
    for each in items:
        numbers = (f"{each.ece:.2%}", f"{each.by_chance:.2%}", f"{each.p_value:.2g}")
        texts = td(each.member, "text") + "".join(td(text) for text in numbers)
        lines.append(f"<tr>{th(METHODS.get(each.method, each.method))}{texts}</tr>")
    caption = "Expected calibration error: held-out against training scores, over ten bins; what it is by chance alone."
    return grid(["method", "model", "ECE", "by chance", "p"], [f"<tbody>{''.join(lines)}</tbody>"], caption, words=2)


def probe_table(results: Results) -> str:
    """What trivial statistics reach on each pair, beside the best method."""
    statistics = list(dict.fromkeys(probe.statistic for probe in results.probes))
    reached = {(probe.outlier, probe.statistic): probe.auroc for probe in results.probes}
    lines = []
    for outlier in dict.fromkeys(probe.outlier for probe in results.probes):
        found = [auroc_of(results, outlier, method) for method in methods_of(results)]
        best = max((value for value in found if value is not None), default=None)
        cells = []
        for statistic in statistics:
            value = reached.get((outlier, statistic))
            leaks = value is not None and best is not None and round(value, 3) >= round(best, 3)
            cells.append(td(_number(value), "warn" if leaks else ""))
        lines.append(f"<tr>{th(outlier)}{''.join(cells)}{td(_number(best))}</tr>")
    caption = "AUROC of trivial statistics of the pixels. Marked: one that does as well as the best method."
    return grid(["outliers", *statistics, "best method"], [f"<tbody>{''.join(lines)}</tbody>"], caption)


def training_table(training: Mapping[str, Mapping[str, float]]) -> str:
    """What each run ended with."""
    columns = list(dict.fromkeys(name for found in training.values() for name in found))
    lines = []
    for member, found in training.items():
        texts = (f"{found[name]:,.{PLACES.get(name, 1)}f}" if name in found else NOTHING for name in columns)
        cells = "".join(td(text.replace("-", "−")) for text in texts)
        lines.append(f"<tr>{th(member)}{cells}</tr>")
    names = [name.replace("_", " ") for name in columns]
    return grid(["model", *names], [f"<tbody>{''.join(lines)}</tbody>"], "What each training run ended with.")
