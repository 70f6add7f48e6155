"""Whether two parties can work together, found out before anything is trained."""

from __future__ import annotations

from contextlib import closing, suppress
from typing import Any

from tacit import data
from tacit.errors import LostError, PeerError, SilenceError
from tacit.runtime.connection import Connection, Timings
from tacit.runtime.dialogue import Bye
from tacit.runtime.feature_run import greet
from tacit.runtime.frames import Limits
from tacit.runtime.grpc_line import dial
from tacit.runtime.grpc_listener import Listener
from tacit.runtime.plan import Plan
from tacit.runtime.protocol import Role
from tacit.runtime.reception import answer_hello, hear_hello
from tacit.study.company import identity_of
from tacit.study.party_config import PartyConfig

__all__ = ["check_party"]

LIMIT = 8.0
_TIMINGS = Timings(greeting=LIMIT, silence=LIMIT, patience=LIMIT)


def check_party(config: PartyConfig) -> dict[str, Any]:
    """Return what was found to be right, or raise one plain sentence within ten seconds."""
    table = data.load_party(config.data, role=config.role)
    plan = config.plan(classes=table.classes or config.classes)
    found = {"party": config.name, "role": config.role, "rows": len(table), "plan": plan.digest()}
    ask = _ask if config.role == "feature" else _wait
    ask(config, plan)
    return {**found, "peer": ", ".join(config.peers), "peer_answers": True, "plans_agree": True}


def _ask(config: PartyConfig, plan: Plan) -> None:
    line = dial(config.endpoint, identity=identity_of(config), peer=config.peers[0],
                limits=Limits(), timeout=LIMIT)  # fmt: skip
    with Connection(line, Role.FEATURE, timings=_TIMINGS) as connection:
        greet(connection, name=config.name, plan=plan, offer=0)
        connection.send(Bye())


def _wait(config: PartyConfig, plan: Plan) -> None:
    complaints: list[str] = []
    with closing(Listener(config.endpoint, identity=identity_of(config), peers=config.peers,
                          limits=Limits(), log=complaints.append)) as listener:  # fmt: skip
        try:
            line = listener.accept(timeout=LIMIT)
        except SilenceError:
            why = f" ({'; '.join(complaints)})" if complaints else ""
            who = " or ".join(config.peers)
            raise LostError(
                f"{who} did not connect to {config.endpoint} within {LIMIT:g} seconds{why}: start "
                " tacit party there, and see that it can reach this address"
            ) from None
        with Connection(line, Role.LABEL, timings=_TIMINGS) as connection:
            try:
                hello = hear_hello(connection)
                connection.send(
                    answer_hello(connection, hello, name=config.name, plan=plan, start=0)
                )
            except LostError as error:
                raise PeerError(f"{line.peer} connected and said nothing: {error}") from error
            with suppress(LostError, PeerError):  # it must have the answer before the line ends
                connection.receive(Bye)
