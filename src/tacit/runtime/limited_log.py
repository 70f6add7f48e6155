"""A log that those who connect cannot fill: so many lines a minute, then only their number."""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import Lock
from typing import final

__all__ = ["LimitedLog"]

SPAN = 60.0  # seconds


@final
class LimitedLog:
    """Passes lines on, up to a number per minute.

    Args:
        log: hears them.
        most: lines per minute; the number of those left out comes with the next minute's first.
    """

    def __init__(self, log: Callable[[str], None], *, most: int) -> None:
        self._log, self._most = log, most
        self._start, self._count = time.monotonic(), 0
        self._lock = Lock()

    def __call__(self, line: str) -> None:
        """Pass a line on, or count it."""
        with self._lock:
            now, left_out = time.monotonic(), 0
            if now - self._start >= SPAN:
                left_out, self._start, self._count = max(0, self._count - self._most), now, 0
            self._count += 1
            told = self._count <= self._most
        if left_out:
            self._log(f"{left_out} more lines about connections were left out")
        if told:
            self._log(line)
