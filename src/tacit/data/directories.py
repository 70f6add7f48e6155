"""The directory of data files, and that of the cache of tables."""

from __future__ import annotations

import os
from pathlib import Path


def data_directory(explicit: str | Path | None = None) -> Path:
    """Return the directory of the data files: the given one, ``TACIT_DATA``, or the user's own.

    The user's own is ``tacit/data`` under ``XDG_CACHE_HOME``, or under ``~/.cache``.

    >>> data_directory("somewhere").name
    'somewhere'
    """
    named = explicit or os.environ.get("TACIT_DATA")
    return Path(named).expanduser() if named else _per_user() / "data"


def cache_directory() -> Path:
    """Return the directory of the tables that were read: ``TACIT_CACHE``, or the user's own."""
    named = os.environ.get("TACIT_CACHE")
    return Path(named).expanduser() if named else _per_user() / "tables"


def _per_user() -> Path:
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "tacit"
