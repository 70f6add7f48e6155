"""How a message declares what it looks like on the wire.

Each message class carries one declaration: its kind, the field that travels in the header, and the
bodies that it may have. The header and the codec read these declarations and know nothing else
about single messages.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from enum import IntEnum
from reprlib import repr as shown
from typing import Any, TypeAlias, TypeVar, final

import torch
from torch import Tensor

from tacit.errors import InputError

MOST_DIMS = 4
ROWS = range(2, MOST_DIMS + 1)
"""Dimensions of values with one row per example."""
FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)

Reader: TypeAlias = Callable[[str, Any], Any]
Sent = TypeVar("Sent")


@final
class Kind(IntEnum):
    """The kinds of message, with their numbers on the wire."""

    HELLO = 1
    ALIGN = 2
    TRAIN = 3
    RELEASE = 4
    EVALUATE = 5
    PREDICT = 6
    CHECKPOINT = 7
    HEARTBEAT = 8
    REFUSE = 9
    BYE = 10
    RECORDS = 11
    UPLOAD = 12

    @property
    def word(self) -> str:
        """What errors and logs call a message of this kind."""
        return self.name.lower()


def as_it_is(_name: str, value: object) -> object:
    """Return a JSON value for the message to check."""
    return value


def as_text(name: str, value: object) -> str:
    """Return a text, and refuse everything else, also null."""
    if not isinstance(value, str):
        raise InputError(f"a {name} must be text, got {shown(value)}")
    return value


def as_items(name: str, value: object) -> tuple[Any, ...]:
    """Return the items of a JSON list."""
    if not isinstance(value, list):
        raise InputError(f"{name} must be a list, got {shown(value)}")
    return tuple(value)


def as_bytes(name: str, value: object) -> bytes:
    """Return the bytes of lower-case hexadecimal digits."""
    digits = as_text(name, value)
    if not re.fullmatch("(?:[0-9a-f]{2})+", digits):
        raise InputError(f"a {name} must be hexadecimal digits, got {shown(digits)}")
    return bytes.fromhex(digits)


@final
@dataclass(frozen=True, kw_only=True)
class TensorBody:
    """One field that travels as the raw bytes of a tensor.

    Args:
        field: its name in the message.
        dims: how many dimensions it may have.
        dtypes: which types it may have.
        record: the field whose bytes may follow the values: a release's entry in the journal.
    """

    field: str
    dims: range = ROWS
    dtypes: tuple[torch.dtype, ...] = FLOATS
    record: str | None = None

    def fits(self, message: object) -> bool:
        """Whether a message has this body."""
        return isinstance(getattr(message, self.field), Tensor)


@final
@dataclass(frozen=True, kw_only=True)
class TextBody:
    """Fields that travel as one JSON object.

    Args:
        required: the fields that are always there, and how each is read.
        optional: the fields that are left out where they have the message's default value.
    """

    required: Mapping[str, Reader] = field(default_factory=dict)
    optional: Mapping[str, Reader] = field(default_factory=dict)

    def fits(self, message: object) -> bool:
        """Whether a message has this body: one of its fields is there."""
        return any(getattr(message, name) is not None for name in self._readers)

    def write(self, message: object) -> dict[str, Any]:
        """Return the JSON fields of a message."""
        values = {name: getattr(message, name) for name in self._readers}
        written = {
            name: value.hex() if isinstance(value, bytes) else value
            for name, value in values.items()
        }
        defaults = _defaults(type(message))
        return {n: v for n, v in written.items() if n in self.required or v != defaults[n]}

    def read(self, found: Mapping[str, Any], message: type) -> dict[str, Any]:
        """Return the fields of a message, from JSON that has exactly those that it may have."""
        if not found or not self.required.keys() <= found.keys() <= self._readers.keys():
            more = f" and may have {sorted(self.optional)}" if self.optional else ""
            raise InputError(
                f"a body has the keys {sorted(self.required)}{more}, got {shown(list(found))}"
            )
        values = {name: self._readers[name](name, value) for name, value in found.items()}
        defaults = _defaults(message)
        for name in self.optional.keys() & values.keys():
            if values[name] == defaults[name]:
                raise InputError(f"{name} is left out where it is {defaults[name]}, got it written")
        return values

    def shares(self, found: Mapping[str, Any]) -> bool:
        """Whether some JSON has one of these fields."""
        return bool(self._readers.keys() & found.keys())

    @property
    def _readers(self) -> dict[str, Reader]:
        return {**self.required, **self.optional}


@final
@dataclass(frozen=True, kw_only=True)
class Form:
    """What a kind of message looks like on the wire.

    Args:
        kind: the message's kind.
        message: its class.
        number: the field that travels in the header's step; the step is 0 without one.
        bodies: the bodies that it may have, in the order in which they are tried.
        empty: whether it may have none.
    """

    kind: Kind
    message: type
    number: str | None
    bodies: tuple[TensorBody | TextBody, ...]
    empty: bool

    @property
    def tensors(self) -> tuple[TensorBody, ...]:
        """The bodies that are tensors."""
        return tuple(body for body in self.bodies if isinstance(body, TensorBody))

    @property
    def texts(self) -> tuple[TextBody, ...]:
        """The bodies that are JSON."""
        return tuple(body for body in self.bodies if isinstance(body, TextBody))

    def body_of(self, message: object) -> TensorBody | TextBody | None:
        """Return the body that a message has."""
        return next((body for body in self.bodies if body.fits(message)), None)


FORMS: dict[Kind, Form] = {}
"""The form of every kind of message; filled by the declarations."""
_KINDS: dict[type, Kind] = {}


def travels_as(
    kind: Kind,
    *bodies: TensorBody | TextBody,
    number: str | None = None,
    empty: bool = False,
) -> Callable[[type[Sent]], type[Sent]]:
    """Declare the form of a message class; see :class:`Form`."""

    def declare(message: type[Sent]) -> type[Sent]:
        FORMS[kind] = Form(kind=kind, message=message, number=number, bodies=bodies, empty=empty)
        _KINDS[message] = kind
        return message

    return declare


def kind_of(message: type) -> Kind:
    """Return the kind of a message class."""
    return _KINDS[message]


def _defaults(message: type) -> dict[str, Any]:
    return {f.name: f.default for f in fields(message) if f.default is not MISSING}
