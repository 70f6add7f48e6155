"""Transports around a transport: they record what passes, spoil it, or slow it down."""

from __future__ import annotations

import random
from collections.abc import Callable
from threading import Event
from typing import Literal, TypeAlias, final

from tacit.errors import ParameterError, SilenceError
from tacit.wire.transport.base import Transport

Sink: TypeAlias = Callable[[Literal["sent", "received"], bytes], None]


@final
class RecordingTransport(Transport):
    """Shows a sink every frame: one that is sent before it goes, so that none goes unseen."""

    def __init__(self, transport: Transport, sink: Sink) -> None:
        self._transport, self._sink = transport, sink

    @property
    def peer(self) -> str | None:
        """The inner transport's peer."""
        return self._transport.peer

    def send(self, frame: bytes, *, timeout: float) -> None:
        """Show a frame, then send it."""
        self._sink("sent", frame)
        self._transport.send(frame, timeout=timeout)

    def receive(self, *, timeout: float) -> bytes:
        """Receive a frame and show it."""
        frame = self._transport.receive(timeout=timeout)
        self._sink("received", frame)
        return frame

    def close(self) -> None:
        """Close the inner transport."""
        self._transport.close()


@final
class FaultyTransport(Transport):
    """Spoils what is sent, the same way for the same seed; what is received is left alone.

    Args:
        transport: the transport to spoil.
        seed: of the faults.
        drop: probability that a frame is not sent.
        delay: seconds that a frame is late at most; each is late by a random part of it.
        duplicate: probability that a frame is sent twice.
        reorder: probability that a frame is held back until the next one has been sent.
        corrupt: probability that one bit is flipped.
        truncate: probability that the end is cut off.
    """

    def __init__(
        self,
        transport: Transport,
        *,
        seed: int,
        drop: float = 0.0,
        delay: float = 0.0,
        duplicate: float = 0.0,
        reorder: float = 0.0,
        corrupt: float = 0.0,
        truncate: float = 0.0,
    ) -> None:
        chances = {
            "drop": drop,
            "duplicate": duplicate,
            "reorder": reorder,
            "corrupt": corrupt,
            "truncate": truncate,
        }
        for name, value in chances.items():
            if not 0 <= value <= 1:
                raise ParameterError(f"{name} is a probability from 0 to 1, got {value}")
        if not 0 <= delay <= 60:
            raise ParameterError(f"delay is 0 to 60 seconds, got {delay}")
        self._transport, self._chances, self._delay = transport, chances, delay
        self._random = random.Random(seed)  # noqa: S311 - faults are no secret
        self._held: list[bytes] = []
        self._closed = Event()

    @property
    def peer(self) -> str | None:
        """The inner transport's peer."""
        return self._transport.peer

    def send(self, frame: bytes, *, timeout: float) -> None:
        """Send a frame, or what becomes of it."""
        # All are drawn each time, so that one fault does not shift the others.
        hits = {name: self._random.random() < p for name, p in self._chances.items()}
        late, part = self._random.random() * self._delay, self._random.random()
        self._closed.wait(min(late, timeout))
        if hits["corrupt"] and frame:
            frame = _flip(frame, int(part * 8 * len(frame)))
        if hits["truncate"]:
            frame = frame[: int(part * len(frame))]
        held, self._held = self._held, []
        copies = [] if hits["drop"] else [frame] * (2 if hits["duplicate"] else 1)
        if hits["reorder"] and not held:
            self._held, copies = copies, []
        for copy in copies + held:
            self._transport.send(copy, timeout=timeout)

    def receive(self, *, timeout: float) -> bytes:
        """Receive from the inner transport."""
        return self._transport.receive(timeout=timeout)

    def close(self) -> None:
        """Close the inner transport; a frame that is held back is lost."""
        self._closed.set()
        self._transport.close()


@final
class ThrottledTransport(Transport):
    """A slow link: each frame takes its latency and its bytes at a rate; receiving costs nothing.

    Args:
        transport: the transport to slow down.
        bytes_per_second: of what is sent.
        latency: seconds, added to every frame.
    """

    def __init__(
        self, transport: Transport, *, bytes_per_second: float, latency: float = 0.0
    ) -> None:
        if not bytes_per_second > 0 or not 0 <= latency < float("inf"):
            raise ParameterError(
                f"a link has more than 0 bytes per second and 0 or more seconds "
                f"latency, got {bytes_per_second} and {latency}"
            )
        self._transport, self._rate, self._latency = transport, bytes_per_second, latency
        self._closed = Event()

    @property
    def peer(self) -> str | None:
        """The inner transport's peer."""
        return self._transport.peer

    def send(self, frame: bytes, *, timeout: float) -> None:
        """Wait as long as the link would take, then send."""
        wait = self._latency + len(frame) / self._rate
        if not self._closed.wait(min(wait, timeout)) and wait > timeout:
            raise SilenceError(f"the link takes {wait:g} s for a frame, more than {timeout:g} s")
        self._transport.send(frame, timeout=timeout)

    def receive(self, *, timeout: float) -> bytes:
        """Receive from the inner transport."""
        return self._transport.receive(timeout=timeout)

    def close(self) -> None:
        """Close the inner transport, also while a frame waits."""
        self._closed.set()
        self._transport.close()


def _flip(frame: bytes, bit: int) -> bytes:
    spoilt = bytearray(frame)
    spoilt[bit // 8] ^= 1 << bit % 8
    return bytes(spoilt)
