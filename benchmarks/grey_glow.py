"""What a Glow finds where grey images were shown to VAEs, alone and beside one of them.

    DOSE_DATA=… dose train mnist --model glow -o runs/mnist-glow-0            # half an hour of a thread
    DOSE_DATA=… dose train fashion_mnist --model glow -o runs/fashion_mnist-glow-0
    DOSE_DATA=… python benchmarks/grey_glow.py runs/mnist-glow-0 results/mnist
    DOSE_DATA=… python benchmarks/grey_glow.py runs/fashion_mnist-glow-0 results/fashion_mnist
    python benchmarks/grey_glow.py               # once more from what is kept: no model, no images

The images are those of a `dose bench` of VAEs: all of its training images, the first 1,000 of every other set. The
Glow's statistics of them are kept in results/grey_glow, so that every number follows from them and from those of VAE 0,
which are in results already.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from rich.console import Console

from common import dose_auroc, dose_aurocs, first, measured_too, show
from dose_ood import Statistics
from dose_ood.benchmark.evaluate import read
from dose_ood.benchmark.methods import side_by_side, with_score_tests
from dose_ood.benchmark.metrics import auroc
from dose_ood.benchmark.results import TEST, TRAIN, Folder

ROOT = Path(__file__).parents[1]


def kept(results: Path) -> Path:
    """Where the Glow's statistics of the sets of a benchmark are."""
    return results.parent / "grey_glow" / results.name


def rows(results: Path) -> Iterator[dict[str, str | float]]:
    """AUROCs for each set of outliers: VAE 0 of the benchmark, the Glow, and both together."""
    glow = {file.stem: Statistics.read(file) for file in sorted(kept(results).glob("*.parquet"))}
    vae = {name: first(read(Folder(results), "0", name), len(table)) for name, table in glow.items()}
    tests = with_score_tests(glow[TRAIN].names)
    both = {name: side_by_side([vae[name], table.select(tests)]) for name, table in glow.items()}
    like = {name: table["like"] for name, table in glow.items()}
    outliers = [name for name in glow if name not in (TRAIN, TEST)]
    alone, beside = (
        dose_auroc(tables[TRAIN], tables[TEST], {name: tables[name] for name in outliers}) for tables in (vae, both)
    )
    of_glow = dose_aurocs(glow[TRAIN], glow[TEST], {name: glow[name] for name in outliers})
    for name in outliers:
        yield {
            "outliers": name,
            "VAE 0": alone[name],
            "likelihood": auroc(like[TEST], like[name]),
            "TT": auroc(*(-np.abs(each - like[TRAIN].mean()) for each in (like[TEST], like[name]))),
            **of_glow[name],
            "beside VAE 0": beside[name],
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, nargs="?", help="a Glow")
    parser.add_argument("results", type=Path, nargs="?", help="folder of the `dose bench` whose images it is shown")
    options = parser.parse_args()
    if options.run and not options.results:
        parser.error("a run needs the folder of a benchmark beside it")
    if options.run:
        measured_too(options.run, options.results, kept(options.results))
    for folder in sorted((ROOT / "results/grey_glow").iterdir()):
        found = list(rows(ROOT / "results" / folder.name))
        show(Console(width=150), f"a Glow of {folder.name}: AUROC, the better of KDE and SVM", found)


if __name__ == "__main__":
    main()
