"""A reproduced table or figure as a page and as text: ours beside the paper's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tacit.report.blocks import (
    Cell,
    Facts,
    Figure,
    Heading,
    Items,
    PageBlock,
    Paragraph,
    TableBlock,
)
from tacit.report.figures import Plot
from tacit.report.page import write_page


def paper_page(path: Path, record: Mapping[str, Any], figures: Sequence[Plot] = ()) -> None:
    """Write the page of one reproduction from its record, with the figures that belong to it."""
    blocks: list[PageBlock] = [
        Facts(
            [
                ("Trials", record["trials"], ""),
                ("Failed", len(record["failed"]), ""),
                ("Scale", record["scale"], ""),
            ]
        ),
        *_figures(figures),
        *_tables(record),
        *_claims(record),
        *_published(record),
        *_listed("What was scaled down", record["scaled"]),
        *_listed("What differs from the paper in any case", record["departs"]),
        *_listed("What was left out", left_out_of(record)),
        *_listed("What failed", [f"{f['config']}: {f['error']}" for f in record["failed"]]),
    ]
    write_page(
        path,
        title=f"{record['name']}: {record['title']}",
        subtitle=f"After {record['paper']}, {record['place']}; scale {record['scale']}.",
        blocks=blocks,
        record=dict(record),
    )


def table_text(record: Mapping[str, Any]) -> str:
    r"""Return the tables and claims of a record as Markdown.

    >>> record = {"name": "x/y", "title": "T", "paper": "x", "place": "Table 1", "scale": "quick",
    ...           "tables": [{"title": "A", "header": ["a", "b"], "rows": [["n|m", 0.5]],
    ...                       "note": ""}], "claims": [], "scaled": [], "departs": [],
    ...           "missing": [], "left_out": []}
    >>> print(table_text(record).splitlines()[-1])
    | n\|m | 0.500 |
    """
    lines = [
        f"## {record['name']}: {record['title']}",
        "",
        f"After {record['paper']}, {record['place']}; `--{record['scale']}`.",
    ]
    for table in record["tables"]:
        lines += [
            "",
            f"**{table['title']}**",
            "",
            _row(table["header"]),
            "|" + "---|" * len(table["header"]),
        ]
        lines += [_row(map(cell_text, row)) for row in table["rows"]]
        lines += ["", table["note"]] if table["note"] else []
    if record["claims"]:
        lines += ["", _row(["the paper says", "where", "here"]), "|---|---|---|"]
        lines += [_row([c["text"], c["source"], c["words"]]) for c in record["claims"]]
    parts = (
        ("Scaled down", record["scaled"]),
        ("Differs from the paper", record["departs"]),
        ("Left out", left_out_of(record)),
    )
    for title, texts in parts:
        lines += ["", f"{title}:", "", *(f"* {text}" for text in texts)] if texts else []
    return "\n".join(lines) + "\n"


def _row(cells: Any) -> str:  # noqa: ANN401 - any iterable of texts
    return f"| {' | '.join(str(cell).replace('|', chr(92) + '|') for cell in cells)} |"


def cell_text(cell: object) -> str:
    """Return a cell of a table as text.

    >>> cell_text(None), cell_text(0.5), cell_text(0.00012), cell_text({"text": "0.5 ± 0.1"})
    ('–', '0.500', '1.20e-04', '0.5 ± 0.1')
    """
    if cell is None:
        return "–"
    if isinstance(cell, Mapping):
        return str(cell["text"])
    if isinstance(cell, float):
        return f"{cell:.3f}" if cell == 0 or abs(cell) >= 1e-3 else f"{cell:.2e}"
    return str(cell)


def _figures(figures: Sequence[Plot]) -> list[PageBlock]:
    drawn: list[PageBlock] = [Figure(figure) for figure in figures]
    return [Heading("Figures"), *drawn] if drawn else []


def _tables(record: Mapping[str, Any]) -> list[PageBlock]:
    blocks: list[PageBlock] = [Heading("Tables")]
    for table in record["tables"]:
        rows: list[list[Cell]] = [[_shown(cell) for cell in row] for row in table["rows"]]
        blocks.append(TableBlock(table["header"], rows, caption=table["title"]))
        blocks += [Paragraph(table["note"])] if table["note"] else []
    return blocks


def _shown(cell: Any) -> Cell:  # noqa: ANN401 - a cell of JSON
    # A mean and its deviation stay on one line.
    return str(cell["text"]).replace(" ", "\u00a0") if isinstance(cell, Mapping) else cell


def _claims(record: Mapping[str, Any]) -> list[PageBlock]:
    if not record["claims"]:
        return []
    rows: list[list[Cell]] = [[c["text"], c["source"], c["words"]] for c in record["claims"]]
    header = ["the paper says", "where", "here"]
    return [Heading("Claims"), TableBlock(header, rows, caption="The paper's claims, checked")]


def _published(record: Mapping[str, Any]) -> list[PageBlock]:
    if not record["published"]:
        return []
    rows: list[list[Cell]] = [
        [one["what"], one["value"], one["sd"], one["source"]] for one in record["published"]
    ]
    header = ["what", "value", "±", "where"]
    return [Heading("The paper's numbers"), TableBlock(header, rows, caption="As the paper states")]


def _listed(title: str, texts: Sequence[str]) -> list[PageBlock]:
    return [Heading(title), Items(texts)] if texts else []


def left_out_of(record: Mapping[str, Any]) -> list[str]:
    """Return what a reproduction left out: data sets without files, and what was refused."""
    absent = [f"{name}: its files are not here" for name in record["missing"]]
    return [*absent, *record["left_out"]]
