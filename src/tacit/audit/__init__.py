"""Tapes of what a feature party saw, and the audit of what they give away.

Names load when they are first used: whoever records a tape needs none of the attacks.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tacit.audit.columns import ColumnTape
    from tacit.audit.gallery import Images
    from tacit.audit.imports import open_tape
    from tacit.audit.result import AuditResult
    from tacit.audit.run import run_audit
    from tacit.audit.tape import RecordedTape, Recording, TapeWriter

__all__ = [
    "AuditResult",
    "ColumnTape",
    "Images",
    "RecordedTape",
    "Recording",
    "TapeWriter",
    "open_tape",
    "run_audit",
]

_HOMES = {
    "AuditResult": "result",
    "ColumnTape": "columns",
    "Images": "gallery",
    "RecordedTape": "tape",
    "Recording": "tape",
    "TapeWriter": "tape",
    "open_tape": "imports",
    "run_audit": "run",
}


def __getattr__(name: str) -> object:
    if name in _HOMES:
        return getattr(importlib.import_module(f"tacit.audit.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'tacit.audit' has no attribute {name!r}")
