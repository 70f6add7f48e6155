"""Arrow columns as numbers, categories, labels, ids and times.

Columns may be text, as from CSV files, or typed, as from Parquet. What does not fit is refused:
``refuse(row, problem)`` raises an error that says where the row is in its file.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, NoReturn, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tacit.data.draws import Array
from tacit.data.label_values import likely_positive, listed

Arrow: TypeAlias = Any
"""An Arrow array, record batch or type: pyarrow ships no types."""

Refuse: TypeAlias = Callable[[int, str], NoReturn]


class RowReader(ABC):
    """Something with named columns that is read batch by batch: a file, or a frame."""

    @property
    @abstractmethod
    def where(self) -> str:
        """What is read, for messages."""

    @abstractmethod
    def columns(self) -> tuple[str, ...]:
        """Return the names of the columns."""

    @abstractmethod
    def batches(self, wanted: tuple[str, ...]) -> Iterator[tuple[Refuse, Arrow]]:
        """Yield record batches of the wanted columns, each with its ``refuse``."""


MISSING = ("", "NA", "N/A", "NaN", "nan", "null", "NULL")
TIME_UNITS = {"milliseconds": 0.001, "seconds": 1.0, "hours": 3_600.0, "days": 86_400.0}
_MOST_CLASSES = 10_000
_LARGEST = 1e38
_WORDS = 20


def numbers(column: Arrow, refuse: Refuse, *, name: str, missing: tuple[str, ...] = ()) -> Array:
    """Return a column as float64; missing values become 0.

    Missing is what ``MISSING`` lists, NaN, and what is ``missing`` besides, as text or as number.
    """
    column = plain(column)
    if is_text(column.type):
        text = pc.utf8_trim_whitespace(column)
        blank = pc.is_in(text, value_set=pa.array((*MISSING, *missing), text.type))
        column = pc.if_else(pc.fill_null(blank, True), "0", text)
    values = _cast(column, pa.float64(), refuse, f"{name} must be a number")
    array: Array = pc.fill_null(values, 0.0).to_numpy(zero_copy_only=False).astype(np.float64)
    array[np.isnan(array) | np.isin(array, _as_numbers(missing))] = 0.0
    large = np.abs(array) > _LARGEST
    if large.any():
        row = int(np.argmax(large))
        refuse(row, f"{name} must be within plus or minus 1e38, got {array[row]:g}")
    return array


def categories(column: Arrow, refuse: Refuse, *, name: str, missing: tuple[str, ...] = ()) -> Arrow:
    """Return a column as text; missing values become the empty text, a category of its own."""
    text = _cast(plain(column), pa.string(), refuse, f"{name} must have a text form")
    text = pc.fill_null(text, "")
    if missing:
        text = pc.if_else(
            pc.is_in(pc.utf8_trim_whitespace(text), value_set=pa.array(missing)), "", text
        )
    return text


def labels(
    column: Arrow, refuse: Refuse, *, name: str, positive: str | None = None, binary: bool = True
) -> Array:
    """Return labels from 0: 1 where the value is ``positive``, or the whole numbers given."""
    if column.null_count:
        refuse(_first_null(column), f"{name} is missing: every row needs a label")
    if positive is not None:
        text = label_texts(column, refuse, name=name)
        marked: Array = pc.equal(text, positive).to_numpy(zero_copy_only=False)
        return marked.astype(np.int64)
    most = 2 if binary else _MOST_CLASSES
    rule = f"{name} must be 0 or 1" if binary else f"{name} must be a whole number from 0"
    column = plain(column)
    if is_text(column.type):
        column = _label_numbers(label_texts(column, refuse, name=name), refuse, rule)
    array: Array = _cast(column, pa.int64(), refuse, rule).to_numpy(zero_copy_only=False)
    wrong = (array < 0) | (array >= most)
    if wrong.any():
        row = int(np.argmax(wrong))
        refuse(row, f"{rule}{'' if binary else f' below {most}'}, got {str(array[row])!r}")
    return array


def label_texts(column: Arrow, refuse: Refuse, *, name: str) -> Arrow:
    """Return labels as text without blanks around it; an empty one is refused."""
    text = _cast(plain(column), pa.string(), refuse, f"{name} must have a text form")
    text = pc.utf8_trim_whitespace(text)
    if pc.any(pc.equal(text, "")).as_py():
        refuse(pc.index(text, "").as_py(), f"{name} is missing: every row needs a label")
    return text


def _label_numbers(text: Arrow, refuse: Refuse, rule: str) -> Arrow:
    """Return labels such as 1 or 1.0 as numbers; of words, say how to name the positive one."""

    def refuse_word(row: int, problem: str) -> NoReturn:
        refuse(row, problem + _way_out(text))

    return _cast(text, pa.float64(), refuse_word, rule)


def _way_out(text: Arrow) -> str:
    """Return how to name the positive value of labels that are words."""
    counts = value_counts(text)
    if len(counts) > _WORDS:
        return ""
    return (
        f"; the labels are {listed(counts)}: name the one that counts as 1 in the schema, such as "
        f'positive = "{likely_positive(counts)}"'
    )


def value_counts(column: Arrow) -> dict[str, int]:
    """Return how often each value of a text column is there."""
    found = pc.value_counts(column)
    counts = zip(found.field("values").to_pylist(), found.field("counts").to_pylist(), strict=True)
    return {value: count for value, count in counts if value is not None}


def ids(column: Arrow, refuse: Refuse, *, name: str) -> Array:
    """Return ids: whole numbers that fit as int64, everything else as text."""
    column = plain(column)
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
    column = plain(column)
    if is_text(column.type):
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


def is_text(kind: Arrow) -> bool:
    """Tell whether an Arrow type is text."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def plain(column: Arrow) -> Arrow:
    """Return a column without a dictionary, and text that can be cut and compared."""
    if pa.types.is_dictionary(column.type):
        column = plain(column.dictionary).take(column.indices)
    return column.cast(pa.large_string()) if pa.types.is_string_view(column.type) else column


def _as_numbers(missing: tuple[str, ...]) -> list[float]:
    found = []
    for text in missing:
        with suppress(ValueError):
            found.append(float(text))
    return found


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
