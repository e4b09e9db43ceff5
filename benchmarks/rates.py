"""What the learning rate and the couplings' opening of a Glow are worth: held-out bits/dim after one epoch of CIFAR10.

    DOSE_DATA=… python benchmarks/rates.py --output results/rates.json    # goes on where it was; 4 minutes a row

The rate rises over the epoch and falls over its last 30 %, so that its peak is three quarters of what is written.
"""

import json
import tempfile
from dataclasses import replace
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from common import kept_so_far
from dose_ood.data.images import read_images, split
from dose_ood.measure import measure
from dose_ood.models.glow import Glow
from dose_ood.recipes import GLOW_RECIPES
from dose_ood.train import train

DATA, ROWS = "cifar10", 500
EPOCH = replace(GLOW_RECIPES["cpu"], epochs=1, least_steps=0, cool_down=0.3)
TRIED = [(0.0, 1e-3), (0.0, 2e-3), (0.0, 4e-3), (0.0, 8e-3), (0.0, 16e-3), (2.0, 4e-3), (-1.0, 1e-3), (-1.0, 12e-3)]
Row = dict[str, str | float]


def try_out(opening: float, rate: float) -> Row:
    """Train for an epoch; the spread of the latents is that of held-out images, 28 nats if they were normal."""
    images, recipe = read_images(DATA), replace(EPOCH, opening=opening, rate=rate)
    model = Glow(recipe.config(DATA, images.shape[1:], None))
    held_out: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        train(model, images, recipe, Path(folder, "run"), progress=lambda r: held_out.append(r.held_out or 0.0))
    statistics = measure(model, images[split(len(images)).held_out][:ROWS])
    spread = dict(zip(statistics.names, statistics.values.std(axis=0), strict=True))
    return {
        "opening": opening,
        "rate": rate,
        "held out, bits/dim": recipe.bits_per_dim(model, held_out[-1], images[0].size),
        "spread of latent/0, nats": float(spread["latent/0"]),
        "spread of latent, nats": float(spread["latent"]),
    }


def main() -> None:
    output, rows = kept_so_far(__doc__)
    torch.set_num_threads(1)
    for opening, rate in TRIED:
        if (opening, rate) not in {(row["opening"], row["rate"]) for row in rows}:
            rows.append(try_out(opening, rate))
            document = {"command": "python benchmarks/rates.py --output results/rates.json", "rows": rows}
            output.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    grid = Table(*rows[0])
    for row in rows:
        grid.add_row(*(f"{value:.4g}" for value in row.values() if not isinstance(value, str)))
    Console().print(grid)


if __name__ == "__main__":
    main()
