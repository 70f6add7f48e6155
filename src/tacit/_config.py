"""Configurations from plain values, with one line for whatever is wrong."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from tacit.errors import SpecError, UsageError
from tacit.spec import nearest

EPOCHS = 5
BATCH_SIZE = 256
"""Small: a table of 3,000 rows still has some steps in an epoch."""

LR = 2e-3
WEIGHT_DECAY = 3e-4
"""At 1e-3 Criteo loses 0.013 (seed 10), at 1e-4 it and ``ads`` lose 0.003 (seed 11)."""

BINS = 32
"""Quantiles that a column of numbers is encoded by; nothing where a table has no numbers."""

RARE = 10
"""Values of a category with fewer training rows are one: else Avazu is learned by heart."""

SILENT: Mapping[str, Any] = {
    "epochs": 60,
    "batch_size": 256,
    "lr": 1e-3,
    "weight_decay": 0.01,
    "hold_out": 0.1,
}
"""What a head is trained with under ``protect = "silent"``, where nothing else is said."""

PLAIN: Mapping[str, Any] = {
    "model": "wdl",
    "cut": None,
    "epochs": 5,
    "batch_size": 1024,
    "lr": 1e-4,
    "weight_decay": 0.0,
    "bins": None,
    "rare": None,
    "augment": False,
    "hold_out": None,
    "depth": 1,
}
"""Other settings, all by name: the papers' studies and the tables in docs/ that were made before
the defaults start from these, so that no default has a part in them."""


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
