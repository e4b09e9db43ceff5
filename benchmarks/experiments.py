"""The models of experiments: the tables' recipe of a Glow with one change.

    DOSE_DATA=… python benchmarks/experiments.py exits  cifar10 runs/cifar10-exits-0     # an hour of a thread
    DOSE_DATA=… python benchmarks/experiments.py points celeba  runs/celeba-points-1 --seed 1
    DOSE_DATA=… python benchmarks/experiments.py wide   cifar10 runs/wide-0 --every 3    # two hours
    DOSE_DATA=… python benchmarks/experiments.py long   cifar10 runs/long-0 --every 12

Each goes on where it was, and `--every` keeps the weights after every so many epochs. `variants.py` sets models of
`exits` and `points` beside those of the tables, `patience.py` shows outliers to all weights that were kept.
"""

import argparse
from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import save_file

from dose_ood.data.images import read_images
from dose_ood.models.glow import Glow
from dose_ood.models.registry import save_model
from dose_ood.recipes import GLOW_RECIPES, GlowRecipe
from dose_ood.runs import Record
from dose_ood.study.members import MODEL
from dose_ood.study.sets import Images
from dose_ood.train import train

TABLES = GLOW_RECIPES["cpu"]
RECIPES: dict[str, GlowRecipe] = {
    "cpu": TABLES,
    "exits": replace(TABLES, exits=True),
    "points": replace(TABLES, noise=False),
    "wide": replace(TABLES, filters=400, bfloat16=True),
    "long": replace(TABLES, epochs=72, least_steps=48_000, bfloat16=True),
}


def trained(directory: Path, images: Images, recipe: GlowRecipe, seed: int = 0, every: int | None = None) -> Glow:
    """A Glow of these images, whose weights are kept after every so many epochs."""
    model = Glow(recipe.config(directory.name, images.shape[1:]), seed)

    def keep(record: Record) -> None:
        if record.held_out is not None:
            steps = f"{record.step:,} of {record.steps:,} steps"
            print(f"{directory.name}: {steps}, held out {record.held_out:,.1f} nats", flush=True)
            if every and (record.epoch + 1) % every == 0:
                save_file(model.state_dict(), directory / f"{record.step:06}.safetensors")

    provenance = train(model, images, recipe, directory, seed=seed, resume=directory.exists(), progress=keep)
    save_model(directory / MODEL, model, provenance)
    return model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe", choices=list(RECIPES))
    parser.add_argument("data", help="data set")
    parser.add_argument("run", type=Path, help="folder of the run")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--every", type=int, help="epochs between weights that are kept")
    options = parser.parse_args()
    torch.set_num_threads(1)
    trained(options.run, read_images(options.data), RECIPES[options.recipe], options.seed, options.every)


if __name__ == "__main__":
    main()
