"""What each attack of an audit reached: the dots, the numbers and the verdicts."""

from __future__ import annotations

from collections.abc import Sequence

from tacit.fields import Fields
from tacit.report.blocks import Badge, Cell, Figure, Heading, PageBlock, Paragraph, TableBlock
from tacit.report.figures import bars
from tacit.report.plots import Dot, dots

_LIMITS = ("low", "high", "null_low", "null_high", "baseline", "bound")
# Field and heading of each column; three narrow tables are read where a wide one is not.
_FOUND = (
    ("attack", "attack"),
    ("leak_auc", "leak AUC"),
    ("state", "state"),
    ("low", "low"),
    ("high", "high"),
    ("null_low", "null from"),
    ("null_high", "null to"),
    ("baseline", "baseline"),
    ("bound", "bound"),
    ("clustering_accuracy", "clustering accuracy"),
)
_SAID = (("attack", "attack"), ("verdict", "verdict"))
_RAN = (
    ("attack", "attack"),
    ("mean", "batch mean"),
    ("q95", "batch q95"),
    ("accumulated", "adds up"),
    ("batches", "batches"),
    ("examples", "examples"),
    ("seconds", "seconds"),
)
_READING = (
    "Leak AUC is how well an attack ranks positives before negatives, whichever end they come out "
    "at: 0.5 is nothing, 1.0 is every label. The whiskers (low, high) are its interval. The grey "
    "band (null) is where scores without any information fall. The baseline is what features alone "
    "predict: leakage is what exceeds it. The bound is what the certificate claims for honest "
    "batches, under the assumption given below. An attack that adds up uses all releases about an "
    "example together; batch mean and q95 are over single batches, where chance alone lifts the "
    "number."
)


def reached(row: Fields) -> float:
    """Return how far an attack got: its leak AUC, or its clustering accuracy without one."""
    leak = row.number("leak_auc")
    return (row.number("clustering_accuracy") if leak is None else leak) or 0.0


def by_attack(rows: Sequence[Fields]) -> list[PageBlock]:
    """Return the leakage of each attack, the worst first."""
    clustered = any(row.number("clustering_accuracy") is not None for row in rows)
    found = _FOUND if clustered else _FOUND[:-1]
    return [
        Heading("Leakage by attack"),
        *_plots(rows),
        _table(rows, found, caption="Leakage by attack"),
        Paragraph(_READING),
        _table(rows, _SAID, caption="What that means"),
        _table(rows, _RAN, caption="How each attack ran"),
    ]


def _plots(rows: Sequence[Fields]) -> list[PageBlock]:
    found: list[PageBlock] = []
    measured = [_dot(row) for row in rows if row.number("leak_auc") is not None]
    if measured:
        title = "Leak AUC of each attack against baseline and bound"
        found.append(Figure(dots({"measured, with interval": measured}, title=title)))
    else:
        found.append(Paragraph("No attack gave a leak AUC."))
    # With two classes the leak AUC says it already.
    clustered = {
        row.text("attack"): value
        for row in rows
        if row.number("leak_auc") is None
        and (value := row.number("clustering_accuracy")) is not None
    }
    if clustered:
        title = "Clustering accuracy"
        found.append(Figure(bars({"": clustered}, title=title, y="accuracy", span=(0, 1.08))))
    return found


def _dot(row: Fields) -> Dot:
    limits = {name: row.number(name) for name in _LIMITS}
    return Dot(name=row.text("attack"), value=row.number("leak_auc"), **limits)


def _table(
    rows: Sequence[Fields], columns: Sequence[tuple[str, str]], *, caption: str
) -> TableBlock:
    return TableBlock(
        [heading for _, heading in columns],
        [[_cell(row, field) for field, _ in columns] for row in rows],
        caption=caption,
        fields=[field for field, _ in columns],
    )


def _cell(row: Fields, field: str) -> Cell:
    if field == "state":
        return Badge(row.text(field), row.text(field)) if row.text(field) else None
    if field in ("attack", "verdict"):
        return row.text(field) or None
    if field == "accumulated":
        return "yes" if row.flag(field) else "no"
    return row.number(field)
