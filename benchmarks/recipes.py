"""What the knobs that a cpu recipe shrinks are worth, one at a time: held-out loss, time, and AUROC.

    python benchmarks/recipes.py --output results/recipes.json     # goes on where it was; about an hour on one thread

Every VAE is trained on the FashionMNIST images that ship with the package (7,200 to train on, 800 held out), so that
all of it can be run anywhere. The differences are those of recipes on few images.
"""

import argparse
import json
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from dose_ood import Detector, Likelihood, ProductKDE, Typicality, WhitenedSVM
from dose_ood.benchmark.metrics import auroc
from dose_ood.data.images import Images, read_images, split
from dose_ood.measure import measure
from dose_ood.models.vae import BetaVAE
from dose_ood.recipes import VAE_RECIPES, VAERecipe
from dose_ood.train import train

Row = dict[str, str | float]
INLIER, ROWS = "fashion_mnist_sample", 600
OUTLIERS = {"mnist": "mnist_sample:test", "hflip": f"{INLIER}:test:hflip", "vflip": f"{INLIER}:test:vflip"}
CPU = VAE_RECIPES["cpu"]
VARIANTS: dict[str, VAERecipe] = {
    "cpu": CPU,
    "depth 32": replace(CPU, depth=32),
    "4 posterior samples": replace(CPU, samples=4),
    "the paper's rate": replace(CPU, rate=1e-4, halve_rate_steps=10_000),
    "twice the epochs": replace(CPU, epochs=2 * CPU.epochs, halve_rate_steps=2 * CPU.halve_rate_steps),
    "β = 1 throughout": replace(CPU, beta=1.0),
}


def try_out(name: str, recipe: VAERecipe, images: Images) -> Row:
    """Train a model, and compare methods on it."""
    model = BetaVAE(recipe.config(INLIER, images.shape[1:], None), seed=0)
    begin = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        found: list[float] = []
        train(model, images, recipe, Path(folder, "run"), progress=lambda r: found.append(r.held_out or np.nan))
    row: Row = {"recipe": name, "CPU minutes": (time.process_time() - begin) / 60, "held-out nats": -found[-1]}
    parts = split(len(images), 0)
    rows = [measure(model, images[chosen]) for chosen in (parts.train[: 4 * ROWS], parts.held_out)]
    inlier = measure(model, read_images(f"{INLIER}:test")[:ROWS])
    outliers = {label: measure(model, read_images(source)[:ROWS]) for label, source in OUTLIERS.items()}
    for method in (Likelihood(), Typicality(), ProductKDE(), WhitenedSVM()):
        detector = Detector.fit(rows[0], rows[1], method)
        if method.kind == "kde":
            row["ECE"] = detector.estimator.ece_
        score = detector.score(inlier).score
        for label, table in outliers.items():
            row[f"{method.kind}, {label}"] = auroc(score, detector.score(table).score)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True)
    output: Path = parser.parse_args().output
    torch.set_num_threads(1)
    rows: list[Row] = json.loads(output.read_text(encoding="utf-8"))["rows"] if output.exists() else []
    images = read_images(INLIER)
    for name, recipe in VARIANTS.items():
        if name not in {row["recipe"] for row in rows}:
            rows.append(try_out(name, recipe, images))
            document = {"command": "python benchmarks/recipes.py --output results/recipes.json", "rows": rows}
            output.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    grid = Table(*rows[0])
    for row in rows:
        grid.add_row(*(value if isinstance(value, str) else f"{value:.3f}" for value in row.values()))
    Console(width=200).print(grid)


if __name__ == "__main__":
    main()
