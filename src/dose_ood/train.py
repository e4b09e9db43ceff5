"""The one training loop. A run is a function of images, recipe and seeds; its state is step, weights and moments."""

import math
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Protocol, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor, nn

from dose_ood.data.images import fingerprint, split
from dose_ood.data.shifts import mutate
from dose_ood.errors import InputError
from dose_ood.noise import generator
from dose_ood.recipes import Recipe
from dose_ood.runs import Record, Run, State, share, write_line
from dose_ood.storage import Json

LINE_STEPS = 20  # a line of the log is the mean over so many steps; checkpoints lie between lines
MARGIN = 1.0  # nats per dimension by which a loss may exceed the best one for long
Images = NDArray[np.uint8]
M = TypeVar("M", bound=nn.Module)


class Progress(Protocol):
    """Is told after every step how far the run is."""

    def __call__(self, record: Record, /) -> None:
        """Look at a record."""


def train(
    model: M,
    images: Images,
    recipe: Recipe[M],
    directory: str | os.PathLike[str],
    *,
    seed: int = 0,
    split_seed: int = 0,
    background: float | None = None,
    resume: bool = False,
    checkpoint_seconds: float = 300.0,
    progress: Progress | None = None,
) -> dict[str, Json]:
    """Train a model in place by a recipe, and give its provenance: what it was trained on, how, and how well.

    `directory` gets `log.jsonl` and `checkpoint/`. A run that was killed at any moment continues with `resume=True`
    and ends, on a CPU with the same number of threads, with the same bits as if nothing had happened.

    Under torchrun, within `processes()`, each process takes its share of every batch, and all take the same steps.

    Parameters
    ----------
    model
        A fresh model, in the place (CPU, GPU) where it is to be trained; it has `kind` and `config`.
    images
        uint8 of shape (n, c, h, w); 10 % of them are held out.
    recipe
        The objective, its schedules and the optimiser.
    directory
        A new or empty one, or that of the run to resume.
    seed
        Draws the order of the images and all noise.
    split_seed
        Draws the images held out; models of an ensemble share it.
    background
        The rate at which pixels are mutated, for a background model.
    resume
        Whether to go on from the last checkpoint, if there is one.
    checkpoint_seconds
        The least time between two checkpoints.
    progress
        Is told after every step how far the run is.
    """
    rank, world = shard_of = share()
    parts = split(len(images), split_seed)
    batches = _Batches(images, parts.train, min(recipe.batch, len(parts.train)), seed, background)
    if batches.size % world:
        raise InputError(f"a batch of {batches.size} images cannot be shared equally by {world} processes")
    held_out = images[parts.held_out]
    if background is not None:
        held_out = mutate(held_out, generator("mutation of held-out images", seed), background)
    dimensions, steps = math.prod(images.shape[1:]), recipe.steps_in_all(batches.per_epoch)
    optimisers = recipe.optimisers(model)
    highest = [(group, group["lr"]) for optimiser in optimisers for group in optimiser.param_groups]
    run = Run(Path(directory), _identity(model, images, recipe, seed, split_seed, background))
    run.begin(resume)
    if world > 1:
        dist.barrier()  # until every process has seen the directory as it was
    state = run.load(model, optimisers)
    device = next(model.parameters()).device
    model.train()
    with run.log(state.step) if rank == 0 else nullcontext() as log:
        losses: list[float] = []
        saved = started = time.monotonic()
        while state.step < steps:
            step, epoch = state.step, state.step // batches.per_epoch
            batch = batches.take(step).to(device)
            if step == 0:
                recipe.prepare(model, batch, _noise("initialisation", seed, device))
            for group, rate in highest:
                group["lr"] = rate * recipe.schedule(step, batches.per_epoch)
            model.zero_grad()
            shard, noise = batch.chunk(world)[rank], _noise(f"step {step}", seed, device)
            loss = recipe.losses(model, shard, noise, epoch, shard_of).mean()
            (loss + recipe.penalty(model)).backward()  # type: ignore[no-untyped-call]
            losses.append(_average(model, loss.detach(), world))
            if not math.isfinite(losses[-1]):
                raise run.error(f"the loss at step {step:,} is {losses[-1]}")
            for optimiser in optimisers:
                optimiser.step()
            state.step += 1
            state.total += losses[-1]

            mean = math.fsum(losses) / len(losses)
            speed = len(losses) * batches.size / (time.monotonic() - started)
            record = Record(state.step, steps, epoch, mean, recipe.bits_per_dim(model, mean, dimensions), speed)
            step_in_epoch = state.step % batches.per_epoch
            if step_in_epoch % LINE_STEPS == 0:  # zero at the end of an epoch
                _judge(state, mean, len(losses), MARGIN * dimensions, recipe.patience, run)
                if step_in_epoch == 0:
                    found = _held_out(model, held_out, recipe, batches.size, seed)
                    record = replace(record, epoch_loss=state.total / batches.per_epoch, held_out=found)
                    state.epochs += ({"epoch": epoch, "loss": record.epoch_loss, "held_out": found},)
                    state.total = 0.0
                    if recipe.objective_changes_after(epoch):
                        state.best, state.worse = None, 0
                if log is not None:
                    write_line(log, record)
                    due = state.worse == 0 and time.monotonic() - saved >= checkpoint_seconds
                    if due or state.step == steps:
                        run.save(model, optimisers, state, log)
                        saved = time.monotonic()
                losses, started = [], time.monotonic()
            if progress is not None:
                progress(record)
    model.eval()
    return {**run.identity, "steps": state.step, "epochs": state.epochs, "torch": str(torch.__version__)}


@contextmanager
def processes() -> Iterator[bool]:
    """Join the processes that torchrun started, if it did; true in the one that may write and print."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield True
        return
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    try:
        yield dist.get_rank() == 0
    finally:
        dist.destroy_process_group()


@dataclass
class _Batches:
    """The images of each step, which depend on the seed and the step alone."""

    images: Images
    rows: NDArray[np.int64]
    size: int
    seed: int
    background: float | None
    epoch: int = field(default=-1, init=False)

    @property
    def per_epoch(self) -> int:
        return len(self.rows) // self.size

    def take(self, step: int) -> Tensor:
        epoch, position = divmod(step, self.per_epoch)
        if epoch != self.epoch:
            self.epoch, self.order = epoch, generator(f"order of epoch {epoch}", self.seed).permutation(self.rows)
        batch = self.images[self.order[position * self.size : (position + 1) * self.size]]
        if self.background is not None:  # at every step, so each image afresh in each epoch
            batch = mutate(batch, generator(f"mutation at step {step}", self.seed), self.background)
        return torch.from_numpy(np.ascontiguousarray(batch))


def _identity(
    model: nn.Module, images: Images, recipe: Recipe[M], seed: int, split_seed: int, background: float | None
) -> dict[str, Json]:
    return {
        "model": {"kind": str(model.kind), "config": asdict(model.config)},  # type: ignore[call-overload]
        "recipe": asdict(recipe),
        "seed": seed,
        "split_seed": split_seed,
        "background": background,
        "data": {"shape": images.shape, "sha256": fingerprint(images)},
    }


def _noise(name: str, seed: int, device: torch.device) -> torch.Generator:
    drawn = int(generator(f"training noise, {name}", seed).integers(2**63))
    return torch.Generator(device).manual_seed(drawn)


def _average(model: nn.Module, loss: Tensor, world: int) -> float:
    """Give every process the mean gradient, and return the mean loss."""
    if world > 1:
        tensors = [loss, *(p.grad for p in model.parameters() if p.grad is not None)]
        flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
        dist.all_reduce(flat)
        flat /= world
        for tensor, mean in zip(tensors, torch.split(flat, [tensor.numel() for tensor in tensors]), strict=True):
            tensor.copy_(mean.view_as(tensor))
    return loss.item()


def _held_out(model: M, images: Images, recipe: Recipe[M], size: int, seed: int) -> float:
    """The mean objective of held-out images; the processes take batches in turn."""
    rank, world = share()
    device = next(model.parameters()).device
    total = torch.zeros((), dtype=torch.float64, device=device)
    model.eval()
    with torch.no_grad():
        for start in range(rank * size, len(images), world * size):
            batch = torch.from_numpy(np.ascontiguousarray(images[start : start + size])).to(device)
            noise = _noise(f"held-out images from {start}", seed, device)
            total += recipe.held_out_losses(model, batch, noise).double().sum()
    model.train()
    if world > 1:
        dist.all_reduce(total)
    return total.item() / len(images)


def _judge(state: State, loss: float, steps: int, margin: float, patience: int, run: Run) -> None:
    """Keep the best loss, and stop a run that has been far from it for long."""
    best = loss if state.best is None else min(loss, state.best)
    state.best, state.worse = best, state.worse + steps if loss > best + margin else 0
    if state.worse >= patience:
        raise run.error(
            f"the loss at step {state.step:,} is {loss:.6g}, was {best:.6g} at best, and has been as bad for "
            f"{state.worse} steps: training has diverged"
        )
