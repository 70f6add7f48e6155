"""New rows scored by the model that two parties trained; the predictions stay with the labels."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tacit.atomic import write_whole
from tacit.errors import InputError, LostError, PeerError
from tacit.party.acceptor import Acceptor, PeerSession
from tacit.party.alignment_cache import predict_rounds
from tacit.party.calling import dialler
from tacit.party.config import PartyConfig
from tacit.party.greeting import greet, stop_of
from tacit.party.label_session import acceptor_of, listen
from tacit.party.proxies import RemoteFeature, RemoteLabel
from tacit.party.schedule import piece_of
from tacit.party.state_files import Log, waiting_for
from tacit.party.trained import TrainedModel, trained_model
from tacit.state_dir import StateFolder, remove_own
from tacit.training.loop import predict
from tacit.training.metrics import utility
from tacit.wire.protocol.connection import Connection, Timings
from tacit.wire.protocol.messages import Bye, Predict
from tacit.wire.protocol.plan import TrainingPlan
from tacit.wire.protocol.state_machine import Role
from tacit.wire.psi.align import Alignment, Matching, find_common, join_common
from tacit.wire.transport.base import Transport

Received = tuple[Alignment, Callable[[], Tensor]]
PREDICTED = "predict-tables"
"""Where rows to predict are kept while they are, within the state folder."""


def predict_rows(config: PartyConfig, rows: Path, out: Path, *, log: Log) -> dict[str, Any]:
    """Score the common rows of both parties' new files; the label party writes them to a file."""
    with ExitStack() as stack:
        folder = stack.enter_context(StateFolder(config.of_version(config.version)))
        stack.callback(remove_own, folder.path / PREDICTED)
        model = trained_model(config, folder, rows, own_cache=folder.folder(PREDICTED))
        rounds = stack.enter_context(predict_rounds(folder, model.table))
        return _predict(config, replace(model, rounds=rounds), out, log)


def _predict(config: PartyConfig, model: TrainedModel, out: Path, log: Log) -> dict[str, Any]:
    found = {"party": config.name, "role": config.role, "step": model.step}
    if config.role == "feature":
        return {**found, "rows": _send(config, model, log)}
    common, scores = _receive(config, model, log)
    ids, probs, labels = common.ids, scores().numpy(), model.table.labels
    truth = None if labels is None else np.asarray(labels)[common.order]
    write_whole(out, _as_csv(ids, probs))
    test = None if truth is None else utility(probs, truth)
    return {**found, "rows": len(ids), "predictions": str(out), "test": test}


def _send(config: PartyConfig, model: TrainedModel, log: Log) -> int:
    """Send the embeddings of the common rows; return how many there were."""
    dial, waiting = dialler(config), waiting_for(config, log)
    while True:
        try:
            with _connection(dial(), Role.FEATURE, model.plan) as connection:
                start = greet(
                    connection,
                    name=config.name,
                    number=config.number,
                    plan=model.plan,
                    offer=model.step,
                )
                if start != model.step:
                    raise PeerError(f"the model here has {model.step} steps, there {start}")
                common = join_common(connection, _matching(config, model, log))
                remote = RemoteLabel(connection, asking=Predict)
                predict(
                    torch.arange(len(common)),
                    features=[model.sender(common)],
                    label=remote,
                    batch_size=piece_of(model.plan),
                )
                connection.send(Bye())
                return len(common)
        except LostError as error:
            waiting.pause(str(error))


def _receive(config: PartyConfig, model: TrainedModel, log: Log) -> Received:
    """Return the common rows, and what gives their predictions when no feature party is there."""
    with closing(listen(config, log)) as listener:
        acceptor = acceptor_of(config, model.plan, listener, log)
        while True:
            peers = acceptor.gather()
            try:
                with ExitStack() as stack:
                    for peer in peers:
                        stack.enter_context(peer.connection)
                    return _score(config, model, acceptor, peers, log)
            except (LostError, PeerError) as error:
                log(f"refused or lost: {error}")


def _score(
    config: PartyConfig, model: TrainedModel, acceptor: Acceptor, peers: list[PeerSession], log: Log
) -> Received:
    for peer in peers:
        there, connection = stop_of(peer.hello), peer.connection
        if there != model.step:
            raise connection.wrong(
                f"the model there has {there} steps, here {model.step}: train "
                "to the same end on all sides"
            )
        connection.send(acceptor.answer(connection, peer.hello, there))
    connections = [peer.connection for peer in peers]
    try:
        common = find_common(connections, _matching(config, model, log))
    except InputError as error:
        raise PeerError(str(error)) from error
    remotes = [RemoteFeature(c, cut=model.plan.cut, asking=Predict) for c in connections]
    scores = model.scorer(common, remotes)
    for remote, connection in zip(remotes, connections, strict=True):
        remote.settle()
        connection.receive(Bye)
    return common, scores


def _matching(config: PartyConfig, model: TrainedModel, log: Log) -> Matching:
    return Matching(
        ids=model.table.ids,
        private=config.matching == "private",
        peers=config.peers,
        rounds=model.rounds,
        log=log,
    )


def _connection(transport: Transport, role: Role, plan: TrainingPlan) -> Connection:
    return Connection(transport, role, timings=Timings(), narrow=plan.wire_bits == 16)


def _as_csv(ids: Any, probs: Any) -> bytes:  # noqa: ANN401 - arrays of several types
    """Return one line per id with its probability, or one per class where there are many."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    many = probs.ndim == 2
    writer.writerow(["id", *([f"class_{k}" for k in range(probs.shape[1])] if many else ["score"])])
    shown: Callable[[Any], list[str]] = lambda p: [f"{v:.9g}" for v in np.atleast_1d(p)]  # noqa: E731
    writer.writerows([id_, *shown(p)] for id_, p in zip(ids.tolist(), probs, strict=True))
    return text.getvalue().encode()
