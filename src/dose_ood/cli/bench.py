"""The command that measures all methods on the same models: bench."""

import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from time import monotonic
from typing import Annotated

import typer
from rich.progress import BarColumn, Progress, TextColumn

from dose_ood.benchmark.evaluate import reevaluate
from dose_ood.benchmark.results import Folder, Results, Study
from dose_ood.cli.bench_tables import duration, print_plan, print_results
from dose_ood.cli.console import AsJson, err, progress, show
from dose_ood.cli.models import ModelName, RecipeName, needs_torch
from dose_ood.errors import InputError
from dose_ood.study.plan import Clock, Plan, Task
from dose_ood.study.sets import open_sets
from dose_ood.study.work import Bench, Watch

Inlier = Annotated[
    str | None,
    typer.Argument(
        metavar="IN",
        help="In-distribution images: a data set's name in $DOSE_DATA, a .npz file or a folder of pictures.",
        show_default=False,
    ),
]


def bench(
    inlier: Inlier = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Folder of the benchmark.", show_default=False)
    ] = None,
    ood: Annotated[
        list[str] | None,
        typer.Option(help="Outliers, as SOURCE or NAME=SOURCE; repeat for more. Default: the paper's that are there."),
    ] = None,
    model: Annotated[
        ModelName | None, typer.Option("--model", "-m", help="Default: β-VAE for grey images, Glow for colour.")
    ] = None,
    recipe: Annotated[RecipeName, typer.Option(help="How models are trained, as in `dose train`.")] = "cpu",
    latent: Annotated[int | None, typer.Option(min=1, help="vae: latent dimensions, as in `dose train`.")] = None,
    members: Annotated[int, typer.Option(min=1, help="Models, beside the background model.")] = 5,
    rows: Annotated[
        int | None, typer.Option(min=2, help="The most images of a set to measure, drawn by the seed. Default: all.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Draws the images held out and the rows.")] = 0,
    runs: Annotated[
        Path | None, typer.Option(help="Folder in which to look for models that are trained already.")
    ] = None,
    float32: Annotated[bool, typer.Option("--float32", help="Keep statistics with half the bits.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what is left to do and what it costs.")] = False,
    statistics: Annotated[
        Path | None,
        typer.Option("--from-statistics", metavar="FOLDER", help="Compute every cell anew; nothing is trained."),
    ] = None,
    json: AsJson = False,
) -> None:
    """Compare DoSE with the paper's other methods on the same models.

    Trains what is missing, measures every set once, fits the six methods, and prints their AUROC on each outlier set
    beside the paper's. Killed at any moment, the same command goes on. Models and statistics that are there are used.

    The folder gets `results.json`, the models in `runs/`, and the statistics of every image in `statistics/`, from
    which `dose bench --from-statistics FOLDER` computes the table again, without torch.
    """
    if statistics is not None:
        results = _again(statistics, output)
    elif inlier is None or output is None:
        raise InputError("expected in-distribution images IN and --output FOLDER, or --from-statistics FOLDER")
    else:
        with needs_torch():
            work = _open(inlier, output, ood or [], model, recipe, latent, members, rows, seed, runs, float32, json)
            plan = work.plan()
        if dry_run:
            show(_plan_json(plan), json, lambda: print_plan(plan, work.sets))
            return
        with watching(plan) as watch:
            results = work.run(plan, watch)
    show(asdict(results), json, lambda: print_results(results))


def _open(
    inlier: str,
    output: Path,
    ood: list[str],
    model: ModelName | None,
    recipe: RecipeName,
    latent: int | None,
    members: int,
    rows: int | None,
    seed: int,
    runs: Path | None,
    float32: bool,
    quiet: bool,
) -> Bench:
    if runs is not None and not runs.is_dir():
        raise InputError(f"--runs {runs}: no such folder")
    sets = open_sets(inlier, ood, rows, seed)
    say: Callable[[str], None] = lambda text: None if quiet else err.print(text, markup=False)  # noqa: E731
    for sentence in sets.skipped:
        say(sentence)
    if not sets.has_test:
        say(f"{inlier} has no test part: half of the held-out images calibrate, the other half are the test set")
    chosen = model or ("vae" if sets.training.shape[1] == 1 else "glow")
    study = Study(inlier, dict(sets.outliers), chosen, recipe, members, rows, seed, latent)
    command = shlex.join(["dose", *sys.argv[1:]])
    return Bench(Folder(output), study, sets, runs=runs, float32=float32, command=command)


def _again(statistics: Path, output: Path | None) -> Results:
    with progress() as bar:
        task = bar.add_task("evaluating", total=None)
        results = reevaluate(Folder(statistics), lambda done, total: bar.update(task, completed=done, total=total))
    if output is not None:
        output.mkdir(parents=True, exist_ok=True)
        results.write(Folder(output).results)
    return results


def _plan_json(plan: Plan) -> dict[str, object]:
    tasks = [
        {"task": str(task), "kind": task.kind, "images": task.images, "seconds": task.images / plan.speeds[task.kind]}
        for task in plan.tasks
    ]
    speeds = {kind: speed for kind, speed in plan.speeds.items() if kind != "copy"}
    return {"tasks": tasks, "images_per_s": speeds, "seconds": plan.total}


@contextmanager
def watching(plan: Plan) -> Iterator[Watch]:
    """Bars on standard error: how far the task is, and how long everything will take; lines where there are no bars."""
    facts = TextColumn("{task.fields[facts]}", markup=False)
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), facts)
    clock, started = Clock(plan), monotonic()
    current: Task | None = None
    with Progress(*columns, console=err, transient=True, disable=not err.is_terminal) as bars:
        whole, part = bars.add_task("", facts=""), bars.add_task("", facts="")

        def watch(task: Task, left: int, fact: str = "") -> None:
            nonlocal current
            number = f"{plan.tasks.index(task) + 1} of {len(plan.tasks)}"
            if task is not current:
                current = task
                clock.begin(task)
                bars.reset(part, total=task.images or 1, description=str(task), facts="")
                if not err.is_terminal:
                    err.print(f"{number}: {task}, {duration(clock.seconds)} left", markup=False)
            clock.see(left)
            bars.update(part, completed=task.images - left)
            if fact:
                bars.update(part, facts=fact)
            passed, seconds = monotonic() - started, clock.seconds
            told = f"{duration(seconds)} left for everything"
            bars.update(whole, description=number, completed=passed, total=passed + seconds, facts=told)

        yield watch
