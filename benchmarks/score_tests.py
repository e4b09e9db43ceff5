"""Score tests of the latents that zoo:DATA-glow gives the images of a `dose bench`, kept beside its statistics.

    DOSE_DATA=… python benchmarks/score_tests.py results/cifar10 results/svhn results/celeba    # a minute each

The model is number 0 of the benchmark, which is checked: it has to give the very statistics that are kept. The rows
of results/DATA/score_tests/SET.parquet are those of results/DATA/statistics/0/SET.parquet, in the same order.
"""

import argparse
from pathlib import Path

import numpy as np
from rich.progress import track

from dose_ood import InputError, zoo
from dose_ood.benchmark.evaluate import read
from dose_ood.benchmark.keep import keep
from dose_ood.benchmark.methods import by_level, with_score_tests
from dose_ood.benchmark.results import Folder, Results
from dose_ood.guard import Guard
from dose_ood.measure import measure
from dose_ood.study.sets import open_sets
from results_page import score_tests_of


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", type=Path, nargs="+", help="of dose bench, whose model 0 is in the zoo")
    for folder in map(Folder, parser.parse_args().folders):
        study = Results.read(folder.results).study
        sets = open_sets(study.inlier, [f"{a}={b}" for a, b in study.outliers.items()], study.rows, study.seed)
        name = f"{zoo.PREFIX}{study.inlier}-{study.model}"
        model = Guard.load(name).model
        for each in track(sets.names, f"measuring with {name}"):
            table, kept = measure(model, sets.images(each)), read(folder, "0", each)
            if not np.allclose(table.select(kept.names).values, kept.values, 1e-4, 1e-3):
                raise InputError(f"{name} does not give the {each} statistics of model 0 of {folder.path}")
            levels = by_level(table.names)
            tests = [column for column in with_score_tests(table.names) if column not in levels]
            keep(table.select(tests), score_tests_of(folder, each), {"model": name, "set": each}, float32=True)


if __name__ == "__main__":
    main()
