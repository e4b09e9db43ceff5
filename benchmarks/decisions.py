"""How often do decisions raise a false alarm on clean data? Simulations behind the numbers in docs/decide.md.

python benchmarks/decisions.py --output results/decisions.json    # about 5 minutes
"""

import argparse
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import track
from rich.table import Table

from dose_ood import ProductKDE
from dose_ood.decision.group import GroupTest
from dose_ood.decision.memorisation import expected_calibration_error, score_bins
from dose_ood.noise import generator

Vector = NDArray[np.float64]
Draw = Callable[[np.random.Generator, int], Vector]

RUNS, ALPHA = 2_000, 0.05
SIZES = (1, 10, 100, 1_000, 10_000)
LAWS: dict[str, Draw] = {
    "Gaussian": lambda random, count: random.normal(size=count),
    "−Gamma(1/2)": lambda random, count: -random.gamma(0.5, size=count) / np.sqrt(0.5),
}


def group_alarms(law: Draw, held_out: int, size: int, shift: float) -> float:
    """The share of clean groups that are flagged, each against held-out rows of its own."""
    random = generator("group alarms", size)
    centre = float(law(random, 2_000_000).mean()) + shift
    flagged = 0
    for run in range(RUNS):
        test = GroupTest.from_scores(centre, law(random, held_out), size, ALPHA, draws=199, seed=run)
        flagged += test.test(law(random, size)).drifted
    return flagged / RUNS


def ece_alarms(columns: int, rows: int, held_out: int, bandwidth: float | None, runs: int = 300) -> tuple[float, float]:
    """The shares of clean runs with p ≤ 0.05, and with a warning, of the memorisation check of a KDE."""
    random = generator("ece alarms", columns)
    significant = high = 0
    for _ in range(runs):
        kde = ProductKDE(bandwidth="scott" if bandwidth is None else bandwidth, tolerance=1e-3)
        train, fresh = random.normal(size=(rows, columns)), random.normal(size=(held_out, columns))
        kde.fit(train)
        found = expected_calibration_error(score_bins(kde.score_samples(train)), kde.score_samples(fresh), draws=999)
        significant += found.p_value <= ALPHA
        high += found.high
    return significant / runs, high / runs


def groups() -> Iterator[dict[str, object]]:
    """One row for each law, number of held-out rows and shift of the training mean."""
    for shift in (0.0, 0.2):
        for name, law in LAWS.items():
            for held_out in (500, 5_000):
                alarms = {str(size): group_alarms(law, held_out, size, shift) for size in SIZES}
                yield {"scores": name, "training mean too high by": shift, "held out": held_out, **alarms}


def memorisation() -> Iterator[dict[str, object]]:
    """One row for each number of columns, of held-out rows, and bandwidth."""
    for columns, held_out, bandwidth in ((1, 222, None), (5, 222, None), (1, 2_000, None), (5, 2_000, None),
                                         (5, 2_000, 0.05), (5, 2_000, 0.005)):  # fmt: skip
        significant, high = ece_alarms(columns, 2_000, held_out, bandwidth)
        kernel = "scott" if bandwidth is None else str(bandwidth)
        yield {"columns": columns, "rows": 2_000, "held out": held_out, "bandwidth": kernel,
               "p ≤ 0.05": significant, "warned": high}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True)
    options = parser.parse_args()
    console = Console(width=120)
    document: dict[str, object] = {
        "command": "python benchmarks/decisions.py --output results/decisions.json", "runs": RUNS, "alpha": ALPHA
    }  # fmt: skip
    for title, rows, total in (("groups", groups(), 8), ("memorisation", memorisation(), 6)):
        found = list(track(rows, title, total=total, console=console, transient=True))
        document[title] = found
        grid = Table(*found[0], title=title)
        for row in found:
            grid.add_row(*map(str, row.values()))
        console.print(grid)
    options.output.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
