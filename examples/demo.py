"""A hundred-dimensional Gaussian, four kinds of outliers, six methods: what likelihood cannot see.

Writes tables, a detector, scores and a report into a folder, the way `dose` commands would.
"""

import argparse
import subprocess
import sys
import time
from pathlib import Path

from rich.console import Console
from rich.progress import track
from rich.table import Table

from dose_ood import WAIC, Detector, Likelihood, LikelihoodRatio, ProductKDE, Statistics, Typicality, WhitenedSVM
from dose_ood.benchmark.metrics import auroc
from dose_ood.benchmark.toys import degradation, flow, gaussian
from dose_ood.density.base import DensityOfStates
from dose_ood.plots import decision_regions, degradation_curve, histograms, score_distributions, svg
from dose_ood.report import code, figure, page, section, table

STATISTICS = ("norm", "like", "first", "max")
OUTLIERS = {
    "near the origin": (0.1, 0.0),
    "a little too close": (0.85, 0.0),
    "a little too far": (1.15, 0.0),
    "off along one axis": (1.0, 6.0),
}  # scale and shift
COUNTS = (1, 3, 10, 30, 100, 300, 1_000, 3_000, 10_000, 30_000, 100_000)
console = Console(highlight=False)


def methods() -> dict[str, DensityOfStates]:
    """The six methods of the paper's Table 1."""
    return {
        "likelihood": Likelihood(),
        "WAIC": WAIC(),
        "typicality": Typicality(),
        "likelihood ratio": LikelihoodRatio(),
        "DoSE (KDE)": ProductKDE(),
        "DoSE (SVM)": WhitenedSVM(),
    }


def compare(
    train: Statistics, held_out: Statistics, fresh: Statistics, outliers: dict[str, Statistics]
) -> list[list[str | float]]:
    """A row for each kind of outlier: its name, and the AUROC of each method."""
    rows: list[list[str | float]] = [[name] for name in outliers]
    for estimator in track(list(methods().values()), "fitting six methods", console=console, transient=True):
        names = STATISTICS if estimator.kind in ("kde", "svm") else None
        detector = Detector.fit(train, held_out, estimator, names)
        inlier = detector.score(fresh).score
        for row, outlying in zip(rows, outliers.values(), strict=True):
            row.append(auroc(inlier, detector.score(outlying).score))
    return rows


def run(folder: Path, *arguments: str) -> str:
    """Run a `dose` command in the folder, print it and what it prints."""
    console.print(f"\n[bold]$ dose {' '.join(arguments)}[/]")
    command = [sys.executable, "-m", "dose_ood", *arguments]
    done = subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True)  # noqa: S603  # our own
    console.print(done.stdout.rstrip(), markup=False)
    return f"$ dose {' '.join(arguments)}\n{done.stdout}"


def appendix_b() -> str:
    """The toy flow: what likelihood, typicality test and DoSE discard."""
    train, inlier, outlier = flow(20_000), flow(2_000, seed=1), flow(2_000, outlier=True, seed=2)
    fitted: dict[str, DensityOfStates] = {}
    for name, estimator in {
        "likelihood": Likelihood(discard=0.1),
        "typicality test": Typicality(discard=0.1),
        "DoSE (KDE)": ProductKDE(discard=0.1),
        "DoSE (SVM)": WhitenedSVM(discard=0.1),
    }.items():
        estimator.fit(train.values)
        reached = auroc(estimator.score_samples(inlier.values), estimator.score_samples(outlier.values))
        fitted[f"{name}: AUROC {reached:.3f}"] = estimator
    return svg(decision_regions(fitted, inlier, outlier, "latent", "jac"))


def main() -> None:
    """Make the tables, run the commands, compare the methods, write the report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=Path("demo"))
    folder: Path = parser.parse_args().output
    folder.mkdir(parents=True, exist_ok=True)
    begin = time.perf_counter()
    train, held_out, fresh = gaussian(54_000), gaussian(6_000, seed=1), gaussian(5_000, seed=2)
    outliers = {
        name: gaussian(2_000, scale=scale, shift=shift, seed=3 + i)
        for i, (name, (scale, shift)) in enumerate(OUTLIERS.items())
    }
    for name, part in {
        "train": train,
        "held_out": held_out,
        "new": Statistics.concat([fresh, *outliers.values()]),
    }.items():
        part.select(STATISTICS).write(folder / f"{name}.parquet")
    console.print(f"{folder}/train.parquet, held_out.parquet, new.parquet: statistics {', '.join(STATISTICS)}")
    log = [
        run(folder, "fit", "train.parquet", "--held-out", "held_out.parquet", "-o", "detector"),
        run(folder, "score", "detector", "new.parquet", "-o", "scores.parquet"),
        run(folder, "explain", "detector", "new.parquet", "--row", "11000"),
        run(folder, "rank", "train.parquet", "--held-out", "held_out.parquet"),
    ]
    rows = compare(train, held_out, fresh, outliers)
    grid = Table(
        "outliers",
        *methods(),
        title="\nAUROC of the six methods (1 = all found, 0.5 = blind, 0 = taken for the most typical)",
    )
    for row in rows:
        grid.add_row(str(row[0]), *(f"{cell:.3f}" for cell in row[1:]))
    console.print(grid)

    detector = Detector.load(folder / "detector")
    scores = {name: detector.score(part).score for name, part in outliers.items()}
    inlier = detector.score(fresh).score
    curves = {
        f"{kind}, {name}": degradation(inlier, scores[name], COUNTS, obfuscating=kind == "obfuscating")
        for name in ("near the origin", "off along one axis")
        for kind in ("useless", "obfuscating")
    }
    shown = {name: part.select(STATISTICS) for name, part in outliers.items()}
    seconds = time.perf_counter() - begin
    (folder / "report.html").write_text(
        page(
            "What likelihood cannot see",
            "The likeliest point of a high-dimensional Gaussian is its origin, where no draw ever lies.",
            [
                section(
                    "Six methods, four kinds of outliers",
                    "AUROC on 5,000 fresh draws against 2,000 outliers of each kind; "
                    "1 = all found, 0.5 = blind, 0 = outliers taken for the most typical of all.",
                    table(["outliers", *methods()], rows),
                ),
                section(
                    "The statistics",
                    "Histograms of 5,000 fresh draws and of the outliers, after the paper's Figure 1.",
                    figure(
                        svg(histograms(fresh.select(STATISTICS), shown)),
                        "Norm, log-likelihood, first coordinate, maximum.",
                    ),
                ),
                section(
                    "The scores",
                    "Training and held-out scores agree: nothing is memorised. The threshold discards 5 % of held-out rows.",
                    figure(
                        svg(
                            score_distributions(
                                detector.score(train).score,
                                detector.score(held_out).score,
                                scores,
                                detector.estimator.offset_,
                            )
                        ),
                        "DoSE (KDE) scores.",
                    ),
                ),
                section(
                    "Where the likelihood is the worst of projections",
                    "A toy flow, after the paper's Appendix B: outliers lie along "
                    "a line of constant likelihood. Shaded: discarded at 10 %.",
                    figure(appendix_b(), "Blue: in-distribution. Red: outliers."),
                ),
                section(
                    "Superfluous statistics",
                    "AUROC after adding statistics that tell nothing (useless) or that make outliers look "
                    "typical (obfuscating), after the paper's Appendix D. What they cost depends on the distance in nats.",
                    figure(svg(degradation_curve(COUNTS, curves)), "DoSE (KDE)."),
                ),
                section("What was run", "In this folder:", code("\n".join(log))),
            ],
            f"Made in {seconds:.0f} s by `make demo`; seeds are fixed, so the numbers are the same every time.",
        )
    )
    console.print(f"\nThe report is in [bold]{folder / 'report.html'}[/] ({seconds:.0f} s)")


if __name__ == "__main__":
    main()
