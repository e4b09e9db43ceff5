"""The commands that work on tables of statistics."""

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import pyarrow as pa
import typer
from numpy.typing import NDArray
from rich.progress import Progress
from rich.table import Table

from dose_ood import zoo
from dose_ood.cli.console import AsJson, out, progress, show
from dose_ood.cli.describe import describe, print_detector, print_ranking
from dose_ood.decision.conformal import check_share
from dose_ood.decision.selection import discoveries
from dose_ood.density.bandwidth import RULES, Rule
from dose_ood.density.base import DensityOfStates
from dose_ood.density.kde import ProductKDE
from dose_ood.density.registry import ESTIMATORS
from dose_ood.density.svm import WhitenedSVM
from dose_ood.detector import Detector, Scores
from dose_ood.errors import InputError
from dose_ood.statistics import Batch, OnBad, Statistics, stream
from dose_ood.tables import TableSink, is_table, row_count
from dose_ood.theory import rank_bandwidths, rank_nus, rank_statistics

Method = Literal["kde", "svm", "likelihood", "typicality", "waic", "likelihood_ratio"]
Subject = Literal["statistics", "bandwidth", "nu"]
LEAST = 10  # rows that are printed where none are written

DetectorPath = Annotated[
    Path,
    typer.Argument(help="A directory that `dose fit` made, or zoo:NAME of `dose zoo`.", show_default=False),
]
TablePath = Annotated[
    Path, typer.Argument(help="The table to judge: .parquet, .csv, .csv.gz or .npz.", show_default=False)
]
HeldOut = Annotated[
    Path, typer.Option("--held-out", help="Table of samples the model was *not* trained on.", show_default=False)
]
Columns = Annotated[
    list[str] | None, typer.Option("--statistic", "-s", help="A column to use; repeat for more. Default: see above.")
]
EngineOption = Annotated[
    Literal["here", "ray"] | None,
    typer.Option("--engine", help="Work on many inputs: *here*, one after the other, or on workers of *ray*."),
]
Workers = Annotated[int | None, typer.Option("--workers", min=1, help="ray: workers. Default: one for each CPU.")]
Address = Annotated[
    str | None, typer.Option("--address", help="ray: the cluster to join. Default: start one on this machine.")
]
BadRows = Annotated[
    OnBad,
    typer.Option(
        help="A row with a missing, infinite or non-numeric value: *refuse* the table, or *flag* the row as atypical."
    ),
]


@dataclass(frozen=True)
class Row:
    """The verdict on a row, counted from 0."""

    row: int
    score: float
    p_value: float


def fit(
    train: Annotated[
        list[Path],
        typer.Argument(
            metavar="TRAIN",
            help="Table of the training samples' statistics. Several, with --engine.",
            show_default=False,
        ),
    ],
    held_out: HeldOut,
    output: Annotated[Path, typer.Option("--output", "-o", help="Directory to write.", show_default=False)],
    method: Annotated[Method, typer.Option("--method", "-m", help="The density of states, or a baseline.")] = "kde",
    statistic: Columns = None,
    discard: Annotated[float, typer.Option(help="Share of held-out samples below the threshold.")] = 0.05,
    bandwidth: Annotated[str, typer.Option(help="kde: scott, silverman, isj, or a factor of the spread.")] = "scott",
    nu: Annotated[float, typer.Option(help="svm: share of training samples outside the support.")] = 0.5,
    model: Annotated[
        Path | None,
        typer.Option(help="The run of `dose train` whose statistics these are: the detector then takes images too."),
    ] = None,
    engine: EngineOption = None,
    workers: Workers = None,
    address: Address = None,
    sample: Annotated[
        int | None, typer.Option(min=2, help="With --engine: fit to this many rows. Default: 131,072.")
    ] = None,
    json: AsJson = False,
) -> None:
    """Learn what is typical from a table, and calibrate it on held-out rows.

    Uses every column by default for `kde` and `svm`; a baseline takes the columns named after log-likelihoods
    (`like`, `iwae`, `0/like` ..., `background/like`).

    The check for memorisation compares held-out scores with training scores: if they differ by more than chance
    explains, the model has probably memorised its training data, and its scores on new data will be too low.

    With `--engine`, several tables are read by workers, and `kde` or `svm` is fitted to a uniform sample of their rows.
    """
    zoo.check_output(output)
    names, estimator = statistic or None, make_estimator(method, discard, bandwidth, nu)
    if engine is not None:
        from dose_ood.cli.engines import choose, fit_all

        detector = fit_all(train, held_out, estimator, names, sample, choose(engine, workers, address))
    elif len(train) > 1 or (workers, address, sample) != (None, None, None):
        raise InputError("several tables, --workers, --address and --sample need --engine ray or --engine here")
    else:
        with progress() as bar:
            rows, fresh = read(train[0], names, bar), read(held_out, names, bar)
            bar.add_task(f"fitting {method}", total=None)
            detector = Detector.fit(rows, fresh, estimator, names)
    if model is not None:
        from dose_ood.cli.images import holding

        detector = holding(detector, model)
    detector.save(output)
    show(describe(detector), json, lambda: print_detector(detector, output))


def score(
    detector: DetectorPath,
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="TABLE",
            help="The table to judge: .parquet, .csv, .csv.gz or .npz. If the detector holds its model, also images: a "
            "folder of pictures, .npy or .npz (uint8), or a data set's name. Several, with --engine.",
            show_default=False,
        ),
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help=".parquet, .csv or .csv.gz file to write; with --engine, a folder of Parquet files.",
            show_default=False,
        ),
    ] = None,
    keep: Annotated[list[str] | None, typer.Option(help="A column to copy to the output; repeat for more.")] = None,
    on_bad_row: BadRows = "refuse",
    rate: Annotated[float, typer.Option("--fdr", help="False-discovery rate for the summary's cut of p-values.")] = 0.1,
    engine: EngineOption = None,
    workers: Workers = None,
    address: Address = None,
    json: AsJson = False,
) -> None:
    """Score every row of a table, or every image: `score`, `p_value`, `is_typical`, `is_bad`.

    Reads, scores and writes batch by batch, so memory does not grow with rows. The output appears when it is complete.
    Without `--output`, nothing is written, and the least typical rows are printed.
    With `--engine`, several inputs are scored into a folder, and the same command goes on after an interruption.

    A p-value is the share of held-out rows that are no more typical. `is_typical` compares with the threshold chosen
    at `fit`. To pick rows out of a whole batch, use the cut that the summary gives for a false-discovery rate.
    """
    check_share("--fdr", rate)
    kept = keep or []
    if engine is not None:
        from dose_ood.cli.engines import choose, score_all

        if output is None:
            raise InputError("--engine writes a folder: name it with --output")
        score_all(detector, sources, output, kept, on_bad_row, rate, choose(engine, workers, address), json)
        return
    if kept and output is None:
        raise InputError("--keep copies columns to the output: name it with --output")
    if len(sources) > 1 or workers is not None or address is not None:
        raise InputError("several inputs, --workers and --address need --engine ray or --engine here")
    source, model = sources[0], Detector.load(detector)
    clash = sorted(set(kept) & {"score", "p_value", "is_typical", "is_bad"})
    if clash:
        raise InputError(f"cannot keep a column called {clash[0]!r}: the output has one of its own")
    calibration = model.estimator.calibration_scores_
    ranks = np.zeros(len(calibration) + 2, dtype=np.int64)
    atypical = bad = 0
    least: list[Row] = []
    with progress() as bar, nullcontext() if output is None else TableSink(output) as sink:
        for batch in rows_of(model, detector, source, bar, on_bad_row, kept):
            found = model.score(batch.statistics)
            if sink is None:
                least = least_typical(least, found, batch.first_row)
            else:
                columns = found.to_arrow()
                names = [*kept, *columns.schema.names]
                sink.write(pa.record_batch([*batch.kept.columns, *columns.columns], names=names))
            atypical += int((~found.is_typical).sum())
            bad += int(found.is_bad.sum())
            ranks += np.bincount(np.rint(found.p_value * (len(calibration) + 1)).astype(np.int64), minlength=len(ranks))
    show_scores(model, ranks, atypical, bad, rate, output, json, least)


def least_typical(known: Sequence[Row], found: Scores, first: int) -> list[Row]:
    """The least typical rows among those known and a batch that begins with row `first`, a few of them."""
    some = np.argsort(found.score, kind="stable")[:LEAST]
    fresh = [Row(first + int(i), float(found.score[i]), float(found.p_value[i])) for i in some]
    return sorted([*known, *fresh], key=lambda row: row.score)[:LEAST]


def show_scores(
    model: Detector,
    ranks: NDArray[np.int64],
    atypical: int,
    bad: int,
    rate: float,
    output: Path | None,
    json: bool,
    least: Sequence[Row] = (),
) -> None:
    """Say what came of scoring; `ranks` counts the rows of each rank among the held-out rows."""
    rows, held_out = int(ranks.sum()), len(model.estimator.calibration_scores_)
    cut, chosen = discoveries(np.arange(len(ranks)) / (held_out + 1), ranks, rate)
    summary: dict[str, object] = {
        "rows": rows,
        "atypical": atypical,
        "bad": bad,
        "threshold": model.estimator.offset_,
        "fdr": {"rate": rate, "p_value_at_most": cut, "rows": chosen},
        "output": None if output is None else str(output),
    }
    if output is None:
        summary["least_typical"] = [asdict(row) for row in least]

    def text() -> None:
        out.print(
            f"{rows:,} rows scored, {atypical:,} atypical ({atypical / rows:.1%}){f', {bad:,} bad' if bad else ''}"
        )
        if chosen:
            out.print(f"at a false-discovery rate of {rate:.0%}: the {chosen:,} rows with p_value ≤ {cut:.4g}")
        else:
            out.print(f"at a false-discovery rate of {rate:.0%}: none")
        if output is not None:
            out.print(f"written to {output}")
            return
        grid = Table("row", "score", "p-value", "", title="the least typical", title_justify="left")
        for row in least:
            typical = row.score >= model.estimator.offset_
            grid.add_row(f"{row.row:,}", f"{row.score:.4g}", f"{row.p_value:.4g}", "" if typical else "atypical")
        out.print(grid)
        out.print("nothing is written without --output")

    show(summary, json, text)


def explain(
    detector: DetectorPath,
    table: TablePath,
    row: Annotated[int, typer.Option("--row", "-r", min=0, help="Row to explain, counted from 0.")] = 0,
    json: AsJson = False,
) -> None:
    """Say which statistics made a row atypical.

    A contribution is what a statistic adds to the score; contributions of the KDE add up to it. The percentile is the
    share of held-out rows to which this statistic adds no more: small = damning.
    """
    model = Detector.load(detector)
    found = model.explain(one_row(table, model.statistics, row))[0]

    def text() -> None:
        out.print(f"row {row}: {found.summary}")
        grid = Table("statistic", "value", "contribution", "percentile among held-out rows")
        for part in found.parts:
            grid.add_row(part.name, f"{part.value:.6g}", f"{part.contribution:.4f}", f"{part.percentile:.2%}")
        out.print(grid)
        out.print(f"score {found.score:.4f}, threshold {model.estimator.offset_:.4f}")

    show(asdict(found) | {"row": row, "summary": found.summary}, json, text)


def inspect(detector: DetectorPath, json: AsJson = False) -> None:
    """Show what a detector is: statistics, threshold, memorisation check, and a histogram of held-out scores."""
    model = Detector.load(detector)
    show(describe(model), json, lambda: print_detector(model, detector))


def drift(
    detector: DetectorPath,
    table: TablePath,
    size: Annotated[int | None, typer.Option(help="Rows in a group. Default: the whole table is one group.")] = None,
    alpha: Annotated[float, typer.Option(help="Share of groups without drift that may be flagged.")] = 0.01,
    json: AsJson = False,
) -> None:
    """Test whether groups of rows, rather than single rows, have drifted.

    A group is atypical if its mean score is further from that of the training rows than groups of held-out rows are.
    This finds shifts too small to see in any single row. Exits with 1 if any group has drifted.
    """
    model = Detector.load(detector)
    with progress() as bar:
        parts = [model.score(batch.statistics).score for batch in batches(table, model.statistics, bar, "flag")]
    scores = np.concatenate(parts)
    found = model.group_test(size or len(scores), alpha).stream(scores)

    def text() -> None:
        out.print(found.summary)
        grid = Table("group", "first row", "gap", "threshold", "p-value", "")
        shown = np.argsort(found.p_values, kind="stable")[:10]
        for i in sorted(shown):
            mark = "drifted" if found.drifted[i] else ""
            values = (f"{found.gaps[i]:.4f}", f"{found.threshold:.4f}", f"{found.p_values[i]:.4g}")
            grid.add_row(str(i), str(i * found.size), *values, mark)
        if len(found.gaps) > len(shown):
            out.print("the ten least typical groups:")
        out.print(grid)

    show(asdict(found) | {"summary": found.summary}, json, text)
    if found.drifted.any():
        raise typer.Exit(1)


def rank(
    train: Annotated[Path, typer.Argument(help="Table of the training samples' statistics.", show_default=False)],
    held_out: HeldOut,
    by: Annotated[Subject, typer.Option(help="What to rank.")] = "statistics",
    value: Annotated[list[str] | None, typer.Option(help="A bandwidth or ν to try; repeat for more.")] = None,
    statistic: Columns = None,
    json: AsJson = False,
) -> None:
    """Rank statistics, bandwidths or values of ν by the bias/variance bound, from in-distribution data alone.

    The bound says how tightly in-distribution data fill the typical set; lower is better. It often cannot tell
    candidates apart, and then says so: keep them all.
    """
    with progress() as bar:
        tables = [read(path, statistic or None, bar) for path in (train, held_out)]
    names = tables[0].names
    rows, fresh = tables[0].values, tables[1].select(names).values
    if by == "statistics":
        found = rank_statistics(names, rows, fresh)
    elif by == "bandwidth":
        found = rank_bandwidths([as_bandwidth(v) for v in value or ["scott", "silverman", "0.05", "0.5"]], rows, fresh)
    else:
        found = rank_nus([as_number("--value", v) for v in value or ["0.05", "0.1", "0.5"]], rows, fresh)
    show(
        {"candidates": [asdict(c) for c in found.candidates], "summary": found.summary},
        json,
        lambda: print_ranking(found),
    )


def make_estimator(method: str, discard: float, bandwidth: str, nu: float) -> DensityOfStates:
    """The estimator of a method, with the parameters that concern it."""
    if method == ProductKDE.kind:
        return ProductKDE(bandwidth=as_bandwidth(bandwidth), discard=discard)
    if method == WhitenedSVM.kind:
        return WhitenedSVM(nu=nu, discard=discard)
    estimator: DensityOfStates = ESTIMATORS[method](discard=discard)
    return estimator


def as_bandwidth(text: str) -> Rule | float:
    """A rule's name or a number."""
    return next((rule for rule in RULES if rule == text), None) or as_number("a bandwidth", text)


def as_number(name: str, text: str) -> float:
    """A number, or one sentence about what came instead."""
    try:
        return float(text)
    except ValueError:
        raise InputError(f"{name} must be a number, got {text!r}") from None


def rows_of(
    model: Detector, path: Path, source: str, bar: Progress, on_bad: OnBad, keep: Sequence[str]
) -> Iterator[Batch]:
    """The statistics of a table's rows, or of images if the detector holds the model that measures them."""
    if is_table(source) or model.model is None:
        yield from batches(Path(source), model.statistics, bar, on_bad, keep)
        return
    if keep:
        raise InputError(f"images have no columns to keep, and {source} is no table")
    from dose_ood.cli.images import image_batches

    yield from image_batches(model, str(path), source, bar)


def batches(
    path: Path, names: Sequence[str] | None, bar: Progress, on_bad: OnBad, keep: Sequence[str] = ()
) -> Iterator[Batch]:
    """The batches of a file, while a bar shows how far they have come."""
    source = stream(path, names, keep=keep, on_bad=on_bad)
    task = bar.add_task(f"reading {path.name}", total=row_count(path))
    for batch in source:
        yield batch
        bar.advance(task, len(batch.statistics))
    bar.remove_task(task)


def read(path: Path, names: Sequence[str] | None, bar: Progress) -> Statistics:
    """A whole table."""
    return Statistics.concat([batch.statistics for batch in batches(path, names, bar, "refuse")])


def one_row(path: Path, names: Sequence[str], row: int) -> Statistics:
    """A single row of a table."""
    for batch in stream(path, names, on_bad="flag"):
        position = row - batch.first_row
        if position < len(batch.statistics):
            return Statistics(tuple(names), batch.statistics.values[position : position + 1], "flag")
        rows = batch.first_row + len(batch.statistics)
    raise InputError(f"{path} has {rows:,} rows, counted from 0: there is no row {row:,}")
