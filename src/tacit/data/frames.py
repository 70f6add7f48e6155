"""Frames in memory as tables: pandas, polars, Arrow, or a mapping of columns.

Whatever exports itself to Arrow (``__arrow_c_stream__``) is taken; neither pandas nor polars is
needed for the others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, final

import numpy as np
import pyarrow as pa

from tacit.data.arrow_files import numbered
from tacit.data.build import build
from tacit.data.cache import open_table
from tacit.data.infer import infer
from tacit.data.profile import profile
from tacit.data.readers import Arrow, Refuse, RowReader
from tacit.data.schema import Schema, parse_schema
from tacit.data.table_file import chunks_of
from tacit.data.tables import Table, subset
from tacit.errors import InputError

_ROWS = 1 << 16


def from_frame(
    frame: Any,  # noqa: ANN401 - pandas, polars and Arrow have no type in common
    *,
    label: str,
    id: str | None = None,
    positive: str | bool | int | None = None,
    numeric: Sequence[str] | None = None,
    categorical: Sequence[str] | None = None,
    name: str = "frame",
    **settings: object,
) -> Table:
    """Return the table of a frame, in memory.

    Without ``numeric`` and ``categorical`` columns are sorted into them as ``tacit data
    schema`` would, times and other columns that are no features apart. ``settings`` are those of
    a schema: ``time``, ``scale``, ``missing``, ``test_fraction``, ``parties``.

    >>> table = from_frame(
    ...     {"y": ["no", "yes"], "price": [2.0, 4.0], "site": ["a", "b"]}, label="y", positive="yes"
    ... )
    >>> table.labels.tolist(), table.numeric_names, table.categorical_names
    ([0, 1], ('price',), ('site',))
    """
    reader = FrameReader(_arrow(frame), name)
    given = {"label": label, "id": id, "positive": positive, **settings}
    lists = {"numeric": numeric, "categorical": categorical}
    chosen = {key: list(names) for key, names in lists.items() if names is not None}
    content = {key: value for key, value in given.items() if value is not None}
    if not chosen:
        guess = infer(profile(reader), label=label, id=id).schema
        for key, names in (("numeric", guess.numeric), ("categorical", guess.categorical)):
            chosen[key] = [column for column in names if column != content.get("time")]
        guessed = {"id": guess.id, "positive": guess.positive, "missing": list(guess.missing)}
        content = {**{k: v for k, v in guessed.items() if v is not None}, **content}
    return _built(reader, parse_schema({**content, **chosen}, where=f"{name}: the schema"))


@final
@dataclass(frozen=True, eq=False)
class FrameReader(RowReader):
    """An Arrow table in memory."""

    table: Arrow
    name: str

    @property
    def where(self) -> str:
        """The name of the frame, for messages."""
        return self.name

    def columns(self) -> tuple[str, ...]:
        """Return the names of the columns."""
        names = tuple(self.table.column_names)
        twice = [name for name in names if names.count(name) > 1]
        if twice:
            raise InputError(f"{self.name}: column {twice[0]!r} occurs twice: rename one")
        return names

    def batches(self, wanted: tuple[str, ...]) -> Iterator[tuple[Refuse, Arrow]]:
        """Yield record batches of the wanted columns, each with its ``refuse``."""
        found = self.table.select(list(wanted)).to_batches(max_chunksize=_ROWS)
        yield from numbered(self.name, iter(found))


def _arrow(frame: Any) -> Arrow:  # noqa: ANN401 - as above
    """Return a frame as an Arrow table; an index that only numbers rows is left out."""
    try:
        table = pa.table(dict(frame) if isinstance(frame, Mapping) else frame)
    except (TypeError, ValueError, pa.ArrowException) as error:
        reason = " ".join(str(error).split())[:200]
        raise InputError(
            f"a frame is one of pandas, polars or Arrow, or a mapping of columns, got "
            f"{type(frame).__name__} ({reason})"
        ) from error
    unnamed = [name for name in table.column_names if name.startswith("__index_level_")]
    return table.drop_columns(unnamed)


def _built(reader: FrameReader, schema: Schema) -> Table:
    """Build the table as that of a file is, and take it into memory."""
    chunks = (chunk for _, chunk in chunks_of(reader, schema))
    with TemporaryDirectory(prefix="tacit-frame-") as folder:
        build(chunks, schema.layout(reader.name), Path(folder))
        table = open_table(Path(folder))
        if table is None:
            raise InputError(f"{reader.name} has no rows: a table needs some")
        return subset(replace(table, name=reader.name), np.arange(len(table)))
