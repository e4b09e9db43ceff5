"""What is printed about a benchmark."""

from collections.abc import Sequence

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.table import Table

from dose_ood.benchmark.evaluate import headline
from dose_ood.benchmark.paper import RANKS, paper_auroc
from dose_ood.benchmark.probes import PROBES
from dose_ood.benchmark.results import METHODS, Results
from dose_ood.benchmark.significance import DIGITS
from dose_ood.cli.console import out, print_wide
from dose_ood.study.plan import KINDS, Plan
from dose_ood.study.sets import Sets

WORK = {
    "copy": "models to copy",
    "train": "models to train",
    "measure": "sets to measure",
    "probe": "sets to probe",
    "evaluate": "evaluation",
}


def duration(seconds: float) -> str:
    """A time that a person reads.

    Examples
    --------
    >>> duration(7.2), duration(200), duration(7500), duration(500_000)
    ('7 s', '3 min', '2 h 05 min', '5 d 19 h')
    """
    minutes = round(seconds / 60)
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    if minutes < 100:
        return f"{minutes} min"
    hours = round(seconds / 3600)
    return f"{minutes // 60} h {minutes % 60:02} min" if hours < 48 else f"{hours // 24} d {hours % 24} h"


def print_plan(plan: Plan, sets: Sets) -> None:
    """What `--dry-run` prints."""
    grid = _grid("Sets", "set", "rows", "source")
    for name in sets.names:
        grid.add_row(name, f"{sets.known(name)[0]:,}", sets.outliers.get(name, sets.inlier))
    print_wide(grid)
    grid = _grid("Left to do", "work", "number", "images", "images/s", "time")
    for kind in KINDS:
        tasks = [task for task in plan.tasks if task.kind == kind]
        if tasks:
            images = sum(task.images for task in tasks)
            how = "assumed" if kind == "evaluate" else "timed just now"
            speed = "" if kind == "copy" else f"{plan.speeds[kind]:,.0f} ({how})"
            grid.add_row(WORK[kind], str(len(tasks)), f"{images:,}", speed, duration(plan.seconds(kind)))
    grid.add_row("everything", str(len(plan.tasks)), "", "", duration(plan.total))
    print_wide(grid)


def print_results(results: Results) -> None:
    """What `bench` prints."""
    study = results.study
    members = "1 model" if study.members == 1 else f"{study.members} models"
    tested = results.cells[0].inliers
    model = f"{study.model}{study.dimensions}, {study.recipe}"
    out.print(f"[bold]{study.inlier}[/]: {members} ({model}), {tested:,} test images\n")
    for grid in (_aurocs(results), _others(results), _against(results), _checks(results), _probes(results)):
        print_wide(grid)


def _grid(title: str, *names: str) -> Table:
    grid = Table(title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD, pad_edge=False)
    for number, name in enumerate(names):
        grid.add_column(name, justify="left" if number == 0 or not name else "right", no_wrap=True)
    return grid


def _aurocs(results: Results) -> Table:
    """Each outlier set has a line for single models, for the ensemble, its interval, and the paper's."""
    study = results.study
    several = study.members > 1
    grid = _grid("AUROC", "outliers", "", *METHODS.values())
    areas = headline(results.cells, study)
    for number, outlier in enumerate(study.outliers):
        printed = {method: round(values[number], DIGITS) for method, values in areas.items()}
        best = max(printed.values())
        single, whole, interval, paper = [], [], [], []
        for method in METHODS:
            cells, both = results.members(outlier, method), results.ensemble(outlier, method)
            mark = "[bold]{}[/]" if printed.get(method) == best else "{}"
            single.append(mark.format(spread([cell.auroc for cell in cells])) if cells else "–")
            shown = both or (cells[0] if cells else None)
            bold = mark if method == "waic" else "{}"
            whole.append("–" if both is None else bold.format(f"{both.auroc:.3f}"))
            interval.append("–" if shown is None else f"{shown.auroc_low:.3f}–{shown.auroc_high:.3f}")
            paper.append(beside_paper(study.inlier, outlier, method, study.model, printed.get(method)))
        grid.add_row(outlier, f"{study.members} models" if several else "model", *single)
        if several:
            grid.add_row("", "ensemble", *whole)
        grid.add_row("", "95 %", *(f"[dim]{text}[/]" for text in interval))
        if any(paper):
            grid.add_row("", "paper", *(f"[dim]{text}[/]" for text in paper))
        grid.add_section()
    return grid


def spread(values: Sequence[float]) -> str:
    """A mean and the standard deviation over models.

    Examples
    --------
    >>> spread([0.9, 0.92]), spread([0.9])
    ('0.910 ±.014', '0.900')
    """
    mean = f"{np.mean(values):.3f}"
    return mean if len(values) == 1 else f"{mean} ±{np.std(values, ddof=1):.3f}".replace("±0", "±")


def beside_paper(inlier: str, outlier: str, method: str, model: str, ours: float | None) -> str:
    """The paper's AUROC, and how far ours is above it.

    Examples
    --------
    >>> beside_paper("fashion_mnist", "mnist", "kde", "vae", 0.99)
    '0.998 (-.008)'
    """
    found = paper_auroc(inlier, outlier, method, model)
    if found is None:
        return ""
    gap = "" if ours is None else f" ({ours - found:+.3f})".replace("0.", ".", 1)
    return f"{found:.3f}{gap}"


def _others(results: Results) -> Table:
    """AUPR and FPR95, means over the models; WAIC's are the ensemble's."""
    grid = _grid("AUPR / FPR95 (outliers are sought)", "outliers", *METHODS.values())
    for outlier in results.study.outliers:
        shown = []
        for method in METHODS:
            whole = results.ensemble(outlier, method)
            cells = results.members(outlier, method) or ((whole,) if whole is not None else ())
            mean = [float(np.mean([getattr(cell, name) for cell in cells])) for name in ("aupr", "fpr95") if cells]
            shown.append(" / ".join(f"{value:.3f}" for value in mean) or "–")
        grid.add_row(outlier, *shown)
    return grid


def _against(results: Results) -> Table:
    """Average ranks, and the differences with their permutation test."""
    grid = _grid("Over all outlier sets", "", *METHODS.values())
    same = paper_auroc(results.study.inlier, next(iter(results.study.outliers)), "kde", results.study.model)
    grid.add_row("average rank", *(f"{results.ranks[m]:.2f}" if m in results.ranks else "–" for m in METHODS))
    if same is not None:
        grid.add_row("  paper, all its pairs", *(f"[dim]{RANKS[method]}[/]" for method in METHODS))
    for method in dict.fromkeys(each.method for each in results.comparisons):
        found = {each.other: each for each in results.comparisons if each.method == method}
        cells = [f"{found[m].difference:+.3f} p={found[m].p_value:.3f}" if m in found else "" for m in METHODS]
        grid.add_row(f"{METHODS[method]} is better by", *cells)
    return grid


def _checks(results: Results) -> Table:
    """The expected calibration error of each model, and how it was trained."""
    names = list(dict.fromkeys(each.member for each in results.memorisation))
    grid = _grid(
        "Memorisation: ECE of held-out scores (by chance), * where p < 0.01", "model", *METHODS.values(), "bits/dim"
    )
    for member in names:
        found = {each.method: each for each in results.memorisation if each.member == member}
        cells = [
            f"{found[m].ece:.1%} ({found[m].by_chance:.1%}){'*' if found[m].p_value < 0.01 else ' '}"
            if m in found
            else "–"
            for m in METHODS
        ]
        trained = results.training.get(member, {}).get("bits_per_dim")
        grid.add_row(member, *cells, "" if trained is None else f"{trained:.3f}")
    return grid


def _probes(results: Results) -> Table:
    """What needs no model."""
    grid = _grid("Without a model: AUROC of a KDE of one trivial statistic", "outliers", *PROBES.values(), "best")
    for outlier in results.study.outliers:
        found = {each.statistic: each.auroc for each in results.probes if each.outlier == outlier}
        best = max(found, key=lambda name: found[name])
        grid.add_row(outlier, *(f"{found[name]:.3f}" for name in PROBES), PROBES[best])
    return grid
