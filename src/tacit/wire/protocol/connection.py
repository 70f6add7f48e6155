"""A connection: messages over a transport, checked by the state machine, and heartbeats."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Self, TypeVar, final

from tacit.errors import LostError, PeerError, SilenceError, TacitError
from tacit.training.cut import Gradient
from tacit.wire.protocol.codec import decode, encode
from tacit.wire.protocol.forms import Kind, kind_of
from tacit.wire.protocol.header import DEFAULTS, Limits
from tacit.wire.protocol.messages import (
    LONGEST_REASON,
    Bye,
    Heartbeat,
    Message,
    Refuse,
)
from tacit.wire.protocol.state_machine import TABLE, Protocol, Role, State
from tacit.wire.transport.base import Transport

Wanted = TypeVar("Wanted", bound=Message)

_BEFORE_HELLO = (State.START, State.GREETED)


@final
class RefusedError(PeerError):
    """The other party refused to go on, with a reason."""


@final
class EndedError(LostError):
    """The other party closed the connection in good order, but before the end of the run."""


@final
@dataclass(frozen=True, kw_only=True)
class Timings:
    """How long to wait for what, in seconds.

    Args:
        beat: send a sign of life after so long without a message.
        silence: after so long without any frame the connection counts as lost.
        patience: how long a peer may be busy, alive but without an answer.
        greeting: how long a new connection may take to say hello.
    """

    beat: float = 5.0
    silence: float = 30.0
    patience: float = 600.0
    greeting: float = 10.0


@final
class Connection:
    """One end of a connection; every message is checked by the state machine.

    A thread sends heartbeats while the caller computes, so that a busy party and a dead one can be
    distinguished. What breaks the rules raises PeerError, and nothing more is read.

    With ``depth`` steps overlap. Before it answers a step, the label party then takes what has
    arrived, so that a peer that sends more than it may is refused, and no more than that is kept.
    """

    def __init__(
        self,
        transport: Transport,
        role: Role,
        *,
        timings: Timings,
        narrow: bool = False,
        limits: Limits = DEFAULTS,
        depth: int = 1,
    ) -> None:
        self.transport = transport
        self.timings = timings
        self._narrow = narrow
        self._limits = limits
        self._protocol = Protocol(role, depth=depth)
        self._early: deque[Message] = deque()  # came before it was asked for
        self._most_early = 2 * depth if depth > 1 and role is Role.LABEL else 0
        self._state = threading.Lock()  # one message at a time changes the state
        self._turn = threading.Lock()  # frames leave in the order in which the protocol took them
        self._sent = time.monotonic()
        self._over = threading.Event()
        self._beats = threading.Thread(target=self._beat, name="tacit-heartbeat", daemon=True)
        self._beats.start()

    @property
    def next_step(self) -> int:
        """The next step, the same on both sides."""
        return self._protocol.next_step

    def send(self, message: Message) -> None:
        """Send a message, or raise UsageError if it is not this side's turn to."""
        if isinstance(message, Gradient):
            self._take_arrived()
        with self._turn:
            self._pass(message)

    def receive(self, kind: type[Wanted]) -> Wanted:
        """Return the next message, which must be of this kind.

        Heartbeats are received and not returned. A refusal raises ``RefusedError``, a goodbye out
        of time ``EndedError``.
        """
        start = time.monotonic()
        while True:
            early = self._early
            message = early.popleft() if early else self._next(time.monotonic() - start)
            if isinstance(message, Heartbeat):
                continue
            self._stop_if_refused(message)
            if isinstance(message, kind):
                return message
            if isinstance(message, Bye):
                raise EndedError(f"{self._name} ended the conversation")
            sent, due = kind_of(type(message)).word, kind_of(kind).word
            raise self.wrong(f"{self._name} sent {sent}, due was {due}")

    def wrong(self, text: str) -> PeerError:
        """Return the error to raise when this connection's peer broke a rule."""
        error = PeerError(text)
        error.source = self
        return error

    @contextmanager
    def blamed(self) -> Iterator[None]:
        """Name this connection's peer in errors about a peer."""
        try:
            yield
        except PeerError as error:
            error.source = error.source or self
            raise

    def refuse(self, reason: str) -> None:
        """Send the reason why this side does not go on, if it can still be sent, and close."""
        text = " ".join("".join(c if c.isprintable() else " " for c in reason).split())
        with suppress(TacitError):
            self.send(Refuse(reason=text[:LONGEST_REASON] or "no reason was given"))
        self.close()

    def close(self) -> None:
        """End the connection without a further message."""
        self._over.set()
        self.transport.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close; a peer that is still connected gets a reason, but not the text of an error here.

        Of several peers only the one that broke the rules gets that as the reason.
        """
        if isinstance(error, PeerError) and not isinstance(error, RefusedError):
            if error.source in (None, self):
                self.refuse(str(error))
        elif isinstance(error, Exception) and not isinstance(error, LostError | RefusedError):
            self.refuse("an error stopped this side, its own log says more")
        self.close()

    @property
    def _name(self) -> str:
        return self.transport.peer or "the other party"

    def _pass(self, message: Message) -> None:
        frame = encode(message, narrow=self._narrow, limits=self._limits)
        with self._state:
            self._protocol.send(message)
        self._sent = time.monotonic()
        self.transport.send(frame, timeout=self.timings.silence)

    def _next(self, waited: float) -> Message:
        times, state = self.timings, self._protocol.state
        # A peer has little time until its hello; after it, it may wait for others with heartbeats.
        limit = times.greeting if state is State.START else times.patience
        if waited > limit:
            raise SilenceError(f"{self._name} gave no answer for {limit:g} seconds")
        frame_by = times.greeting if state in _BEFORE_HELLO else times.silence
        return self._decoded(self.transport.receive(timeout=min(frame_by, limit)))

    def _decoded(self, frame: bytes) -> Message:
        """Return the message of a frame if the protocol allows it now."""
        with self.blamed():
            message = decode(frame, limits=self._limits)
            with self._state:
                self._protocol.receive(message)
        return message

    def _take_arrived(self) -> None:
        """Take the messages that have arrived, without waiting; a loss shows at the next turn."""
        for _ in range(self._most_early):
            try:
                message = self._decoded(self.transport.receive(timeout=0))
            except LostError:
                return
            self._stop_if_refused(message)
            if not isinstance(message, Heartbeat):
                self._early.append(message)

    def _stop_if_refused(self, message: Message) -> None:
        if isinstance(message, Refuse):
            raise RefusedError(f"{self._name} refused to go on: {message.reason}")

    def _beat(self) -> None:
        """Send heartbeats until the connection ends; a lost peer is noticed elsewhere."""
        while not self._over.wait(self.timings.beat / 2):
            if time.monotonic() - self._sent < self.timings.beat:
                continue
            with suppress(TacitError), self._turn:
                protocol = self._protocol
                if (protocol.role, protocol.state, Kind.HEARTBEAT) in TABLE:
                    self._pass(Heartbeat())
