"""Where a label party listens, and feature parties come in."""

from __future__ import annotations

from tacit.runtime.connection import Timings
from tacit.runtime.frames import Limits
from tacit.runtime.grpc_listener import Listener
from tacit.runtime.plan import Plan
from tacit.runtime.reception import Accepts, Reception
from tacit.study.company import Log, waiting_for
from tacit.study.party_config import PartyConfig
from tacit.study.party_identity import identity_of

__all__ = ["listen", "reception_of"]


def listen(config: PartyConfig, log: Log) -> Listener:
    """Open the address that feature parties connect to."""
    return Listener(config.endpoint, identity=identity_of(config), peers=config.peers,
                    limits=Limits(), log=log)  # fmt: skip


def reception_of(config: PartyConfig, plan: Plan, listener: Accepts, log: Log) -> Reception:
    """Return where the feature parties come in."""
    return Reception(
        name=config.name,
        plan=plan,
        peers=config.peers,
        listener=listener,
        timings=Timings(),
        waiting=waiting_for(config, log),
        log=log,
    )
