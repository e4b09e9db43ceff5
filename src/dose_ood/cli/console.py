"""What commands share: where they print, and how they show progress and results."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from dose_ood.terminal import as_json

WIDTH = 120  # columns that tables may need

out = Console(highlight=False, soft_wrap=True)
err = Console(stderr=True, highlight=False, soft_wrap=True)

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]


@contextmanager
def progress() -> Iterator[Progress]:
    """A progress bar on standard error, which leaves no trace."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=err, transient=True, disable=not err.is_terminal) as bar:
        yield bar


def print_wide(grid: Table) -> None:
    """A table as wide as it needs to be: a cell that is cut short says nothing."""
    width, out.width = out.width, max(out.width, WIDTH)
    out.print(grid)
    out.width = width


def show(value: Mapping[str, object], json: bool, text: Callable[[], None]) -> None:
    """Print a result for a machine or for a person."""
    if json:
        out.print(as_json(value), markup=False)
    else:
        text()
