"""``tacit data schema`` and ``tacit data describe``, of a file of the user's own."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from tacit.errors import UsageError

if TYPE_CHECKING:
    from tacit.data.infer import Inferred
    from tacit.data.profile import ColumnProfile, Profile
    from tacit.data.schema import Schema


def schema(
    file: Annotated[Path, typer.Argument(help="A text, Parquet or Arrow file with a table.")],
    label: Annotated[str | None, typer.Option(help="The label's column.")] = None,
    positive: Annotated[str | None, typer.Option(help="The label that counts as 1.")] = None,
    id: Annotated[str | None, typer.Option(help="The column of ids.")] = None,
    separator: Annotated[str | None, typer.Option(help="Between columns; else found.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a schema that is there.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Write a schema beside a file: what its columns mean, guessed from what they hold.

    Check every line of it: only you know the label, and which columns may be used.
    """
    from tacit.data.infer import infer  # noqa: PLC0415 - pyarrow loads only when it is used
    from tacit.data.profile import profile  # noqa: PLC0415 - as above
    from tacit.data.schema import read_schema, schema_path  # noqa: PLC0415 - as above
    from tacit.data.schema_text import schema_text  # noqa: PLC0415 - as above
    from tacit.data.table_file import existing, reader_of  # noqa: PLC0415 - as above

    path = schema_path(existing(file))
    if path.exists() and not force:
        raise UsageError(f"{path} exists: edit it, or replace it with --force")
    found = profile(reader_of(file, separator))
    inferred = infer(found, label=label, positive=positive, id=id, separator=separator)
    path.write_text(
        schema_text(inferred, file=file.name, rows=found.rows, whole=found.whole), encoding="utf-8"
    )
    read_schema(path)
    if as_json:
        left_out = inferred.left_out
        content = {"schema": asdict(inferred.schema), "left_out": left_out, "path": str(path)}
        typer.echo(json.dumps(content))
        return
    _tell(inferred, path, file)


def _tell(inferred: Inferred, path: Path, file: Path) -> None:
    chosen, notes = inferred.schema, inferred.notes
    typer.echo(f"wrote {path}: check every line of it")
    if chosen.label is None:
        typer.echo("label        none found: name one with --label, unless this is a feature file")
    else:
        positive = "" if chosen.positive is None else f", positive = {chosen.positive!r}"
        typer.echo(f"label        {chosen.label}{positive} ({notes[chosen.label]})")
    typer.echo(f"id           {chosen.id or 'none found: rows are numbered'}")
    if chosen.time is not None:
        typer.echo(f"time         {chosen.time}")
    typer.echo(f"numeric      {', '.join(chosen.numeric) or 'none'}")
    typer.echo(f"categorical  {', '.join(chosen.categorical) or 'none'}")
    for name, why in inferred.left_out.items():
        typer.echo(f"left out     {name}: {why}")
    if chosen.label is not None and (chosen.numeric or chosen.categorical):
        typer.echo(f"next: tacit train --dataset {file}")


def describe_file(file: Path, *, as_json: bool) -> None:
    """Print what the columns of a file hold, and what its schema says of them."""
    from tacit.data.profile import profile  # noqa: PLC0415 - pyarrow loads only when it is used
    from tacit.data.schema import read_schema, schema_path  # noqa: PLC0415 - as above
    from tacit.data.table_file import existing, reader_of  # noqa: PLC0415 - as above

    path = schema_path(existing(file))
    meaning = read_schema(path) if path.is_file() else None
    found = profile(reader_of(file, None if meaning is None else meaning.separator))
    if meaning is not None:
        meaning.match([column.name for column in found.columns], where=str(file))
    if as_json:
        columns = [{**asdict(c), "use": _use(c.name, meaning)} for c in found.columns]
        typer.echo(
            json.dumps(
                {
                    "file": str(file),
                    "rows": found.rows,
                    "all_rows": found.whole,
                    "schema": None if meaning is None else str(path),
                    "columns": columns,
                }
            )
        )
        return
    _print(file, found, meaning, path)


def _print(file: Path, found: Profile, meaning: Schema | None, path: Path) -> None:
    rows = f"{found.rows:,} rows" if found.whole else f"more than {found.rows:,} rows"
    typer.echo(f"{file}: {rows}, {len(found.columns)} columns")
    if meaning is None:
        typer.echo(f"schema     none: `tacit data schema {file}` writes one")
    else:
        typer.echo(f"schema     {path}")
    table = Table("column", "kind", "missing", "different", "values", "use")
    table.columns[0].overflow = "fold"
    for column in found.columns:
        table.add_row(
            column.name,
            column.kind,
            f"{column.missing:,}",
            f"{column.distinct:,}",
            _values(column),
            _use(column.name, meaning) or "-",
        )
    Console().print(table)


def _values(column: ColumnProfile) -> str:
    from tacit.data.label_values import listed  # noqa: PLC0415 - as it is used

    if column.low is not None and column.distinct > 2:
        return f"{column.low:g} to {column.high:g}"
    if column.counts and column.distinct <= 3:
        return listed(column.counts)
    return f"such as {column.example!r}" if column.example else ""


def _use(name: str, meaning: Schema | None) -> str | None:
    """Return what a schema uses a column for."""
    if meaning is None:
        return None
    singles = {"label": meaning.label, "id": meaning.id, "time": meaning.time}
    uses = [use for use, column in singles.items() if column == name]
    uses += ["numeric"] if name in meaning.numeric else []
    uses += ["categorical"] if name in meaning.categorical else []
    return ", ".join(uses) or None
