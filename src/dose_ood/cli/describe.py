"""What is printed about a detector and a ranking."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.table import Table

from dose_ood.cli.console import out
from dose_ood.density.base import DensityOfStates
from dose_ood.density.kde import ProductKDE
from dose_ood.density.svm import WhitenedSVM
from dose_ood.detector import Detector
from dose_ood.terminal import histogram
from dose_ood.theory import Ranking


def describe(detector: Detector) -> dict[str, object]:
    """What `inspect --json` prints."""
    estimator, read = detector.estimator, rows_read(detector)
    return {
        "method": estimator.kind,
        "statistics": detector.statistics,
        "parameters": estimator.get_params(),
        "threshold": estimator.offset_,
        "rows": {"read": read, "train": estimator.n_train_, "held_out": len(estimator.calibration_scores_)},
        "memorisation": asdict(estimator.memorisation()) | {"high": estimator.memorisation().high},
        "facts": facts(estimator),
        "provenance": detector.provenance,
    }


def rows_read(detector: Detector) -> int:
    """How many training rows there were, of which a sample may have been fitted to."""
    found: Any = detector.provenance.get("data", {})  # a detector may have been made by other means
    try:
        return int(found["train"]["rows"])
    except (KeyError, TypeError, ValueError):
        return detector.estimator.n_train_


def facts(estimator: DensityOfStates) -> dict[str, object]:
    """What a density says about itself."""
    if isinstance(estimator, ProductKDE):
        return {
            "largest error (nats)": float(estimator.max_error_.sum()),
            "bandwidths": estimator.bandwidth_.tolist(),
            "knots of the tables": len(estimator.knots_),
        }
    if isinstance(estimator, WhitenedSVM):
        return {
            "rank": estimator.rank_,
            "directions dropped": len(estimator.null_directions_),
            "kernels": len(estimator.centres_),
            "relative duality gap": estimator.duality_gap_,
            "of the full problem": estimator.full_duality_gap_,
        }
    return {}


def print_detector(detector: Detector, path: Path) -> None:
    """What `inspect` and `fit` print."""
    estimator, check = detector.estimator, detector.estimator.memorisation()
    grid = Table.grid(padding=(0, 2))
    grid.add_row("method", estimator.kind)
    grid.add_row("statistics", ", ".join(detector.statistics))
    read, fitted, held_out = rows_read(detector), estimator.n_train_, len(estimator.calibration_scores_)
    sample = f" (a sample of {read:,})" if read > fitted else ""
    grid.add_row("rows", f"{fitted:,} to fit{sample}, {held_out:,} held out")
    grid.add_row("threshold", f"{estimator.offset_:.6g} (discards {estimator.discard:.1%} of held-out rows)")
    grid.add_row("memorisation", f"[yellow]{check.verdict}[/]" if check.beyond_chance else check.verdict)
    chance = f"by chance {check.by_chance:.2%}, at most {check.by_chance_95:.2%} in 95 %"
    grid.add_row("  calibration error", f"{check.ece:.2%} ({chance}; p = {check.p_value:.2g})")
    for name, value in facts(estimator).items():
        numbers = value if isinstance(value, list) else [value]
        grid.add_row(name, ", ".join(f"{n:,}" if isinstance(n, int) else f"{n:.4g}" for n in numbers))
    out.print(f"[bold]{path}[/]")
    out.print(grid)
    out.print("\nscores of held-out rows, from the least to the most typical")
    out.print(histogram(estimator.calibration_scores_, estimator.offset_), markup=False)


def print_ranking(ranking: Ranking) -> None:
    """What `rank` prints."""
    grid = Table("candidate", "bound", "95 % interval", "above the best by")
    for candidate in ranking.candidates:
        low, high = candidate.interval
        grid.add_row(
            candidate.name, f"{candidate.bound.value:.4g}", f"{low:.4g} to {high:.4g}", f"{candidate.excess:.4g}"
        )
    out.print(grid)
    out.print(ranking.summary)
