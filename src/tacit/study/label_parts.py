"""What every process of a label party is made of: where it listens, its model, its columns."""

from __future__ import annotations

from torch import nn

from tacit import data, nets
from tacit.runtime.connection import Timings
from tacit.runtime.frames import Limits
from tacit.runtime.grpc_listener import Listener
from tacit.runtime.matching import Common
from tacit.runtime.plan import Plan
from tacit.runtime.reception import Accepts, Reception
from tacit.study.columns import Source
from tacit.study.company import Log, identity_of, waiting_for
from tacit.study.party_config import PartyConfig

__all__ = ["listen", "own_source", "reception_of", "top_of"]


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


def top_of(config: PartyConfig, table: data.PartyTable, *, seed: int) -> nn.Module:
    """Return the label party's part of the model as it is before the first step."""
    assert table.classes is not None  # noqa: S101 - a label party's table has classes
    numeric, cardinalities = table.inputs
    own = nets.Inputs(numeric, cardinalities) if numeric or cardinalities else None
    model, classes = nets.get(config.model), table.classes
    each = model.cut_width(cut=config.cut, classes=classes)
    width = nets.combined_width([each] * len(config.peers), config.combine)
    return model.top(width, own=own, cut=config.cut, classes=classes, seed=seed)


def own_source(table: data.PartyTable, common: Common) -> Source | None:
    """Return the way to the label party's own columns, None where it has none."""
    return table.source(common.order) if any(table.inputs) else None
