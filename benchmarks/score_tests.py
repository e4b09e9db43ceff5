"""Adds score tests of latents, as zoo:DATA-glow gives them, to statistics that a `dose bench` has kept without them.

    DOSE_DATA=… python benchmarks/score_tests.py results/cifar10 results/svhn results/celeba    # a minute each

The model of the zoo is number 0 of the benchmark, which is checked: it has to give the very statistics that are kept.
"""

import argparse
from pathlib import Path

from rich.progress import track

from dose_ood import Statistics
from dose_ood.benchmark.keep import keep, origin
from dose_ood.benchmark.results import Folder
from dose_ood.guard import Guard
from dose_ood.measure import measure
from dose_ood.models.registry import Model
from dose_ood.study.sets import Sets
from zoo import check, open_bench


def zoo_model(folder: Folder) -> tuple[Model, Sets, dict[str, Statistics]]:
    """Model 0 of a benchmark, which is in the zoo, the images, and what is kept of the statistics it gives them."""
    results, sets, tables = open_bench(folder, "0")
    model = Guard.load(f"zoo:{results.study.inlier}-{results.study.model}").model
    check(model, sets, tables)
    return model, sets, tables


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", type=Path, nargs="+", help="of dose bench, whose model 0 is in the zoo")
    for folder in map(Folder, parser.parse_args().folders):
        model, sets, tables = zoo_model(folder)
        for name, kept in track(tables.items(), f"measuring the images of {folder.path}"):
            table, path = measure(model, sets.images(name)), folder.statistics("0", name)
            more = [column for column in table.names if column not in kept.names]
            if more:
                keep(kept.beside(table.select(more)), path, origin(path) or {}, float32=True)


if __name__ == "__main__":
    main()
