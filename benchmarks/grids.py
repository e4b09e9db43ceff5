"""Faces made small on three grids: from the corner, as TensorFlow 1 had it, centred, or by a box filter.

    DOSE_DATA=… python benchmarks/grids.py runs/grids --output results/grids.json      # goes on where it was

The middle 26 × 26 pixels of CelebA's images become 16 × 16, one pixel for 1.625 of the original, on each of the grids,
and CIFAR10's and all outliers by a box filter. A Glow of each, with the `cpu` recipe, is shown mirrored test images and
the other data sets: densities of 2,500 training images, 1,000 images of every other set. A few minutes for each model.
"""

import argparse
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console

from common import Row, likelihood_and_dose, moved, show
from dose_ood.benchmark.results import TEST, TRAIN
from dose_ood.data.images import read_images, split
from dose_ood.data.shifts import SHIFTS
from dose_ood.measure import measure
from dose_ood.models.glow import Glow
from dose_ood.models.registry import load_model
from dose_ood.study.members import MODEL
from dose_ood.study.sets import Images
from experiments import TABLES, trained

SIDE, CROP = 16, 26
SCALE = CROP / SIDE
ROWS = {TRAIN: 2_500, TEST: 1_000}
OTHERS = ("cifar10", "cifar100", "svhn", "imagenet32")
Weights = NDArray[np.float64]


def bilinear(first: float) -> Weights:
    """Without a filter: a pixel at place `first` of the crop and one every 1.625 from there, between two neighbours."""
    places = (32 - CROP) / 2 + first + SCALE * np.arange(SIDE)
    weights: Weights = np.maximum(0, 1 - np.abs(places[:, None] - np.arange(32)))
    return weights


def box(crop: int) -> Weights:
    """Each pixel the mean of all that it covers."""
    edges = (32 - crop) / 2 + crop / SIDE * np.arange(SIDE + 1)
    covered = np.clip(edges[:, None] - np.arange(32), 0, 1)
    weights: Weights = np.diff(covered, axis=0) * SIDE / crop
    return weights


def shrunk(images: Images, weights: Weights) -> Images:
    """Both sides weighted alike, and rounded."""
    values = np.einsum("nchw,yh,xw->ncyx", images.astype(np.float64), weights, weights, optimize=True)
    small: Images = np.rint(values).astype(np.uint8)
    return small


GRIDS = {"from the corner": bilinear(0), "centred": bilinear((SCALE - 1) / 2), "box": box(CROP)}


def model_of(directory: Path, images: Images) -> Glow:
    """The Glow of these images, trained or read."""
    if (directory / MODEL).exists():
        return cast(Glow, load_model(directory / MODEL).model)
    return trained(directory, images, replace(TABLES, bfloat16=True))


def rows_of(model: Glow, images: Images, test: Images, outliers: dict[str, Images]) -> Iterator[Row]:
    """What a Glow finds of each set of outliers."""
    own = images[split(len(images)).train[: ROWS[TRAIN]]]
    sets = {TRAIN: own, TEST: test[: ROWS[TEST]]} | {name: each[: ROWS[TEST]] for name, each in outliers.items()}
    tables = {name: measure(model, each) for name, each in sets.items()}
    for name, found in likelihood_and_dose(tables).items():
        row: Row = {"outliers": name, "latent moves": moved("latent", tables[name], tables[TEST])}
        yield row | found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, help="folder of the models")
    parser.add_argument("--output", type=Path, required=True, help="JSON file")
    options = parser.parse_args()
    torch.set_num_threads(1)
    faces, test_faces = read_images("celeba"), read_images("celeba:test")
    others = {name: shrunk(read_images(f"{name}:test"), box(32)) for name in OTHERS}
    rows: list[Row] = []
    for grid, weights in GRIDS.items():
        images, test = shrunk(faces, weights), shrunk(test_faces, weights)
        model = model_of(options.runs / f"celeba-{grid.replace(' ', '-')}", images)
        mirrored = {name: SHIFTS[name](test[: ROWS[TEST]], 0) for name in ("hflip", "vflip")}
        rows += [row | {"model": "celeba", "faces": grid} for row in rows_of(model, images, test, mirrored | others)]
    images = shrunk(read_images("cifar10"), box(32))
    shown = {grid: shrunk(test_faces, weights) for grid, weights in GRIDS.items()}
    model = model_of(options.runs / "cifar10", images)
    for row in rows_of(model, images, others["cifar10"], shown):
        rows.append(row | {"model": "cifar10", "faces": row["outliers"], "outliers": "celeba"})
    show(Console(width=180), "faces made small on three grids: AUROC", rows)
    command = f"python benchmarks/grids.py {options.runs} --output {options.output}"
    options.output.write_text(json.dumps({"command": command, "rows": rows}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
