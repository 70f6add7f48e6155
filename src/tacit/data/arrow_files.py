"""Parquet and Arrow files of rows, read batch by batch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NoReturn, final

import pyarrow as pa
from pyarrow import ipc, parquet

from tacit.data.readers import Arrow, Refuse, RowReader
from tacit.errors import InputError

_ROWS = 1 << 16
_FILE_FORM = b"ARROW1"
_UNREADABLE = (pa.ArrowException, OSError)


@final
@dataclass(frozen=True)
class ParquetFile(RowReader):
    """A Parquet file: its columns have types."""

    path: Path

    @property
    def where(self) -> str:
        """The file, for messages."""
        return str(self.path)

    def columns(self) -> tuple[str, ...]:
        """Return the names of the columns."""
        with _readable(self.path, "Parquet"), parquet.ParquetFile(self.path) as file:
            return tuple(file.schema_arrow.names)

    def batches(self, wanted: tuple[str, ...]) -> Iterator[tuple[Refuse, Arrow]]:
        """Yield record batches of the wanted columns, each with its ``refuse``."""
        with _readable(self.path, "Parquet"), parquet.ParquetFile(self.path) as file:
            found = file.iter_batches(batch_size=_ROWS, columns=list(wanted))
            yield from numbered(self.where, found)


@final
@dataclass(frozen=True)
class ArrowFile(RowReader):
    """An Arrow file, which Feather is too, or an Arrow stream in a file."""

    path: Path

    @property
    def where(self) -> str:
        """The file, for messages."""
        return str(self.path)

    def columns(self) -> tuple[str, ...]:
        """Return the names of the columns."""
        with self._open() as (schema, _):
            return tuple(schema.names)

    def batches(self, wanted: tuple[str, ...]) -> Iterator[tuple[Refuse, Arrow]]:
        """Yield record batches of the wanted columns, each with its ``refuse``."""
        with self._open() as (_, found):
            yield from numbered(self.where, (batch.select(list(wanted)) for batch in found))

    @contextmanager
    def _open(self) -> Iterator[tuple[Arrow, Iterator[Arrow]]]:
        with _readable(self.path, "Arrow"), pa.memory_map(str(self.path)) as file:
            if file.read(len(_FILE_FORM)) == _FILE_FORM:
                blocks = ipc.open_file(file)
                yield blocks.schema, map(blocks.get_batch, range(blocks.num_record_batches))
            else:
                file.seek(0)
                blocks = ipc.open_stream(file)
                yield blocks.schema, iter(blocks)


def numbered(where: str, batches: Iterator[Arrow]) -> Iterator[tuple[Refuse, Arrow]]:
    """Yield each batch with a function that refuses one of its rows by its number."""
    before = 0
    for batch in batches:
        yield partial(_refuse, where, before), batch
        before += batch.num_rows


def _refuse(where: str, before: int, row: int, problem: str) -> NoReturn:
    raise InputError(f"{where}, row {before + row + 1}: {problem}")


@contextmanager
def _readable(path: Path, kind: str) -> Iterator[None]:
    try:
        yield
    except _UNREADABLE as error:
        reason = " ".join(str(error).split())[:200]
        raise InputError(f"{path} cannot be read as {kind}: {reason}") from error
