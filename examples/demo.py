"""Trains VAEs on FashionMNIST, shows them MNIST, noise and flips, and compares six methods; ends with a report.

The images ship with the package. Every step is a command that can be typed; the same folder again goes on where it was.
"""

import argparse
import os
import shlex
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from rich.console import Console

INLIER = "fashion_mnist_sample"
MODELS = {"0": ["--seed", "0"], "1": ["--seed", "1"], "background": ["--seed", "0", "--background"]}
OUTLIERS = ("mnist=mnist_sample:test", "uniform", "gaussian", "hflip", "vflip")
console = Console(highlight=False)


def dose(*arguments: str, quiet: bool = False, threads: int | None = None) -> None:
    """Print a command and run it, on so many threads."""
    console.print(f"[bold]$ dose {shlex.join(arguments)}[/]", soft_wrap=True)
    environment = dict(os.environ) if threads is None else {**os.environ, "OMP_NUM_THREADS": str(threads)}
    command = [sys.executable, "-m", "dose_ood", *arguments]
    done = subprocess.run(  # noqa: S603  # our own
        command, check=False, stdout=subprocess.PIPE if quiet else None, text=True, env=environment
    )
    if done.returncode:
        sys.exit(done.returncode)


def train(folder: Path, name: str) -> None:
    """Train one model on one thread, if that is not done yet."""
    run = folder / "runs" / name
    if not (run / "model").exists():
        dose("train", INLIER, "--recipe", "demo", *MODELS[name], "--resume", "-o", str(run), quiet=True, threads=1)


def main() -> None:
    """Train, compare, report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=Path("demo"))
    folder: Path = parser.parse_args().output
    folder.mkdir(parents=True, exist_ok=True)
    begin = time.perf_counter()
    with console.status("training two VAEs and a background model"), ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(lambda name: train(folder, name), MODELS))
    outliers = [argument for name in OUTLIERS for argument in ("--ood", name)]
    options = ["--recipe", "demo", "--members", "2", "--rows", "1000", "--runs", str(folder / "runs")]
    dose("bench", INLIER, *options, *outliers, "-o", str(folder / "bench"))
    dose("report", str(folder / "bench"), "-o", str(folder / "report.html"))
    seconds = time.perf_counter() - begin
    console.print(f"\nThe report is in [bold]{folder / 'report.html'}[/] ({seconds:.0f} s)")


if __name__ == "__main__":
    main()
