"""Is it what an image shows or how it was made? Inliers and outliers through the same JPEG or the same crop.

    DOSE_DATA=… python benchmarks/alike.py results/cifar10 results/celeba --output results/alike.json

JPEG, resizing and rounding leave traces, which statistics see, and data sets differ in them. Here training images,
test images and outliers all go through the same change before they are shown to model 0 of a `dose bench`, which the
zoo has; densities are fitted to the changed training images. Traces that were there before are then under the same
new ones. What is still found is found for what it shows, or for traces that the change did not cover. 1,000 images of
each set, 2,500 training images. A minute and a half for each model.
"""

import argparse
import json
from pathlib import Path

from rich.console import Console
from rich.progress import track

from common import dose_aurocs, show
from dose_ood.benchmark.results import TEST, TRAIN, Folder
from dose_ood.measure import measure
from dose_ood.study.sets import SHIFTED
from preprocessing import applied, cropped, jpeg
from zoo import zoo_model

ROWS = 1_000
CHANGES = {"as they are": None, "JPEG of quality 75": jpeg(75), "crop of the middle 24 × 24 pixels": cropped(24)}


def compare(folder: Folder) -> list[dict[str, str | float]]:
    """AUROC, the better of KDE and SVM, for each change and each set of outliers."""
    model, sets, tables = zoo_model(folder)
    outliers = [name for name in tables if name in sets.outliers and name not in SHIFTED]
    rows: list[dict[str, str | float]] = []
    for name, change in track(CHANGES.items(), f"measuring with model 0 of {folder.path}"):
        found = {}
        for each in (TRAIN, TEST, *outliers):
            images = sets.images(each)[: None if each == TRAIN else ROWS]
            found[each] = measure(model, images if change is None else applied(change, images))
        dose = dose_aurocs(found[TRAIN], found[TEST], {outlier: found[outlier] for outlier in outliers})
        for outlier in outliers:
            row: dict[str, str | float] = {"data": folder.path.name, "all images": name, "outliers": outlier}
            rows.append(row | dose[outlier])
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", type=Path, nargs="+", help="of dose bench, whose model 0 is in the zoo")
    parser.add_argument("--output", type=Path, required=True, help="JSON file")
    options = parser.parse_args()
    rows = [row for folder in options.folders for row in compare(Folder(folder))]
    show(Console(width=150), "all images changed alike: AUROC", rows)
    command = f"python benchmarks/alike.py {' '.join(map(str, options.folders))} --output {options.output}"
    found = {"command": command, "images": ROWS, "rows": rows}
    options.output.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
