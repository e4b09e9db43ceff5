"""The VAE's statistics against a plain loop over images and draws, and training in bfloat16 against float32.

python benchmarks/vae.py --output results/vae.json    # about 2 minutes; on an otherwise idle machine

Both sides of a ratio take turns in one run. The loop is what the paper's text has.
"""

import argparse
import json
import math
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch.nn import functional

from common import show
from dose_ood.models.vae import BetaVAE, VAEConfig
from dose_ood.noise import content_normal, generator
from dose_ood.recipes import VAE_RECIPES, VAERecipe

IMAGES, REPEATS, STEPS = 64, 5, 10


def plain(model: BetaVAE, images: Tensor) -> dict[str, Tensor]:
    """One image and one draw at a time, with torch's own distributions."""
    rows = []
    noise = torch.from_numpy(content_normal(images.numpy(), model.config.draws, (model.config.latent,))).float()
    for image, draws in zip(images, noise, strict=True):
        posterior = model.encoder.posterior(image[None])
        normal = torch.distributions.Normal(posterior.mean, posterior.log_scale.exp())
        terms = []
        for draw in draws:
            z = normal.mean + normal.stddev * draw
            log_q = normal.log_prob(z).sum()  # type: ignore[no-untyped-call]
            log_r = model.prior.log_prob(z[None])[0, 0]
            log_p = model.likelihood.log_prob(image[None], plain_decoder(model, z)).sum()
            terms.append(torch.stack([log_p, log_r, log_q]))
        log_p, log_r, log_q = torch.stack(terms, dim=1).double()
        iwae = torch.logsumexp(log_p + log_r - log_q, 0) - math.log(len(log_p))
        rows.append(torch.stack([-log_r.mean(), -log_q.mean(), log_q.mean() - log_r.mean(), log_p.mean(), iwae]))
    return dict(zip(("xent", "ent", "rate", "distortion", "iwae"), torch.stack(rows, dim=1), strict=True))


def plain_decoder(model: BetaVAE, z: Tensor) -> Tensor:
    """The decoder layer by layer, without its block-wise last convolution."""
    decoder = model.decoder
    x = functional.leaky_relu(decoder.first(z), decoder.slope).view(-1, *decoder.block).permute(0, 3, 1, 2)
    for layer in decoder.layers:
        x = functional.leaky_relu(layer(x), decoder.slope)
    return functional.conv2d(x, decoder.last.weight, decoder.last.bias, padding=2)


def seconds(action: Callable[[BetaVAE, Tensor], object], model: BetaVAE, images: Tensor) -> float:
    begin = time.perf_counter()
    action(model, images)
    return time.perf_counter() - begin


def train(recipe: VAERecipe, model: BetaVAE, images: Tensor) -> None:
    """Losses and gradients of a few steps after the burn-in, without those of an optimiser."""
    for _ in range(STEPS):
        model.zero_grad()
        loss = recipe.losses(model, images, torch.Generator().manual_seed(0), recipe.epochs, (0, 1)).mean()
        loss.backward()  # type: ignore[no-untyped-call]


def training_ratio(depth: int, images: Tensor) -> dict[str, float]:
    """What bfloat16 makes of the time of a training step."""
    rounded = replace(VAE_RECIPES["cpu"], depth=depth, bfloat16=True)
    model = BetaVAE(rounded.config("fashion_mnist", (1, 28, 28), None))
    both = [partial(train, recipe) for recipe in (rounded, replace(rounded, bfloat16=False))]
    for each in both:
        each(model, images)
    pairs = [[seconds(each, model, images) for each in both] for _ in range(REPEATS)]
    fast = float(np.median([pair[0] for pair in pairs]))
    ratio = float(np.median([slow / fast for fast, slow in pairs]))
    return {"depth": depth, "images/s": STEPS * len(images) / fast, "ratio": ratio}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True)
    options = parser.parse_args()
    images = torch.from_numpy(generator("benchmark images").integers(0, 256, (IMAGES, 1, 28, 28), dtype=np.uint8))
    rows = []
    for decoder in ("reference", "mirror"):
        model = BetaVAE(VAEConfig(decoder="reference" if decoder == "reference" else "mirror")).eval()
        with torch.inference_mode():
            ours, theirs = BetaVAE.measure(model, images), plain(model, images)
            error = max(float((ours[name] / theirs[name] - 1).abs().max()) for name in ours)
            pairs = [(seconds(BetaVAE.measure, model, images), seconds(plain, model, images)) for _ in range(REPEATS)]
        ratio = float(np.median([slow / fast for fast, slow in pairs]))
        speed = IMAGES / float(np.median([fast for fast, _ in pairs]))
        rows.append({"decoder": decoder, "images/s": speed, "ratio": ratio, "largest relative difference": error})
    grid = Table(*rows[0], title=f"VAE statistics, 16 draws, 28×28, {torch.get_num_threads()} threads")
    for row in rows:
        grid.add_row(*(value if isinstance(value, str) else f"{value:.3g}" for value in row.values()))
    Console().print(grid)
    training = [training_ratio(depth, images) for depth in (16, 32)]
    show(Console(), "training step in bfloat16 against float32, batches of 64", training)
    command = "python benchmarks/vae.py --output results/vae.json"
    document = {"command": command, "threads": torch.get_num_threads(), "rows": rows, "training": training}
    options.output.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
