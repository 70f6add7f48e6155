"""Checks that two parties can train together, before anything is trained."""

from __future__ import annotations

from contextlib import closing, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tacit import data
from tacit.errors import LostError, PeerError, SilenceError
from tacit.party.acceptor import answer_hello, hear_hello
from tacit.party.budget_plan import plan_party
from tacit.party.config import PartyConfig, identity_of
from tacit.party.greeting import greet
from tacit.party.label_head import head_of
from tacit.party.state_files import check_rows
from tacit.state_dir import made_own
from tacit.wire.protocol.connection import Connection, Timings
from tacit.wire.protocol.header import Limits
from tacit.wire.protocol.messages import Bye
from tacit.wire.protocol.plan import TrainingPlan
from tacit.wire.protocol.state_machine import Role
from tacit.wire.transport.grpc_client import dial
from tacit.wire.transport.grpc_server import Listener

LIMIT = 8.0
_TIMINGS = Timings(greeting=LIMIT, silence=LIMIT, patience=LIMIT)


def check_party(config: PartyConfig) -> dict[str, Any]:
    """Return what was checked, or raise an error of one sentence within ten seconds."""
    rows, classes = _table_of(config)
    check_rows(config, rows)
    plan = config.plan(classes=classes)
    if config.role == "label" and config.silent:
        head_of(config)
    elif config.role == "label":
        plan_party(config, classes=classes)
    found = {"party": config.name, "role": config.role, "rows": rows, "plan": plan.digest()}
    ask = _ask if config.role == "feature" else _wait
    ask(config, plan)
    return {**found, "peer": ", ".join(config.peers), "peer_answers": True, "plans_agree": True}


def _table_of(config: PartyConfig) -> tuple[int, int]:
    """Return how many rows and classes the table has; what is read of it does not stay."""
    state = config.own_state
    new = [place for place in dict.fromkeys((state, config.state)) if not place.exists()]
    made_own(config.state, name="state")  # first: a folder that is made on the way is open to all
    try:
        with TemporaryDirectory(prefix=".check-", dir=made_own(state, name="state")) as folder:
            table = data.load_party(config.data, role=config.role, own_cache=Path(folder))
            return len(table), table.classes or config.classes
    finally:
        with suppress(OSError):  # not empty: a party has begun meanwhile
            for place in new:
                place.rmdir()


def _ask(config: PartyConfig, plan: TrainingPlan) -> None:
    transport = dial(
        config.endpoint,
        identity=identity_of(config),
        peer=config.peers[0],
        limits=Limits(),
        timeout=LIMIT,
    )
    with Connection(transport, Role.FEATURE, timings=_TIMINGS) as connection:
        greet(connection, name=config.name, number=config.number, plan=plan, offer=0)
        connection.send(Bye())


def _wait(config: PartyConfig, plan: TrainingPlan) -> None:
    complaints: list[str] = []
    with closing(
        Listener(
            config.endpoint,
            identity=identity_of(config),
            peers=config.peers,
            limits=Limits(),
            log=complaints.append,
        )
    ) as listener:
        try:
            transport = listener.accept(timeout=LIMIT)
        except SilenceError:
            why = f" ({'; '.join(complaints)})" if complaints else ""
            who = " or ".join(config.peers)
            raise LostError(
                f"{who} did not connect to {config.endpoint} within {LIMIT:g} seconds{why}: start "
                " tacit party there, and see that it can reach this address"
            ) from None
        with Connection(transport, Role.LABEL, timings=_TIMINGS) as connection:
            try:
                hello = hear_hello(connection)
                connection.send(
                    answer_hello(connection, hello, name=config.name, plan=plan, start=0)
                )
            except LostError as error:
                raise PeerError(f"{transport.peer} connected and said nothing: {error}") from error
            with suppress(
                LostError, PeerError
            ):  # it must have the answer before the connection ends
                connection.receive(Bye)
