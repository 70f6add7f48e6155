"""Names for things: a registry, and spec strings such as ``"max_norm | gaussian(sigma=0.1)"``.

A registered class is a frozen dataclass whose fields are its parameters. Its spec string parses
to an object and the object prints back as its spec string::

    chain  := item ("|" item)*
    item   := name [ "(" [ argument ("," argument)* ] ")" ]
    argument := [ name "=" ] (number | word | item)
"""

from __future__ import annotations

import dataclasses
import difflib
import inspect
import re
import types
import typing
from abc import ABC
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar, final

from tacit.errors import ParameterError, SpecError

T = TypeVar("T", bound="Specified")
_UNIONS = (types.UnionType, typing.Union)
_TOKEN = re.compile(r"\s*(?:(?P<word>[A-Za-z_][\w-]*)|(?P<number>[-+]?[\d.][\w.+-]*)|(?P<mark>\S))")


class Specified(ABC):  # noqa: B024 - a base to inherit from, with nothing left to fill in
    """A frozen dataclass that prints as its spec string; fields at their default are left out."""

    spec_name: typing.ClassVar[str] = ""

    def __str__(self) -> str:
        parts = [
            f"{field.name}={_write(value)}"
            for field in dataclasses.fields(self)  # type: ignore[arg-type]
            if (value := getattr(self, field.name)) != field.default
        ]
        return f"{self.spec_name}({', '.join(parts)})" if parts else self.spec_name


@final
@dataclass(frozen=True)
class Item:
    """One parsed item of a spec string, not yet looked up."""

    name: str
    positional: tuple[object, ...] = ()
    named: tuple[tuple[str, object], ...] = ()


@final
@dataclass(frozen=True)
class Entry(Generic[T]):
    """A registered class with what its docstring says of it."""

    name: str
    cls: type[T]

    @property
    def summary(self) -> str:
        """The first line of the docstring."""
        return (inspect.getdoc(self.cls) or "").split("\n", 1)[0]

    @property
    def guarantee(self) -> str:
        """The ``Guarantee:`` paragraph of the docstring, on one line."""
        found = re.search(r"Guarantee:\s*(.*?)(?:\n\s*\n|\Z)", inspect.getdoc(self.cls) or "", re.S)
        return " ".join(found.group(1).split()) if found else ""

    @property
    def signature(self) -> str:
        """The name with its parameters and their defaults."""
        shown = [
            field.name
            if field.default is dataclasses.MISSING or field.default is None
            else f"{field.name}={_write(field.default)}"
            for field in dataclasses.fields(self.cls)  # type: ignore[arg-type]
        ]
        return f"{self.name}({', '.join(shown)})" if shown else self.name


@final
class Registry(Generic[T]):
    """The things of one kind by name, in the order of registration; all derive from ``base``."""

    def __init__(self, kind: str, *, base: type = Specified) -> None:
        self.kind = kind
        self.entries: dict[str, Entry[T]] = {}
        self._base = base

    def register(self, name: str) -> Callable[[type[T]], type[T]]:
        """Return a decorator that registers a frozen dataclass under a name that is free."""

        def add(cls: type[T]) -> type[T]:
            self._check(name, cls)
            cls.spec_name = name
            self.entries[name] = Entry(name, cls)
            return cls

        return add

    def _check(self, name: str, cls: object) -> None:
        """Refuse a name that no spec could use or that is taken, and a class that is none of ours.

        Authors of plug-ins read these messages, and what is wrong would show only when it is used.
        """
        what = f"{self.kind} {name!r}"
        if not isinstance(name, str) or re.fullmatch(r"[A-Za-z_][\w-]*", name) is None:
            raise SpecError(f"{what}: a name is a letter, then letters, digits, _ or -")
        if name in self.entries:
            held = self.entries[name].cls
            raise SpecError(
                f"{what} is registered already, as {held.__module__}.{held.__qualname__}: "
                "choose another name"
            )
        if not (isinstance(cls, type) and issubclass(cls, self._base)):
            raise SpecError(f"{what} must be a class that derives from {self._base.__name__}")
        if missing := sorted(getattr(cls, "__abstractmethods__", ())):
            raise SpecError(f"{what} lacks {', '.join(missing)}: see {self._base.__name__}")

    def __iter__(self) -> Iterator[Entry[T]]:
        return iter(self.entries.values())

    def names(self) -> list[str]:
        """Return every registered name, in the order of registration."""
        return list(self.entries)

    def get(self, text: str) -> T:
        """Return the object that one item of spec text describes."""
        items = parse(text, kind=self.kind)
        if len(items) != 1:
            raise SpecError(f"one {self.kind} is expected here, got {len(items)} in {text!r}")
        return self.build(items[0])

    def build(self, item: Item) -> T:
        """Return the object of a parsed item, with every parameter checked."""
        if item.name not in self.entries:
            raise SpecError(
                f"unknown {self.kind} {item.name!r}: {nearest(item.name, self.names())}"
            )
        cls = self.entries[item.name].cls
        fields = {f.name: f for f in dataclasses.fields(cls)}  # type: ignore[arg-type]
        hints = typing.get_type_hints(cls)
        given = _bind(item, list(fields))
        for name, field in fields.items():
            if name not in given and field.default is dataclasses.MISSING:
                raise SpecError(f"{item.name} needs {name}: write {item.name}({name}=...)")
        return cls(**{k: self._coerce(item.name, k, hints[k], v) for k, v in given.items()})

    def _coerce(self, owner: str, name: str, hint: Any, value: object) -> object:  # noqa: ANN401
        """Return the value as the field's type, or say what the field takes."""
        kinds = typing.get_args(hint) if typing.get_origin(hint) in _UNIONS else (hint,)
        if isinstance(value, int) and abs(value) > 10**300:
            raise SpecError(f"{owner}: {name} is out of range")
        for kind in kinds:
            if typing.get_origin(kind) is Literal and isinstance(value, Item):
                if not value.positional and not value.named and value.name in typing.get_args(kind):
                    return value.name
            elif kind is bool and value in (Item("true"), Item("false")):
                return value == Item("true")
            elif kind in (int, float) and isinstance(value, int | float):
                if kind is float or float(value).is_integer():
                    return kind(value)
            elif isinstance(kind, type) and issubclass(kind, Specified) and isinstance(value, Item):
                return self.build(value)
        expected = " or ".join(_describe(kind) for kind in kinds if kind is not type(None))
        raise SpecError(f"{owner}: {name} takes {expected}, got {_write(value)}")


def parse(text: str, *, kind: str = "spec") -> tuple[Item, ...]:
    """Return the items of a spec string.

    >>> parse("max_norm | gaussian(sigma=0.1)")[1].named
    (('sigma', 0.1),)
    """
    if not isinstance(text, str) or not text.strip():
        raise SpecError(f"a {kind} needs a name, got {text!r}: see `tacit list`")
    try:
        return _Parser(text).chain()
    except RecursionError:
        raise SpecError(f"a {kind} is nested too deeply: {text[:40]!r}...") from None


def nearest(name: str, known: list[str]) -> str:
    """Return the way out for an unknown name: the nearest known one, or all of them."""
    close = difflib.get_close_matches(name.lower(), known, n=1, cutoff=0.5)
    return f"did you mean {close[0]!r}?" if close else f"known are {', '.join(known)}"


def require(holds: bool, rule: str, value: object) -> None:
    """Raise ``ParameterError`` with the rule and the value unless the rule holds."""
    if not holds:
        raise ParameterError(f"{rule}, got {_write(value)}")


def _bind(item: Item, fields: list[str]) -> dict[str, object]:
    if len(item.positional) > len(fields):
        takes = f"takes {', '.join(fields)}" if fields else "takes no parameters"
        raise SpecError(f"{item.name} {takes}, got {len(item.positional)} values")
    given = dict(zip(fields, item.positional, strict=False))
    for name, value in item.named:
        if name not in fields:
            way_out = nearest(name, fields) if fields else "it takes none"
            raise SpecError(f"{item.name} has no parameter {name!r}: {way_out}")
        if name in given:
            raise SpecError(f"{item.name}: {name} is given twice")
        given[name] = value
    return given


def _describe(kind: Any) -> str:  # noqa: ANN401
    if typing.get_origin(kind) is Literal:
        return " | ".join(typing.get_args(kind))
    words = {int: "a whole number", float: "a number", bool: "true or false"}
    return words.get(kind, f"a {getattr(kind, '__name__', kind)}".lower())


def _write(value: object) -> str:
    match value:
        case bool():
            return str(value).lower()
        case float() if value.is_integer() and abs(value) < 1e15:
            return str(int(value))
        case Item():
            return value.name
        case _:
            return str(value)


@final
class _Parser:
    """A hand-sized recursive-descent parser over the tokens of one spec string."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens = [
            (m.lastgroup, m.group(m.lastgroup)) for m in _TOKEN.finditer(text) if m.lastgroup
        ]
        self.at = 0

    def chain(self) -> tuple[Item, ...]:
        items = [self.item()]
        while self.take("|"):
            items.append(self.item())
        if self.at < len(self.tokens):
            self.fail("'|' or the end")
        return tuple(items)

    def item(self) -> Item:
        kind, name = self.peek()
        if kind != "word":
            self.fail("a name")
        self.at += 1
        positional: list[object] = []
        named: list[tuple[str, object]] = []
        if self.take("(") and not self.take(")"):
            while True:
                self.argument(positional, named)
                if self.take(")"):
                    break
                if not self.take(","):
                    self.fail("',' or ')'")
        return Item(name, tuple(positional), tuple(named))

    def argument(self, positional: list[object], named: list[tuple[str, object]]) -> None:
        value = self.value()
        if isinstance(value, Item) and self.take("="):
            named.append((value.name, self.value()))
        elif named:
            self.fail("name=value after the first named value")
        else:
            positional.append(value)

    def value(self) -> object:
        kind, token = self.peek()
        if kind != "number":
            return self.item()
        self.at += 1
        try:
            return int(token) if re.fullmatch(r"[-+]?\d+", token) else float(token)
        except ValueError:
            raise SpecError(f"{token!r} is not a number in {self.text!r}") from None

    def peek(self) -> tuple[str | None, str]:
        return self.tokens[self.at] if self.at < len(self.tokens) else (None, "the end")

    def take(self, mark: str) -> bool:
        found = self.peek() == ("mark", mark)
        self.at += found
        return found

    def fail(self, expected: str) -> typing.NoReturn:
        raise SpecError(f"expected {expected}, found {self.peek()[1]} in {self.text!r}")
