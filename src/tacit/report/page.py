"""A page that needs nothing else: one HTML file with its styles, tables and figures inside."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any, final

__all__ = ["Block", "Figure", "Heading", "Paragraph", "TableBlock", "write_page"]

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 60rem; padding: 0 1rem;
       color: #1a1a1a; background: #fff; }
h1 { font-size: 1.8rem; margin-bottom: .2rem; } h2 { font-size: 1.3rem; margin-top: 2.2rem; }
table { border-collapse: collapse; width: 100%; margin: 1rem 0; }
th, td { padding: .45rem .7rem; border-bottom: 1px solid #ddd; text-align: left; }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; }
td.bad { color: #b00020; font-weight: 600; } code { background: #f3f3f3; padding: .1rem .3rem; }
"""


@final
@dataclass(frozen=True)
class Heading:
    """A heading inside the page."""

    text: str

    def html(self, _first_figure: bool) -> str:
        """Return the heading as HTML."""
        return f"<h2>{escape(self.text)}</h2>"


@final
@dataclass(frozen=True)
class Paragraph:
    """A paragraph of plain text."""

    text: str

    def html(self, _first_figure: bool) -> str:
        """Return the paragraph as HTML."""
        return f"<p>{escape(self.text)}</p>"


@final
@dataclass(frozen=True)
class TableBlock:
    """A table; numbers are right-aligned, cells above ``alarm`` stand out."""

    header: Sequence[str]
    rows: Sequence[Sequence[str | float]]
    alarm: float | None = None
    alarm_from: int = 0

    def html(self, _first_figure: bool) -> str:
        """Return the table as HTML."""
        words = [isinstance(cell, str) for cell in self.rows[0]] if self.rows else []
        head = "".join(
            f'<th class="{"" if word else "n"}">{escape(name)}</th>'
            for name, word in zip(self.header, words, strict=False)
        )
        body = "".join(
            "<tr>" + "".join(self._cell(i, cell) for i, cell in enumerate(row)) + "</tr>"
            for row in self.rows
        )
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"

    def _cell(self, place: int, cell: str | float) -> str:
        if isinstance(cell, str):
            return f"<td>{escape(cell)}</td>"
        bad = self.alarm is not None and place >= self.alarm_from and cell > self.alarm
        return f'<td class="n{" bad" if bad else ""}">{cell:.3f}</td>'


@final
@dataclass(frozen=True)
class Figure:
    """A plotly figure; the first one on a page carries the library."""

    figure: Any

    def html(self, first_figure: bool) -> str:
        """Return the figure as HTML."""
        text: str = self.figure.to_html(full_html=False, include_plotlyjs=first_figure)
        return text


Block = Heading | Paragraph | TableBlock | Figure


def write_page(path: Path, *, title: str, subtitle: str, blocks: Sequence[Block]) -> None:
    """Write one self-contained HTML page."""
    parts, drawn = [], False
    for block in blocks:
        parts.append(block.html(not drawn))
        drawn = drawn or isinstance(block, Figure)
    head = f'<meta charset="utf-8"><title>{escape(title)}</title><style>{_STYLE}</style>'
    body = f"<h1>{escape(title)}</h1><p>{escape(subtitle)}</p>" + "\n".join(parts)
    path.write_text(f'<!doctype html><html lang="en"><head>{head}</head><body>{body}</body></html>')
