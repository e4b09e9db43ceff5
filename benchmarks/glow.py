"""Races of the Glow against the same flow built from normflows, in one run, as ratios.

    python benchmarks/glow.py --output results/glow.json              # all of it: about 10 minutes on 2 cores
    python benchmarks/glow.py --only 64 --output …                    # some of it; the rest of the file stays

Both flows have 3 levels of 8 steps on images of 32×32×3, random weights, and Adamax. First each is timed at several
batch sizes and its best is kept; then they take turns, with matrix products of 2048×2048 between, and every figure is
the best of all rounds: whatever else a machine does only slows them down. The medians are given beside. The peak that a
training step is compared with is that of products one after the other, as many as have the operations of the step: a
processor has a higher clock for a product of 50 ms than it keeps up for a second. The share of that burst, the best of
three, is given too.

A training step of ours draws noise, dequantises and updates the weights; normflows gets its images as floats. `measure`
hashes images, draws their noise and gives statistics for each level; normflows gives one log-density. Last, a training
step of the recipes, whose batches are of 32, with networks in bfloat16 takes turns with one in float32.
"""

import argparse
import json
import platform
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import normflows as nf
import torch
from rich.console import Console

from common import show
from dose_ood.models.glow import Glow, GlowConfig
from dose_ood.recipes import GLOW_RECIPES

Row = dict[str, str | float]
Action = Callable[[], object]

SHAPE, LEVELS, STEPS = (3, 32, 32), 3, 8
SIZES = {64: (16, 32, 64, 128), 400: (16, 32, 64, 128)}
BFLOAT16 = "bfloat16"
MATRIX = 2048
PRODUCT = 2 * MATRIX**3  # operations of a matrix product


def theirs(filters: int) -> nf.MultiscaleFlow:
    """The same flow: ActNorm, 1×1 convolution, affine coupling; half the channels out after each level."""
    channels, height, width = SHAPE
    bases, merges, flows = [], [], []
    for level in range(LEVELS):  # from the last one to the first
        deep = 2 ** (LEVELS - level)
        block = [nf.flows.GlowBlock(2 * deep * channels, filters, split_mode="channel") for _ in range(STEPS)]
        flows.append([*block, nf.flows.Squeeze()])
        if level:
            merges.append(nf.flows.Merge())
        latent = (deep * channels if level else 2 * deep * channels, height // deep, width // deep)
        bases.append(nf.distributions.DiagGaussian(latent, trainable=False))
    return nf.MultiscaleFlow(bases, flows, merges, class_cond=False)


def operations(filters: int) -> float:
    """Multiplications and additions of the convolutions in one training step, for one image.

    Forward, gradient of the input and gradient of the weights cost the same; the flow's own arithmetic is left out.
    """
    channels, height, width = SHAPE
    total = 0.0
    for level in range(LEVELS):
        half, pixels = channels * 2 ** (level + 1), height * width / 4 ** (level + 1)
        total += STEPS * pixels * (9 * half * filters + filters * filters + 9 * filters * 2 * half)
    return 3 * 2 * total


@dataclass
class Contestant:
    """A flow with its optimiser: what a training step and a forward pass of so many images do."""

    name: str
    flow: torch.nn.Module
    loss: Callable[[int], torch.Tensor]
    forward: Callable[[int], object]

    def __post_init__(self) -> None:
        self.optimiser = torch.optim.Adamax(self.flow.parameters(), lr=1e-4)

    def step(self, size: int) -> None:
        self.optimiser.zero_grad()
        torch.autograd.backward(self.loss(size))
        self.optimiser.step()


def pixels(count: int) -> torch.Tensor:
    return torch.randint(0, 256, (count, *SHAPE), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)


def ours(filters: int, x: torch.Tensor, networks: torch.dtype | None = None) -> Contestant:
    flow, noise = Glow(GlowConfig(SHAPE, LEVELS, STEPS, filters)), torch.Generator().manual_seed(1)
    flow.initialize(x, noise)

    def loss(size: int) -> torch.Tensor:
        return flow.objective(x[:size], noise, networks=networks).mean()

    return Contestant("dose-ood", flow, loss, lambda size: flow.measure(x[:size]))


def contestants(filters: int, largest: int) -> tuple[Contestant, Contestant]:
    x = pixels(largest)
    values = (x + 0.5) / 256 - 0.5
    flow = theirs(filters)
    with torch.no_grad():
        flow.forward_kld(values)  # initialises its ActNorm

    def forward(size: int) -> object:
        with torch.no_grad():
            return flow.log_prob(values[:size], None)

    return ours(filters, x), Contestant("normflows", flow, lambda n: flow.forward_kld(values[:n]), forward)


def seconds(action: Action) -> float:
    begin = time.perf_counter()
    action()
    return time.perf_counter() - begin


def best_size(action: Callable[[int], object], sizes: tuple[int, ...]) -> int:
    """The batch size with most images a second; best of three, as what disturbs a run only slows it down."""
    rates = {}
    for size in sizes:
        action(size)
        rates[size] = size / min(seconds(lambda size=size: action(size)) for _ in range(3))  # type: ignore[misc]
    return max(rates, key=rates.__getitem__)


def race(filters: int, rounds: int) -> list[Row]:
    sizes = SIZES[filters]
    pair = contestants(filters, max(sizes))
    matrix = torch.rand(MATRIX, MATRIX)
    result: list[Row] = []
    for what in ("training step", "measure"):
        actions = [contestant.step if what == "training step" else contestant.forward for contestant in pair]
        chosen = [best_size(action, sizes) for action in actions]
        rates: list[list[float]] = [[], []]
        peaks: dict[str, list[float]] = {"peak": [], "burst": []}
        products = round(chosen[0] * operations(filters) / PRODUCT)
        for _ in range(rounds):
            peaks["burst"].append(PRODUCT / min(seconds(lambda: matrix @ matrix) for _ in range(3)))
            one_by_one = seconds(lambda: [matrix @ matrix for _ in range(products)])  # noqa: B023
            peaks["peak"].append(products * PRODUCT / one_by_one)
            for found, action, size in zip(rates, actions, chosen, strict=True):
                found.append(size / seconds(lambda action=action, size=size: action(size)))  # type: ignore[misc]
        for number, contestant in enumerate(pair):
            row: Row = {"what": f"{what}, {filters} filters", "who": contestant.name, "batch": chosen[number]}
            row |= {"images/s": max(rates[number]), "median": median(rates[number])}
            if number == 0:
                row["ratio"] = max(rates[0]) / max(rates[1])
                row["median ratio"] = median(mine / its for mine, its in zip(*rates, strict=True))
            if what == "training step":
                done = [rate * operations(filters) for rate in rates[number]]
                for name, found in peaks.items():
                    row[f"share of {name}"] = max(done) / max(found)
                    row[f"median share of {name}"] = median(mine / p for mine, p in zip(done, found, strict=True))
                    row[f"{name}, GFLOP/s"] = max(found) / 1e9
                row["GiB"] = peak_memory(contestant.name, filters, chosen[number])
            result.append(row)
    return result


def rounded(filters: int, rounds: int) -> Row:
    """What bfloat16 makes of the time of a training step."""
    size = GLOW_RECIPES["cpu"].batch
    x = pixels(size)
    pair = [ours(filters, x, networks) for networks in (torch.bfloat16, None)]
    for each in pair:
        each.step(size)
    turns = [[seconds(lambda each=each: each.step(size)) for each in pair] for _ in range(rounds)]  # type: ignore[misc]
    fast, slow = map(min, zip(*turns, strict=True))
    row: Row = {"what": f"training step, {filters} filters", "against": "the same in float32", "batch": size}
    row |= {"images/s": size / fast, "median": median(size / mine for mine, _ in turns)}
    return row | {"ratio": slow / fast, "median ratio": median(its / mine for mine, its in turns)}


def peak_memory(name: str, filters: int, size: int) -> float:
    """Of a process that takes three training steps and does nothing else, without what it had before the first."""
    command = [sys.executable, __file__, "--memory-of", name, "--only", str(filters), "--batch", str(size)]
    return float(subprocess.run(command, capture_output=True, check=True, text=True).stdout)


def print_memory(name: str, filters: int, size: int) -> None:
    (contestant,) = (each for each in contestants(filters, size) if each.name == name)
    before = high_water()
    for _ in range(3):
        contestant.step(size)
    print(high_water() - before)


def high_water() -> float:
    """The most memory this program has had, in GiB; `getrusage` would count that of the program that started it."""
    lines = Path("/proc/self/status").read_text().splitlines()
    (found,) = (line.split()[1] for line in lines if line.startswith("VmHWM"))
    return int(found) / 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    only = "filters of the couplings, or bfloat16, which is for all of them"
    parser.add_argument("--only", action="append", choices=[*map(str, SIZES), BFLOAT16], help=only)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--memory-of", help=argparse.SUPPRESS)
    parser.add_argument("--batch", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    if options.memory_of:
        print_memory(options.memory_of, int(options.only[0]), options.batch)
        return
    if options.output is None:
        parser.error("--output is required")
    earlier = json.loads(options.output.read_text())["races"] if options.output.exists() else {}
    for which in options.only or [*SIZES, BFLOAT16]:
        name = which if which == BFLOAT16 else f"{which} filters"
        rounds = options.rounds
        earlier[name] = [rounded(each, rounds) for each in SIZES] if name == BFLOAT16 else race(int(which), rounds)
        show(Console(width=150), f"Glow, {LEVELS}×{STEPS}, {name}, 32×32×3", earlier[name])
        document = {
            "command": "python benchmarks/glow.py --output results/glow.json",
            "machine": f"{platform.machine()}, {torch.get_num_threads()} threads, Python {platform.python_version()}, "
            f"torch {torch.__version__}, normflows {nf.__version__}",
            "races": earlier,
        }
        options.output.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
