"""A feature party's way to the label party: it calls, and calls again where it was lost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import final

from tacit.errors import LostError
from tacit.party.backoff import Backoff
from tacit.party.config import PartyConfig, identity_of
from tacit.party.state_files import Log
from tacit.wire.protocol.connection import Connection, EndedError, RefusedError, Timings
from tacit.wire.protocol.header import Limits
from tacit.wire.protocol.plan import TrainingPlan
from tacit.wire.protocol.state_machine import Role
from tacit.wire.transport.base import Transport
from tacit.wire.transport.grpc_client import dial

CONNECTING = 5.0
MOST_REFUSALS = 3
"""How often in a row a refusal may be answered with a new connection: what a bad connection
garbled may pass the next time, what the label party means it says again."""


def dialler(config: PartyConfig) -> Callable[[], Transport]:
    """Return what opens a connection to the label party."""
    return partial(
        dial,
        config.endpoint,
        identity=identity_of(config),
        peer=config.peers[0],
        limits=Limits(),
        timeout=CONNECTING,
    )


@final
@dataclass(frozen=True, kw_only=True)
class Caller:
    """Calls the label party until all work is done, through lost connections and restarts.

    Args:
        plan: what both sides agree on.
        connect: opens a connection.
        waiting: for a label party that is not there.
        log: hears why a connection ended.
    """

    plan: TrainingPlan
    connect: Callable[[], Transport]
    waiting: Backoff
    log: Log

    def talk(
        self,
        converse: Callable[[Connection], bool],
        *,
        position: Callable[[], int],
        finished: Callable[[], bool],
        begin: Callable[[], None] = lambda: None,
        ended: Callable[[], None] = lambda: None,
    ) -> str:
        """Talk until a conversation comes to its end; return how it ended.

        Args:
            converse: talks, and returns whether all work is done.
            position: a number that changes where something was done.
            finished: whether nothing but a goodbye is left.
            begin: is called before each connection.
            ended: is called where the label party said goodbye before the end.
        """
        refusals = 0
        while True:
            before = position()
            begin()
            try:
                with Connection(
                    self.connect(),
                    Role.FEATURE,
                    timings=Timings(),
                    narrow=self.plan.wire_bits == 16,
                    depth=self.plan.depth,
                ) as connection:
                    done = converse(connection)
                if done:
                    return "finished"
            except EndedError:
                ended()
                return "ended by the label party"
            except RefusedError as error:
                refusals = refusals + 1 if position() == before else 1
                if refusals > MOST_REFUSALS:
                    raise
                self.log(str(error))
            except LostError as error:
                if finished():  # the goodbye was all that was left
                    return "finished"
                self.waiting.pause(str(error))
