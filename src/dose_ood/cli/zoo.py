"""The command that shows the ready detectors."""

from collections.abc import Mapping
from typing import Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Column, Table

from dose_ood import zoo as ready
from dose_ood.cli.console import AsJson, out, print_wide, show
from dose_ood.detector import Detector


def zoo(
    name: Annotated[str | None, typer.Argument(help="Print the card of this one.", show_default=False)] = None,
    json: AsJson = False,
) -> None:
    """List the ready detectors, which hold their models and need no training, or print the card of one.

    `zoo:NAME` stands for a detector's directory in every command: `dose score zoo:NAME pictures/`.
    """
    if name is not None:
        card = (ready.path(name) / ready.CARD).read_text(encoding="utf-8")
        show({**entry(ready.path(name).name), "card": card}, json, lambda: out.print(card, markup=False, end=""))
        return
    entries = [entry(each) for each in ready.available()]

    def text() -> None:
        facts = ("data set", "model", "images", "statistics", "method", "threshold", "held out", "size")
        grid = Table(Column("name", no_wrap=True), *facts, box=SIMPLE_HEAD, pad_edge=False)
        for each in entries:
            grid.add_row(*map(_cell, each.items()))
        print_wide(grid)

    show({"detectors": entries}, json, text)


def entry(name: str) -> dict[str, object]:
    """What is said of a ready detector, without torch."""
    folder = ready.path(name)
    detector = Detector.load(folder)
    about, model = detector.provenance.get("zoo"), detector.model.document if detector.model is not None else {}
    config, known = model.get("config"), about if isinstance(about, Mapping) else {}
    return {
        "name": f"{ready.PREFIX}{name}",
        "data_set": known.get("data_set"),
        "model": model.get("kind"),
        "shape": config.get("shape") if isinstance(config, Mapping) else None,
        "statistics": detector.statistics,
        "method": detector.estimator.kind,
        "threshold": detector.estimator.offset_,
        "held_out": known.get("held_out"),
        "bytes": sum(file.stat().st_size for file in folder.iterdir()),
    }


def _cell(item: tuple[str, object]) -> str:
    name, value = item
    if name == "bytes" and isinstance(value, int):
        return f"{value / 1e6:.2f} MB"
    if isinstance(value, Mapping):
        return f"{value['bits_per_dim']:.3f} bits/dim"
    if isinstance(value, list | tuple):
        return ("×" if name == "shape" else ", ").join(map(str, value))
    return f"{value:.4g}" if isinstance(value, float) else str(value)
