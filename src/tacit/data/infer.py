"""A schema that fits what a file holds: a first guess, to be checked by whoever knows the file."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from tacit.data.label_values import likely_positive, listed
from tacit.data.profile import ColumnProfile, Profile
from tacit.data.schema import Schema
from tacit.errors import InputError
from tacit.spec import nearest

_LABEL_NAMES = (
    *("label", "labels", "target", "y", "class", "outcome", "response", "converted"),
    *("conversion", "clicked", "click", "bought", "purchased", "default", "fraud", "churn"),
    *("churned", "spam", "diagnosis", "survived", "income"),
)
_ID_WORDS = {"id", "ids", "key", "uuid", "guid", "uid", "userid", "rowid", "identifier"}
_CODE_WORDS = _ID_WORDS | {"code", "type", "category", "zip", "zipcode", "postcode", "class"}
_TIME_WORDS = {"time", "timestamp", "ts", "date", "datetime", "at", "when", "created", "updated"}
_MOST_CLASSES = 100
_MANY = 1_000
_ENOUGH = 20
_SINCE_1970 = {"seconds": (5e8, 5e9), "milliseconds": (5e11, 5e12)}
_DAY_FIRST = re.compile(r"\d{1,2}[./-]\d{1,2}[./-]\d{2,4}\b")


@final
@dataclass(frozen=True)
class Inferred:
    """A schema, a note on each column that it names, and why the other columns are left out."""

    schema: Schema
    notes: dict[str, str]
    left_out: dict[str, str]


def infer(
    found: Profile,
    *,
    label: str | None = None,
    positive: str | None = None,
    id: str | None = None,
    separator: str | None = None,
) -> Inferred:
    """Return a schema of a file's columns; what is given is taken, the rest is guessed.

    A label is recognised by its name alone: a column of two values may be any feature.
    """
    by_name = {column.name: column for column in found.columns}
    for name in (label, id):
        if name is not None and name not in by_name:
            raise InputError(f"there is no column {name!r}: {nearest(name, list(by_name))}")
    chosen_label = by_name[label] if label else _label(found.columns, taken=id)
    rest = [column for column in found.columns if column is not chosen_label]
    chosen_id = by_name[id] if id else _id(rest, found.rows)
    rest = [column for column in rest if column is not chosen_id]
    time, unit = _time(rest)
    rest = [column for column in rest if column is not time]
    notes = {column.name: _note(column) for column in rest}
    left_out = {column.name: why for column in rest if (why := _useless(column, found.rows))}
    used = [column for column in rest if column.name not in left_out]
    categorical = [column for column in used if _is_category(column)]
    if chosen_label is not None:
        notes[chosen_label.name] = _label_note(chosen_label)
        positive = positive if positive is not None else _positive(chosen_label)
    if chosen_id is not None:
        notes[chosen_id.name] = f"{chosen_id.distinct:,} different values"
    if time is not None:
        notes[time.name] = f"such as {time.example}" if time.example else "dates"
    schema = Schema(
        label=None if chosen_label is None else chosen_label.name,
        positive=None if chosen_label is None else positive,
        id=None if chosen_id is None else chosen_id.name,
        time=None if time is None else time.name,
        time_unit=unit,
        numeric=tuple(column.name for column in used if column not in categorical),
        categorical=tuple(column.name for column in categorical),
        separator=separator,
        missing=tuple(dict.fromkeys(sign for column in used for sign in column.signs)),
    )
    return Inferred(schema, notes, left_out)


def _words(name: str) -> list[str]:
    """Return the words of a column's name.

    >>> _words("default.payment_nextMonth")
    ['default', 'payment', 'next', 'month']
    """
    return [word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+", name)]


def _label(columns: Sequence[ColumnProfile], *, taken: str | None) -> ColumnProfile | None:
    """Return the column whose whole name is that of a label, or one word of it."""
    fit = [c for c in columns if 2 <= c.distinct <= _MOST_CLASSES and not c.missing]
    fit = [c for c in fit if c.kind in ("whole number", "number", "text") and c.name != taken]
    for name in _LABEL_NAMES:
        for column in fit:
            if column.name.lower() == name:
                return column
    for column in fit:
        if column.distinct == 2 and set(_words(column.name)) & set(_LABEL_NAMES):
            return column
    return None


def _positive(label: ColumnProfile) -> str | None:
    """Return the positive value of two; none where labels are 0, 1, ... or many words."""
    if _is_counted(label) or label.distinct != 2:
        return None
    return likely_positive(label.counts)


def _is_counted(label: ColumnProfile) -> bool:
    return label.kind != "text" and (label.low, label.high) == (0, label.distinct - 1)


def _id(columns: Sequence[ColumnProfile], rows: int) -> ColumnProfile | None:
    """Return the column with one value per row that is named like an id, or the first such text."""
    unique = [c for c in columns if c.distinct == rows]
    named = [c for c in unique if set(_words(c.name)) & _ID_WORDS]
    texts = [c for c in unique if c.kind == "text" and rows >= _ENOUGH]
    first = [c for c in unique if c is columns[0] and c.kind == "whole number" and rows >= _ENOUGH]
    return next(iter([*named, *texts, *first]), None)


def _time(columns: Sequence[ColumnProfile]) -> tuple[ColumnProfile | None, str]:
    """Return the first column of times without gaps, and the unit of its numbers."""
    for column in columns:
        if column.missing:
            continue
        if column.kind == "time":
            return column, "seconds"
        if set(_words(column.name)) & _TIME_WORDS and column.low is not None:
            for unit, (low, high) in _SINCE_1970.items():
                if low <= column.low and (column.high or 0) <= high:
                    return column, unit
    return None, "seconds"


def _useless(column: ColumnProfile, rows: int) -> str | None:
    """Return why a column is no feature, or nothing."""
    if column.kind == "other":
        return "neither a number, text nor a time"
    if column.kind == "time":
        return "a second time: turn it into a number, such as an age, to use it"
    if column.distinct == 0:
        return "every value is missing"
    if column.distinct == 1 and not column.missing:
        return "the same value in every row"
    if column.kind == "text" and _DAY_FIRST.match(column.example):
        return f"looks like a date, such as {column.example}: write dates like 2024-05-31"
    present = rows - column.missing
    coded = column.kind == "text" or bool(set(_words(column.name)) & _ID_WORDS)
    if coded and rows >= _ENOUGH and column.distinct > present / 2:
        return f"{column.distinct:,} different values in {present:,} rows: nothing to learn from"
    return None


def _is_category(column: ColumnProfile) -> bool:
    if column.kind == "text":
        return True
    return column.kind == "whole number" and bool(set(_words(column.name)) & _CODE_WORDS)


def _note(column: ColumnProfile) -> str:
    if _is_category(column) or column.low is None:
        many = ": many; --rare of tacit train merges rare ones" if column.distinct > _MANY else ""
        text = f"{column.distinct:,} values{many}"
    else:
        text = f"{column.low:,.6g} to {column.high:,.6g}"
        if column.kind == "whole number" and 2 < column.distinct <= 5:
            text += f", only {column.distinct} values: categorical if they are codes"
    becomes = "a value of its own" if _is_category(column) else "read as 0"
    return text + (f"; {column.missing:,} missing, {becomes}" if column.missing else "")


def _label_note(label: ColumnProfile) -> str:
    note = f"the values are {listed(label.counts)}" if label.counts else ""
    note = note or f"{label.distinct:,} different values"
    if label.missing:
        note += f"; {label.missing:,} missing: remove those rows, every row needs a label"
    if label.distinct != 2 and not _is_counted(label):
        note += "; number the classes 0, 1, ... or name one of them in positive"
    return note
