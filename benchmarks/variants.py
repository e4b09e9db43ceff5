"""What a change of the Glows' recipe changes: those of another recipe beside those of the tables.

    DOSE_DATA=… python benchmarks/experiments.py exits cifar10 runs/cifar10-exits-0 --seed 0
    DOSE_DATA=… python benchmarks/variants.py exits runs/cifar10-exits-0 results/cifar10 --seed 0
    python benchmarks/variants.py exits          # once more from what is kept: no model, no images

So for CelebA, half an hour, for other seeds, and for the recipe `points`. The images are those of a `dose bench`: all
of its training images, the first 1,000 of every other set but noise and flips. Statistics are kept in results/exits and
results/points; every number follows from them and from those of the models of the same seeds, which are in results.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from rich.console import Console

from common import Row, first, likelihood_and_dose, measured_too, moved, show
from dose_ood import Statistics
from dose_ood.benchmark.evaluate import read
from dose_ood.benchmark.results import TEST, Folder
from dose_ood.study.sets import SHIFTED

ROOT = Path(__file__).parents[1]
RECIPES = "exits", "points"  # beside cpu, which the tables have


def kept(recipe: str, results: Path) -> Path:
    """Where the statistics of Glows of a recipe are, a folder for each seed."""
    return results.parent / recipe / results.name


def rows(recipe: str, results: Path) -> Iterator[Row]:
    """For each set of outliers "tables' / recipe's": AUROCs, means over the models, and moves of `latent`."""
    folder = kept(recipe, results)
    seeds = sorted(each.name for each in folder.iterdir())
    changed = [{file.stem: Statistics.read(file) for file in (folder / seed).iterdir()} for seed in seeds]
    of_table = [
        {name: first(read(Folder(results), seed, name), len(table)) for name, table in tables.items()}
        for seed, tables in zip(seeds, changed, strict=True)
    ]
    before, after = ([likelihood_and_dose(tables) for tables in models] for models in (of_table, changed))
    for name in sorted(before[0]):
        row: Row = {"outliers": name}
        for what in before[0][name]:
            means = [np.mean([float(found[name][what]) for found in each]) for each in (before, after)]
            row[what] = " / ".join(f"{mean:.3f}" for mean in means)
        moves = [
            ", ".join(f"{moved('latent', tables[name], tables[TEST]):+.2f}" for tables in models)
            for models in (of_table, changed)
        ]
        yield row | {"`latent` moves": " / ".join(moves)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe", choices=RECIPES, help="which of the Glows' recipes")
    parser.add_argument("run", type=Path, nargs="?", help="a Glow of that recipe")
    parser.add_argument("results", type=Path, nargs="?", help="folder of the `dose bench` whose images it is shown")
    parser.add_argument("--seed", default="0", help="of the run")
    options = parser.parse_args()
    if options.run and not options.results:
        parser.error("a run needs the folder of a benchmark beside it")
    if options.run:
        measured_too(options.run, options.results, kept(options.recipe, options.results) / options.seed, SHIFTED)
    for folder in sorted((ROOT / "results" / options.recipe).iterdir()):
        title = f"Glows of {folder.name}, recipe cpu / {options.recipe}: AUROC, the better of KDE and SVM"
        show(Console(width=160), title, list(rows(options.recipe, ROOT / "results" / folder.name)))


if __name__ == "__main__":
    main()
