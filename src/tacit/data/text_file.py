"""Text files of rows, read in blocks."""

from __future__ import annotations

import csv as plain_csv
import gzip
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NoReturn, TextIO, final

import pyarrow as pa
from pyarrow import csv

from tacit.data.readers import Arrow, Refuse, RowReader
from tacit.errors import InputError
from tacit.spec import nearest

_BLOCK = 1 << 24
_UNREADABLE = (OSError, EOFError, UnicodeDecodeError, plain_csv.Error)
_SEPARATORS = (",", ";", "\t", "|")


def text_file(path: Path, separator: str | None = None) -> TextFile:
    """Return a text file with a header; without a separator, the one that its header has.

    That is a comma, a semicolon, a tab or a bar: the one that gives most columns.
    """
    if separator is not None:
        return TextFile(path, delimiter=separator)
    tried = [TextFile(path, delimiter=mark) for mark in _SEPARATORS]
    return max(tried, key=TextFile.width)


@final
@dataclass(frozen=True)
class TextFile(RowReader):
    """A text table: with ``names`` it has no header; unquoted, quotes are plain characters."""

    path: Path
    delimiter: str = ","
    names: tuple[str, ...] | None = None
    quoted: bool = True

    @property
    def where(self) -> str:
        """The file, for messages."""
        return str(self.path)

    def width(self) -> int:
        """Return how many cells the header has; 0 where it cannot be read."""
        try:
            with self._open() as file:
                return len(next(self._records(file), (0, []))[1])
        except _UNREADABLE:
            return 0

    def columns(self) -> tuple[str, ...]:
        """Return the names of the columns, from the header if the file has one."""
        if self.names is not None:
            return self.names
        try:
            with self._open() as file:
                header = tuple(next(self._records(file), (0, []))[1])
        except _UNREADABLE as error:
            raise InputError(f"{self.path} cannot be read: {error}") from error
        twice = sorted({name for name in header if header.count(name) > 1})
        if twice:
            raise InputError(f"{self.path}, line 1: column {twice[0]!r} occurs twice: rename one")
        if not header:
            raise InputError(f"{self.path} is empty: get the file again")
        return header

    def require(self, wanted: tuple[str, ...]) -> None:
        """Refuse a header that lacks a column."""
        found = self.columns()
        for name in wanted:
            if name not in found:
                raise InputError(
                    f"{self.path}, line 1: column {name!r} is missing: {nearest(name, list(found))}"
                )

    def batches(self, wanted: tuple[str, ...]) -> Iterator[tuple[Refuse, Arrow]]:
        """Yield record batches of the wanted columns as text, each with its ``refuse``."""
        self.require(wanted)
        if not self.path.stat().st_size:
            raise InputError(f"{self.path} is empty: get the file again")
        before = 0
        try:
            for batch in self._reader(wanted):
                yield partial(self._refuse, before), batch
                before += batch.num_rows
        except (pa.ArrowInvalid, OSError) as error:
            self._explain(error)

    def _reader(self, wanted: tuple[str, ...]) -> Arrow:
        return csv.open_csv(
            str(self.path),
            read_options=csv.ReadOptions(column_names=self.names, block_size=_BLOCK),
            parse_options=csv.ParseOptions(
                delimiter=self.delimiter,
                quote_char='"' if self.quoted else False,
                newlines_in_values=self.quoted,
            ),
            convert_options=csv.ConvertOptions(
                column_types={name: pa.string() for name in self.columns()},
                include_columns=list(wanted),
                strings_can_be_null=False,
            ),
        )

    def _refuse(self, before: int, row: int, problem: str) -> NoReturn:
        raise InputError(f"{self.path}, line {self._line(before + row)}: {problem}")

    def _explain(self, error: Exception) -> NoReturn:
        """Say which line has the wrong number of columns; without one, what the reader said."""
        width = len(self.columns())
        try:
            with self._open() as file:
                for line, record in self._records(file):
                    if len(record) != width:
                        raise InputError(
                            f"{self.path}, line {line}: {len(record)} columns instead of {width}: "
                            f"correct or remove that line"
                        ) from error
        except _UNREADABLE:
            pass
        reason = " ".join(str(error).split())[:200]
        raise InputError(f"{self.path} cannot be read: {reason}") from error

    def _line(self, row: int) -> int:
        """Return the line on which a data row ends; slow, for messages only."""
        wanted = row + (self.names is None)
        with self._open() as file:
            for at, (line, _) in enumerate(self._records(file)):
                if at == wanted:
                    return line
        return wanted + 1

    def _records(self, file: TextIO) -> Iterator[tuple[int, list[str]]]:
        """Yield (line, cells) of every line that is not blank."""
        reader = plain_csv.reader(
            file,
            delimiter=self.delimiter,
            quoting=plain_csv.QUOTE_MINIMAL if self.quoted else plain_csv.QUOTE_NONE,
        )
        for record in reader:
            if record:
                yield reader.line_num, record

    @contextmanager
    def _open(self) -> Iterator[TextIO]:
        packed = self.path.suffix == ".gz"
        opened = gzip.open if packed else open
        with opened(self.path, "rt", encoding="utf-8-sig", newline="") as file:
            yield file
