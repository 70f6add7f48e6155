"""A transport: one end of a connection, with an interface so small that anything can replace it.

Above a transport everything is messages and rules; below it everything is sockets. Wrappers are
transports around a transport: they record what passes, slow it down or spoil it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from threading import TIMEOUT_MAX, Condition
from types import TracebackType
from typing import Self, final

from tacit.errors import LostError, SilenceError, TacitError


class Transport(ABC):
    """Carries whole frames, in order, to and from one peer; not more than a few wait in between.

    One thread at a time sends and one at a time receives; both may happen at once.
    """

    @property
    @abstractmethod
    def peer(self) -> str | None:
        """The name that the peer's certificate is for; None where nobody vouched for one."""

    @abstractmethod
    def send(self, frame: bytes, *, timeout: float) -> None:
        """Hand a frame over to be sent, in its turn.

        Raises ``LostError`` if the connection is gone, ``SilenceError`` if the peer has taken
        nothing for so many seconds. Whether the peer has a frame is known only from its answer.
        """

    @abstractmethod
    def receive(self, *, timeout: float) -> bytes:
        """Return the next frame.

        Raises ``SilenceError`` if none comes within so many seconds, ``LostError`` if none can.
        """

    @abstractmethod
    def close(self) -> None:
        """End the connection; frames that were handed over before are still sent if they can be."""

    @final
    def __enter__(self) -> Self:
        return self

    @final
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


FOREVER = TIMEOUT_MAX


@final
class BoundedQueue:
    """A queue of frames; :meth:`put` waits while `waiting` frames are in it.

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
    """Return a fresh copy: raised twice, one object would carry the first traceback along."""
    return type(error)(*error.args)
