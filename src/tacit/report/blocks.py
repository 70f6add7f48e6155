"""What a page is made of. Every text is escaped here and nowhere else."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Protocol, final

from tacit.fields import embed
from tacit.report.figures import AxisChoice, Plot, plain

# How each state of an audit is named. Nothing here promises more than was measured.
_STATES = {
    "leaks": ("leaks", "Leaks"),
    "within": ("within", "Within the limits"),
    "unknown": ("unknown", "Unknown"),
    "nothing found": ("nothing", "Nothing found"),
}
_MORE = "That is what these attacks found in this recording; another attack may find more."
_MISSING = '<span class="none" title="not available">–</span>'


class PageBlock(Protocol):
    """Anything that can stand on a page."""

    def html(self) -> str:
        """Return the block as HTML."""
        ...


@final
@dataclass(frozen=True)
class Badge:
    """A word in a cell, coloured by the state it stands for."""

    text: str
    state: str

    def html(self) -> str:
        """Return the badge as HTML."""
        return f'<span class="badge {_look(self.state)[0]}">{escape(self.text)}</span>'


Cell = str | float | Badge | None


def shown(value: Cell) -> str:
    """Return a cell as HTML text; a number with as many digits as one reads.

    >>> shown(27000), shown(0.99812), shown(12.34), shown(6.3e-5), shown("<b>")
    ('27,000', '0.998', '12.3', '6.30e-05', '&lt;b&gt;')
    """
    if value is None:
        return _MISSING
    if isinstance(value, Badge):
        return value.html()
    if isinstance(value, str):
        return escape(value)
    if isinstance(value, int):
        return f"{value:,}"
    if abs(value) >= 10:
        return f"{value:,.1f}"
    return f"{value:.3f}" if value == 0 or abs(value) >= 1e-3 else f"{value:.2e}"


@final
@dataclass(frozen=True)
class Heading:
    """A heading inside the page, and a place that its contents list can point at."""

    text: str

    @property
    def anchor(self) -> str:
        """The heading's id: its letters and digits, joined by hyphens."""
        letters = "".join(c if c.isascii() and c.isalnum() else " " for c in self.text.lower())
        return "-".join(letters.split()) or "part"

    def html(self) -> str:
        """Return the heading as HTML."""
        return f'<h2 id="{self.anchor}">{escape(self.text)}</h2>'


@final
@dataclass(frozen=True)
class Paragraph:
    """A paragraph of plain text."""

    text: str

    def html(self) -> str:
        """Return the paragraph as HTML."""
        return f"<p>{escape(self.text)}</p>"


@final
@dataclass(frozen=True)
class Items:
    """A list of plain texts, numbered when their order matters."""

    texts: Sequence[str]
    numbered: bool = False

    def html(self) -> str:
        """Return the list as HTML."""
        tag = "ol" if self.numbered else "ul"
        return f"<{tag}>{''.join(f'<li>{escape(text)}</li>' for text in self.texts)}</{tag}>"


@final
@dataclass(frozen=True)
class Verdict:
    """The answer of the page: the state in words, then one sentence."""

    state: str
    text: str

    def html(self) -> str:
        """Return the verdict as HTML."""
        look, words = _look(self.state)
        note = f'<p class="note">{_MORE}</p>' if look in ("within", "nothing") else ""
        return (
            f'<div class="verdict {look}" id="verdict"><p><strong>{escape(words)}</strong> '
            f"{escape(self.text)}</p>{note}</div>"
        )


@final
@dataclass(frozen=True)
class Facts:
    """Named values at a glance, each with a line that says what it is."""

    items: Sequence[tuple[str, Cell, str]]

    def html(self) -> str:
        """Return the facts as a description list."""
        return f'<dl class="facts">{"".join(map(self._one, self.items))}</dl>'

    @staticmethod
    def _one(item: tuple[str, Cell, str]) -> str:
        name, value, note = item
        small = f'<dd class="note">{escape(note)}</dd>' if note else ""
        return f"<div><dt>{escape(name)}</dt><dd{_exact(value)}>{shown(value)}</dd>{small}</div>"


@final
@dataclass(frozen=True)
class TableBlock:
    """A table in a box that scrolls; cells above ``alarm`` stand out, exact values ride along.

    ``fields`` names the columns for scripts that read the page.
    """

    header: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    alarm: float | None = None
    alarm_from: int = 0
    caption: str = ""
    fields: Sequence[str] = ()

    def html(self) -> str:
        """Return the table as HTML."""
        numeric = [self._numeric(i) for i in range(len(self.header))]
        head = "".join(map(_head, self.header, numeric))
        body = "".join(f"<tr>{self._row(row, numeric)}</tr>" for row in self.rows)
        caption = f"<caption>{escape(self.caption)}</caption>" if self.caption else ""
        name = escape(self.caption or "table")
        return (
            f'<div class="scroll" role="region" tabindex="0" aria-label="{name}"><table>{caption}'
            f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
        )

    def _numeric(self, place: int) -> bool:
        return not any(isinstance(row[place], (str, Badge)) for row in self.rows)

    def _row(self, row: Sequence[Cell], numeric: Sequence[bool]) -> str:
        first = f'<th scope="row"{self._marks(0, row[0], numeric[0])}>{shown(row[0])}</th>'
        rest = (
            f"<td{self._marks(i, row[i], numeric[i])}>{shown(row[i])}</td>"
            for i in range(1, len(row))
        )
        return first + "".join(rest)

    def _marks(self, place: int, cell: Cell, numeric: bool) -> str:
        high = self._high(place, cell)
        names = " ".join(name for name, on in (("n", numeric), ("bad", high)) if on)
        field = f' data-field="{escape(self.fields[place])}"' if self.fields else ""
        return (f' class="{names}"' if names else "") + field + _exact(cell)

    def _high(self, place: int, cell: Cell) -> bool:
        if self.alarm is None or place < self.alarm_from or not isinstance(cell, (int, float)):
            return False
        return cell > self.alarm


@final
@dataclass(frozen=True)
class Figure:
    """A plot, its caption and the table of its numbers."""

    figure: Plot

    def html(self) -> str:
        """Return the figure as HTML; the page's script draws it."""
        plot = self.figure
        numbers = TableBlock(plot.header, plot.rows, caption=plot.title).html() if plot.rows else ""
        table = f"<details><summary>The numbers</summary>{numbers}</details>" if numbers else ""
        choices = {c.axis: _options(c) for c in plot.choices}
        drawing = embed({"data": plot.data, "layout": plot.layout, "choices": choices})
        height = int(plot.layout["height"])
        shape = "plot square" if plot.square else "plot"
        return (
            f'<figure class="{shape}"><figcaption>{escape(plot.title)}</figcaption>'
            f"{''.join(map(_picker, plot.choices))}"
            f'<div class="canvas" role="img" aria-label="{escape(plot.label)}" '
            f'style="min-height:{height}px"></div>'
            f'<script type="application/json">{drawing}</script>{table}</figure>'
        )


@final
@dataclass(frozen=True)
class SideBySide:
    """Small figures next to each other where there is room, one below the other elsewhere."""

    figures: Sequence[Figure]

    def html(self) -> str:
        """Return the figures as HTML."""
        return f'<div class="side">{"".join(figure.html() for figure in self.figures)}</div>'


def _options(choice: AxisChoice) -> list[dict[str, object]]:
    return [{"name": plain(name, at_most=90), "values": values} for name, values in choice.options]


def _picker(choice: AxisChoice) -> str:
    options = "".join(f"<option>{escape(name)}</option>" for name, _ in choice.options)
    return (
        f'<label class="pick">{escape(choice.label)} '
        f'<select data-axis="{escape(choice.axis)}">{options}</select></label>'
    )


def _look(state: str) -> tuple[str, str]:
    return _STATES.get(state, ("unknown", state or "Unknown"))


def _head(name: str, numeric: bool) -> str:
    mark = ' class="n"' if numeric else ""
    return f'<th scope="col"{mark}>{escape(name)}</th>' if name else "<td></td>"


def _exact(cell: Cell) -> str:
    number = isinstance(cell, (int, float))
    return f' data-value="{json.dumps(cell)}"' if number else ""
