"""Any file of rows with a schema, as a table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path

import numpy as np

from tacit.data.arrow_files import ArrowFile, ParquetFile
from tacit.data.build import Chunk
from tacit.data.cache import cached
from tacit.data.formats import ARROW_FILES, PARQUET_FILES
from tacit.data.label_values import listed
from tacit.data.readers import (
    Arrow,
    Refuse,
    RowReader,
    categories,
    ids,
    label_texts,
    labels,
    numbers,
    seconds,
    value_counts,
)
from tacit.data.schema import Schema, parse_schema, read_schema, schema_path
from tacit.data.tables import Table
from tacit.data.text_file import text_file
from tacit.errors import InputError

_MOST_VALUES = 1000


def load_file(
    path: str | Path, *, schema: str | Path | Mapping[str, object] | Schema | None = None
) -> Table:
    """Return the table of a text, Parquet or Arrow file.

    The schema is the TOML file beside it, or the file, mapping or record given. Numbers are
    scaled by statistics of all rows. Missing numbers are 0, missing categories the empty text.
    """
    path = existing(path)
    meaning = _schema(path, schema)
    _refuse_party(path, meaning)
    reader = reader_of(path, meaning.separator)

    def chunks() -> Iterator[Chunk]:
        return (chunk for _, chunk in chunks_of(reader, meaning))

    return cached(meaning.layout(path.name), [path], chunks, options=asdict(meaning))


def existing(path: str | Path) -> Path:
    """Return the path of a file; refuse one that does not exist."""
    path = Path(path).expanduser()
    if not path.is_file():
        raise InputError(f"there is no file {path}: check the path")
    return path


def reader_of(path: Path, separator: str | None = None) -> RowReader:
    """Return what reads a file: by how its name ends, with text for every other end."""
    typed = path.name.endswith((*PARQUET_FILES, *ARROW_FILES))
    if typed and separator is not None:
        raise InputError(
            f"{path}: separator is for text files, got {separator!r}: take it out of the schema"
        )
    if not typed:
        return text_file(path, separator)
    return ParquetFile(path) if path.name.endswith(PARQUET_FILES) else ArrowFile(path)


def chunks_of(
    reader: RowReader, schema: Schema, *, training: bool = True
) -> Iterator[tuple[Refuse, Chunk]]:
    """Yield the rows of a file, each chunk with a function that refuses one of its rows.

    In ``training``, labels none of which is the positive value are refused at the end.
    """
    schema.match(reader.columns(), where=reader.where)
    seen: Counter[str] = Counter()
    for refuse, batch in reader.batches(schema.columns()):
        yield refuse, _chunk(batch, refuse, schema)
        if training and schema.positive is not None and len(seen) <= _MOST_VALUES:
            seen.update(value_counts(label_texts(batch[schema.label], refuse, name="")))
    if seen and schema.positive not in seen:
        raise InputError(
            f"{reader.where}: labels must have two classes, and no row has {schema.label} = "
            f"{schema.positive!r}, the value that counts as 1: the values are {listed(seen)}; "
            f"correct positive in the schema"
        )


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
            f"{path.name} needs a schema: `tacit data schema {path}` writes one; or write {beside} "
            f'with label = "...", numeric = [...] and categorical = [...]'
        )
    return read_schema(beside)


def _chunk(batch: Arrow, refuse: Refuse, schema: Schema) -> Chunk:
    missing = schema.missing
    matrix = [numbers(batch[name], refuse, name=name, missing=missing) for name in schema.numeric]
    return Chunk(
        numeric=np.column_stack(matrix) if matrix else np.zeros((batch.num_rows, 0)),
        categorical=tuple(
            categories(batch[name], refuse, name=name, missing=missing)
            for name in schema.categorical
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
