"""A line: one end of a connection, as small as it can be, so that anything can stand in for it.

Above a line everything is messages and rules; below it everything is sockets. Wrappers are lines
around a line: they record what passes, slow it down or spoil it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self, final

__all__ = ["Line"]


class Line(ABC):
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
