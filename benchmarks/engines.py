"""Scoring on one and two workers of a local Ray, and what fitting to a sample costs in accuracy.

    python benchmarks/engines.py --output results/ray.json               # all of it
    python benchmarks/engines.py --only workers --output results/ray.json   # some of it; the rest of the file stays

One and two workers take turns on one running Ray; the time is that of `score_files`, from the first look at the inputs
to the renamed folder, the start of the actors (5 to 9 seconds) included and that of Ray not. The load of the machine
before each run is written beside it: with others at work the ratio says little.
"""

import argparse
import itertools
import json
import os
import platform
import shutil
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import reduce
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import ray
from numpy.typing import NDArray
from rich.console import Console

from common import rows_like_statistics, show
from dose_ood import Detector, ProductKDE, Statistics, WhitenedSVM
from dose_ood.benchmark.metrics import auroc
from dose_ood.data.images import read_images
from dose_ood.engines import score_files
from dose_ood.engines.fit import fit_sketch
from dose_ood.engines.ray_data import RayEngine
from dose_ood.engines.sketch import Sketch

Matrix = NDArray[np.float64]
Row = dict[str, str | float]

NAMES = tuple("abcde")
FILES, FILE_ROWS, FILE_IMAGES = 48, 1_000_000, 250
ZOO = "zoo:fashion_mnist-vae"
FIT_ROWS, SIZES = 1_000_000, (2**13, 2**15, 2**17, 2**19)


def table(rows: int, seed: int, shift: float = 0.0) -> Statistics:
    return Statistics(NAMES, rows_like_statistics(rows, seed, shift))


@dataclass(frozen=True)
class Job:
    """Files to be scored, and by what."""

    what: str
    detector: str | Path
    sources: list[str]
    rows: int


def jobs(folder: Path) -> Iterator[Job]:
    """Tables by a KDE and by an SVM, and images by the VAE of a ready detector; writes the files."""
    train, held_out = table(54_000, 0), table(6_000, 1)
    tables = [str(folder / f"{number}.parquet") for number in range(FILES)]
    for number, source in enumerate(tables):
        table(FILE_ROWS, 10 + number).write(source)
    for kind, estimator in (("kde", ProductKDE()), ("svm", WhitenedSVM(solver="landmark"))):
        Detector.fit(train, held_out, estimator).save(folder / kind)
        yield Job(f"{kind}: {FILES} files of {FILE_ROWS:,} × 5", folder / kind, tables, FILES * FILE_ROWS)
    images = [str(folder / f"{number}.npy") for number in range(FILES)]
    sample = np.resize(read_images("fashion_mnist_sample"), (FILES * FILE_IMAGES, 1, 28, 28))  # some of them twice
    for part, source in zip(np.array_split(sample, FILES), images, strict=True):
        np.save(source, part)
    what = f"{ZOO}: {FILES} files of {FILE_IMAGES} images"
    yield Job(what, ZOO, images, FILES * FILE_IMAGES)


def workers(repeats: int) -> list[Row]:
    """Time to score the files with one and with two workers, and whether the rows are the same."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        turns = itertools.product(jobs(folder), range(repeats), (1, 2))
        return [_timed(job, folder / "scores", count, repeat) for job, repeat, count in turns]


def _timed(job: Job, output: Path, count: int, repeat: int) -> Row:
    load = os.getloadavg()[0]
    begin = time.perf_counter()
    totals = score_files(job.detector, job.sources, output, engine=RayEngine(count))
    took = time.perf_counter() - begin
    assert totals.rows == job.rows
    checksum = sum(float(np.asarray(pq.read_table(part)["score"]).sum()) for part in _parts(output))
    shutil.rmtree(output)
    found: Row = {"what": job.what, "workers": count, "repeat": repeat, "s": took}
    return found | {"load before": load, "sum of scores": checksum}


def _parts(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.parquet"))


def fit(repeats: int) -> list[Row]:
    """A fit to a sample of k of 1,000,000 rows against the fit to all: error of scores, AUROC, verdicts that differ."""
    train, held_out = table(FIT_ROWS, 0), table(20_000, 1)
    fresh, odd = table(20_000, 2), table(20_000, 3, shift=0.5)
    result: list[Row] = []
    for kind, estimator in (("kde", ProductKDE()), ("svm", WhitenedSVM(solver="landmark"))):
        begin = time.perf_counter()
        full = Detector.fit(train, held_out, estimator)
        took = time.perf_counter() - begin
        inside, outside = full.score(fresh), full.score(odd)
        what = f"{kind}: {FIT_ROWS:,} × 5"
        result.append({"what": what, "k": FIT_ROWS, "s": took, "AUROC": auroc(inside.score, outside.score)})
        unit = 1.0 if kind == "kde" else full.estimator.offset_
        for size in SIZES:
            begin = time.perf_counter()
            parts = (Sketch.of(part, size) for part in np.array_split(train.values, 16))
            found = fit_sketch(reduce(Sketch.merge, parts), NAMES, held_out, estimator)
            took = time.perf_counter() - begin
            mine, theirs = found.score(fresh), found.score(odd)
            errors = np.abs(mine.score - inside.score) / unit
            row: Row = {"what": what, "k": size, "s": took, "AUROC": auroc(mine.score, theirs.score)}
            row |= {f"error {name}": float(np.quantile(errors, q)) for name, q in QUANTILES.items()}
            row["largest change of a p-value"] = float(np.abs(mine.p_value - inside.p_value).max())
            row["share of other verdicts"] = float((mine.is_typical != inside.is_typical).mean())
            row["unit of error"] = "nats" if kind == "kde" else "threshold"
            result.append(row)
    return result


QUANTILES = {"median": 0.5, "99 %": 0.99, "max": 1.0}


def ratios(rows: list[Row]) -> list[Row]:
    """The time of one worker over that of two, medians of the repeats."""
    found: list[Row] = []
    for what in dict.fromkeys(str(row["what"]) for row in rows):
        times = {n: [float(r["s"]) for r in rows if r["what"] == what and r["workers"] == n] for n in (1, 2)}
        sums = {float(row["sum of scores"]) for row in rows if row["what"] == what}
        speed = float(np.median(times[1]) / np.median(times[2]))
        load = max(float(row["load before"]) for row in rows if row["what"] == what)
        found.append(
            {"what": what, "speed-up": speed, "highest load before": load, "same scores": float(len(sums) == 1)}
        )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", choices=["workers", "fit"])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--output", type=Path, required=True)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    console = Console(width=170)
    races: dict[str, Callable[[int], list[Row]]] = {"workers": workers, "fit": fit}
    earlier = json.loads(options.output.read_text())["races"] if options.output.exists() else {}
    for name in options.only or races:
        if name == "workers":
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
            ray.init(num_cpus=2, include_dashboard=False, object_store_memory=128 * 2**20, log_to_driver=False)
        earlier[name] = races[name](options.repeats)
        if name == "workers":
            ray.shutdown()
        show(console, name, earlier[name])
        document = {
            "command": "python benchmarks/engines.py --output results/ray.json",
            "machine": f"{platform.machine()}, {os.cpu_count()} CPUs, Python {platform.python_version()}, "
            f"NumPy {np.__version__}, Ray {ray.__version__}",
            "races": earlier,
            "ratios": ratios(earlier.get("workers", [])),
        }
        options.output.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n")
    show(console, "one worker's time over two workers'", ratios(earlier.get("workers", [])))


if __name__ == "__main__":
    main()
