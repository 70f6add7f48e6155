"""What the columns of a file hold: their kind, missing values, and how many values they have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias, final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tacit.data.readers import MISSING, Arrow, RowReader, is_text, plain, value_counts
from tacit.errors import InputError

READ_AT_MOST = 500_000
"""Rows that are looked at."""

SIGNS = ("?", "-", "--", ".", "*", "\\N", "#N/A", "<NA>", "none", "None", "missing", "unknown")
"""Texts that stand for a missing value where everything else in a column is a number."""

Kind: TypeAlias = Literal["number", "whole number", "text", "time", "other"]
_COUNTED = 20


@final
@dataclass(frozen=True)
class ColumnProfile:
    """A column: ``low`` and ``high`` are set for numbers, ``counts`` where values are few.

    ``distinct`` counts the values that are not missing; ``signs`` are texts that stand for a
    missing value there, besides the usual ones.
    """

    name: str
    kind: Kind
    missing: int
    distinct: int
    counts: Mapping[str, int]
    low: float | None = None
    high: float | None = None
    signs: tuple[str, ...] = ()
    example: str = ""


@final
@dataclass(frozen=True)
class Profile:
    """The columns of the first ``rows`` of a file; ``whole`` where it has no more."""

    rows: int
    whole: bool
    columns: tuple[ColumnProfile, ...]


def profile(reader: RowReader, *, rows: int = READ_AT_MOST) -> Profile:
    """Look at the first rows of a file."""
    names = reader.columns()
    batches, count = [], 0
    for _, batch in reader.batches(names):
        batches.append(batch)
        count += batch.num_rows
        if count > rows:
            break
    if not count:
        raise InputError(f"{reader.where} has no rows: a table needs some")
    table = pa.Table.from_batches(batches).slice(0, rows)
    columns = (_column(name, table[name].combine_chunks()) for name in names)
    return Profile(table.num_rows, count <= rows, tuple(columns))


def _column(name: str, column: Arrow) -> ColumnProfile:
    column = plain(column)
    if is_text(column.type):
        return _texts(name, pc.utf8_trim_whitespace(column))
    if pa.types.is_boolean(column.type):
        return _texts(name, column.cast(pa.string()))
    if pa.types.is_integer(column.type) or pa.types.is_floating(column.type):
        return _numbers(name, column)
    if pa.types.is_decimal(column.type):
        return _numbers(name, column.cast(pa.float64()))
    kind: Kind = "time" if pa.types.is_temporal(column.type) else "other"
    distinct = len(pc.unique(column.drop_null())) if kind == "time" else 0
    return ColumnProfile(name, kind, column.null_count, distinct, {})


def _texts(name: str, text: Arrow) -> ColumnProfile:
    """Return the profile of text: of numbers or times if all of it reads as such."""
    blank = pc.or_(pc.is_null(text), pc.is_in(text, value_set=pa.array(MISSING, text.type)))
    present = text.filter(pc.invert(blank))
    missing = len(text) - len(present)
    values = pc.unique(present)
    signs = pc.is_in(values, value_set=pa.array(SIGNS, values.type))
    real = values.filter(pc.invert(signs))
    if len(real) and (numbers := _cast(real, pa.float64())) is not None:
        found = tuple(values.filter(signs).to_pylist())
        is_sign = pc.is_in(present, value_set=pa.array(found, present.type))
        missing += pc.sum(is_sign).as_py() or 0
        whole = _cast(real, pa.int64()) is not None
        counted = present.filter(pc.invert(is_sign))
        return ColumnProfile(
            name,
            "whole number" if whole else "number",
            missing,
            len(real),
            _few(counted, len(real)),
            *_range(numbers),
            signs=found,
            example=real[0].as_py(),
        )
    is_time = len(real) > 0 and _cast(values, pa.timestamp("s")) is not None
    return ColumnProfile(
        name,
        "time" if is_time else "text",
        missing,
        len(values),
        _few(present, len(values)),
        example=values[0].as_py() if len(values) else "",
    )


def _numbers(name: str, column: Arrow) -> ColumnProfile:
    whole = pa.types.is_integer(column.type)
    present = column.drop_null()
    if not whole:
        present = present.filter(pc.invert(pc.is_nan(present)))
    values = pc.unique(present)
    counts = _few(present.cast(pa.string()), len(values)) if len(values) <= _COUNTED else {}
    return ColumnProfile(
        name,
        "whole number" if whole else "number",
        len(column) - len(present),
        len(values),
        counts,
        *_range(values.cast(pa.float64())),
        example=str(values[0].as_py()) if len(values) else "",
    )


def _few(text: Arrow, distinct: int) -> dict[str, int]:
    return value_counts(text) if distinct <= _COUNTED else {}


def _range(numbers: Arrow) -> tuple[float | None, float | None]:
    array = numbers.to_numpy(zero_copy_only=False)
    finite = array[np.isfinite(array)]
    return (float(finite.min()), float(finite.max())) if len(finite) else (None, None)


def _cast(column: Arrow, kind: Arrow) -> Arrow | None:
    try:
        return column.cast(kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return None
