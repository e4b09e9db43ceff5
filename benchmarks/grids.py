"""Faces made small on three grids: from the corner, as TensorFlow 1 had it, centred, or by a box filter.

    DOSE_DATA=… python benchmarks/grids.py runs/grids --output results/grids.json      # goes on where it was

The middle 26 × 26 pixels of CelebA's images become 16 × 16, one pixel for 1.625 of the original, on each of the grids,
and CIFAR10's and all outliers by a box filter. A Glow of each, with the `cpu` recipe, is shown mirrored test images and
the other data sets: densities of 2,500 training images, 1,000 images of every other set. Ten minutes for each model.
"""

import argparse
import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from rich.console import Console

from common import Row, likelihood_and_dose, moved, show
from dose_ood.benchmark.results import TEST, TRAIN
from dose_ood.data.images import read_images, split
from dose_ood.data.shifts import SHIFTS
from dose_ood.measure import measure
from dose_ood.models.glow import Glow
from dose_ood.models.registry import load_model, save_model
from dose_ood.recipes import GLOW_RECIPES
from dose_ood.runs import Record
from dose_ood.study.members import MODEL
from dose_ood.study.sets import Images
from dose_ood.train import Progress, train
from preprocessing import applied

SIDE, CROP = 16, 26
SCALE = CROP / SIDE
ROWS = {TRAIN: 2_500, TEST: 1_000}
OTHERS = ("cifar10", "cifar100", "svhn", "imagenet32")
Shrink = Callable[[Images], Images]


def boxed(images: Images, crop: int) -> Images:
    """The middle `crop` × `crop` pixels by a box filter, each pixel the mean of all that it covers."""
    edge = (images.shape[-1] - crop) // 2
    box = edge, edge, edge + crop, edge + crop
    return applied(lambda picture: picture.resize((SIDE, SIDE), Image.Resampling.BOX, box=box), images)


def sampled(images: Images, first: float) -> Images:
    """Bilinear without a filter: a pixel at `first` of the crop, and one every 1.625 pixels from there."""
    places = (images.shape[-1] - CROP) / 2 + first + SCALE * np.arange(SIDE)
    whole = np.floor(places).astype(int)
    share = places - whole

    def along(values: NDArray[np.float64]) -> NDArray[np.float64]:
        mixed: NDArray[np.float64] = values[..., whole] * (1 - share) + values[..., whole + 1] * share
        return mixed

    wide = along(images.astype(np.float64)).swapaxes(2, 3)
    small: Images = np.rint(along(wide).swapaxes(2, 3)).astype(np.uint8)
    return np.ascontiguousarray(small)


GRIDS: dict[str, Shrink] = {
    "from the corner": partial(sampled, first=0.0),
    "centred": partial(sampled, first=(SCALE - 1) / 2),
    "box": partial(boxed, crop=CROP),
}
whole_box: Shrink = partial(boxed, crop=2 * SIDE)


def trained(directory: Path, images: Images) -> Glow:
    """The Glow of these images, trained or read."""
    recipe = GLOW_RECIPES["cpu"]
    if not (directory / MODEL).exists():
        fresh = Glow(recipe.config(directory.name, images.shape[1:]), seed=0)
        provenance = train(fresh, images, recipe, directory, resume=directory.exists(), progress=_said(directory.name))
        save_model(directory / MODEL, fresh, provenance)
    return cast(Glow, load_model(directory / MODEL).model)


def _said(name: str) -> Progress:
    def say(record: Record) -> None:
        if record.held_out is not None:
            print(
                f"{name}: {record.step:,} of {record.steps:,} steps, held out {record.held_out:,.1f} nats", flush=True
            )

    return say


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
    others = {name: whole_box(read_images(f"{name}:test")) for name in OTHERS}
    rows: list[Row] = []
    for grid, shrink in GRIDS.items():
        images, test = shrink(faces), shrink(test_faces)
        model = trained(options.runs / f"celeba-{grid.replace(' ', '-')}", images)
        mirrored = {name: SHIFTS[name](test[: ROWS[TEST]], 0) for name in ("hflip", "vflip")}
        rows += [row | {"model": "celeba", "faces": grid} for row in rows_of(model, images, test, mirrored | others)]
    images = whole_box(read_images("cifar10"))
    shown = {grid: shrink(test_faces) for grid, shrink in GRIDS.items()}
    model = trained(options.runs / "cifar10", images)
    for row in rows_of(model, images, others["cifar10"], shown):
        rows.append(row | {"model": "cifar10", "faces": row["outliers"], "outliers": "celeba"})
    show(Console(width=180), "faces made small on three grids: AUROC", rows)
    command = f"python benchmarks/grids.py {options.runs} --output {options.output}"
    options.output.write_text(json.dumps({"command": command, "rows": rows}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
