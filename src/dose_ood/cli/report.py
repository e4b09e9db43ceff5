"""The commands that draw: report and figures. They import Matplotlib, and torch for samples, only when they run."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dose_ood.benchmark.results import RESULTS, TEST
from dose_ood.cli.console import AsJson, out, show
from dose_ood.cli.models import load
from dose_ood.errors import InputError
from dose_ood.tables import explaining, replacing

if TYPE_CHECKING:
    from dose_ood.report.benchmark import Report
    from dose_ood.report.evidence import Evidence
    from dose_ood.report.pictures import Drawn

SAMPLES = 32


def report(
    results: Annotated[Path, typer.Argument(help="Folder that `dose bench` made.", show_default=False)],
    output: Annotated[Path, typer.Option("--output", "-o", help=".html file to write.", show_default=False)],
    figures: Annotated[
        Path | None, typer.Option(help="Folder for the same figures as .svg and .png files.", show_default=False)
    ] = None,
    no_images: Annotated[
        bool, typer.Option("--no-images", help="Show no pixels of any data set, and no samples.")
    ] = False,
    leave_out: Annotated[
        list[str] | None,
        typer.Option(metavar="SET", help="Show no pixels of this set, or of sets made from it; repeat for more."),
    ] = None,
    json: AsJson = False,
) -> None:
    """Write what a benchmark found as one HTML file that needs nothing else.

    It has the tables, ROC curves, histograms of the statistics, decision regions, the most and least typical images,
    calibration, loss curves, samples, and where all of it comes from. What the folder does not hold is left out, and
    said.

    Pixels of SVHN, CelebA and ImageNet must not be published: see `--leave-out` and `--no-images`.
    """
    with needs_matplotlib():
        from dose_ood.report.benchmark import benchmark_report
        from dose_ood.report.evidence import gather
        from dose_ood.report.pictures import hidden_sets
    folder = results.parent if results.name == RESULTS else results
    evidence = gather(folder)
    hidden = hidden_sets(evidence.results, leave_out or [], every=no_images)
    page, made = benchmark_report(evidence, folder, _drawing(evidence, folder, hidden), hidden)
    _write(output, page.encode())
    files = [] if figures is None else _write_figures(figures, made)
    summary = {"output": str(output), "bytes": len(page.encode()), "figures": files, "left_out": made.missing}

    def text() -> None:
        out.print(f"{output}: {len(page.encode()) / 1e6:.1f} MB, {', '.join(made.sections)}", markup=False)
        for line in made.missing:
            out.print(f"not in it: {line}", markup=False)

    show(summary, json, text)


def figures(
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder to write to.", show_default=False)],
    json: AsJson = False,
) -> None:
    """Draw the paper's toy figures (Figure 1, Appendices B and D) as .svg and .png, with a page that shows them."""
    with needs_matplotlib():
        from dose_ood.report.toys import toy_figures
    page, made = toy_figures()
    files = _write_figures(output, made)
    _write(output / "index.html", page.encode())
    show(
        {"output": str(output), "figures": files}, json, lambda: out.print(f"{output}: index.html, {', '.join(files)}")
    )


@contextmanager
def needs_matplotlib() -> Iterator[None]:
    """Say in one sentence what is missing, if Matplotlib is."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "matplotlib":
            raise
        raise InputError('this command needs Matplotlib: pip install "dose-ood[plot]"') from None


def _drawing(evidence: "Evidence", folder: Path, hidden: frozenset[str]) -> "Drawn | str":
    """What the first model draws, or why it cannot; nothing if that is said with the images."""
    from dose_ood.report.pictures import Drawn, reconstructions

    run = folder / "runs" / (evidence.member or "0")
    if hidden >= {TEST, *evidence.images}:
        return "" if evidence.images else "pictures were left out on request"
    if not (run / "model").is_dir():
        return "the folder has no trained model"
    try:
        import torch
    except ModuleNotFoundError:
        return 'they need PyTorch: pip install "dose-ood[torch]"'
    model = load(run).model.eval()
    with torch.inference_mode():
        samples = model.sample(SAMPLES, 0).numpy()
        pairs = reconstructions(evidence, lambda images: model.reconstruct(torch.from_numpy(images)).numpy())
    return Drawn(samples, pairs)


def _write(path: Path, content: bytes) -> None:
    with explaining(f"cannot write {path}"):
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as temporary:
            temporary.write_bytes(content)


def _write_figures(folder: Path, made: "Report") -> list[str]:
    """Every figure as .svg and .png, every picture as .png; their names."""
    from dose_ood.plots import png_file, svg_file
    from dose_ood.report.html import slug

    files: dict[str, bytes] = {}
    for name, panels in made.panels.items():
        drawn, stem = panels.together(), _free(slug(name), files)
        files |= {f"{stem}.svg": svg_file(drawn), f"{stem}.png": png_file(drawn)}
    for name, content in made.pictures.items():
        files[f"{_free(slug(name), files)}.png"] = content
    for name, content in files.items():
        _write(folder / name, content)
    return list(files)


def _free(stem: str, files: Mapping[str, bytes]) -> str:
    """A name that is not taken: two sets may differ only in what a file's name leaves out."""
    names = (stem, *(f"{stem}-{number}" for number in range(2, len(files) + 3)))
    return next(name for name in names if f"{name}.png" not in files)
