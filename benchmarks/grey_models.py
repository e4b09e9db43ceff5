"""What other models find where grey images were shown to VAEs of two latent dimensions, alone and beside such a VAE.

    DOSE_DATA=… dose train mnist --model glow -o runs/mnist-glow-0            # half an hour of a thread
    DOSE_DATA=… dose train mnist --latent 16 -o runs/mnist-vae16-0            # a quarter; fashion_mnist the same
    DOSE_DATA=… python benchmarks/grey_models.py glow runs/mnist-glow-0 results/mnist
    DOSE_DATA=… python benchmarks/grey_models.py vae16 runs/mnist-vae16-0 results/mnist
    python benchmarks/grey_models.py             # once more from what is kept: no model, no images

The images are those of a `dose bench` of VAEs: all of its training images, the first 1,000 of every other set. The
other model's statistics of them are kept in results/grey_models, so that every number follows from them and from those
of VAE 0, which are in results already.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import track

from common import dose_auroc, dose_aurocs, show
from dose_ood import Statistics
from dose_ood.benchmark.evaluate import read
from dose_ood.benchmark.keep import keep
from dose_ood.benchmark.methods import likelihood, plain, side_by_side, with_score_tests
from dose_ood.benchmark.metrics import auroc
from dose_ood.benchmark.results import TEST, TRAIN, Folder

ROOT = Path(__file__).parents[1]
MODELS = ("glow", "vae16")
ROWS = 1_000


def kept(model: str, results: Path) -> Path:
    """Where a model's statistics of the sets of a benchmark are."""
    return results.parent / "grey_models" / model / results.name


def measured(model: str, run: Path, results: Path) -> None:
    """Keep what a model gives for the images of a benchmark."""
    from dose_ood.measure import measure
    from dose_ood.models.registry import load_model
    from dose_ood.study.members import MODEL
    from zoo import open_bench

    network = load_model(run / MODEL).model
    _, sets, _ = open_bench(Folder(results), "0")
    for name in track((TRAIN, TEST, *sets.outliers), f"measuring with {run}"):
        images = sets.images(name)[: None if name == TRAIN else ROWS]
        keep(measure(network, images), kept(model, results) / f"{name}.parquet", {"run": run.name}, float32=True)


def rows(model: str, results: Path) -> Iterator[dict[str, str | float]]:
    """AUROCs for each set of outliers: VAE 0 of the benchmark, the other model, and both together."""
    folder = kept(model, results)
    other = {file.stem: Statistics.read(file) for file in sorted(folder.glob("*.parquet"))}
    vae = {name: _first(read(Folder(results), "0", name), len(table)) for name, table in other.items()}
    most = with_score_tests(other[TRAIN].names) or plain(other[TRAIN].names)
    both = {name: side_by_side([vae[name], table.select(most)]) for name, table in other.items()}
    like = {name: likelihood(table).values[:, 0] for name, table in other.items()}
    for name, table in other.items():
        if name not in (TRAIN, TEST):
            yield {
                "outliers": name,
                "VAE 0": dose_auroc(vae[TRAIN], vae[TEST], vae[name]),
                "likelihood": auroc(like[TEST], like[name]),
                "TT": auroc(*(-np.abs(each - like[TRAIN].mean()) for each in (like[TEST], like[name]))),
                **dose_aurocs(other[TRAIN], other[TEST], table),
                "beside VAE 0": dose_auroc(both[TRAIN], both[TEST], both[name]),
            }


def _first(table: Statistics, count: int) -> Statistics:
    return Statistics(table.names, table.values[:count])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", choices=MODELS, help="what the run is")
    parser.add_argument("run", type=Path, nargs="?", help="of dose train")
    parser.add_argument("results", type=Path, nargs="?", help="folder of the `dose bench` whose images it is shown")
    options = parser.parse_args()
    if options.model and not options.results:
        parser.error("a model needs its run and the folder of a benchmark beside it")
    if options.model:
        measured(options.model, options.run, options.results)
    for model in MODELS:
        for folder in sorted(kept(model, ROOT / "results" / "any").parent.glob("*")):
            found = list(rows(model, ROOT / "results" / folder.name))
            show(Console(width=150), f"{model} of {folder.name}: AUROC, the better of KDE and SVM", found)


if __name__ == "__main__":
    main()
