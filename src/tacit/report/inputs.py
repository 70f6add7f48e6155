"""What embeddings show of the inputs, as a section of an audit's page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tacit.fields import Fields
from tacit.report.blocks import Cell, Figure, Heading, PageBlock, Paragraph, TableBlock
from tacit.report.figures import GREY, Plot, axis, layout, plotly_text, style

_DRAWN = 30
_BAR = 22  # pixels of each bar
_LOWEST = -0.05
_COLUMNS = (
    ("column", "column"),
    ("kind", "kind"),
    ("r2", "R2"),
    ("accuracy", "accuracy"),
    ("low", "low"),
    ("high", "high"),
    ("baseline", "baseline"),
    ("gain", "gain"),
    ("method", "decoder"),
    ("judged", "rows judged"),
)
_READING = (
    "An attacker who holds all embeddings and knows the features of {known} examples learns to "
    "rebuild every column, and is judged on {judged} others. R2 is of numbers: 1 is every value, 0 "
    "no better than the mean. Accuracy is of categories, beside the share of the most frequent "
    "value (baseline). Gain is R2, or how much of what the baseline leaves open was found: the "
    "worst columns come first, because a mean over columns hides them. Low and high are the "
    "interval of R2 or accuracy. The decoder of a column is the one that does best on a part of "
    "the known examples. Another attacker, or one who knows more, may rebuild more."
)


def inputs_section(audit: Fields) -> list[PageBlock]:
    """Return the section, or nothing where inputs were not audited."""
    rows, about = audit.rows("inputs"), audit.part("inputs_about")
    if about is None:
        return []
    every = {row.text("column"): row for row in audit.rows("inputs_all_epochs")}
    epochs = about.number("epochs") or 1
    known, judged = (f"{about.number(name) or 0:,}" for name in ("known", "judged"))
    blocks: list[PageBlock] = [
        Heading("What embeddings show of the inputs"),
        Paragraph(about.text("verdict")),
        Figure(_bars(rows, every, epochs=int(epochs))),
        _table(rows, every),
        Paragraph(_READING.format(known=known, judged=judged)),
    ]
    if every:
        blocks.append(
            Paragraph(
                f"The last whole epoch is one snapshot. With the embeddings of {epochs:g} epochs "
                "side by side, the same attacker sees the bottom model at several of its states."
            )
        )
    if about.text("note"):
        blocks.append(Paragraph(about.text("note")))
    return blocks


def inputs_facts(audit: Fields) -> list[tuple[str, Cell, str]]:
    """Return the numbers at a glance of an audit that looks at inputs alone."""
    about, rows = audit.part_or_empty("inputs_about"), audit.rows("inputs")
    worst = rows[0] if rows else Fields({}, "")
    share = audit.part_or_empty("tape").number("examples")
    return [
        ("Gain in the worst column", worst.number("gain"), worst.text("column")),
        ("Columns", len(rows), about.text("source")),
        ("Known examples", about.number("known"), "their features are the attacker's"),
        ("Judged examples", about.number("judged"), f"of {share or 0:,} that were sent"),
        ("Embedding width", about.number("width"), ""),
        ("Epochs", about.number("epochs"), "whole ones that were used"),
    ]


def _bars(rows: Sequence[Fields], every: Mapping[str, Fields], *, epochs: int) -> Plot:
    """Return horizontal bars of the gain of each column, the worst on top."""
    shown = [row for row in rows if row.number("gain") is not None][:_DRAWN]
    names = [row.text("column") for row in shown]
    groups = {"last epoch" if every else "embeddings": shown}
    if every:
        groups[f"{epochs} epochs together"] = [every.get(name, Fields({}, "")) for name in names]
    title = "How much of each column is rebuilt"
    rest = len(rows) - len(shown)
    return Plot(
        title=title if rest <= 0 else f"{title}: the worst {len(shown)} of {len(rows)}",
        label=f"{title}: one bar for each column, the worst on top. 0 is no better than without "
        "embeddings, 1 is everything.",
        data=[
            _bar(name, found, names, place=at) for at, (name, found) in enumerate(groups.items())
        ],
        layout=layout(
            axis("gain", range=[_LOWEST, 1.02], nticks=6),
            axis(
                "",
                range=[len(names) - 0.4, -0.6],
                tickvals=list(range(len(names))),
                ticktext=[plotly_text(name, at_most=18) for name in names],
                showgrid=False,
            ),
            height=110 + (_BAR + 8 * (len(groups) - 1)) * max(1, len(names)),
            barmode="group",
            bargap=0.25,
            showlegend=len(groups) > 1,
        ),
    )


def _bar(
    name: str, rows: Sequence[Fields], names: Sequence[str], *, place: int
) -> dict[str, object]:
    gains = [row.number("gain") for row in rows]
    return {
        "type": "bar",
        "orientation": "h",
        "name": plotly_text(name),
        "x": [None if gain is None else max(gain, _LOWEST) for gain in gains],
        "y": list(range(len(names))),
        "marker": {"color": style(place)[0], "line": {"width": 0, "color": GREY}},
        "customdata": [plotly_text(name) for name in names],
        "hovertemplate": "%{customdata}: %{x:.3f}<extra>%{fullData.name}</extra>",
    }


def _table(rows: Sequence[Fields], every: Mapping[str, Fields]) -> TableBlock:
    later = [("all_epochs", "all epochs")] if every else []
    return TableBlock(
        [heading for _, heading in (*_COLUMNS, *later)],
        [[_cell(row, field, every) for field, _ in (*_COLUMNS, *later)] for row in rows],
        caption="What embeddings show of each column",
        fields=[f"input_{field}" for field, _ in (*_COLUMNS, *later)],
    )


def _cell(row: Fields, field: str, every: Mapping[str, Fields]) -> Cell:
    if field in ("column", "kind", "method"):
        return row.text(field) or None
    if field == "all_epochs":
        later = every.get(row.text("column"))
        return None if later is None else _first(later.number("r2"), later.number("accuracy"))
    return row.number(field)


def _first(*values: float | None) -> float | None:
    return next((value for value in values if value is not None), None)
