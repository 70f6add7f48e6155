"""Configurations from plain values, with one line for whatever is wrong."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from tacit.errors import SpecError, UsageError
from tacit.spec import nearest

__all__ = ["checked", "read_toml"]

Config = TypeVar("Config", bound=BaseModel)


def checked(cls: type[Config], values: dict[str, Any], *, source: str) -> Config:
    """Return the checked configuration, or one line that names field, value and way out."""
    known = list(cls.model_fields)
    for name in values:
        if name not in known:
            raise SpecError(f"{source}: unknown key {name!r}: {nearest(name, known)}")
    try:
        return cls(**values)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"])
        if first["type"] == "missing":
            raise UsageError(f"{source}: {field} is missing: add {field} = ...") from None
        reason = first["msg"].removeprefix("Value error, ")
        given = f"{field} = {first['input']!r}: " if field else ""
        raise UsageError(f"{source}: {given}{reason}") from None


def read_toml(path: Path, *, source: str) -> dict[str, Any]:
    """Return the content of a TOML file."""
    try:
        return tomllib.loads(path.read_text())
    except FileNotFoundError:
        raise UsageError(f"{source}: there is no such file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{source}: not a readable text file: {error}") from None
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{source}: not valid TOML: {error}") from None
