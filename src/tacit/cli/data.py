"""``tacit data``: data sets and where their files come from; files of one's own and schemas."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from tacit.cli.data_file import describe_file, schema
from tacit.cli.plugin_option import Plugins
from tacit.data.catalog import CheckedDataSet, DataSet, check, describe, find, names
from tacit.data.directories import data_directory
from tacit.data.formats import is_table_file

app = typer.Typer(help="List, describe and check data sets.", no_args_is_help=True)
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]
DataDir = Annotated[
    str | None,
    typer.Option("--data-dir", help="Where the files are; otherwise TACIT_DATA or your cache."),
]
Name = Annotated[str, typer.Argument(help="The name of a data set, or a file with a table.")]


@app.command("list")
def show_all(data_dir: DataDir = None, _plugins: Plugins = None, as_json: AsJson = False) -> None:
    """List every data set, and whether its files are here."""
    rows = [_facts(describe(name), data_dir) for name in names()]
    if as_json:
        typer.echo(json.dumps({"directory": str(data_directory(data_dir)), "datasets": rows}))
        return
    table = Table("name", "rows", "positives", "here", "where to get it")
    table.columns[0].no_wrap = True
    table.columns[-1].overflow = "fold"
    for row in rows:
        table.add_row(
            row["name"],
            _count(row["rows"]),
            _share(row["positives"], row["classes"]),
            "yes" if row["here"] else "no",
            row["source"],
        )
    Console().print(table)
    typer.echo(f"files are looked for in {data_directory(data_dir)}")


@app.command("describe")
def show_one(
    name: Name, data_dir: DataDir = None, _plugins: Plugins = None, as_json: AsJson = False
) -> None:
    """Say what a data set is, where to get it and where to put it; of a file, what it holds."""
    if is_table_file(name):
        describe_file(Path(name), as_json=as_json)
        return
    facts = _facts(describe(name), data_dir)
    if as_json:
        typer.echo(json.dumps({**facts, "directory": str(data_directory(data_dir))}))
        return
    typer.echo(f"{name}: {facts['description']}")
    typer.echo(f"rows       {_count(facts['rows'])}")
    typer.echo(f"positives  {_share(facts['positives'], facts['classes'])}")
    typer.echo(f"source     {facts['source']}")
    typer.echo(f"licence    {facts['licence']}")
    if facts["places"]:
        typer.echo(f"put it in  {data_directory(data_dir)}, as {' or '.join(facts['places'])}")
        typer.echo(f"here       {', '.join(facts['files']) or 'no'}")


@app.command("check")
def check_one(
    name: Name, data_dir: DataDir = None, _plugins: Plugins = None, as_json: AsJson = False
) -> None:
    """Read a data set, or a file with its schema, and count its rows."""
    result = check(name, data_dir)
    if as_json:
        typer.echo(json.dumps({**asdict(result), "ok": True}))
        return
    typer.echo(
        f"{result.name}: {result.rows:,} rows, "
        f"positives {_share(result.positives, result.classes)}, "
        f"{_columns(result)}, "
        f"read in {result.seconds:.1f} s"
    )
    if result.published_rows and result.published_rows != result.rows:
        typer.echo(f"this is a part: the published data has {result.published_rows:,} rows")


app.command("schema")(schema)


def _facts(entry: DataSet, data_dir: str | None) -> dict[str, Any]:
    facts = asdict(entry)
    del facts["loader"], facts["several"]
    files = [str(path) for path in find(entry.name, data_dir)]
    return {**facts, "files": files, "here": bool(files) or not entry.places}


def _columns(result: CheckedDataSet) -> str:
    if result.image is not None:
        return f"images of {'x'.join(map(str, result.image))}"
    return f"{result.numeric} numeric and {result.categorical} categorical columns"


def _count(rows: int | None) -> str:
    return "any" if rows is None else f"{rows:,}"


def _share(positives: float | None, classes: int) -> str:
    return f"{classes} classes" if positives is None else f"{positives:.2%}"
