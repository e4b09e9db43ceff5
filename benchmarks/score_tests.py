"""Adds score tests of latents, as zoo:DATA-glow gives them, to statistics that a `dose bench` has kept without them.

    DOSE_DATA=… python benchmarks/score_tests.py results/cifar10 results/svhn results/celeba    # a minute each

The model of the zoo is number 0 of the benchmark, which is checked: it has to give the very statistics that are kept.
"""

import argparse
from pathlib import Path

import numpy as np
from rich.progress import track

from dose_ood import InputError, zoo
from dose_ood.benchmark.evaluate import read
from dose_ood.benchmark.keep import keep, origin
from dose_ood.benchmark.results import Folder, Results
from dose_ood.guard import Guard
from dose_ood.measure import measure
from dose_ood.study.sets import open_sets


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", type=Path, nargs="+", help="of dose bench, whose model 0 is in the zoo")
    for folder in map(Folder, parser.parse_args().folders):
        study = Results.read(folder.results).study
        sets = open_sets(study.inlier, [f"{a}={b}" for a, b in study.outliers.items()], study.rows, study.seed)
        name = f"{zoo.PREFIX}{study.inlier}-{study.model}"
        model = Guard.load(name).model
        for each in track(sets.names, f"measuring with {name}"):
            table, kept, path = measure(model, sets.images(each)), read(folder, "0", each), folder.statistics("0", each)
            if not np.allclose(table.select(kept.names).values, kept.values, 1e-4, 1e-3):
                raise InputError(f"{name} does not give the {each} statistics of model 0 of {folder.path}")
            more = [column for column in table.names if column not in kept.names]
            if more:
                keep(kept.beside(table.select(more)), path, origin(path) or {}, float32=True)


if __name__ == "__main__":
    main()
