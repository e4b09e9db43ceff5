"""Do Glows find more the longer they are trained as the paper trains them, or the wider they are?

    DOSE_DATA=… python benchmarks/experiments.py cpu cifar10 runs/patience-0 --every 3
    DOSE_DATA=… python benchmarks/experiments.py cpu cifar10 runs/patience-1 --every 3 --seed 1
    DOSE_DATA=… python benchmarks/patience.py runs/patience-0 runs/patience-1 --output results/patience.json

shows outliers to all weights that were kept: densities of 2,500 training images, 1,500 test images, 1,000 of each other
set. Rows that the file has stay. `experiments.py` says how `wide-0` and `long-0` are trained, and

    DOSE_DATA=… python benchmarks/patience.py runs/wide-0 runs/long-0 --output results/sizes.json

shows them the same.
"""

import argparse
import json
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.progress import track
from safetensors.torch import load_file

from common import Row, dose_aurocs, likelihood_and_dose, moved, show
from dose_ood.data.images import read_images, split
from dose_ood.measure import measure
from dose_ood.models.glow import Glow
from experiments import TABLES
from preprocessing import applied, jpeg

DATA, OUTLIERS = "cifar10", ("svhn", "celeba", "imagenet32", "cifar100")
SHAPE = (3, 32, 32)
QUALITY = 75  # of the JPEG that all images go through, so that how they were made does not tell
ROWS = {"train": 2_500, "test": 1_500, "outliers": 1_000}


def rows_of(model: Glow) -> Iterator[Row]:
    """What a model makes of each set of outliers: likelihood, TT, DoSE, and DoSE after the same JPEG for all images."""
    images = read_images(DATA)
    sets = {"train": images[split(len(images)).train[: ROWS["train"]]]}
    sets["test"] = read_images(f"{DATA}:test")[: ROWS["test"]]
    sets |= {name: read_images(f"{name}:test")[: ROWS["outliers"]] for name in OUTLIERS}
    tables = {name: measure(model, each) for name, each in sets.items()}
    alike = {name: measure(model, applied(jpeg(QUALITY), each)) for name, each in sets.items()}
    test = tables["test"]
    after = dose_aurocs(alike["train"], alike["test"], {name: alike[name] for name in OUTLIERS})
    for outlier, found in likelihood_and_dose(tables).items():
        row: Row = {
            "bits/dim": float(-test["like"].mean() / math.prod(SHAPE) / math.log(2)),
            "outliers": outlier,
            "latent moves": moved("latent", tables[outlier], test),
        }
        yield row | found | {f"{kind}, JPEG": value for kind, value in after[outlier].items()}


def kept(snapshot: Path) -> Glow:
    """The Glow of these weights: the tables', but for its width."""
    weights = load_file(snapshot)
    recipe = replace(TABLES, filters=weights["levels.0.steps.0.coupling.hidden2"].shape[1])
    model = Glow(recipe.config(DATA, SHAPE))
    model.load_state_dict(weights)
    return model


def compare(runs: list[Path], output: Path) -> None:
    """Show outliers to every model that was kept, but for those whose rows the file has."""
    rows: list[Row] = json.loads(output.read_text(encoding="utf-8"))["rows"] if output.exists() else []
    done = {(row["run"], row["steps"]) for row in rows}
    command = f"python benchmarks/patience.py {' '.join(map(str, runs))} --output {output}"
    for snapshot in track(sorted(file for run in runs for file in run.glob("0*.safetensors")), "measuring"):
        if (snapshot.parent.name, int(snapshot.stem)) not in done:
            model = kept(snapshot)
            which: Row = {"run": snapshot.parent.name, "steps": int(snapshot.stem), "filters": model.config.filters}
            rows += [which | row for row in rows_of(model)]
            output.write_text(json.dumps({"command": command, "rows": rows}, indent=1) + "\n", encoding="utf-8")
    show(Console(width=180), "the longer it is trained: AUROC", rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+", help="folders of runs")
    parser.add_argument("--output", type=Path, required=True, help="JSON file")
    options = parser.parse_args()
    compare(options.runs, options.output)


if __name__ == "__main__":
    main()
