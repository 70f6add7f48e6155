"""Two connected transports in one process: for trials, tests, and runs without a network."""

from __future__ import annotations

from typing import final

from tacit.errors import LostError
from tacit.wire.transport.base import BoundedQueue, Transport


def memory_transports(*, waiting: int = 4) -> tuple[Transport, Transport]:
    """Return two ends that are connected; `waiting` frames fit in between each way.

    >>> left, right = memory_transports()
    >>> left.send(b"frame", timeout=1)
    >>> right.receive(timeout=1)
    b'frame'
    """
    there, back = BoundedQueue(waiting=waiting, peer=None), BoundedQueue(waiting=waiting, peer=None)
    return _MemoryTransport(there, back), _MemoryTransport(back, there)


@final
class _MemoryTransport(Transport):
    def __init__(self, outgoing: BoundedQueue, incoming: BoundedQueue) -> None:
        self._outgoing, self._incoming = outgoing, incoming

    @property
    def peer(self) -> None:
        """Nobody vouches for a name within one process."""
        return

    def send(self, frame: bytes, *, timeout: float) -> None:
        """Hand a frame to the other end."""
        self._outgoing.put(frame, timeout=timeout)

    def receive(self, *, timeout: float) -> bytes:
        """Return the next frame of the other end."""
        return self._incoming.get(timeout=timeout)

    def close(self) -> None:
        """End both directions; the other end still gets what was handed over."""
        self._outgoing.end(LostError("the connection was closed by one of its ends"))
        self._incoming.end(LostError("the connection was closed by one of its ends"), drop=True)
