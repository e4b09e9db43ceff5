"""What the variable that a density is of does to a benchmark of logit-normal VAEs: logits, or grey levels.

    python benchmarks/coordinates.py results/fashion_mnist --output results/fashion_mnist/grey_levels.json

`distortion` and `iwae` of a logit-normal VAE are densities of logits (docs/decisions/0006-densities-of-logits.md).
Those of grey levels are larger by a function of the image alone, which is added here to the statistics of a
`dose bench`; everything else stays. Prints the mean AUROC over the models on either, and the paper's. Needs the data.
"""

import argparse
import tempfile
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from dose_ood import Statistics
from dose_ood.benchmark.evaluate import evaluate, score
from dose_ood.benchmark.keep import keep, origin
from dose_ood.benchmark.paper import paper_auroc
from dose_ood.benchmark.results import BACKGROUND, METHODS, Folder, Results
from dose_ood.models.distributions import LogitNormal
from dose_ood.report.evidence import auroc_of
from dose_ood.study.sets import Images, open_sets

DENSITIES = ("distortion", "iwae")
ROWS = 4096  # at a time


def volumes(images: Images) -> np.ndarray:
    """By how much the log-density of each image's grey levels exceeds that of its logits."""
    some = (torch.from_numpy(images[first : first + ROWS]) for first in range(0, len(images), ROWS))
    return torch.cat([LogitNormal().log_volume(part) for part in some]).numpy()


def in_grey_levels(folder: Folder, found: Results, target: Folder) -> Results:
    """The results from statistics that are densities of grey levels, which are put into another folder."""
    study = found.study
    sets = open_sets(
        study.inlier, [f"{name}={place}" for name, place in study.outliers.items()], study.rows, study.seed
    )
    for name in sets.names:
        more = volumes(sets.images(name))
        for member in (*map(str, range(study.members)), BACKGROUND):
            path = folder.statistics(member, name)
            table, made_from = Statistics.read(path), origin(path) or {}
            if made_from.get("images") != sets.known(name)[1]:
                raise SystemExit(f"{path} holds other images than {name} has now")
            columns = {c: table[c] + more if c in DENSITIES else table[c] for c in table.names}
            keep(Statistics.from_columns(columns), target.statistics(member, name), made_from)
    (target.path / "probes").symlink_to((folder.path / "probes").resolve())
    scored = tuple(score(target, study))
    return evaluate(target, study, scored, found.training, found.provenance)


def show(found: Results, other: Results) -> None:
    study = found.study
    grid = Table("outliers", *METHODS.values(), title=f"{study.inlier}: AUROC with logits / grey levels / in the paper")
    for outlier in study.outliers:
        cells = []
        for method in METHODS:
            values = (auroc_of(found, outlier, method), auroc_of(other, outlier, method))
            paper = paper_auroc(study.inlier, outlier, method)
            cells.append(" / ".join("" if value is None else f"{value:.3f}" for value in (*values, paper)))
        grid.add_row(outlier, *cells)
    Console(width=160).print(grid)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="of a dose bench of logit-normal VAEs")
    parser.add_argument("--output", type=Path, required=True, help="JSON file for the results with grey levels")
    options = parser.parse_args()
    folder = Folder(options.folder)
    found = Results.read(folder.results)
    if found.study.model != "vae":
        parser.error(f"expected a benchmark of VAEs, got one of {found.study.model}")
    with tempfile.TemporaryDirectory() as place:
        other = in_grey_levels(folder, found, Folder(Path(place)))
    other.write(options.output)
    show(found, other)


if __name__ == "__main__":
    main()
