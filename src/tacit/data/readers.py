"""Text files in blocks, and Arrow columns as numbers, categories, labels, ids and times.

Columns may be text, as from CSV files, or typed, as from Parquet. What does not fit is refused:
``refuse(row, problem)`` raises an error that says where the row is in its file.
"""

from __future__ import annotations

import csv as plain_csv
import gzip
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, TextIO, TypeAlias, final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from tacit.data.draws import Array
from tacit.errors import InputError
from tacit.spec import nearest

Arrow: TypeAlias = Any
"""An Arrow array, record batch or type: pyarrow ships no types."""

Refuse: TypeAlias = Callable[[int, str], NoReturn]

MISSING = ("", "NA", "N/A", "NaN", "nan", "null", "NULL")
TIME_UNITS = {"milliseconds": 0.001, "seconds": 1.0, "hours": 3_600.0, "days": 86_400.0}
_MOST_CLASSES = 10_000
_LARGEST = 1e38
_BLOCK = 1 << 24
_UNREADABLE = (OSError, EOFError, UnicodeDecodeError, plain_csv.Error)


def numbers(
    column: Arrow, refuse: Refuse, *, name: str, missing: tuple[str, ...] = MISSING
) -> Array:
    """Return a column as float64; missing values become 0."""
    if _is_text(column.type):
        text = pc.utf8_trim_whitespace(column)
        blank = pc.is_in(text, value_set=pa.array(missing, text.type))
        column = pc.if_else(pc.fill_null(blank, True), "0", text)
    values = _cast(column, pa.float64(), refuse, f"{name} must be a number")
    array: Array = pc.fill_null(values, 0.0).to_numpy(zero_copy_only=False).astype(np.float64)
    array[np.isnan(array)] = 0.0
    large = np.abs(array) > _LARGEST
    if large.any():
        row = int(np.argmax(large))
        refuse(row, f"{name} must be within plus or minus 1e38, got {array[row]:g}")
    return array


def categories(column: Arrow, refuse: Refuse, *, name: str, missing: tuple[str, ...] = ()) -> Arrow:
    """Return a column as text; missing values become the empty text, a category of its own."""
    text = _cast(column, pa.string(), refuse, f"{name} must have a text form")
    text = pc.fill_null(text, "")
    if missing:
        text = pc.if_else(pc.is_in(text, value_set=pa.array(missing)), "", text)
    return text


def labels(
    column: Arrow, refuse: Refuse, *, name: str, positive: str | None = None, binary: bool = True
) -> Array:
    """Return labels from 0: 1 where the value is ``positive``, or the whole numbers given."""
    if column.null_count:
        refuse(_first_null(column), f"{name} is missing: every row needs a label")
    if positive is not None:
        text = pc.utf8_trim_whitespace(_cast(column, pa.string(), refuse, f"{name} is not text"))
        if pc.any(pc.equal(text, "")).as_py():
            refuse(pc.index(text, "").as_py(), f"{name} is missing: every row needs a label")
        marked: Array = pc.equal(text, positive).to_numpy(zero_copy_only=False)
        return marked.astype(np.int64)
    most = 2 if binary else _MOST_CLASSES
    rule = f"{name} must be 0 or 1" if binary else f"{name} must be a whole number from 0"
    if _is_text(column.type):
        column = pc.utf8_trim_whitespace(column)
    array: Array = _cast(column, pa.int64(), refuse, rule).to_numpy(zero_copy_only=False)
    wrong = (array < 0) | (array >= most)
    if wrong.any():
        row = int(np.argmax(wrong))
        refuse(row, f"{rule}{'' if binary else f' below {most}'}, got {str(array[row])!r}")
    return array


def ids(column: Arrow, refuse: Refuse, *, name: str) -> Array:
    """Return ids: whole numbers that fit as int64, everything else as text."""
    if column.null_count:
        refuse(_first_null(column), f"{name} is missing: every row needs an id")
    if pa.types.is_integer(column.type) and not pa.types.is_uint64(column.type):
        whole: Array = column.cast(pa.int64()).to_numpy(zero_copy_only=False)
        return whole
    text = _cast(column, pa.string(), refuse, f"{name} must have a text form")
    return np.asarray(text.to_pylist(), dtype=np.str_)


def seconds(column: Arrow, refuse: Refuse, *, name: str, unit: str = "seconds") -> Array:
    """Return times as whole seconds since 1970: dates and date-times, or numbers in ``unit``."""
    if column.null_count:
        refuse(_first_null(column), f"{name} is missing: every row needs a time")
    rule = f"{name} must be a number of {unit} or a date such as 2024-05-31"
    if _is_text(column.type):
        column = pc.utf8_trim_whitespace(column)
        numeric = _try(column, pa.float64())
        column = _cast(column, pa.timestamp("s"), refuse, rule) if numeric is None else numeric
    if pa.types.is_temporal(column.type):
        stamps = _cast(column, pa.timestamp("s"), refuse, rule, safe=False)
        whole: Array = stamps.cast(pa.int64()).to_numpy(zero_copy_only=False)
        return whole
    values: Array = _cast(column, pa.float64(), refuse, rule).to_numpy(zero_copy_only=False)
    if not (np.abs(values * TIME_UNITS[unit]) < 2.0**53).all():
        refuse(int(np.argmin(np.abs(values) * TIME_UNITS[unit] < 2.0**53)), rule)
    return np.floor(values * TIME_UNITS[unit]).astype(np.int64)


def _is_text(kind: Arrow) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _first_null(column: Arrow) -> int:
    return int(pc.index(pc.is_null(column), True).as_py())


def _try(column: Arrow, kind: Arrow, *, safe: bool = True) -> Arrow | None:
    try:
        return column.cast(kind, safe=safe)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return None


def _cast(column: Arrow, kind: Arrow, refuse: Refuse, rule: str, *, safe: bool = True) -> Arrow:
    """Return the column as another type, or refuse the first row that does not fit."""
    done = _try(column, kind, safe=safe)
    if done is not None:
        return done
    low, high = 0, len(column)
    while high - low > 1:
        middle = (low + high) // 2
        if _try(column.slice(low, middle - low), kind, safe=safe) is None:
            high = middle
        else:
            low = middle
    return refuse(low, f"{rule}, got {str(column[low].as_py())!r}")


@final
@dataclass(frozen=True)
class TextFile:
    """A text table: with ``names`` it has no header; unquoted, quotes are plain characters."""

    path: Path
    delimiter: str = ","
    names: tuple[str, ...] | None = None
    quoted: bool = True

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
