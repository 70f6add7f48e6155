"""How the columns of a party's file became numbers and codes, to be kept for later files.

A model takes inputs that are scaled and coded as in training. A party keeps the encoding beside its
part of the model and reads the file to predict with it.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import final

import numpy as np
import pyarrow as pa
from pydantic import TypeAdapter, ValidationError

from tacit.data.build import Coding, Layout, Scale
from tacit.errors import InputError

FORMAT = 1


@final
@dataclass(frozen=True)
class Number:
    """A numeric column: ``(raw - offset) / spread``, or 0 where ``spread`` is 0."""

    name: str
    offset: float
    spread: float


@final
@dataclass(frozen=True)
class Category:
    """A categorical column: a value's code is its position in the sorted values or the next."""

    name: str
    values: tuple[str, ...]


@final
@dataclass(frozen=True)
class LabelRule:
    """The label column: 1 where it is ``positive``, or whole numbers from 0 below ``classes``."""

    name: str
    positive: str | None
    classes: int


@final
@dataclass(frozen=True)
class Encoding:
    """What was learned of the columns of a training file; ``label`` is None at a feature party.

    ``missing`` are the texts that meant a missing value there, besides the usual ones.

    Guarantee: a file read with an encoding gets, for rows that the training file has too, the
    same numbers bit by bit and the same codes. ``from_json(to_json())`` is the same encoding.
    """

    id: str
    scale: Scale
    numeric: tuple[Number, ...]
    categorical: tuple[Category, ...]
    label: LabelRule | None
    missing: tuple[str, ...] = ()

    @property
    def numeric_names(self) -> tuple[str, ...]:
        """The numeric columns, in the order of the model's inputs."""
        return tuple(column.name for column in self.numeric)

    @property
    def categorical_names(self) -> tuple[str, ...]:
        """The categorical columns, in the order of the model's inputs."""
        return tuple(column.name for column in self.categorical)

    @property
    def cardinalities(self) -> tuple[int, ...]:
        """The number of codes per categorical column; the last one is that of unseen values."""
        return tuple(len(column.values) + 1 for column in self.categorical)

    @classmethod
    def learned(
        cls,
        coding: Coding,
        layout: Layout,
        *,
        id_column: str,
        label: LabelRule | None,
        missing: tuple[str, ...] = (),
    ) -> Encoding:
        """Return the encoding of a table that was just built."""
        shapes = zip(layout.numeric, coding.offset.tolist(), coding.spread.tolist(), strict=True)
        words = zip(layout.categorical, coding.values, strict=True)
        return cls(
            id=id_column,
            scale=layout.scale,
            numeric=tuple(Number(*shape) for shape in shapes),
            categorical=tuple(Category(name, tuple(known.to_pylist())) for name, known in words),
            label=label,
            missing=missing,
        )

    def coding(self) -> Coding:
        """Return the numbers and values with which a table is built."""
        return Coding(
            offset=np.array([column.offset for column in self.numeric], dtype=np.float64),
            spread=np.array([column.spread for column in self.numeric], dtype=np.float64),
            values=tuple(pa.array(c.values, pa.large_string()) for c in self.categorical),
        )

    def to_json(self) -> str:
        """Return the encoding as one JSON object with a format version and a digest."""
        content = asdict(self)
        return json.dumps({"format": FORMAT, "digest": _digest(content), "encoding": content})

    @classmethod
    def from_json(cls, text: str, *, where: str = "the encoding") -> Encoding:
        """Return the encoding of :meth:`to_json`; anything else is refused.

        >>> encoding = Encoding("who", "none", (Number("age", 0.0, 1.0),), (), None)
        >>> Encoding.from_json(encoding.to_json()) == encoding
        True
        """
        try:
            envelope = json.loads(text)
        except ValueError as error:
            raise _damaged(where, f"not JSON, {error}") from error
        if not isinstance(envelope, dict) or not {"format", "encoding"} <= set(envelope):
            raise _damaged(where, "no format and encoding in it")
        if envelope["format"] != FORMAT:
            raise InputError(
                f"{where} has format {envelope['format']!r}, this version reads {FORMAT}: "
                f"use the version of tacit that wrote it"
            )
        content = envelope["encoding"]
        if envelope.get("digest") != _digest(content):
            raise _damaged(where, "its digest does not fit its content")
        return _checked(_parsed(content, where), where)


def _parsed(content: object, where: str) -> Encoding:
    try:
        return _adapter().validate_json(json.dumps(content), strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"]) or "content"
        raise _damaged(where, f"{field}: {first['msg']}") from error


def _checked(encoding: Encoding, where: str) -> Encoding:
    names = [encoding.id, *encoding.numeric_names, *encoding.categorical_names]
    if len(set(names)) < len(names):
        raise _damaged(where, "a column occurs twice")
    for number in encoding.numeric:
        if not (np.isfinite([number.offset, number.spread]).all() and number.spread >= 0.0):
            raise _damaged(where, f"the scale of {number.name!r} is not a number of at least 0")
    for column in encoding.categorical:
        if any(a >= b for a, b in zip(column.values, column.values[1:], strict=False)):
            raise _damaged(where, f"the values of {column.name!r} are not in order")
    if encoding.label is not None and encoding.label.classes < 2:
        raise _damaged(where, f"{encoding.label.classes} classes")
    return encoding


def _damaged(where: str, reason: str) -> InputError:
    return InputError(
        f"{where} is damaged ({' '.join(reason.split())[:200]}): take a copy of the file that "
        f"training wrote, or train again"
    )


def _digest(content: object) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


@lru_cache(maxsize=1)
def _adapter() -> TypeAdapter[Encoding]:
    return TypeAdapter(Encoding)
