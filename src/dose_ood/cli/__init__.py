"""The command line: parse, call, print."""

import sys
import warnings
from typing import Annotated

import typer
from rich.markup import escape

import dose_ood
from dose_ood.cli import bench, data, export, models, report, serve, table, zoo
from dose_ood.cli.console import err, out
from dose_ood.errors import DoseWarning, InputError

app = typer.Typer(
    name="dose",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    help="""Know when a trained model should not be trusted.

    DoSE asks how *typical* the statistics of a sample are, given those of the training data. All it needs is a table:
    one row a sample, one named column a statistic (log-likelihood, rate, perplexity, feature norm, ...), as .parquet,
    .csv, .csv.gz or .npz.

    **Start here**: `dose fit train.parquet --held-out val.parquet -o detector/`, then
    `dose score detector/ new.parquet -o scores.parquet`.
    """,
)
for command in (
    *(table.fit, table.score, table.explain, table.inspect, table.drift, table.rank),
    *(models.train, models.measure, models.samples, export.export),
    bench.bench,
    *(serve.serve, zoo.zoo),
    *(report.report, report.figures),
):
    app.command()(command)
app.add_typer(data.app)


@app.callback(invoke_without_command=True)
def version(show_version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    """Know when a trained model should not be trusted."""
    if show_version:
        out.print(dose_ood.__version__)
        raise typer.Exit


def main() -> None:
    """Run the command; what is wrong with the input is said in one sentence on standard error, with exit code 2."""
    warnings.showwarning = lambda message, *_, **__: err.print(f"[yellow]warning:[/] {escape(str(message))}")
    warnings.simplefilter("default", DoseWarning)
    try:
        app()
    except (InputError, OSError) as error:
        err.print(f"[red]dose:[/] {escape(str(error))}")
        sys.exit(2)
