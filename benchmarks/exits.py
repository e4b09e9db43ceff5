"""What exits change: Glows whose levels couple what leaves with what goes on, beside those of the tables.

    DOSE_DATA=… dose train cifar10 --model glow --recipe exits --seed 0 -o runs/cifar10-exits-0    # an hour of a thread
    DOSE_DATA=… python benchmarks/exits.py runs/cifar10-exits-0 results/cifar10 --seed 0
    python benchmarks/exits.py                   # once more from what is kept: no model, no images

So for CelebA, half an hour, and for seed 1. The images are those of a `dose bench` of Glows without exits: all of its
training images, the first 1,000 of every other set but noise and flips. Statistics are kept in results/exits, and every
number follows from them and from those of the models of the same seeds, which are in results already.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from rich.console import Console

from common import first, likelihood_and_dose, measured_too, moved, show
from dose_ood import Statistics
from dose_ood.benchmark.evaluate import read
from dose_ood.benchmark.results import TEST, TRAIN, Folder
from dose_ood.study.sets import SHIFTED

ROOT = Path(__file__).parents[1]


def kept(results: Path) -> Path:
    """Where the statistics of Glows with exits are, a folder for each seed."""
    return results.parent / "exits" / results.name


def rows(results: Path) -> Iterator[dict[str, str | float]]:
    """For each set of outliers "without exits / with exits": AUROCs, means over the models, and moves of `latent`."""
    seeds = sorted(folder.name for folder in kept(results).iterdir())
    with_exits = [{file.stem: Statistics.read(file) for file in (kept(results) / seed).iterdir()} for seed in seeds]
    without = [
        {name: first(read(Folder(results), seed, name), len(table)) for name, table in tables.items()}
        for seed, tables in zip(seeds, with_exits, strict=True)
    ]
    outliers = sorted(set(with_exits[0]) - {TRAIN, TEST})
    before, after = ([likelihood_and_dose(tables) for tables in models] for models in (without, with_exits))
    for name in outliers:
        row: dict[str, str | float] = {"outliers": name}
        for what in before[0][name]:
            means = [np.mean([float(found[name][what]) for found in each]) for each in (before, after)]
            row[what] = " / ".join(f"{mean:.3f}" for mean in means)
        moves = [
            ", ".join(f"{moved('latent', tables[name], tables[TEST]):+.2f}" for tables in models)
            for models in (without, with_exits)
        ]
        yield row | {"`latent` moves": " / ".join(moves)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, nargs="?", help="a Glow with exits")
    parser.add_argument("results", type=Path, nargs="?", help="folder of the `dose bench` whose images it is shown")
    parser.add_argument("--seed", default="0", help="of the run")
    options = parser.parse_args()
    if options.run and not options.results:
        parser.error("a run needs the folder of a benchmark beside it")
    if options.run:
        measured_too(options.run, options.results, kept(options.results) / options.seed, SHIFTED)
    for folder in sorted((ROOT / "results/exits").iterdir()):
        title = f"Glows of {folder.name} without / with exits: AUROC, the better of KDE and SVM"
        show(Console(width=160), title, list(rows(ROOT / "results" / folder.name)))


if __name__ == "__main__":
    main()
