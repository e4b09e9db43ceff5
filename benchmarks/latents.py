"""Do a Glow's sums find more once its latents vary as little as a standard normal's?

    DOSE_DATA=… python benchmarks/latents.py --output results/latents.json    # 6 minutes on two idle cores

Where the latents z of a level of D dimensions are standard normal, |z|²/2 has mean D/2 and variance D/2. Those of the
tables' Glows vary more, and the likelihood hardly minds: a spread of twice the ideal costs some 2 nats a level. Here
zoo:cifar10-glow is trained for 400 steps more, once as it was and once with λ Σ (|z|²/2 − D/2)²/D beside the loss,
which sees no outlier. Both are then shown outliers: 1,500 test images, 1,000 of each other set, densities of the sums.
"""

import argparse
import json
import math
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.progress import track

from common import show
from dose_ood import Detector, ProductKDE, Statistics, WhitenedSVM, zoo
from dose_ood.benchmark.methods import plain
from dose_ood.benchmark.metrics import auroc
from dose_ood.data.images import read_images, split
from dose_ood.measure import measure
from dose_ood.models.distributions import LOG_2PI
from dose_ood.models.glow import Glow
from dose_ood.models.registry import model_from_state
from dose_ood.noise import generator
from dose_ood.recipes import GLOW_RECIPES
from dose_ood.storage import Directory

NAME, DATA, OUTLIERS = "cifar10-glow", "cifar10", ("svhn", "celeba", "imagenet32", "cifar100")
STEPS, RISE, SHARE, BATCH = 400, 20, 0.1, 32  # the rate rises to a tenth of the recipe's and falls to 0
ROWS = {"train": 2_500, "test": 1_500, "outliers": 1_000}


def excess(latent: torch.Tensor, dimensions: int) -> torch.Tensor:
    """(|z|²/2 − D/2)²/D of each image, ½ on average if z is standard normal, from log N(z; 0, 1)."""
    energy = -latent - 0.5 * dimensions * LOG_2PI
    return (energy - dimensions / 2).square() / dimensions


def tuned(weight: float) -> Glow:
    """The zoo's Glow after more steps with so much of the penalty."""
    state = Detector.load(zoo.path(NAME)).model
    assert isinstance(state, Directory)
    model = model_from_state(state, NAME).model
    assert isinstance(model, Glow)
    recipe, images = GLOW_RECIPES["cpu"], read_images(DATA)
    rows, random, noise = split(len(images)).train, generator("latents"), torch.Generator().manual_seed(0)
    optimisers = recipe.optimisers(model.train())
    highest = [(group, SHARE * group["lr"]) for each in optimisers for group in each.param_groups]
    for step in track(range(STEPS), f"λ = {weight:g}"):
        for group, rate in highest:
            group["lr"] = rate * min(1.0, step / RISE) * (1 - step / STEPS)
        batch = torch.from_numpy(images[random.choice(rows, BATCH)])
        found = model.encode(batch + torch.rand(batch.shape, generator=noise))
        loss = -torch.stack([*found.latent, *found.jac]).sum(0)
        for z, latent in zip(found.z, found.latent, strict=True):
            loss = loss + weight * excess(latent, math.prod(z.shape[1:]))
        model.zero_grad()
        (loss.mean() + recipe.penalty(model)).backward()  # type: ignore[no-untyped-call]
        for optimiser in optimisers:
            optimiser.step()
    return model.eval()


def row_of(name: str, model: Glow) -> dict[str, str | float]:
    """Bits per dimension, the spread of the latents, and what the paper's statistics find."""
    images = read_images(DATA)
    train = measure(model, images[split(len(images)).train[: ROWS["train"]]])
    test = measure(model, read_images(f"{DATA}:test")[: ROWS["test"]])
    row: dict[str, str | float] = {
        "model": name,
        "bits/dim": float(-test["like"].mean() / images[0].size / math.log(2)),
    }
    row |= {f"spread of {latent}": float(test[latent].std()) for latent in test.names if latent.startswith("latent")}
    names = plain(test.names)
    densities = [each.fit(train.select(names).values) for each in (ProductKDE(), WhitenedSVM())]
    for outlier in OUTLIERS:
        found = measure(model, read_images(f"{outlier}:test")[: ROWS["outliers"]])
        pair: tuple[Statistics, Statistics] = (test.select(names), found.select(names))
        row[outlier] = max(auroc(*(each.score_samples(table.values) for table in pair)) for each in densities)
        row[f"latent of {outlier} moves, nats"] = float(found["latent"].mean() - test["latent"].mean())
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True, help="JSON file")
    output: Path = parser.parse_args().output
    rows = [row_of(f"{STEPS} steps more, λ = {weight:g}", tuned(weight)) for weight in (0.0, 20.0)]
    ideal = float(np.sqrt(math.prod((3, 32, 32)) / 2))
    show(Console(width=220), f"{NAME}; a standard normal's latent varies by {ideal:.0f} nats", rows)
    command = "python benchmarks/latents.py --output results/latents.json"
    output.write_text(
        json.dumps({"command": command, "rows": rows}, indent=1, ensure_ascii=False) + "\n", encoding="utf-8"
    )


if __name__ == "__main__":
    main()
