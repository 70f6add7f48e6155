"""Any CSV or Parquet file with a schema, as a table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import NoReturn

import numpy as np
import pyarrow as pa
from pyarrow import parquet

from tacit.data.build import Chunk
from tacit.data.cache import cached
from tacit.data.readers import Arrow, Refuse, TextFile, categories, ids, labels, numbers, seconds
from tacit.data.schema import Schema, parse_schema, read_schema, schema_path
from tacit.data.tables import Table
from tacit.errors import InputError

_ROWS = 1 << 16


def load_file(
    path: str | Path, *, schema: str | Path | Mapping[str, object] | Schema | None = None
) -> Table:
    """Return the table of a ``.csv``, ``.csv.gz`` or ``.parquet`` file.

    The schema is the TOML file beside it, or the file, mapping or record given. Numbers are
    scaled by statistics of all rows. Missing numbers are 0, missing categories the empty text.
    """
    path = existing(path)
    meaning = _schema(path, schema)
    _refuse_party(path, meaning)

    def chunks() -> Iterator[Chunk]:
        return (chunk for _, chunk in chunks_of(path, meaning))

    return cached(meaning.layout(path.name), [path], chunks, options=asdict(meaning))


def existing(path: str | Path) -> Path:
    """Return the path of a file; refuse one that does not exist."""
    path = Path(path).expanduser()
    if not path.is_file():
        raise InputError(f"there is no file {path}: check the path")
    return path


def chunks_of(path: Path, schema: Schema) -> Iterator[tuple[Refuse, Chunk]]:
    """Yield the rows of a file, each chunk with a function that refuses one of its rows."""
    read = _from_parquet if path.suffix == ".parquet" else _from_text
    for refuse, batch in read(path, schema):
        yield refuse, _chunk(batch, refuse, schema)


def columns_of(path: Path) -> tuple[str, ...]:
    """Return the names of the columns that a file has."""
    if path.suffix != ".parquet":
        return TextFile(path).columns()
    with _open_parquet(path) as file:
        return tuple(file.schema_arrow.names)


def _refuse_party(path: Path, schema: Schema) -> None:
    """Refuse the file of one party, which lacks labels or features."""
    if schema.label is None:
        raise InputError(
            f"{path}: this file has no label: it is a feature party's; use it with tacit party, "
            f'or write label = "<the label column>" in its schema'
        )
    if not schema.numeric and not schema.categorical:
        raise InputError(
            f"{path}: this file has no features: it is a label party's; use it with tacit party, "
            f"or fill numeric or categorical in its schema"
        )


def _schema(path: Path, given: str | Path | Mapping[str, object] | Schema | None) -> Schema:
    if isinstance(given, Schema):
        return given
    if isinstance(given, Mapping):
        return parse_schema(given)
    beside = schema_path(path) if given is None else Path(given).expanduser()
    if not beside.is_file():
        raise InputError(
            f'{path.name} needs a schema: write {beside} with label = "...", '
            f"numeric = [...] and categorical = [...]"
        )
    return read_schema(beside)


def _from_text(path: Path, schema: Schema) -> Iterator[tuple[Refuse, Arrow]]:
    file = TextFile(path)
    schema.match(file.columns(), where=path)
    return file.batches(schema.columns())


def _from_parquet(path: Path, schema: Schema) -> Iterator[tuple[Refuse, Arrow]]:
    with _open_parquet(path) as file:
        schema.match(file.schema_arrow.names, where=path)
        before = 0
        for batch in file.iter_batches(batch_size=_ROWS, columns=list(schema.columns())):
            yield partial(_refuse, path, before), batch
            before += batch.num_rows


@contextmanager
def _open_parquet(path: Path) -> Iterator[Arrow]:
    try:
        with parquet.ParquetFile(path) as file:
            yield file
    except (pa.ArrowException, OSError) as error:
        reason = " ".join(str(error).split())[:200]
        raise InputError(f"{path} cannot be read as Parquet: {reason}") from error


def _refuse(path: Path, before: int, row: int, problem: str) -> NoReturn:
    raise InputError(f"{path}, row {before + row + 1}: {problem}")


def _chunk(batch: Arrow, refuse: Refuse, schema: Schema) -> Chunk:
    matrix = [numbers(batch[name], refuse, name=name) for name in schema.numeric]
    return Chunk(
        numeric=np.column_stack(matrix) if matrix else np.zeros((batch.num_rows, 0)),
        categorical=tuple(
            categories(batch[name], refuse, name=name) for name in schema.categorical
        ),
        labels=None
        if schema.label is None
        else labels(
            batch[schema.label], refuse, name=schema.label, positive=schema.positive, binary=False
        ),
        ids=None if schema.id is None else ids(batch[schema.id], refuse, name=schema.id),
        time=None
        if schema.time is None
        else seconds(batch[schema.time], refuse, name=schema.time, unit=schema.time_unit),
    )
