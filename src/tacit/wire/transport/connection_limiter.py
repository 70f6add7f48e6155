"""The listening socket in front of gRPC: how many may wait to say who they are, and how long.

gRPC limits connections by their total alone, so a client that holds that many and sends nothing
keeps the peer out. Here a connection that has not been authenticated has a slot for a bounded time
and number of bytes; slots are limited in all and for each address. Where they run out, a new
connection takes the slot of the oldest from the address that holds most, first of those that have
sent nothing. The peer's own connection is a new one, so it gets in. gRPC alone authenticates: all
bytes pass through unread, TLS ends in gRPC, and the inner socket is in a folder that only this user
can enter.
"""

from __future__ import annotations

import errno
import os
import select
import selectors
import socket
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path
from threading import Event, Thread
from typing import TypeAlias, final

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

    @property
    def caught_up(self) -> bool:
        """Whether all that has come from inside so far has been passed on."""
        if self.answered:
            return True
        way, waiting = self._ways[1], select.poll()
        waiting.register(way.source, select.POLLIN)
        return not way.held and not waiting.poll(0)

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


HANDSHAKE_RECORD = b"\x16"  # how every TLS connection begins
LINGER = 2.0  # seconds for the rest of a connection when one direction is over
REFUSED = 1.0  # seconds for a refusal to be read
POLL = 0.25  # seconds between checks of the deadlines


@final
@dataclass(frozen=True, kw_only=True)
class ConnectionSlots:
    """What connections that have not proven to be a peer may take.

    Args:
        most: of them in all.
        per_address: of them from one address.
        first_byte: seconds until the first byte.
        admission: seconds until the proof, from the beginning.
        most_bytes: that are taken from one of them.
    """

    most: int = 128
    per_address: int = 32
    first_byte: float = 5.0
    admission: float = 15.0
    most_bytes: int = 64 * 1024


@final
class ConnectionLimiter:
    """Accepts connections and passes them on, in a thread of its own.

    Args:
        sockets: that listen.
        inner: the socket of gRPC; its folder also takes the names of inner connections.
        slots: for connections that have not proven to be a peer.
        log: called with a line about each connection that lost its slot.
    """

    def __init__(
        self,
        sockets: Sequence[socket.socket],
        *,
        inner: Path,
        slots: ConnectionSlots,
        log: Callable[[str], None],
    ) -> None:
        self._inner, self._slots, self._log = inner, slots, log
        self._relays: dict[str, Relay] = {}
        self._count = 0
        self._orders: deque[Callable[[], None]] = deque()
        self._behind: list[tuple[Relay, Event]] = []
        self._closed = False
        self._scratch = memoryview(bytearray(PIECE))
        self._wake, self._woken = socket.socketpair()
        self._selector = selectors.DefaultSelector()
        self._listening = list(sockets)
        for each in (*sockets, self._woken, self._wake):
            each.setblocking(False)
        for each in (*sockets, self._woken):
            self._selector.register(each, selectors.EVENT_READ)
        self._thread = Thread(target=self._run, daemon=True)

    def start(self) -> None:
        """Begin to accept."""
        self._thread.start()

    def origin(self, name: str) -> str:
        """Return where a connection comes from, by the name that gRPC knows it by."""
        relay = self._relays.get(Path(name).name)
        return "a connection that has ended" if relay is None else relay.origin

    def admit(self, name: str) -> None:
        """Take note that a connection is a peer's: it has no limits from now on."""
        self._order(name, self._admit)

    def drop(self, name: str) -> None:
        """End a connection as soon as the peer can have read what was sent to it."""
        self._order(name, self._expire)

    def catch_up(self, name: str, *, timeout: float) -> bool:
        """Wait until what gRPC has written to a connection was sent; return whether it was."""
        done = Event()
        self._order(name, lambda relay: self._behind.append((relay, done)), otherwise=done.set)
        return done.wait(timeout)

    def close(self) -> None:
        """Stop accepting and end all connections, after gRPC has ended its own."""
        self._closed = True
        self._rouse()
        if self._thread.is_alive():
            self._thread.join()
        self._selector.close()
        for each in (*self._listening, self._wake, self._woken):
            each.close()

    def _order(
        self,
        name: str,
        act: Callable[[Relay], None],
        *,
        otherwise: Callable[[], None] | None = None,
    ) -> None:
        relay = self._relays.get(Path(name).name)
        if relay is not None:
            self._orders.append(lambda: act(relay))
            self._rouse()
        elif otherwise is not None:
            otherwise()

    def _rouse(self) -> None:
        with suppress(OSError):  # full: it will wake up anyway; closed: it is over
            self._wake.send(b"x")

    def _admit(self, relay: Relay) -> None:
        relay.admitted, relay.deadline = True, float("inf")
        if relay.name in self._relays:
            self._watch(relay)

    def _expire(self, relay: Relay) -> None:
        relay.deadline = min(relay.deadline, time.monotonic() + REFUSED)

    def _run(self) -> None:
        next_check = 0.0
        while not self._closed:
            bounded = any(relay.deadline < float("inf") for relay in self._relays.values())
            for key, events in self._selector.select(POLL if bounded else None):
                self._handle(key, events)
            while self._orders:
                self._orders.popleft()()
            self._tell_who_caught_up()
            if (now := time.monotonic()) >= next_check:
                next_check = now + POLL
                for relay in [each for each in self._relays.values() if now >= each.deadline]:
                    self._end(relay)
        self._finish()

    def _tell_who_caught_up(self) -> None:
        """Set the event of everyone who waits for a relay that has nothing left to pass on."""
        for relay, done in self._behind:
            if relay.name not in self._relays or relay.caught_up:
                done.set()
        self._behind = [each for each in self._behind if not each[1].is_set()]

    def _finish(self) -> None:
        """Accept no more, send what gRPC has written, and end all connections."""
        for each in self._listening:
            self._selector.unregister(each)
        end = time.monotonic() + LINGER
        while True:
            for relay in [each for each in self._relays.values() if each.answered]:
                self._end(relay)
            if not self._relays or time.monotonic() >= end:
                break
            for key, events in self._selector.select(POLL):
                self._handle(key, events)
        for relay in list(self._relays.values()):
            self._end(relay)
        self._tell_who_caught_up()

    def _handle(self, key: selectors.SelectorKey, events: int) -> None:
        ready: socket.socket = key.fileobj  # type: ignore[assignment]
        if ready is self._woken:
            with suppress(BlockingIOError):
                ready.recv(4096)
        elif key.data is None:
            self._accept(ready)
        elif key.data.name in self._relays:  # or it was ended for another's sake a moment ago
            self._serve(key.data, ready, events)

    def _accept(self, listening: socket.socket) -> None:
        try:
            outside, (host, port, *_) = listening.accept()
        except OSError as error:  # it has gone already
            if error.errno in (errno.EMFILE, errno.ENFILE):
                time.sleep(POLL / 10)  # until a file is closed: the socket stays ready
            return
        outside.setblocking(False)
        outside.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        now = time.monotonic()
        self._count += 1
        relay = Relay(outside, name=str(self._count), host=host, port=port, now=now)
        relay.deadline = now + self._slots.first_byte
        self._make_room(relay.network)
        self._relays[relay.name] = relay
        self._watch(relay)

    def _make_room(self, network: str) -> None:
        """End another connection that has proven nothing if there is no slot for one more."""
        waiting = [relay for relay in self._relays.values() if not relay.admitted]
        held = Counter(relay.network for relay in waiting)
        if held[network] < self._slots.per_address:
            if len(waiting) < self._slots.most:
                return
            network = held.most_common(1)[0][0]
        rivals = [relay for relay in waiting if relay.network == network]
        last = min(rivals, key=lambda relay: (relay.spoken, relay.came))
        self._log(
            f"ended a connection from {last.origin}: {held[network]} from there, {len(waiting)} in "
            "all, have not said who they are, and others come"
        )
        self._end(last)

    def _serve(self, relay: Relay, ready: socket.socket, events: int) -> None:
        if not relay.spoken and not self._join(relay, ready):
            self._end(relay)
            return
        relay.serve(ready, events, self._scratch)
        if relay.over:
            self._end(relay)
            return
        if relay.ending:
            relay.deadline = min(relay.deadline, time.monotonic() + LINGER)
        self._watch(relay)

    def _join(self, relay: Relay, outside: socket.socket) -> bool:
        """Connect a peer to gRPC if it begins a TLS handshake; return whether it did."""
        inside = socket.socket(socket.AF_UNIX)
        own = self._inner.with_name(relay.name)
        try:
            if outside.recv(1, socket.MSG_PEEK) != HANDSHAKE_RECORD:
                raise ConnectionError
            inside.setblocking(False)
            inside.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 * PIECE)
            inside.bind(str(own))  # by this name gRPC says whose call it is
            inside.connect(str(self._inner))
        except OSError:
            inside.close()
            return False
        finally:
            with suppress(OSError):
                os.unlink(own)
        relay.join(inside)
        relay.deadline = relay.came + self._slots.admission
        return True

    def _watch(self, relay: Relay) -> None:
        """Watch a connection's sockets for what it needs now."""
        wanted = relay.interests(self._slots.most_bytes)
        for each in relay.known.keys() - wanted.keys():
            self._selector.unregister(each)
        for each, events in wanted.items():
            if each not in relay.known:
                self._selector.register(each, events, relay)
            elif relay.known[each] != events:
                self._selector.modify(each, events, relay)
        relay.known = wanted

    def _end(self, relay: Relay) -> None:
        del self._relays[relay.name]
        for each in relay.known:
            self._selector.unregister(each)
        relay.known = {}
        relay.close()
