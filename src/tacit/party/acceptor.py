"""Accepts feature parties: each says hello, and the work begins when all are connected."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Protocol, final

from tacit.errors import LostError, PeerError, SilenceError
from tacit.party.backoff import Backoff
from tacit.party.greeting import point, stop_of
from tacit.party.workers.collectives import WorkersLostError
from tacit.wire.protocol.connection import Connection, Timings
from tacit.wire.protocol.header import VERSION
from tacit.wire.protocol.messages import Hello
from tacit.wire.protocol.plan import TrainingPlan
from tacit.wire.protocol.state_machine import Role, disagreement
from tacit.wire.transport.base import Transport

GOODBYE = 20.0
"""How long a finished label party waits for feature parties that may not have all of it yet."""


class Accepts(Protocol):
    """Hands out connections of feature parties as they come."""

    def accept(self, *, timeout: float) -> Transport:
        """Return the next one, or raise ``SilenceError`` after so many seconds."""
        ...


def hear_hello(connection: Connection) -> Hello:
    """Return a feature party's hello, which must be under the name in its certificate."""
    theirs = connection.receive(Hello)
    certified = connection.transport.peer
    if certified not in (None, theirs.party):
        raise connection.wrong(
            f"{certified} calls itself {theirs.party}: names are bound to certificates"
        )
    return theirs


def answer_hello(
    connection: Connection, theirs: Hello, *, name: str, plan: TrainingPlan, start: int
) -> Hello:
    """Return the answer to a hello, or raise if its party has another plan or version."""
    ours = Hello(
        versions=(VERSION,), party=name, plan_digest=plan.digest(), resume_point=point(start)
    )
    problem = disagreement(theirs, ours)
    if problem is not None:
        named = plan.named_difference(theirs.plan_digest)
        why = problem if named is None else f"{problem}: {named}"
        raise connection.wrong(f"{why}; the plan of {name} is {plan.described()}")
    return ours


@final
@dataclass(frozen=True, kw_only=True)
class PeerSession:
    """A feature party that has said hello."""

    connection: Connection
    hello: Hello


@final
@dataclass(frozen=True, kw_only=True)
class Acceptor:
    """Waits for the feature parties of a run.

    Args:
        name: of the label party.
        plan: what all sides must agree on.
        peers: the feature parties, in the order in which their embeddings are combined.
        listener: accepts their connections.
        timings: how long to wait within a conversation.
        waiting: for those that are not there.
        log: called with a line about each peer that was refused.
    """

    name: str
    plan: TrainingPlan
    peers: tuple[str, ...]
    listener: Accepts
    timings: Timings
    waiting: Backoff
    log: Callable[[str], None]

    def serve(
        self,
        converse: Callable[[list[PeerSession]], None],
        *,
        finished: Callable[[], bool],
        begin: Callable[[], None] = lambda: None,
        awaited: Callable[[], tuple[str, ...]] | None = None,
    ) -> str:
        """Talk to the feature parties until a conversation comes to its end; return how it ended.

        A peer that breaks the rules is refused, and one that was lost may come again.

        Args:
            converse: talks to all that are awaited, to the end of all work.
            finished: whether nothing but their goodbye is left.
            begin: is called before each wait.
            awaited: who still has something to do here; without it, all have.
        """
        while True:
            try:
                begin()
                names = self.peers if awaited is None else awaited()
                peers = self.gather(names, finished=finished())
            except SilenceError:
                return "finished; not every feature party said goodbye"
            except WorkersLostError as error:
                self.log(str(error))
                continue
            try:
                with ExitStack() as stack:
                    for peer in peers:
                        stack.enter_context(peer.connection)
                    converse(peers)
                return "finished"
            except PeerError as error:
                self.log(f"refused: {error}")
            except LostError as error:
                self.log(f"connection lost: {error}")

    def gather(
        self, names: tuple[str, ...] | None = None, *, finished: bool = False
    ) -> list[PeerSession]:
        """Return all feature parties, or those of some names, in order, when they are here.

        When all work is ``finished`` they need not come: soon ``SilenceError`` says so.
        """
        awaited = self.peers if names is None else names
        sessions: dict[str, PeerSession] = {}
        while len(sessions) < len(awaited):
            try:
                transport = self.listener.accept(
                    timeout=GOODBYE if finished else self.waiting.left()
                )
            except WorkersLostError:
                _close(sessions.values())
                raise
            except SilenceError:
                if finished:
                    _close(sessions.values())
                    raise
                missing = ", ".join(name for name in awaited if name not in sessions)
                self.waiting.note(f"no connection of {missing}")
                continue
            session = self._hear(transport, awaited)
            if session is not None:
                _close([sessions[session.hello.party]] if session.hello.party in sessions else [])
                sessions[session.hello.party] = session
        return [sessions[name] for name in awaited]

    def _check_number(self, connection: Connection, hello: Hello) -> None:
        """Refuse one of several parties whose number is not its own: two would begin alike.

        Its own is its index among the peers, so that only the party that is wrong is refused.
        """
        own = self.peers.index(hello.party)
        if len(self.peers) > 1 and hello.number != own:
            raise connection.wrong(
                f"{hello.party} has number {hello.number}, and is number {own} of "
                f"{', '.join(self.peers)}: write number = {own} into its file"
            )

    def _hear(self, transport: Transport, awaited: tuple[str, ...]) -> PeerSession | None:
        """Return who has come, if it says hello and is one of those that are waited for."""
        narrow = self.plan.wire_bits == 16
        connection = Connection(
            transport, Role.LABEL, timings=self.timings, narrow=narrow, depth=self.plan.depth
        )
        try:
            hello = hear_hello(connection)
            self.answer(connection, hello, stop_of(hello))
            if hello.party not in self.peers:
                raise connection.wrong(f"{hello.party} is not one of {', '.join(self.peers)}")
            self._check_number(connection, hello)
            if hello.party not in awaited:
                raise connection.wrong(f"{hello.party} has sent all that is needed and was let go")
        except PeerError as error:
            self.log(f"refused: {error}")
            connection.refuse(str(error))
        except LostError as error:
            self.log(f"connection lost: {error}")
            connection.close()
        else:
            return PeerSession(connection=connection, hello=hello)
        return None

    def answer(self, connection: Connection, hello: Hello, start: int) -> Hello:
        """Return the answer to a hello: go on from this step."""
        return answer_hello(connection, hello, name=self.name, plan=self.plan, start=start)


def _close(sessions: Iterable[PeerSession]) -> None:
    for session in sessions:
        session.connection.close()
