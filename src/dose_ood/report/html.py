"""One self-contained HTML page: pure functions from values to text. What is not called a block is escaped."""

import base64
import re
from collections.abc import Mapping, Sequence
from html import escape as _escape

from dose_ood.report.style import STYLE

NOTHING = "–"
POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"


def escape(text: str) -> str:
    """Somebody's text inside an element or an attribute."""
    return _escape(re.sub("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff]", "\ufffd", text), quote=True)


def slug(title: str) -> str:
    """A title as a place to link to.

    Examples
    --------
    >>> slug("ROC curves & more")
    'roc-curves-more'
    """
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-") or "section"


def page(title: str, lead: str, sections: Sequence[str], footer: str, contents: Sequence[str] = ()) -> str:
    """A whole page; `sections` are blocks, `contents` the titles of those to list.

    Examples
    --------
    >>> "&lt;b&gt;" in page("<b>", "", [], "")
    True
    """
    head = (
        f'<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        f"<title>{escape(title)}</title><style>{STYLE}</style>"
    )
    items = "".join(f'<li><a href="#{slug(name)}">{escape(name)}</a></li>' for name in contents)
    nav = f'<nav aria-label="Contents"><ol>{items}</ol></nav>' if items else ""
    top = f'<header><h1>{escape(title)}</h1><p class="lead">{escape(lead)}</p></header>'
    main = f'<main id="main">{top}{"".join(sections)}<footer>{escape(footer)}</footer></main>'
    skip = '<a class="skip" href="#main">Skip to the content</a>' if items else ""
    body = f'{skip}<div class="page{" with-nav" if items else ""}">{nav}{main}</div>'
    return f'<!doctype html>\n<html lang="en"><head>{head}</head><body>{body}</body></html>\n'


def section(title: str, text: str, *blocks: str) -> str:
    """A heading, a paragraph and blocks."""
    heading = f'<h2 id="{slug(title)}">{escape(title)}</h2>'
    paragraph = f"<p>{escape(text)}</p>" if text else ""
    return f'<section aria-labelledby="{slug(title)}">{heading}{paragraph}{"".join(blocks)}</section>\n'


def paragraph(text: str) -> str:
    """A paragraph."""
    return f"<p>{escape(text)}</p>"


def heading(text: str) -> str:
    """A heading inside a section."""
    return f"<h3>{escape(text)}</h3>"


def details(summary: str, *blocks: str, opened: bool = False) -> str:
    """Blocks behind a line that opens them; on paper they are open."""
    return f"<details{' open' if opened else ''}><summary>{escape(summary)}</summary>{''.join(blocks)}</details>\n"


def facts(items: Mapping[str, str]) -> str:
    """A few values at a glance."""
    pairs = "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in items.items())
    return f'<dl class="facts">{pairs}</dl>'


def listing(items: Sequence[str]) -> str:
    """A list of lines."""
    return f"<ul>{''.join(f'<li>{escape(item)}</li>' for item in items)}</ul>"


def tree(value: object) -> str:
    """Anything that JSON can say."""
    if isinstance(value, Mapping):
        pairs = (f"<dt>{escape(str(name))}</dt><dd>{tree(item)}</dd>" for name, item in value.items())
        return f'<dl class="tree">{"".join(pairs)}</dl>' if value else NOTHING
    if isinstance(value, list | tuple):
        if any(isinstance(item, Mapping | list | tuple) for item in value):
            return "".join(tree(item) for item in value)
        return f"<pre>{escape(chr(10).join(map(str, value)))}</pre>" if value else NOTHING
    if isinstance(value, float):
        return f"{value:,.6g}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else escape(str(value))


def table(header: Sequence[str], rows: Sequence[Sequence[str | float]], digits: int = 3, caption: str = "") -> str:
    """Rows of a name and numbers; the best number of a row is marked.

    Examples
    --------
    >>> '<td class="best">0.900</td>' in table(["pair", "a", "b"], [["x", 0.9, 0.1]])
    True
    """
    lines = []
    for row in rows:
        best = max((round(cell, digits) for cell in row if isinstance(cell, float)), default=None)
        cells = []
        for cell in row:
            mark = "best" if isinstance(cell, float) and round(cell, digits) == best else ""
            text = f"{cell:.{digits}f}" if isinstance(cell, float) else str(cell)
            cells.append(td(text, mark))
        lines.append(f"<tr>{''.join(cells)}</tr>")
    return grid(header, [f"<tbody>{''.join(lines)}</tbody>"], caption)


def td(text: str, mark: str = "", hint: str = "", small: str = "") -> str:
    """A cell; `mark` is a class, `hint` is shown on hover, `small` stands behind the text."""
    attributes = (f' class="{mark}"' if mark else "") + (f' title="{escape(hint)}"' if hint else "")
    return f"<td{attributes}>{escape(text)}{f' <small>{escape(small)}</small>' if small else ''}</td>"


def th(text: str, scope: str = "row", rows: int = 1, mark: str = "", columns: int = 1) -> str:
    """The head of a row or column, or of several."""
    span = (f' rowspan="{rows}"' if rows > 1 else "") + (f' colspan="{columns}"' if columns > 1 else "")
    return f'<th scope="{scope}"{span}{f" class={chr(34)}{mark}{chr(34)}" if mark else ""}>{escape(text)}</th>'


def grid(header: Sequence[str], bodies: Sequence[str], caption: str = "", mark: str = "", words: int = 1) -> str:
    """A table of blocks of rows, which scrolls sideways where it is too wide; its first columns hold words."""
    head = "".join(th(name, "col", mark="text" if i < words else "") for i, name in enumerate(header))
    top = f"<caption>{escape(caption)}</caption>" if caption else ""
    label = escape(caption or "table")
    inside = f"<table{f' class={chr(34)}{mark}{chr(34)}' if mark else ''}>{top}<thead><tr>{head}</tr></thead>"
    return f'<div class="wide" role="group" tabindex="0" aria-label="{label}">{inside}{"".join(bodies)}</table></div>\n'


def figure(svg: str, caption: str) -> str:
    """A drawing, which is a block, and what to see in it."""
    return f"<figure>{svg}<figcaption>{escape(caption)}</figcaption></figure>\n"


def panels(drawings: Sequence[str], legend: str, caption: str) -> str:
    """Drawings that flow side by side, above the legend they share; all but the caption are blocks."""
    flow = "".join(f"<div>{drawing}</div>" for drawing in drawings)
    return f'<figure><div class="panels">{flow}</div>{legend}<figcaption>{escape(caption)}</figcaption></figure>\n'


def legend(entries: Mapping[str, tuple[str, str]]) -> str:
    """What colours stand for: for each label a CSS colour, and the dashes of a line ("none": solid; "": a patch)."""
    items = []
    for label, (colour, dashes) in entries.items():
        patch = f'<rect width="12" height="10" rx="2" style="fill:{colour};opacity:.6"/>'
        line = f'<path d="M0 5h22" style="stroke:{colour};stroke-width:2.5;stroke-dasharray:{dashes}"/>'
        width = 22 if dashes else 12
        size = f'width="{width}" height="10" viewBox="0 0 {width} 10"'
        items.append(f'<li><svg {size} aria-hidden="true">{line if dashes else patch}</svg>{escape(label)}</li>')
    return f'<ul class="legend">{"".join(items)}</ul>'


def picture(png: bytes, alt: str, width: int = 0) -> str:
    """A picture inside the page."""
    size = f' width="{width}"' if width else ""
    return f'<img src="data:image/png;base64,{base64.b64encode(png).decode()}" alt="{escape(alt)}"{size}>'


def code(text: str) -> str:
    """Text as it is in a terminal."""
    return f"<pre>{escape(text)}</pre>"
