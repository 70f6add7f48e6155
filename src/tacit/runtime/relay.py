"""A connection from outside, and the one inside that it is passed on to, byte for byte.

Nothing here waits: every socket is non-blocking, and whoever owns the relay asks it what it needs.
What one side does not take stays with the other: at most one piece is held in each direction.
"""

from __future__ import annotations

import selectors
import socket
from contextlib import suppress
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import TypeAlias, final

__all__ = ["PIECE", "Relay", "network_of"]

PIECE = 256 * 1024
READ, WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE
Interests: TypeAlias = dict[socket.socket, int]


def network_of(host: str) -> str:
    """Return what counts as one address: with IPv6 the 64 bits that one customer is given.

    >>> network_of("::ffff:192.0.2.1"), network_of("2001:db8::1")
    ('192.0.2.1', '2001:db8::')
    """
    found: IPv4Address | IPv6Address = ip_address(host.partition("%")[0])
    if isinstance(found, IPv4Address):
        return str(found)
    mapped = found.ipv4_mapped
    return str(mapped or IPv6Address(int(found) >> 64 << 64))


@final
class _Way:
    """One direction."""

    def __init__(self, source: socket.socket, sink: socket.socket) -> None:
        self.source, self.sink = source, sink
        self.passed = 0
        self.ended = False  # the source has no more
        self.over = False  # and the sink has all of it, or takes no more
        self.held = memoryview(b"")

    def move(self, scratch: memoryview) -> None:
        """Take a piece from the source and hand on what the sink takes of it now."""
        try:
            count = self.source.recv_into(scratch)
        except BlockingIOError:
            return
        except OSError:
            count = 0
        self.passed += count
        self.ended = count == 0
        sent = self._send(scratch[:count]) if count else 0
        self.held = memoryview(bytes(scratch[sent:count]))
        self._finish()

    def flush(self) -> None:
        """Hand on what was held."""
        self.held = self.held[self._send(self.held) :]
        self._finish()

    def _send(self, piece: memoryview) -> int:
        try:
            return self.sink.send(piece)
        except BlockingIOError:
            return 0
        except OSError:
            self.ended = self.over = True
            return len(piece)

    def _finish(self) -> None:
        if self.ended and not self.held and not self.over:
            self.over = True
            with suppress(OSError):
                self.sink.shutdown(socket.SHUT_WR)


@final
class Relay:
    """A connection that has come, until both directions are over.

    Args:
        outside: the connection.
        name: that its owner gives it.
        host: the address that it comes from.
        port: of the same.
        now: when it came.
    """

    def __init__(
        self, outside: socket.socket, *, name: str, host: str, port: int, now: float
    ) -> None:
        self.name = name
        self.network = network_of(host)
        self.origin = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self.came = now
        self.deadline = float("inf")
        self.admitted = False
        self.known: Interests = {}
        self._outside = outside
        self._ways: tuple[_Way, ...] = ()

    @property
    def spoken(self) -> bool:
        """Whether anything has come from outside."""
        return bool(self._ways)

    @property
    def over(self) -> bool:
        """Whether nothing is left to pass on."""
        return self.spoken and all(way.over for way in self._ways)

    @property
    def ending(self) -> bool:
        """Whether one direction is over."""
        return any(way.over for way in self._ways)

    @property
    def answered(self) -> bool:
        """Whether all that came from inside has been passed on, and no more will come."""
        return not self.spoken or self._ways[1].over

    def join(self, inside: socket.socket) -> None:
        """Pass on to this connection from now on."""
        self._ways = _Way(self._outside, inside), _Way(inside, self._outside)

    def interests(self, most: int) -> Interests:
        """Return what each socket is to be watched for.

        Before it is admitted no more than `most` bytes are taken from outside.
        """
        if not self._ways:
            return {self._outside: READ}
        wanted: Interests = {}
        for way in self._ways:
            paused = way.source is self._outside and not self.admitted and way.passed >= most
            if way.held:
                wanted[way.sink] = wanted.get(way.sink, 0) | WRITE
            elif not way.ended and not paused:
                wanted[way.source] = wanted.get(way.source, 0) | READ
        return wanted

    def serve(self, ready: socket.socket, events: int, scratch: memoryview) -> None:
        """Do what a socket is ready for."""
        for way in self._ways:
            if events & WRITE and way.sink is ready and way.held:
                way.flush()
            elif events & READ and way.source is ready and not way.held and not way.ended:
                way.move(scratch)

    def close(self) -> None:
        """Close both connections."""
        for way in self._ways:
            way.source.close()
        self._outside.close()
