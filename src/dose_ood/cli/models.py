"""The commands of the torch half: train, measure, samples. They import torch only when they run."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np
import typer
from numpy.typing import NDArray
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from dose_ood.cli.console import AsJson, err, out, progress, show
from dose_ood.data.images import fingerprint, read_images, split, write_sheet
from dose_ood.errors import InputError
from dose_ood.measure import measure as measure_images
from dose_ood.terminal import bar

if TYPE_CHECKING:
    from dose_ood.models.registry import Loaded
    from dose_ood.runs import Record

ModelName = Literal["vae", "glow"]
RecipeName = Literal["cpu", "deep", "paper", "demo", "tiny"]
Part = Literal["all", "train", "held-out"]
LikelihoodName = Literal["bernoulli", "logit_normal", "discretized_logit_normal"]
Images = NDArray[np.uint8]

DATA_HELP = (
    "A .npy or .npz file of uint8 images, a folder of pictures, or a data set's name in the folder $DOSE_DATA. "
    "Append *:test* for the test part and *:hflip* (vflip, inverted, uniform_noise, gaussian_noise) for a shift of it."
)
DataArgument = Annotated[str, typer.Argument(metavar="DATA", help=DATA_HELP, show_default=False)]


def train(
    data: DataArgument,
    output: Annotated[Path, typer.Option("--output", "-o", help="Directory of the run.", show_default=False)],
    model: Annotated[ModelName, typer.Option("--model", "-m", help="β-VAE for grey images, Glow for colour.")] = "vae",
    recipe: Annotated[
        RecipeName,
        typer.Option(
            help="The *paper*'s, its *cpu*-sized twin, the twin with the paper's depth (*deep*; vae), one for a *demo* "
            "of a minute (vae), or a *tiny* one to try things out."
        ),
    ] = "cpu",
    seed: Annotated[int, typer.Option(help="Draws weights, order and noise; ensemble members differ in it.")] = 0,
    split_seed: Annotated[int, typer.Option(help="Draws the 10 % held out; ensemble members share it.")] = 0,
    background: Annotated[
        bool, typer.Option("--background", help="Train on mutated images, for the likelihood ratio.")
    ] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Go on after an interruption, or start.")] = False,
    epochs: Annotated[int | None, typer.Option(min=1, help="Another number of epochs than the recipe's.")] = None,
    likelihood: Annotated[
        LikelihoodName | None, typer.Option(help="vae: default *bernoulli* for MNIST, else *logit_normal*.")
    ] = None,
    latent: Annotated[
        int | None, typer.Option(min=1, help="vae: dimensions of the latent space. Default: 2, the paper's.")
    ] = None,
    json: AsJson = False,
) -> None:
    """Train a β-VAE or a Glow on images.

    10 % of the images are held out. The directory gets the trained `model/`, a `checkpoint/` and `log.jsonl`. Killed at
    any moment, the run continues with the same command and `--resume`, and ends with the same bits.

    On several processes, or machines that share the directory:
    `torchrun --nproc-per-node=2 -m dose_ood train DATA -o RUN`.

    **Then**: `dose measure RUN DATA --part train -o train.parquet`, the same with `--part held-out`, and `dose fit`.
    """
    with needs_torch():
        from dose_ood.models.registry import build, save_model
        from dose_ood.recipes import MUTATION, recipe_named
        from dose_ood.runs import read_log
        from dose_ood.train import processes
        from dose_ood.train import train as run
    images = read_images(data)
    chosen = recipe_named(recipe, model)
    chosen = chosen if epochs is None else chosen.lasting(epochs)
    network = build(chosen.config(Path(data.partition(":")[0]).stem, images.shape[1:], likelihood, latent), seed)
    with processes() as leads, training_bar(leads) as look:
        found = run(
            network,
            images,
            chosen,
            output,
            seed=seed,
            split_seed=split_seed,
            background=MUTATION if background else None,
            resume=resume,
            progress=look,
        )
    if leads:
        save_model(output / "model", network, found)
        log = read_log(output)

        def text() -> None:
            out.print(loss_curve(log), markup=False)
            out.print(f"trained {model} ({recipe}) on {data}: the model is in {output / 'model'}")

        show({"output": str(output), "bits_per_dim": log[-1].bits_per_dim, **found}, json, text)


def measure(
    runs: Annotated[
        list[Path],
        typer.Argument(metavar="RUN", help="Directories that `dose train` made.", show_default=False),
    ],
    data: DataArgument,
    output: Annotated[
        Path, typer.Option("--output", "-o", help=".parquet, .csv or .csv.gz file to write.", show_default=False)
    ],
    part: Annotated[
        Part, typer.Option(help="Of the data that the model was trained on: what it saw, or what was *held-out*.")
    ] = "all",
    batch: Annotated[int, typer.Option(min=1, help="Images at a time; this bounds the memory.")] = 256,
    json: AsJson = False,
) -> None:
    """Describe every image by the statistics of trained models: one row an image.

    Of one run, the columns have plain names (`like`, `latent`, `jac`; `rate`, `iwae`, ...). Of several, they begin with
    `0/`, `1/`, ..., and those of a run trained with `--background` with `background/`.

    Killed at any moment, the same command goes on where it was. The file appears when it is complete.
    """
    with needs_torch():
        from dose_ood.models.ensemble import Ensemble
    loaded = [load(run) for run in runs]
    images = choose(read_images(data), part, loaded)
    backgrounds = [each.model for each in loaded if each.provenance.get("background") is not None]
    models = [each.model for each in loaded if each.provenance.get("background") is None]
    if len(backgrounds) > 1:
        raise InputError(f"expected at most one run trained with --background, got {len(backgrounds)}")
    if not models:
        raise InputError("a background model is measured beside others, got nothing else")
    ensemble = Ensemble(models, backgrounds[0] if backgrounds else None)
    with progress() as bars:
        task = bars.add_task(f"measuring {data}", total=len(images))
        table = measure_images(
            ensemble, images, output, batch=batch, progress=lambda done, _: bars.update(task, completed=done)
        )
    summary = {"rows": len(table), "bad": int(table.bad.sum()), "statistics": table.names, "output": str(output)}
    show(
        summary,
        json,
        lambda: out.print(f"{len(table):,} rows of {', '.join(table.names)} written to {output}"),
    )


def samples(
    run: Annotated[Path, typer.Argument(help="A directory that `dose train` made.", show_default=False)],
    output: Annotated[Path, typer.Option("--output", "-o", help=".png file to write.", show_default=False)],
    data: Annotated[
        str | None, typer.Option("--data", help="Images to reconstruct: first row as they are, then as the model says.")
    ] = None,
    count: Annotated[int, typer.Option(min=1, help="Samples to draw.")] = 64,
    seed: Annotated[int, typer.Option(help="Draws the samples.")] = 0,
    json: AsJson = False,
) -> None:
    """Draw a picture of samples from a trained model and, given data, of reconstructions."""
    with needs_torch():
        import torch
    model = load(run).model.eval()
    with torch.inference_mode():
        drawn = model.sample(count, seed).numpy()
        columns = int(np.ceil(np.sqrt(count)))
        rows = [drawn]
        if data is not None:
            images = read_images(data)[:columns].copy(order="C")
            again = model.reconstruct(torch.from_numpy(images)).numpy()
            padding = np.full((-len(drawn) % columns, *drawn.shape[1:]), 255, np.uint8)
            rest = np.full((columns - len(images), *drawn.shape[1:]), 255, np.uint8)
            rows += [padding, images, rest, again, rest]
    write_sheet(output, np.concatenate(rows), columns)
    show({"samples": count, "output": str(output)}, json, lambda: out.print(f"{count} samples drawn to {output}"))


@contextmanager
def needs_torch() -> Iterator[None]:
    """Say in one sentence what is missing, if torch is."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "torch":
            raise
        raise InputError('this command needs PyTorch: pip install "dose-ood[torch]"') from None


def load(run: Path) -> "Loaded":
    """The model of a run, or of a directory that holds a model alone."""
    with needs_torch():
        from dose_ood.models.registry import load_model
    if (run / "model").is_dir():
        return load_model(run / "model")
    if (run / "log.jsonl").exists():
        raise InputError(f"{run} is a run that has not finished: go on with dose train ... --resume -o {run}")
    return load_model(run)


def choose(images: Images, part: Part, loaded: Sequence["Loaded"]) -> Images:
    """The images a model was trained on, or those held out; that needs the very data of its training."""
    if part == "all":
        return images
    seeds = {each.provenance.get("split_seed") for each in loaded}
    hashes = {data.get("sha256") for each in loaded if isinstance(data := each.provenance.get("data"), Mapping)}
    seed = next(iter(seeds))
    if len(seeds) > 1 or not isinstance(seed, int):
        raise InputError(
            f"the models hold out different images (split seeds {sorted(map(str, seeds))}): measure them apart"
        )
    if hashes != {fingerprint(images)}:
        raise InputError(f"--part {part} needs the images that the model was trained on, and these are others")
    parts = split(len(images), seed)
    return images[parts.train if part == "train" else parts.held_out]


@contextmanager
def training_bar(shown: bool) -> Iterator["Callable[[Record], None] | None"]:
    """What shows loss, bits/dim, images/s and time left after every step."""
    if not shown:
        yield None
        return
    facts = TextColumn("{task.fields[facts]}")
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), facts, TimeRemainingColumn())
    with Progress(*columns, console=err, transient=True, disable=not err.is_terminal) as bars:
        task = bars.add_task("training", total=None, facts="")
        held_out = ""

        def look(record: "Record") -> None:
            nonlocal held_out
            if record.held_out is not None:
                held_out = f", held out {record.held_out:,.1f}"
            per_dim, speed = f"{record.bits_per_dim:.3f} bits/dim", f"{record.images_per_s:,.0f} images/s"
            text = f"loss {record.loss:,.1f}{held_out}, {per_dim}, {speed}"
            bars.update(task, total=record.steps, completed=record.step, facts=text)

        yield look


def loss_curve(log: Sequence["Record"], rows: int = 16, width: int = 40) -> str:
    """A run's loss and held-out loss by epoch, one line each, as bars from the lowest to the highest loss."""
    ends = [(record.epoch, record.epoch_loss, record.held_out) for record in log if record.epoch_loss is not None]
    shown = [ends[i] for i in np.unique(np.linspace(0, len(ends) - 1, min(rows, len(ends))).round().astype(int))]
    losses = [loss for _, loss, _ in shown]
    low, high = min(losses, default=0.0), max(losses, default=0.0)
    lines = ["epoch        loss    held out"]
    for epoch, loss, held_out in shown:
        share = (loss - low) / (high - low) if high > low else 0.0
        lines.append(f"{epoch:5} {loss:11,.2f} {held_out:11,.2f}  {bar(share, width)}".rstrip())
    return "\n".join(lines)
