"""What a page is made of, as plain data: ``templates/blocks.html`` has a macro for each kind."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, final

from tacit.fields import finite
from tacit.report.figures import Plot, plotly_text

# The style and the name of each state of an audit. Nothing promises more than was measured.
_STATES = {
    "leaks": ("leaks", "Leaks"),
    "within": ("within", "Within the limits"),
    "unknown": ("unknown", "Unknown"),
    "nothing found": ("nothing", "Nothing found"),
}
_SHORT = 3  # letters of a label below a narrow picture


def _style_and_name(state: str) -> tuple[str, str]:
    return _STATES.get(state, ("unknown", state or "Unknown"))


@final
@dataclass(frozen=True)
class Badge:
    """A word in a cell, coloured by the state it stands for."""

    text: str
    state: str

    @property
    def style(self) -> str:
        """The name of its colours in the style sheet."""
        return _style_and_name(self.state)[0]


Cell = str | float | Badge | None


def number_text(value: float) -> str:
    """Return a number with as many digits as one reads.

    >>> number_text(27000), number_text(0.99812), number_text(12.34), number_text(6.3e-5)
    ('27,000', '0.998', '12.3', '6.30e-05')
    """
    if isinstance(value, int):
        return f"{value:,}"
    if abs(value) >= 10:
        return f"{value:,.1f}"
    return f"{value:.3f}" if value == 0 or abs(value) >= 1e-3 else f"{value:.2e}"


@final
@dataclass(frozen=True)
class Heading:
    """A heading inside the page, which its list of contents points at."""

    kind: ClassVar[str] = "heading"
    text: str

    @property
    def anchor(self) -> str:
        """The heading's id: its letters and digits, joined by hyphens."""
        letters = "".join(c if c.isascii() and c.isalnum() else " " for c in self.text.lower())
        return "-".join(letters.split()) or "part"


@final
@dataclass(frozen=True)
class Paragraph:
    """A paragraph of plain text."""

    kind: ClassVar[str] = "paragraph"
    text: str


@final
@dataclass(frozen=True)
class Items:
    """A list of plain texts, numbered when their order matters."""

    kind: ClassVar[str] = "items"
    texts: Sequence[str]
    numbered: bool = False


@final
@dataclass(frozen=True)
class Verdict:
    """The answer of the page: the state in words, then one sentence.

    ``attacked`` says whether attacks came to it: then others may find more.
    """

    kind: ClassVar[str] = "verdict"
    state: str
    text: str
    attacked: bool = True

    @property
    def style(self) -> str:
        """The name of its colours in the style sheet."""
        return _style_and_name(self.state)[0]

    @property
    def name(self) -> str:
        """The state in words."""
        return _style_and_name(self.state)[1]


@final
@dataclass(frozen=True)
class Facts:
    """Named values at a glance, each with a note that says what it is."""

    kind: ClassVar[str] = "facts"
    items: Sequence[tuple[str, Cell, str]]


@final
@dataclass(frozen=True)
class TableBlock:
    """A table in a box that scrolls; cells above ``alarm`` stand out, exact values are kept.

    ``fields`` names the columns for scripts that read the page.
    """

    kind: ClassVar[str] = "table"
    header: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    alarm: float | None = None
    alarm_from: int = 0
    caption: str = ""
    fields: Sequence[str] = ()

    @property
    def numeric(self) -> list[bool]:
        """Whether each column has no text."""
        return [
            not any(isinstance(row[i], (str, Badge)) for row in self.rows)
            for i in range(len(self.header))
        ]

    def too_high(self, place: int, cell: Cell) -> bool:
        """Return whether a cell of a column is above the alarm."""
        if self.alarm is None or place < self.alarm_from or not isinstance(cell, (int, float)):
            return False
        return cell > self.alarm


@final
@dataclass(frozen=True)
class Figure:
    """A plot, its caption and the table of its numbers; the page's script draws it."""

    kind: ClassVar[str] = "figure"
    plot: Plot

    @property
    def drawing(self) -> dict[str, Any]:
        """What the page's script reads."""
        choices = {
            choice.axis: [
                {"name": plotly_text(name, at_most=90), "values": values}
                for name, values in choice.options
            ]
            for choice in self.plot.choices
        }
        drawing: dict[str, Any] = finite(
            {"data": self.plot.data, "layout": self.plot.layout, "choices": choices}
        )
        return drawing

    @property
    def numbers(self) -> TableBlock | None:
        """The plot's numbers, where it has any."""
        plot = self.plot
        return TableBlock(plot.header, plot.rows, caption=plot.title) if plot.rows else None


@final
@dataclass(frozen=True)
class SideBySide:
    """Small figures next to each other where there is room, one below the other elsewhere."""

    kind: ClassVar[str] = "side_by_side"
    figures: Sequence[Figure]


@final
@dataclass(frozen=True)
class Tile:
    """A picture, the label it has and the one that was recovered."""

    address: str
    example: str
    label: str
    recovered: str
    wrong: bool

    @property
    def words(self) -> str:
        """The tile for those who cannot see it."""
        judged = "wrong" if self.wrong else "right"
        return f"example {self.example}: {self.label}, found as {self.recovered}, {judged}"


@final
@dataclass(frozen=True)
class Tiles:
    """Pictures beside each other under a caption that says how they were chosen."""

    kind: ClassVar[str] = "tiles"
    caption: str
    tiles: Sequence[Tile]

    @property
    def named(self) -> bool:
        """Whether some label is too long for a narrow picture."""
        return any(max(len(tile.label), len(tile.recovered)) > _SHORT for tile in self.tiles)


PageBlock = Heading | Paragraph | Items | Verdict | Facts | TableBlock | Figure | SideBySide | Tiles
