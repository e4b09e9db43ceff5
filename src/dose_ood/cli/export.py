"""The command that hands a detector to other runtimes."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from dose_ood.cli.console import AsJson, out, show
from dose_ood.cli.models import needs_torch
from dose_ood.cli.table import DetectorPath
from dose_ood.detector import Detector
from dose_ood.export import write_onnx


def export(
    detector: DetectorPath,
    output: Annotated[Path, typer.Argument(help=".onnx file to write.", show_default=False)],
    takes: Annotated[
        Literal["images", "table"] | None,
        typer.Option("--input", help="What the file takes. Default: *images* if the detector holds its model."),
    ] = None,
    json: AsJson = False,
) -> None:
    """Write a detector as one ONNX file: model, density, threshold and p-values.

    It takes uint8 `images` and `noise`, or the `table` of statistics, and gives `score`, `p_value`, `is_typical`,
    `is_bad` and `statistics`. Of a detector without a model, this needs no torch. `dose_ood.export.noise_for` makes the
    noise.
    """
    with needs_torch():
        chosen = write_onnx(Detector.load(detector), output, takes)
    size = output.stat().st_size
    inputs = "images and noise" if chosen == "images" else "a table of statistics"
    show(
        {"output": str(output), "input": chosen, "bytes": size},
        json,
        lambda: out.print(f"{output} ({size / 1e6:,.2f} MB) takes {inputs}"),
    )
