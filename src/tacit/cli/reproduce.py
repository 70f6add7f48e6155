"""``tacit reproduce``: a table or figure of a paper, with our numbers beside the paper's."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

import typer
from rich.console import Console
from rich.table import Table

from tacit.cli.plugin_option import Plugins
from tacit.cli.sweep_view import SweepView, duration
from tacit.errors import TacitError, UsageError

if TYPE_CHECKING:
    from tacit.papers.study import Study


_WIDE = 160


def reproduce(
    name: Annotated[str | None, typer.Argument(help="A name of --list.")] = None,
    listed: Annotated[bool, typer.Option("--list", help="List every name, and end.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="Minutes on two cores. [yes]")] = False,
    full: Annotated[bool, typer.Option("--full", help="The paper's own setting.")] = False,
    released: Annotated[
        bool, typer.Option("--as-released", help="What the authors' code does, not their text.")
    ] = False,
    out: Annotated[Path | None, typer.Option(help="Directory. [reproduced/NAME-quick]")] = None,
    data_dir: Annotated[Path | None, typer.Option(help="Where data sets lie.")] = None,
    workers: Annotated[int | None, typer.Option(help="Trials at a time. [the cores]")] = None,
    on: Annotated[str, typer.Option(help="local (processes) or ray (a cluster).")] = "local",
    address: Annotated[str | None, typer.Option(help="HOST:PORT of a Ray cluster.")] = None,
    changed: Annotated[
        list[str] | None, typer.Option("--set", help="FIELD=VALUE in every trial; repeat it.")
    ] = None,
    _plugins: Plugins = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Run the trials of a paper's table or figure, and print it with the paper's numbers."""
    from tacit.papers import find, studies  # noqa: PLC0415 - loads only when used

    if listed:
        _list(studies(), as_json=as_json)
        return
    if name is None:
        raise UsageError("NAME: is missing: `tacit reproduce --list` lists every name")
    if quick and full:
        raise UsageError("--quick and --full: exclude each other: leave one out")
    if on not in ("local", "ray"):
        raise UsageError(f"--on {on}: must be local or ray")
    study = find(name)
    scale = ("full" if full else "quick") + ("-released" if released else "")
    place = out or Path("reproduced") / f"{study.paper}-{study.name}-{scale}"
    with SweepView(study.full_name, quiet=as_json) as view:
        record = _run(
            study,
            view,
            out=place,
            full=full,
            released=released,
            data_dir=data_dir,
            workers=workers,
            on=cast('Literal["local", "ray"]', on),
            address=address,
            changed=_fields(changed or []),
        )
    if as_json:
        typer.echo(json.dumps(record, indent=2))
    else:
        _show(record)
    if record["failed"]:
        raise TacitError(
            f"{len(record['failed'])} of {record['trials']} trials failed; the first: "
            f"{record['failed'][0]['error']}"
        )


def _run(study: Study, view: SweepView, **how: Any) -> dict[str, Any]:  # noqa: ANN401
    from tacit.papers.reproduce import reproduce as run  # noqa: PLC0415 - loads only when used

    try:
        return run(study, observer=view, **how)
    except KeyboardInterrupt:
        raise TacitError(
            f"interrupted with {view.ended} trials in {how['out']}: "
            f"run the same command again to go on"
        ) from None


def _fields(texts: Sequence[str]) -> dict[str, Any]:
    """Return FIELD=VALUE pairs; a value is JSON where it reads as JSON, else text."""
    found: dict[str, Any] = {}
    for text in texts:
        field, mark, value = text.partition("=")
        if not mark or not field:
            raise UsageError(f"--set {text}: is FIELD=VALUE, such as --set epochs=1")
        try:
            found[field] = json.loads(value)
        except ValueError:
            found[field] = value
    return found


def _list(found: Sequence[Study], *, as_json: bool) -> None:
    rows = [
        {"name": s.full_name, "title": s.title, "place": s.place, "scaled": list(s.scaled)}
        for s in found
    ]
    if as_json:
        typer.echo(json.dumps({"studies": rows}, indent=2))
        return
    table = Table("name", "what", "where")
    table.columns[0].no_wrap = True
    for row in rows:
        table.add_row(str(row["name"]), str(row["title"]), str(row["place"]))
    Console().print(table)


def _show(record: Mapping[str, Any]) -> None:
    from tacit.report.paper import cell_text, left_out_of  # noqa: PLC0415 - loads only when used

    console = Console() if Console().is_terminal else Console(width=_WIDE)
    console.print(f"{record['name']}: {record['title']} ({record['place']})", highlight=False)
    for table in record["tables"]:
        drawn = Table(*table["header"], title=table["title"], title_justify="left")
        drawn.columns[0].no_wrap = True
        for row in table["rows"]:
            drawn.add_row(*map(cell_text, row))
        console.print(drawn)
        if table["note"]:
            console.print(table["note"], markup=False, highlight=False)
    if record["claims"]:
        drawn = Table("the paper says", "here", title_justify="left")
        for claim in record["claims"]:
            drawn.add_row(claim["text"], claim["words"])
        console.print(drawn)
    for title, texts in (
        ("scaled down", record["scaled"]),
        ("differs", record["departs"]),
        ("left out", left_out_of(record)),
    ):
        for text in texts:
            console.print(f"{title}: {text}", markup=False, highlight=False)
    files = ", ".join(record["files"].values())
    spent = duration(record["seconds"])
    console.print(f"{record['trials']} trials, {spent} of work; {files}", highlight=False)
