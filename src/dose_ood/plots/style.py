"""How figures look, and a figure as text or bytes: inside a page it takes the page's colours, light or dark."""

import hashlib
import io
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from xml.etree import ElementTree

import matplotlib as mpl
from matplotlib.figure import Figure

INK, SOFT, SHADE = "#1d2025", "#626973", "#878e98"
INLIER = "#2b6cb0"
OUTLIERS = ("#c8373f", "#b8620b", "#3f8a2f", "#8452b5", "#0c837d", "#8a6a3c", "#bd3689", "#536474")
SERIES = (INLIER, *OUTLIERS)
VARIABLES = {INK: "ink", SOFT: "soft", SHADE: "shade", **{colour: f"c{i}" for i, colour in enumerate(SERIES)}}
DASHES = ("-", "--", ":")
STYLE = {
    "axes.edgecolor": SHADE,
    "axes.labelcolor": INK,
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 9.5,
    "axes.titlecolor": INK,
    "axes.labelsize": 8.5,
    "font.size": 8.5,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "text.color": INK,
    "xtick.color": SHADE,
    "ytick.color": SHADE,
    "xtick.labelcolor": SOFT,
    "ytick.labelcolor": SOFT,
    "xtick.labelsize": 7.5,
    "ytick.labelsize": 7.5,
    "svg.fonttype": "none",
    "svg.hashsalt": "dose",
}
SVG = "http://www.w3.org/2000/svg"
NO_METADATA = {"Date": None, "Creator": None, "Format": None, "Type": None}
FOREIGN = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")  # what XML cannot hold
ElementTree.register_namespace("", SVG)


def colour(position: int) -> str:
    """The colour of a series; they come again after nine."""
    return SERIES[position % len(SERIES)]


def dash(position: int) -> str:
    """Its line: solid, until colours come again."""
    return DASHES[position // len(SERIES) % len(DASHES)]


def variable(colour: str) -> str:
    """A colour as the page's variable for it, with the colour itself where there is no page."""
    return f"var(--{VARIABLES[colour]}, {colour})" if colour in VARIABLES else colour


def plain(text: str) -> str:
    """Somebody's text as a label: shown as it is, not taken for a formula or for a name to hide.

    Examples
    --------
    >>> plain("_$x$")
    ' _\\\\$x\\\\$'
    """
    shown = FOREIGN.sub("\ufffd", text).replace("$", r"\$")
    return f" {shown}" if shown.startswith("_") else shown


@contextmanager
def styled() -> Iterator[None]:
    """Draw in the style of the project; a letter that the font lacks is left to the browser."""
    with mpl.rc_context(STYLE), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")
        yield


def svg(figure: Figure, label: str = "") -> str:
    """A figure to put into a page: without a background, in the page's font, its colours as variables of the page.

    Parameters
    ----------
    figure
        What to draw.
    label
        What it shows, for those who do not see it.
    """
    buffer = io.BytesIO()
    with styled():
        figure.savefig(buffer, format="svg", transparent=True, metadata=NO_METADATA)
    text = buffer.getvalue()
    root = ElementTree.fromstring(text)  # noqa: S314  # our own
    mark = "f" + hashlib.sha256(text).hexdigest()[:8]
    for parent in list(root.iter()):
        for child in list(parent):
            if child.tag in (f"{{{SVG}}}metadata", f"{{{SVG}}}style"):
                parent.remove(child)
            else:
                _adapt(child, mark)
    width, height = (float(root.attrib[name].removesuffix("pt")) * 4 / 3 for name in ("width", "height"))
    root.attrib |= {"width": f"{width:.0f}", "height": f"{height:.0f}", "stroke-linejoin": "round"}
    root.attrib |= {"role": "img", "aria-label": FOREIGN.sub("\ufffd", label)} if label else {"aria-hidden": "true"}
    return re.sub(r">\s+<", "><", ElementTree.tostring(root, encoding="unicode")).strip()


def svg_file(figure: Figure) -> bytes:
    """A figure as a file of its own, on white."""
    return _file(figure, "svg")


def png_file(figure: Figure) -> bytes:
    """A figure as a picture, on white."""
    return _file(figure, "png")


def _file(figure: Figure, kind: str) -> bytes:
    buffer = io.BytesIO()
    metadata = NO_METADATA if kind == "svg" else {"Software": None}
    with styled():
        figure.savefig(buffer, format=kind, dpi=160, metadata=metadata)
    return buffer.getvalue()


def _adapt(element: ElementTree.Element, mark: str) -> None:
    """Make names unique in a page, colours those of the page, and numbers short."""
    for name, value in list(element.attrib.items()):
        if name == "id":
            element.attrib[name] = f"{mark}-{value}"
        elif name.endswith("href") and value.startswith("#"):
            del element.attrib[name]
            element.attrib["href"] = f"#{mark}-{value[1:]}"
        elif name == "style":
            element.attrib[name] = _style(value)
        elif name == "clip-path":
            element.attrib[name] = value.replace("url(#", f"url(#{mark}-")
        elif name == "d":
            element.attrib[name] = " ".join(re.sub(r"(\.\d\d)\d+", r"\1", value).split())


def _style(text: str) -> str:
    text = re.sub(r"#[0-9a-f]{6}", lambda hit: variable(hit[0]), text)
    text = re.sub(r"font: ([\d.]+px) [^;]*", r"font-size: \1", text)
    return re.sub(r"font-family:[^;]*;? ?", "", text)
