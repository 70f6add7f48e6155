"""Two parties over mutual TLS against the same parties in one process, one thread each.

Both are timed in turns within one run. Over the network every release is journalled; the release
leaves before the top model's weight gradients are computed, so both sides work at once.
"""

from __future__ import annotations

import itertools
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from statistics import median

import numpy as np
import torch

from session import DATASET, ROWS, _endless
from tacit._config import PLAIN
from tacit.data import assign
from tacit.errors import LostError
from tacit.experiment.config import TrainConfig
from tacit.experiment.run import Experiment
from tacit.party.acceptor import answer_hello, hear_hello
from tacit.party.greeting import greet
from tacit.party.journal import Journal
from tacit.party.journaled_label import JournaledLabelParty
from tacit.party.proxies import RemoteFeature, RemoteLabel
from tacit.training import LabelParty, adam, train
from tacit.training.features import TableReader
from tacit.wire.protocol.connection import Connection, Timings
from tacit.wire.protocol.header import Limits
from tacit.wire.protocol.plan import TrainingPlan
from tacit.wire.protocol.state_machine import Role
from tacit.wire.psi.align import Matching, find_common, join_common
from tacit.wire.transport.grpc_client import dial
from tacit.wire.transport.grpc_server import Listener
from tacit.wire.transport.tls import load_identity, make_ca, make_party
from timing import paired_medians

STEPS, REPEATS, RUNS = 8, 20, 3
PLAN = TrainingPlan(epochs=1, batch_size=1024, order_seed=0, cut=(128,))


def rows() -> list[tuple[str, str, str]]:
    """Return the share of the one-process speed that two processes reach."""
    torch.set_num_threads(1)
    table = []
    for protect in ("none", "marvell(s=4)"):
        shares = [_share(protect) for _ in range(RUNS)]
        name = f"two processes, mutual TLS, journal / one process, wdl, {DATASET}, {protect}"
        spread = f"{min(shares):.2f} to {max(shares):.2f}"
        table.append((name, f"{median(shares):.2f} ({spread})", ">= 0.85"))
    return table


def _share(protect: str) -> float:
    with tempfile.TemporaryDirectory() as place:
        keys = Path(place) / "keys"
        make_ca(keys)
        for name in ("bank", "platform"):
            make_party(keys, name)
        listener = Listener(
            "127.0.0.1:0",
            identity=load_identity(keys, name="bank"),
            peers=("platform",),
            limits=Limits(),
            log=print,
        )
        command = [sys.executable, __file__, listener.address, str(keys), protect]
        with closing(listener), subprocess.Popen(command) as peer:  # noqa: S603 - this file
            try:
                apart = _apart(listener, _trial(protect), Path(place) / "journal")
                ours, single = paired_medians(apart, _together(protect), repeats=REPEATS)
            finally:
                peer.kill()
    return single / ours


def _trial(protect: str) -> Experiment:
    return Experiment(
        TrainConfig.of(
            {**PLAIN, "dataset": DATASET, "rows": ROWS, "protect": protect, "attacks": ()}
        )
    )


def _together(protect: str) -> Callable[[], object]:
    trial = _trial(protect)
    batches = (torch.from_numpy(rows) for rows in _endless(trial))
    steps = train(batches, features=trial.features, label=trial.label)
    return lambda: [next(steps) for _ in range(STEPS)]


def _apart(listener: Listener, trial: Experiment, journal: Path) -> Callable[[], object]:
    """Return a function that takes a few more steps with the peer; in between the peer waits."""
    connection = Connection(listener.accept(timeout=60), Role.LABEL, timings=Timings())
    hello = hear_hello(connection)
    connection.send(answer_hello(connection, hello, name="bank", plan=PLAN, start=0))
    find_common([connection], _matching(trial))
    (everything,) = assign(trial.table, 1)
    party = LabelParty(
        trial.label.top,
        torch.from_numpy(np.array(trial.table.labels)),
        guard=trial.label.guard,
        objective=trial.objective,
        optimizer=adam(trial.label.top, 1e-4),
        source=TableReader(trial.table, rows=trial.train_rows).source(everything),
    )
    label = JournaledLabelParty(party, Journal.open(journal, run="benchmark", secret=bytes(32)))
    batches = (torch.from_numpy(rows) for rows in _endless(trial))
    feature = RemoteFeature(connection, cut=PLAN.cut)
    steps = train(batches, features=[feature], label=label)
    return lambda: [next(steps) for _ in range(STEPS)]


def _matching(trial: Experiment) -> Matching:
    return Matching(ids=np.arange(len(trial.table)), private=False)


def _feature_party(address: str, keys: str, protect: str) -> None:
    torch.set_num_threads(1)
    trial = _trial(protect)
    line = dial(
        address,
        identity=load_identity(Path(keys), name="platform"),
        peer="bank",
        limits=Limits(),
        timeout=30,
    )
    with Connection(line, Role.FEATURE, timings=Timings()) as connection:
        greet(connection, name="platform", plan=PLAN, offer=0)
        join_common(connection, _matching(trial))
        batches = (torch.from_numpy(rows) for rows in _endless(trial))
        remote = RemoteLabel(connection)
        try:
            for _ in itertools.islice(
                train(batches, features=trial.features, label=remote), 1_000_000
            ):
                pass
        except LostError:
            pass


if __name__ == "__main__":
    if len(sys.argv) == 4:
        _feature_party(*sys.argv[1:])
    else:
        for row in rows():
            print(*row, sep=" | ")
