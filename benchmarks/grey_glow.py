"""What a Glow finds where grey images were shown to a VAE, alone and beside it.

    DOSE_DATA=… dose train mnist --model glow -o runs/mnist-glow-0        # half an hour of a thread
    DOSE_DATA=… dose train fashion_mnist --model glow -o runs/fashion_mnist-glow-0
    DOSE_DATA=… python benchmarks/grey_glow.py runs/mnist-glow-0 results/mnist
    DOSE_DATA=… python benchmarks/grey_glow.py runs/fashion_mnist-glow-0 results/fashion_mnist
    python benchmarks/grey_glow.py               # once more from what is kept: no model, no images

The images are those of a `dose bench` of VAEs: all of its training images, the first 1,000 of every other set. The
Glow's statistics of them are kept in results/grey_glow, so that every number follows from them and from the VAE's,
which are in results already.
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
from dose_ood.benchmark.methods import by_level, side_by_side, with_score_tests
from dose_ood.benchmark.metrics import auroc
from dose_ood.benchmark.results import TEST, TRAIN, Folder

ROOT = Path(__file__).parents[1]
ROWS = 1_000


def kept(results: Path, name: str) -> Path:
    """Where the Glow's statistics of a set of a benchmark are."""
    return results.parent / "grey_glow" / results.name / f"{name}.parquet"


def measured(run: Path, results: Path) -> None:
    """Keep what a Glow gives for the images of a benchmark."""
    from dose_ood.measure import measure
    from dose_ood.models.registry import load_model
    from zoo import open_bench

    model = load_model(run / "model").model
    _, sets, _ = open_bench(Folder(results), "0")
    for name in track((TRAIN, TEST, *sets.outliers), f"measuring with {run}"):
        images = sets.images(name)[: None if name == TRAIN else ROWS]
        table = measure(model, images)
        keep(table.select(with_score_tests(table.names)), kept(results, name), {"run": run.name}, float32=True)


def both(results: Path, name: str) -> tuple[Statistics, Statistics]:
    """What the Glow, its sums included, and VAE 0 give for the same images."""
    levels, vae = Statistics.read(kept(results, name)), read(Folder(results), "0", name)
    latent, jac = (
        levels.select([each for each in by_level(levels.names) if each.startswith(part)]).values.sum(axis=1)
        for part in ("latent/", "jac/")
    )
    sums = Statistics.from_columns({"like": latent + jac, "latent": latent, "jac": jac})
    return sums.beside(levels), Statistics(vae.names, vae.values[: len(levels)])


def rows(results: Path) -> Iterator[dict[str, str | float]]:
    """AUROCs for each set of outliers: likelihood, TT and DoSE of the Glow, and DoSE beside the VAE's statistics."""
    names = sorted(file.stem for file in kept(results, TRAIN).parent.glob("*.parquet"))
    tables = {name: both(results, name) for name in names}
    together = {
        name: side_by_side([vae, glow.select(with_score_tests(glow.names))]) for name, (glow, vae) in tables.items()
    }
    (own, _), (test, _) = tables[TRAIN], tables[TEST]
    for name, (glow, _) in tables.items():
        if name not in (TRAIN, TEST):
            yield {
                "data": results.name,
                "outliers": name,
                "likelihood": auroc(test["like"], glow["like"]),
                "TT": auroc(*(-np.abs(each["like"] - own["like"].mean()) for each in (test, glow))),
                **dose_aurocs(own, test, glow),
                "beside the VAE": dose_auroc(together[TRAIN], together[TEST], together[name]),
            }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, nargs="?", help="a Glow")
    parser.add_argument("results", type=Path, nargs="?", help="folder of the `dose bench` whose images it is shown")
    options = parser.parse_args()
    if options.run and not options.results:
        parser.error("a run needs the folder of a benchmark beside it")
    if options.run:
        measured(options.run, options.results)
    folders = sorted(folder.parent for folder in (ROOT / "results").glob("*/results.json"))
    found = [row for folder in folders if kept(folder, TRAIN).exists() for row in rows(folder)]
    show(Console(width=150), "a Glow of grey images: AUROC, the better of KDE and SVM", found)


if __name__ == "__main__":
    main()
