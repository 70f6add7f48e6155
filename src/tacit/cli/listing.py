"""``tacit list``: what there is, with parameters and guarantees."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from tacit.cli.plugin_option import Plugins
from tacit.spec import Entry

app = typer.Typer(
    help="List protections, attacks, models, objectives, pretrainers or heads.",
    no_args_is_help=True,
)
_NARROW = 16
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]


@app.command("protections")
def protections(_plugins: Plugins = None, as_json: AsJson = False) -> None:
    """List every protection with its parameters and what it guarantees."""
    from tacit.protect import PROTECTIONS  # noqa: PLC0415 - torch loads only when it is used

    rows = [{**_describe(entry), "guarantee": entry.guarantee} for entry in PROTECTIONS]
    _show("protections", rows, as_json)


@app.command("labels")
def labels(_plugins: Plugins = None, as_json: AsJson = False) -> None:
    """List every label mechanism with its parameters and what it guarantees."""
    from tacit.protect import LABELS  # noqa: PLC0415 - torch loads only when it is used

    rows = [{**_describe(entry), "guarantee": entry.guarantee} for entry in LABELS]
    _show("labels", rows, as_json)


@app.command("attacks")
def attacks(_plugins: Plugins = None, as_json: AsJson = False) -> None:
    """List every attack with its parameters and what it must know."""
    from tacit.attack import ATTACKS  # noqa: PLC0415 - torch loads only when it is used

    rows = [
        {**_describe(entry), "needs": ", ".join(sorted(entry.cls.needs)) or "nothing"}
        for entry in ATTACKS
    ]
    _show("attacks", rows, as_json)


@app.command("models")
def models(_plugins: Plugins = None, as_json: AsJson = False) -> None:
    """List every model architecture with its parameters."""
    from tacit.nets import MODELS  # noqa: PLC0415 - torch loads only when it is used

    _show("models", [_describe(entry) for entry in MODELS], as_json)


@app.command("objectives")
def objectives(_plugins: Plugins = None, as_json: AsJson = False) -> None:
    """List every training objective with its parameters and what it guarantees."""
    from tacit.objective import OBJECTIVES  # noqa: PLC0415 - torch loads only when it is used

    rows = [{**_describe(entry), "guarantee": entry.guarantee} for entry in OBJECTIVES]
    _show("objectives", rows, as_json)


@app.command("pretrain")
def pretrain(as_json: AsJson = False) -> None:
    """List every way to train a bottom without labels, with what its embeddings show."""
    from tacit.pretrain import PRETRAINERS  # noqa: PLC0415 - torch loads only when it is used

    rows = [{**_describe(entry), "guarantee": entry.guarantee} for entry in PRETRAINERS]
    _show("pretrain", rows, as_json)


@app.command("heads")
def heads(as_json: AsJson = False) -> None:
    """List every model that a label party trains on embeddings, with its parameters."""
    from tacit.heads import HEADS, Estimator  # noqa: PLC0415 - torch loads only when it is used

    rows = [_describe(entry) for entry in HEADS]
    any_other = {"name": "sklearn", "spec": "sklearn:Name(parameter=value, ...)"}
    summary = Entry("sklearn", Estimator).summary
    _show("heads", [*rows, {**any_other, "description": summary}], as_json)


def _describe(entry: Entry[Any]) -> dict[str, str]:
    return {"name": entry.name, "spec": entry.signature, "description": entry.summary}


def _show(kind: str, rows: Iterable[dict[str, str]], as_json: bool) -> None:
    rows = list(rows)
    if as_json:
        typer.echo(json.dumps({kind: rows}, indent=2))
        return
    shown = [column for column in rows[0] if column != "name"]
    table, console = Table(*shown, show_lines=True), Console()
    first = max(_NARROW, *(len(row["name"]) for row in rows))
    table.columns[0].min_width = first  # no name is cut
    room = console.width - first - 3 * len(shown) - 1
    for column in table.columns[1:]:
        column.max_width = max(_NARROW, room // (len(shown) - 1))
    for row in rows:
        table.add_row(*(row[column] for column in shown), style=None)
    console.print(table)
