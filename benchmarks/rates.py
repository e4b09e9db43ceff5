"""What learning rates, the optimiser and the couplings' opening of a Glow are worth: bits/dim held out of CIFAR10.

    DOSE_DATA=… python benchmarks/rates.py --output results/rates.json    # goes on where it was; 2 to 5 minutes a row

One epoch each, of all images or of as many as make 500 steps. Rates rise over the epoch and fall over its last 30 %, so
that their peak is three quarters of what is written. Muon's is 0 where Adamax takes all steps.
"""

import json
import tempfile
from dataclasses import replace
from pathlib import Path

import torch
from rich.console import Console

from common import kept_so_far, show
from dose_ood.data.images import read_images, split
from dose_ood.measure import measure
from dose_ood.models.glow import Glow
from dose_ood.recipes import GLOW_RECIPES
from dose_ood.train import train

DATA, ROWS = "cifar10", 500
EPOCH = replace(GLOW_RECIPES["cpu"], epochs=1, least_steps=0, warm_up_epochs=1, least_warm_up=0, cool_down=0.3)
ALL, FEW = 50_000, 17_778  # images; 10 % of them are held out
TRIED: list[dict[str, str | float]] = [
    {"images": images, "opening": opening, "rate": rate, "Muon's rate": muon}
    for images, opening, rate, muon in [
        (ALL, 0.0, 1e-3, 0.0),
        (ALL, 0.0, 2e-3, 0.0),
        (ALL, 0.0, 4e-3, 0.0),
        (ALL, 0.0, 8e-3, 0.0),
        (ALL, 0.0, 16e-3, 0.0),
        (ALL, 2.0, 4e-3, 0.0),
        (ALL, -1.0, 1e-3, 0.0),
        (ALL, -1.0, 12e-3, 0.0),
        (FEW, 0.0, 16e-3, 0.0),
        (FEW, 0.0, 16e-3, 1e-2),
        (FEW, 0.0, 16e-3, 2e-2),
        (FEW, 0.0, 16e-3, 4e-2),
        (FEW, 2.0, 16e-3, 2e-2),
    ]
]


def try_out(setting: dict[str, str | float]) -> dict[str, str | float]:
    """Train for an epoch; the spread of the latents is that of held-out images, 28 nats if they were normal."""
    images = read_images(DATA)[: int(setting["images"])]
    opening, rate, muon = (float(setting[name]) for name in ("opening", "rate", "Muon's rate"))
    recipe = replace(EPOCH, opening=opening, rate=rate, muon_rate=muon)
    model = Glow(recipe.config(DATA, images.shape[1:], None))
    held_out: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        train(model, images, recipe, Path(folder, "run"), progress=lambda r: held_out.append(r.held_out or 0.0))
    statistics = measure(model, images[split(len(images)).held_out][:ROWS])
    spread = dict(zip(statistics.names, statistics.values.std(axis=0), strict=True))
    return {
        **setting,
        "held out, bits/dim": recipe.bits_per_dim(model, held_out[-1], images[0].size),
        "spread of latent/0, nats": float(spread["latent/0"]),
        "spread of latent, nats": float(spread["latent"]),
    }


def main() -> None:
    output, rows = kept_so_far(__doc__)
    torch.set_num_threads(1)
    for setting in TRIED:
        if not any(setting.items() <= row.items() for row in rows):
            rows.append(try_out(setting))
            document = {"command": "python benchmarks/rates.py --output results/rates.json", "rows": rows}
            output.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    show(Console(), "Glow, one epoch of CIFAR10", rows)


if __name__ == "__main__":
    main()
