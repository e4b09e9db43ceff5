"""What `dose score` and `dose fit` do with --engine."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from dose_ood.cli.console import progress
from dose_ood.cli.table import show_scores
from dose_ood.density.base import DensityOfStates
from dose_ood.detector import Detector
from dose_ood.engines import Engine, fit_partitions, here, score_files
from dose_ood.engines.fit import SAMPLE
from dose_ood.errors import InputError
from dose_ood.statistics import OnBad


def choose(name: str, workers: int | None, address: str | None) -> Engine:
    """The engine of that name."""
    if name == "ray":
        from dose_ood.engines.ray_data import RayEngine

        return RayEngine(workers, address)
    if workers is not None or address is not None:
        raise InputError(f"--workers and --address are for --engine ray, got --engine {name}")
    return here


def score_all(
    detector: Path,
    sources: Sequence[str],
    output: Path,
    keep: Sequence[str],
    on_bad: OnBad,
    rate: float,
    engine: Engine,
    json: bool,
) -> None:
    """Score several inputs into a folder, and say what came of it."""
    with watching("scoring") as look:
        found = score_files(detector, sources, output, keep=keep, on_bad=on_bad, engine=engine, progress=look)
    show_scores(Detector.load(detector), found.ranks, found.atypical, found.bad, rate, output, json)


def fit_all(
    train: Sequence[Path],
    held_out: Path,
    estimator: DensityOfStates,
    names: Sequence[str] | None,
    sample: int | None,
    engine: Engine,
) -> Detector:
    """A detector of several tables."""
    with watching("reading") as look:
        return fit_partitions(
            [str(path) for path in train],
            held_out,
            estimator,
            names,
            size=SAMPLE if sample is None else sample,
            engine=engine,
            progress=look,
        )


@contextmanager
def watching(what: str) -> Iterator[Callable[[int, int], None]]:
    """A bar that shows how many parts are done."""
    with progress() as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
