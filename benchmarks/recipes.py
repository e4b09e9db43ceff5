"""What the knobs of a recipe are worth, one at a time from a common start: held-out loss, time, and AUROC.

    python benchmarks/recipes.py --output results/recipes.json     # goes on where it was; three hours on one thread

Every model is trained on the FashionMNIST images that ship with the package (7,200 to train on, 800 held out), so that
all of it can be run anywhere. The differences are those of recipes on few images; the cpu recipes follow from them.
"""

import json
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import cast

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import nn

from common import kept_so_far
from dose_ood import Detector, Likelihood, ProductKDE, Statistics, Typicality, WhitenedSVM
from dose_ood.benchmark.methods import plain
from dose_ood.benchmark.metrics import auroc
from dose_ood.data.images import Images, read_images, split
from dose_ood.measure import measure
from dose_ood.models.registry import build
from dose_ood.recipes import GlowRecipe, Recipe, VAERecipe
from dose_ood.train import train

Row = dict[str, str | float]
INLIER, ROWS = "fashion_mnist_sample", 600
OUTLIERS = {"mnist": "mnist_sample:test", "hflip": f"{INLIER}:test:hflip", "vflip": f"{INLIER}:test:vflip"}
VAE = VAERecipe(epochs=20, batch=64, rate=1e-3, depth=16, samples=1, halve_rate_steps=5_000, halve_beta_epochs=2)
SHORT = replace(VAE, epochs=10, rate=2e-3, halve_rate_steps=2_000, halve_beta_epochs=0.5)
GLOW = GlowRecipe(epochs=10, batch=64, rate=1e-3, filters=64, opening=2.0, exits=False, warm_up_epochs=1)
VARIANTS: dict[str, dict[str, VAERecipe] | dict[str, GlowRecipe]] = {
    "vae": {
        "start": VAE,
        "depth 32": replace(VAE, depth=32),
        "4 posterior samples": replace(VAE, samples=4),
        "16 posterior samples": replace(VAE, samples=16),
        "the paper's rate": replace(VAE, rate=1e-4, halve_rate_steps=10_000),
        "twice the epochs": replace(VAE, epochs=2 * VAE.epochs, halve_rate_steps=2 * VAE.halve_rate_steps),
        "β = 1 throughout": replace(VAE, beta=1.0),
        "short": SHORT,
        "short, rate 1e-3": replace(SHORT, rate=1e-3),
        "short, batches of 32": replace(SHORT, batch=32, halve_rate_steps=4_000),
    },
    "glow": {
        "start": GLOW,
        "128 filters": replace(GLOW, filters=128),
        "400 filters": replace(GLOW, filters=400),
        "25 epochs": replace(GLOW, epochs=25),
        "batches of 32": replace(GLOW, batch=32),
        "rate rises over 5 epochs": replace(GLOW, warm_up_epochs=5),
        "rate falls at the end": replace(GLOW, cool_down=0.3),
        "batches of 32, rate falls": replace(GLOW, batch=32, cool_down=0.3),
    },
}


def try_out(kind: str, name: str, recipe: "Recipe[nn.Module]", images: Images) -> Row:
    """Train a model, and compare methods on it."""
    model = build(recipe.config(INLIER, images.shape[1:], None), 0)
    begin = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        found: list[float] = []
        train(
            cast(nn.Module, model),
            images,
            recipe,
            Path(folder, "run"),
            progress=lambda r: found.append(r.held_out or np.nan),
        )
    row: Row = {"model": kind, "recipe": name, "CPU minutes": (time.process_time() - begin) / 60}
    row |= {
        "held-out nats": -found[-1],
        "bits/dim": recipe.bits_per_dim(cast(nn.Module, model), found[-1], images[0].size),
    }
    parts = split(len(images), 0)

    def measured(some: Images) -> Statistics:
        table = measure(model, some)
        return table.select(plain(table.names))

    rows = [measured(images[chosen]) for chosen in (parts.train[: 4 * ROWS], parts.held_out)]
    inlier = measured(read_images(f"{INLIER}:test")[:ROWS])
    outliers = {label: measured(read_images(source)[:ROWS]) for label, source in OUTLIERS.items()}
    for method in (Likelihood(), Typicality(), ProductKDE(), WhitenedSVM()):
        detector = Detector.fit(rows[0], rows[1], method)
        if method.kind == "kde":
            row["ECE"] = detector.estimator.ece_
        score = detector.score(inlier).score
        for label, table in outliers.items():
            row[f"{method.kind}, {label}"] = auroc(score, detector.score(table).score)
    return row


def main() -> None:
    output, rows = kept_so_far(__doc__)
    torch.set_num_threads(1)
    images = read_images(INLIER)
    for kind, variants in VARIANTS.items():
        for name, recipe in variants.items():
            if (kind, name) not in {(row["model"], row["recipe"]) for row in rows}:
                rows.append(try_out(kind, name, cast("Recipe[nn.Module]", recipe), images))
                document = {"command": "python benchmarks/recipes.py --output results/recipes.json", "rows": rows}
                output.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    grid = Table(*rows[0])
    for row in rows:
        grid.add_row(*(value if isinstance(value, str) else f"{value:.3f}" for value in row.values()))
    Console(width=200).print(grid)


if __name__ == "__main__":
    main()
