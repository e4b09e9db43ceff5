"""What several benchmarks share: a table to measure with, what DoSE finds, other models for the images of a
`dose bench`, a file to go on with, a table to print."""

import argparse
import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import track
from rich.table import Table

from dose_ood import ProductKDE, Statistics, WhitenedSVM
from dose_ood.benchmark.keep import keep
from dose_ood.benchmark.methods import by_level, plain, with_score_tests
from dose_ood.benchmark.metrics import auroc
from dose_ood.benchmark.results import TEST, TRAIN, Folder
from dose_ood.noise import generator

PAPERS = "the paper's"  # of a Glow, sums over its levels
FIRST = 1_000  # images of a set, where a model is measured beside those of a `dose bench`
Row: TypeAlias = dict[str, str | float]
STATISTICS = {PAPERS: plain, "by level": by_level, "with score tests": with_score_tests}


def rows_like_statistics(rows: int, seed: int = 0, shift: float = 0.0) -> NDArray[np.float64]:
    """Five columns as a VAE gives them: correlated, skewed, on different scales."""
    random = generator("benchmark", seed)
    base, skewed = random.normal(size=(rows, 5)) + shift, np.exp(0.4 * random.normal(size=rows) + 0.4 * shift)
    columns = [
        6 + base[:, 0],
        -2 + 0.3 * base[:, 1] - 0.2 * base[:, 0],
        8 + base[:, 0] + 0.5 * skewed,
        -800 - 90 * skewed + 15 * base[:, 3],
        -806 - 90 * skewed + 15 * base[:, 3] - 2 * base[:, 4] ** 2,
    ]
    return np.stack(columns, axis=1)


def dose_aurocs(train: Statistics, test: Statistics, outliers: Mapping[str, Statistics]) -> dict[str, Row]:
    """For each set what DoSE finds of the paper's statistics and, of a Glow, by level and with score tests."""
    found: dict[str, Row] = {name: {} for name in outliers}
    for kind, choose in STATISTICS.items():
        if names := choose(train.names):
            chosen = {name: table.select(names) for name, table in outliers.items()}
            for name, area in dose_auroc(train.select(names), test.select(names), chosen).items():
                found[name][kind] = area
    return found


def dose_auroc(train: Statistics, test: Statistics, outliers: Mapping[str, Statistics]) -> dict[str, float]:
    """For each set what DoSE, the better of KDE and SVM, finds of all statistics of a table."""
    densities = [density.fit(train.values) for density in (ProductKDE(), WhitenedSVM())]
    both = [(each, each.score_samples(test.values)) for each in densities]
    return {
        name: max(auroc(inside, each.score_samples(table.values)) for each, inside in both)
        for name, table in outliers.items()
    }


def likelihood_and_dose(tables: Mapping[str, Statistics]) -> dict[str, Row]:
    """What likelihood, TT and DoSE find of each set of outliers that is shown to a Glow."""
    outliers = {name: table for name, table in tables.items() if name not in (TRAIN, TEST)}
    like, mean = tables[TEST]["like"], tables[TRAIN]["like"].mean()
    dose = dose_aurocs(tables[TRAIN], tables[TEST], outliers)
    return {
        name: {
            "likelihood": auroc(like, table["like"]),
            "TT": auroc(*(-np.abs(each - mean) for each in (like, table["like"]))),
            **dose[name],
        }
        for name, table in outliers.items()
    }


def moved(statistic: str, table: Statistics, test: Statistics) -> float:
    """How far the mean of a statistic lies from the test set's, in its standard deviations."""
    return float((table[statistic].mean() - test[statistic].mean()) / test[statistic].std())


def measured_too(run: Path, results: Path, into: Path, leave_out: Collection[str] = ()) -> None:
    """Keep what another model gives for the images of a `dose bench`: all for training, the first 1,000 of each set."""
    from dose_ood.measure import measure
    from dose_ood.models.registry import load_model
    from dose_ood.study.members import MODEL
    from zoo import open_bench

    model = load_model(run / MODEL).model
    _, sets, _ = open_bench(Folder(results), "0")
    names = [name for name in (TRAIN, TEST, *sets.outliers) if name not in leave_out]
    for name in track(names, f"measuring with {run}"):
        images = sets.images(name)[: None if name == TRAIN else FIRST]
        keep(measure(model, images), into / f"{name}.parquet", {"run": run.name}, float32=True)


def first(table: Statistics, count: int) -> Statistics:
    """The first rows."""
    return Statistics(table.names, table.values[:count])


def kept_so_far(description: str | None) -> tuple[Path, list[dict[str, str | float]]]:
    """The JSON file that the command line names, and the rows that an earlier run has left there."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True)
    output: Path = parser.parse_args().output
    return output, json.loads(output.read_text(encoding="utf-8"))["rows"] if output.exists() else []


def show(console: Console, title: str, rows: Sequence[Mapping[str, str | float | None]]) -> None:
    """Rows as a table; what a row does not have stays empty."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    grid = Table(*names, title=title)
    for row in rows:
        grid.add_row(*map(_cell, (row.get(name) for name in names)))
    console.print(grid)


def _cell(value: str | float | None) -> str:
    if value is None or isinstance(value, str):
        return value or ""
    return f"{value:.5g}"
