"""The parts of pyarrow that the readers use. It ships no types, so each part is ``Any`` here."""

from __future__ import annotations

from importlib import import_module
from typing import Any, TypeAlias

Arrow: TypeAlias = Any
"""An Arrow array, record batch or type."""

pa: Any = import_module("pyarrow")
pc: Any = import_module("pyarrow.compute")
csv: Any = import_module("pyarrow.csv")
parquet: Any = import_module("pyarrow.parquet")
