"""Waiting for another process: retry, log after ten seconds, give up at a limit."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import final

from tacit.errors import LostError

FIRST_WORD = 10.0
_SHORTEST = 0.1


@final
class Backoff:
    """Counts the time without another process.

    Args:
        peer: who is waited for, in messages.
        limit: give up after so many seconds.
        log: called once per wait when it takes long, with the reason.
        remedy: what to do where nobody comes.
        longest: seconds of the longest pause; pauses begin short and double.
    """

    def __init__(
        self,
        peer: str,
        *,
        limit: float,
        log: Callable[[str], None],
        remedy: str = "run tacit party --check on both sides",
        longest: float = 5.0,
    ) -> None:
        self._peer = peer
        self._limit = limit
        self._log = log
        self._remedy = remedy
        self._longest = longest
        self.over()

    def over(self) -> None:
        """End the wait: the other process has answered."""
        self._start: float | None = None
        self._pause = min(_SHORTEST, self._longest)
        self._told = False

    def left(self) -> float:
        """Return the seconds until :meth:`note` has something to say."""
        limit = self._limit if self._told else min(FIRST_WORD, self._limit)
        return max(0.0, limit - self._waited())

    def note(self, why: str) -> None:
        """Say that the wait is long, or raise ``LostError`` when it is too long."""
        waited = self._waited()
        if waited >= self._limit:
            raise LostError(
                f"{self._peer} did not come within {self._limit:g} seconds ({why}): "
                f"{self._remedy}, or allow more with wait"
            )
        if waited >= FIRST_WORD and not self._told:
            self._told = True
            rest = self._limit - waited
            self._log(f"waiting for {self._peer} ({why}); giving up in {rest:.0f} seconds")

    def pause(self, why: str) -> None:
        """Wait a little, each time twice as long as before."""
        self.note(why)
        time.sleep(min(self._pause, max(_SHORTEST, self.left())))
        self._pause = min(2 * self._pause, self._longest)

    def pause_for(self, peer: str, why: str, *, remedy: str) -> None:
        """Wait a little for someone else, in the same wait."""
        self._peer, self._remedy = peer, remedy
        self.pause(why)

    def _waited(self) -> float:
        if self._start is None:
            self._start = time.monotonic()
        return time.monotonic() - self._start
