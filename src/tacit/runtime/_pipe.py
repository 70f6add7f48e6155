"""A pipe: frames from one thread to another, of which only a few wait in between."""

from __future__ import annotations

from collections import deque
from threading import TIMEOUT_MAX, Condition
from typing import final

from tacit.errors import LostError, SilenceError, TacitError

__all__ = ["FOREVER", "Pipe"]

FOREVER = TIMEOUT_MAX


@final
class Pipe:
    """Hands frames over in order; whoever puts one waits while `waiting` others are in between.

    Args:
        waiting: how many frames may be in between.
        peer: who takes or gives them at the other end of the connection, for messages.
    """

    def __init__(self, *, waiting: int, peer: str | None) -> None:
        self._frames: deque[bytes] = deque()
        self._waiting = waiting
        self._peer = peer or "the other end"
        self._error: TacitError | None = None
        self._changed = Condition()

    def put(self, frame: bytes, *, timeout: float) -> None:
        """Hand a frame over; LostError after the end, SilenceError if nobody takes any."""
        with self._changed:
            if not self._changed.wait_for(self._may_put, min(timeout, FOREVER)):
                raise SilenceError(f"{self._peer} has taken nothing for {timeout:g} s")
            if self._error is not None:
                raise _again(self._error)
            self._frames.append(frame)
            self._changed.notify_all()

    def get(self, *, timeout: float) -> bytes:
        """Take the next frame; LostError after the last one, SilenceError if none comes."""
        with self._changed:
            if not self._changed.wait_for(self._may_get, min(timeout, FOREVER)):
                raise SilenceError(f"nothing came from {self._peer} for {timeout:g} s")
            if not self._frames:
                raise _again(self._error or LostError(f"{self._peer} is gone"))
            frame = self._frames.popleft()
            self._changed.notify_all()
            return frame

    def end(self, error: TacitError, *, drop: bool = False) -> None:
        """Take nothing more; what is in between can still be taken unless it is dropped.

        The first end counts, because what comes after it is only a consequence.
        """
        with self._changed:
            self._error = self._error or error
            if drop:
                self._frames.clear()
            self._changed.notify_all()

    def _may_put(self) -> bool:
        return self._error is not None or len(self._frames) < self._waiting

    def _may_get(self) -> bool:
        return bool(self._frames) or self._error is not None


def _again(error: TacitError) -> TacitError:
    """Return a fresh copy: raised twice, one object would drag the first place along."""
    return type(error)(*error.args)
