"""A small model that keeps the contract of both model families, and processes that train it.

`python standin.py FOLDER kill` trains it in FOLDER/whole, and in FOLDER/killed with interruptions;
`python standin.py FOLDER two` in FOLDER/whole, and in FOLDER/two in two processes.
"""

import itertools
import os
import signal
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from torch import nn

from dose_ood.noise import generator
from dose_ood.recipes import GlowRecipe
from dose_ood.train import processes, train

RECIPE = GlowRecipe(epochs=3, batch=16, rate=1e-2, warm_up_epochs=1, least_warm_up=0, l2=1e-3)


@dataclass(frozen=True)
class StandInConfig:
    channels: int = 1
    filters: int = 8


class StandIn(nn.Module):
    """A Gaussian around what a small network makes of a noisy image; `burn_in` leaves the encoder out."""

    kind: ClassVar[str] = "standin"

    def __init__(self, config: StandInConfig, seed: int = 0) -> None:
        super().__init__()
        self.config = config
        self.encoder = nn.Conv2d(config.channels, config.filters, 3, padding=1)
        self.decoder = nn.Conv2d(config.filters, config.channels, 3, padding=1)
        self.register_buffer("offset", torch.zeros(config.channels, 1, 1))
        with torch.no_grad():
            for name, parameter in self.named_parameters():
                drawn = 0.1 * generator(f"stand-in {name}", seed).normal(size=parameter.shape)
                parameter.copy_(torch.from_numpy(drawn))

    def initialize(self, x, noise):
        self.offset.copy_((x / 255).mean(dim=(0, 2, 3), keepdim=True)[0])

    def l2(self):
        return sum((p**2).sum() for p in self.parameters())

    def objective(self, x, noise, *, beta=1.0, samples=1, burn_in=False, share=(0, 1), networks=None):
        rank, world = share
        drawn = torch.randn((world * len(x), *x.shape[1:]), generator=noise).chunk(world)[rank]
        pixels = x / 255 - self.offset
        noisy = drawn if burn_in else pixels + 0.3 * drawn
        hidden = self.encoder(noisy).detach() if burn_in else self.encoder(noisy)
        error = pixels - self.decoder(torch.relu(hidden))
        return 5 * (error**2).sum(dim=(1, 2, 3)) + (beta - 1) * (hidden**2).mean(dim=(1, 2, 3))

    def bits_per_dim(self, loss):
        return loss / 64 / np.log(2)

    def measure(self, x):
        pixels = x / 255 - self.offset
        hidden = torch.relu(self.encoder(pixels))
        error = ((pixels - self.decoder(hidden)) ** 2).sum(dim=(1, 2, 3)).double()
        return {"like": -5 * error, "norm": (hidden**2).sum(dim=(1, 2, 3)).sqrt().double()}


def stripes(count: int, seed: int = 0, size: int = 8) -> np.ndarray:
    """Images with a direction: stripes of random phase and pitch, under noise."""
    random = generator("stripes", seed)
    phase, pitch = random.uniform(0, 6, (count, 1, 1, 1)), random.uniform(0.5, 1.5, (count, 1, 1, 1))
    waves = 100 * np.sin(phase + pitch * np.arange(size)) + 128 + 10 * random.normal(size=(count, 1, size, size))
    return waves.clip(0, 255).astype(np.uint8)


def run(folder: Path) -> None:
    """Train in a folder, or go on there."""
    model = StandIn(StandInConfig(), seed=1)
    train(model, stripes(500), RECIPE, folder, seed=3, resume=True, checkpoint_seconds=0.0, background=0.15)


def fork(work: Callable[[], None]) -> int:
    """Start a process that does the work; torch is imported already, but has not started a thread yet."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            torch.set_num_threads(1)
            work()
            code = 0
        finally:
            os._exit(code)
    return child


def ended(child: int) -> int:
    """What a process ended with: 0, or minus the signal that killed it."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def run_until_killed(folder: Path, moments: int) -> None:
    """Train, and be killed when so many files of the run have been opened, renamed or removed."""
    events = {"open", "os.rename", "os.remove", "os.mkdir", "os.rmdir"}
    seen = itertools.count(1)

    def look(event: str, arguments: tuple[object, ...]) -> None:
        if event in events and str(folder) in str(arguments[0]) and next(seen) == moments:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(look)
    run(folder)


def run_killed_again_and_again(folder: Path) -> int:
    """Train until the run is complete, killed at many moments; how often it was."""
    random = generator("kills")
    for kills in range(100):
        moments = int(random.integers(1, 80))
        if (code := ended(fork(partial(run_until_killed, folder, moments)))) == 0:
            return kills
        assert code == -signal.SIGKILL, code
    raise AssertionError("killed 100 times and not done")


def run_as_two(folder: Path) -> None:
    """Train in two processes."""

    def join(rank: int) -> None:
        os.environ |= {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        with processes():
            run(folder)

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    children = [fork(partial(join, rank)) for rank in range(2)]
    assert [ended(child) for child in children] == [0, 0]


if __name__ == "__main__":
    place = Path(sys.argv[1])
    torch.optim.Adamax([torch.zeros(1, requires_grad=True)])  # imports a lot, once for all processes
    assert ended(fork(partial(run, place / "whole"))) == 0
    if sys.argv[2] == "kill":
        print(run_killed_again_and_again(place / "killed"))
    else:
        run_as_two(place / "two")
