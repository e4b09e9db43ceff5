"""Small drawings that belong together: apart, to flow in a page, or together, as one figure of a paper."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from dose_ood.plots.style import plain, styled

Draw: TypeAlias = Callable[[Axes], None]

LONGEST = 30  # letters of a title
LETTERS = 13  # of a legend in an inch


@dataclass(frozen=True)
class Key:
    """An entry of a legend: a colour, and a line's dash; an empty dash is a filled patch."""

    colour: str
    dash: str = ""


@dataclass(frozen=True)
class Panels:
    """Drawings with titles, and the legend they share.

    Parameters
    ----------
    draw
        By its title, what draws a panel.
    legend
        What colours and lines stand for.
    size
        Width and height of a panel in inches.
    """

    draw: Mapping[str, Draw]
    legend: Mapping[str, Key] = field(default_factory=dict)
    size: tuple[float, float] = (2.9, 2.2)

    def each(self) -> dict[str, Figure]:
        """A figure for each panel, without a legend."""
        figures = {}
        for title, draw in self.draw.items():
            with styled():
                figures[title] = Figure(figsize=self.size, layout="constrained")
                _draw(figures[title].add_subplot(), title, draw)
        return figures

    def together(self) -> Figure:
        """All panels and the legend in one figure, four or five panels in a row."""
        columns = min(len(self.draw), 5 if len(self.draw) % 5 == 0 else 4)
        rows = -(-len(self.draw) // columns)
        with styled():
            figure = Figure(figsize=(self.size[0] * columns, self.size[1] * rows + 0.3), layout="constrained")
            for position, (title, draw) in enumerate(self.draw.items()):
                _draw(figure.add_subplot(rows, columns, position + 1), title, draw)
            if self.legend:
                handles = [_handle(key) for key in self.legend.values()]
                labels = [plain(label) for label in self.legend]
                fitting = int(LETTERS * self.size[0] * columns / (max(map(len, labels)) + 7))
                figure.legend(handles, labels, loc="outside lower center", ncols=max(1, min(len(labels), fitting)))
        return figure


def _draw(axes: Axes, title: str, draw: Draw) -> None:
    draw(axes)
    axes.set_title(plain(title if len(title) <= LONGEST else f"{title[: LONGEST - 1]}…"))


def _handle(key: Key) -> Line2D:
    if key.dash:
        return Line2D([], [], color=key.colour, linestyle=key.dash, linewidth=1.4)
    return Line2D([], [], color=key.colour, linestyle="", marker="s", markersize=7, alpha=0.6)
