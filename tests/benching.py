"""A small benchmark and processes that do it: `python benching.py FOLDER` does it whole, and killed again and again."""

import itertools
import os
import signal
import sys
from functools import partial
from pathlib import Path

import numpy as np
import torch

from dose_ood.benchmark.results import Folder, Results, Study
from dose_ood.noise import generator
from dose_ood.study.sets import open_sets
from dose_ood.study.work import Bench
from standin import ended, fork, stripes

SIZE = 12


def write_data(folder: Path) -> None:
    """Stripes, with a test part and without one, and outliers of the same and of another shape."""
    train, test = stripes(200, size=SIZE)[:, 0], stripes(40, seed=1, size=SIZE)[:, 0]
    noise = generator("outliers").integers(0, 256, (30, SIZE, SIZE), dtype=np.uint8)
    np.savez(folder / "stripes.npz", train_x=train, test_x=test)
    np.save(folder / "whole.npy", train)
    np.savez(folder / "odd.npz", x=noise)
    np.savez(folder / "large.npz", x=np.zeros((9, 20, 20), np.uint8))


def bench(data: Path, output: Path, *, members: int = 1, rows: int | None = 16, model: str = "vae") -> Results:
    """Do a benchmark in a folder, or go on there."""
    sets = open_sets(str(data / "stripes.npz"), [f"odd={data / 'odd.npz'}", "vflip"], rows, 0)
    study = Study(sets.inlier, dict(sets.outliers), model, "tiny", members, rows, 0)
    work = Bench(Folder(output), study, sets, runs=None, float32=False)
    return work.run(work.plan(), lambda task, left, fact="": None)


def bench_until_killed(data: Path, output: Path, moments: int) -> None:
    """Do it, and be killed when so many of its files have been opened, renamed or removed."""
    events = {"open", "os.rename", "os.remove", "os.mkdir", "os.rmdir"}
    seen = itertools.count(1)

    def look(event: str, arguments: tuple[object, ...]) -> None:
        if event in events and str(output) in str(arguments[0]) and next(seen) == moments:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(look)
    bench(data, output)


if __name__ == "__main__":
    place = Path(sys.argv[1])
    write_data(place)
    torch.optim.Adamax([torch.zeros(1, requires_grad=True)])  # imports a lot, once for all processes
    assert ended(fork(partial(bench, place, place / "once"))) == 0
    random = generator("kills of a benchmark")
    moments = [13, 20, 30, *random.integers(20, 90, 60).tolist()]  # first in training, checkpoint and model
    ends = (ended(fork(partial(bench_until_killed, place, place / "killed", moment))) for moment in moments)
    codes = list(itertools.takewhile(lambda code: code != 0, ends))
    assert set(codes) == {-signal.SIGKILL}, codes
    assert len(codes) < len(moments), "killed to the end"
    print(len(codes))
