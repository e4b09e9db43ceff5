"""What a model's statistics make of things done to images before they are shown: flips, crops, JPEG, sharpening, noise.

    DOSE_DATA=… python benchmarks/preprocessing.py results/celeba celeba --output FILE

The densities are those of model 0 of a `dose bench`, which the zoo has, fitted to its statistics of training images,
and its test set is the inliers. The outliers are the first 1,000 test images of a data set, each time changed in one
way. With the inliers' own data set, an AUROC of 0.5 says that nothing shows. About a minute for a Glow of 64 filters.
"""

import argparse
import io
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image, ImageFilter
from rich.console import Console
from rich.progress import track

from common import show
from dose_ood import ProductKDE, WhitenedSVM
from dose_ood.benchmark.methods import plain, with_score_tests
from dose_ood.benchmark.metrics import auroc
from dose_ood.benchmark.results import TEST, TRAIN, Folder
from dose_ood.data.images import read_images
from dose_ood.data.shifts import SHIFTS
from dose_ood.measure import measure
from dose_ood.noise import generator
from dose_ood.study.sets import Images
from zoo import zoo_model

ROWS = 1_000
OFF = (0.125, 0.25, 0.5)
Change = Callable[[Image.Image], Image.Image]


def jpeg(quality: int) -> Change:
    """Compressed and read again."""

    def change(picture: Image.Image) -> Image.Image:
        file = io.BytesIO()
        picture.save(file, "jpeg", quality=quality)
        return Image.open(file)

    return change


def cropped(side: int) -> Change:
    """The middle `side` × `side` pixels, made as large as the whole."""

    def change(picture: Image.Image) -> Image.Image:
        left, top = ((length - side) / 2 for length in picture.size)
        return picture.resize(picture.size, Image.Resampling.BILINEAR, box=(left, top, left + side, top + side))

    return change


def sharpened(share: float) -> Change:
    """Between the picture and its sharpened twin."""
    return lambda picture: Image.blend(picture, picture.filter(ImageFilter.SHARPEN), share)


CHANGES: dict[str, Change] = {
    "crop of the middle 31 × 31 pixels": cropped(31),
    "crop of the middle 24 × 24 pixels": cropped(24),
    "JPEG of quality 95": jpeg(95),
    "JPEG of quality 75": jpeg(75),
    "sharpened by a quarter": sharpened(0.25),
    "sharpened by half": sharpened(0.5),
    "sharpened": sharpened(1.0),
}


def off_by_one(images: Images, share: float) -> Images:
    """A share of the values, drawn at random, one grey level up or down: what a second rounding does."""
    moves = generator("grey levels off").choice([-1, 0, 1], images.shape, p=[share / 2, 1 - share, share / 2])
    moved: Images = np.clip(images + moves, 0, 255).astype(np.uint8)
    return moved


def changed(images: Images) -> dict[str, Images]:
    """The images as they are, flipped, and changed in each of the ways, all in shape (n, c, h, w)."""
    found = {"as they are": images, "flipped left to right": SHIFTS["hflip"](images, 0)}
    found["upside down"] = SHIFTS["vflip"](images, 0)
    for share in OFF:
        found[f"{share:.1%} of the values one grey level off"] = off_by_one(images, share)
        found[f"flipped, and {share:.1%} off"] = off_by_one(found["flipped left to right"], share)
        found[f"upside down, and {share:.1%} off"] = off_by_one(found["upside down"], share)
    return found | {name: applied(change, images) for name, change in CHANGES.items()}


def applied(change: Change, images: Images) -> Images:
    """Images, in shape (n, c, h, w), changed as pictures."""
    pictures = [Image.fromarray(image.squeeze(0) if len(image) == 1 else image.transpose(1, 2, 0)) for image in images]
    arrays = np.stack([np.asarray(change(picture)) for picture in pictures])
    return np.ascontiguousarray(arrays.reshape(*arrays.shape[:3], -1).transpose(0, 3, 1, 2))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="of a dose bench, whose model 0 is in the zoo")
    parser.add_argument("data", help="the data set whose test images are changed")
    parser.add_argument("--output", type=Path, required=True, help="JSON file")
    options = parser.parse_args()
    model, _, tables = zoo_model(Folder(options.folder))
    train, test = tables[TRAIN], tables[TEST]
    densities = {
        f"{kind}{suffix}": (names, density.fit(train.select(names).values))
        for suffix, names in (("", plain(train.names)), (", with score tests", with_score_tests(train.names)))
        for kind, density in (("KDE", ProductKDE()), ("SVM", WhitenedSVM()))
        if names
    }
    likelihood = "like" if "like" in train.names else "iwae"
    rows = []
    for name, images in track(changed(read_images(f"{options.data}:test")[:ROWS]).items(), "measuring"):
        table = measure(model, images)
        row: dict[str, str | float] = {"images": name, "likelihood": auroc(test[likelihood], table[likelihood])}
        row["TT"] = auroc(*(-np.abs(each[likelihood] - train[likelihood].mean()) for each in (test, table)))
        for density, (chosen, fitted) in densities.items():
            row[density] = auroc(*(fitted.score_samples(each.select(chosen).values) for each in (test, table)))
        for statistic in plain(train.names):  # in standard deviations of the test set
            away = table[statistic].mean() - test[statistic].mean()
            row[f"{statistic} moves"] = float(away / test[statistic].std())
        rows.append(row)
    show(Console(width=150), f"{options.data} to model 0 of {options.folder}: AUROC", rows)
    command = f"python benchmarks/preprocessing.py {options.folder} {options.data} --output {options.output}"
    found = {"command": command, "images": ROWS, "rows": rows}
    options.output.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
