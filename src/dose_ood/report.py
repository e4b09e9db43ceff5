"""One self-contained HTML page out of tables and figures: pure functions from values to text."""

from collections.abc import Sequence
from html import escape

STYLE = """
:root { color-scheme: light dark; --ink: #202124; --soft: #5f6368; --line: #dadce0; --paper: #fff; --best: #e8f0fe }
@media (prefers-color-scheme: dark) { :root { --ink: #e8eaed; --soft: #9aa0a6; --line: #3c4043; --paper: #202124;
  --best: #28374f } .figure { background: #fff; border-radius: 6px; padding: 8px } }
body { font: 16px/1.55 system-ui, sans-serif; color: var(--ink); background: var(--paper); max-width: 62rem;
  margin: 2.5rem auto; padding: 0 1rem }
h1 { font-size: 1.7rem; margin-bottom: .2rem } h2 { font-size: 1.2rem; margin-top: 2.2rem }
p { max-width: 46rem } .lead, figcaption, footer { color: var(--soft) }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; margin: 1rem 0 } .wide { overflow-x: auto }
th, td { padding: .35rem .8rem; border-bottom: 1px solid var(--line); text-align: right }
th:first-child, td:first-child { text-align: left } td.best { background: var(--best); font-weight: 600 }
figure { margin: 1rem 0 } .figure svg { max-width: 100%; height: auto; display: block }
pre { overflow-x: auto; border: 1px solid var(--line); border-radius: 6px; padding: .7rem; font-size: .85rem }
footer { margin-top: 3rem; border-top: 1px solid var(--line); font-size: .85rem }
@media print { body { margin: 0; max-width: none } figure, table { break-inside: avoid } }
"""


def page(title: str, lead: str, sections: Sequence[str], footer: str) -> str:
    """A whole page; `sections` are HTML, everything else is text.

    Examples
    --------
    >>> "&lt;b&gt;" in page("<b>", "", [], "")
    True
    """
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{escape(title)}</title>'
    top, end = f'<h1>{escape(title)}</h1><p class="lead">{escape(lead)}</p>', f"<footer>{escape(footer)}</footer>"
    body = top + "".join(sections) + end
    return f'<!doctype html><html lang="en"><head>{head}<style>{STYLE}</style></head><body>{body}</body></html>\n'


def section(title: str, text: str, *blocks: str) -> str:
    """A heading, a paragraph and HTML blocks."""
    return f"<section><h2>{escape(title)}</h2><p>{escape(text)}</p>{''.join(blocks)}</section>"


def table(header: Sequence[str], rows: Sequence[Sequence[str | float]], digits: int = 3) -> str:
    """Rows of a name and numbers; the best number of a row is marked.

    Examples
    --------
    >>> '<td class="best">0.900</td>' in table(["pair", "a", "b"], [["x", 0.9, 0.1]])
    True
    """
    lines = ["".join(f"<th>{escape(name)}</th>" for name in header)]
    for row in rows:
        best = max((round(cell, digits) for cell in row if isinstance(cell, float)), default=None)
        cells = []
        for cell in row:
            mark = ' class="best"' if isinstance(cell, float) and round(cell, digits) == best else ""
            cells.append(f"<td{mark}>{f'{cell:.{digits}f}' if isinstance(cell, float) else escape(str(cell))}</td>")
        lines.append("".join(cells))
    return f'<div class="wide"><table>{"".join(f"<tr>{line}</tr>" for line in lines)}</table></div>'


def figure(svg: str, caption: str) -> str:
    """A drawing inside the page."""
    return f'<figure><div class="figure">{svg}</div><figcaption>{escape(caption)}</figcaption></figure>'


def code(text: str) -> str:
    """Text as it is in a terminal."""
    return f"<pre>{escape(text)}</pre>"
