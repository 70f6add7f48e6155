"""Two parties whose steps overlap, over mutual TLS, against one process with two threads.

Every pair is two real processes with a journal; all take turns of so many steps within one run, so
that a busy machine slows all alike. A turn begins and ends with no step under way, which costs the
pairs a little: in a real run that happens at every checkpoint. ``python benchmarks/depth.py
[PROTECTION [REPEATS]]``; with ``TACIT_BENCH_THREADS=1`` also pairs with two threads a side, which
fight for the same cores.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Final

import numpy as np
import torch

from runtime import PLAN, _matching, _trial
from session import DATASET, _endless
from tacit.data import assign
from tacit.errors import LostError
from tacit.party.acceptor import answer_hello, hear_hello
from tacit.party.greeting import greet
from tacit.party.journal import Journal
from tacit.party.journaled_label import JournaledLabelParty
from tacit.party.proxies import RemoteFeature, RemoteLabel
from tacit.training import FeatureParty, LabelParty, adam, train
from tacit.training.features import TableReader
from tacit.wire.protocol.connection import Connection, Timings
from tacit.wire.protocol.header import Limits
from tacit.wire.protocol.messages import CheckpointMessage
from tacit.wire.protocol.state_machine import Role
from tacit.wire.psi.align import find_common, join_common
from tacit.wire.transport.grpc_client import dial
from tacit.wire.transport.grpc_server import Listener
from tacit.wire.transport.tls import load_identity, make_ca, make_party

STEPS, REPEATS = 32, 9
PASSIVE: Final = {"OMP_WAIT_POLICY": "PASSIVE", "KMP_BLOCKTIME": "0"}
SPINNING: Final = {"OMP_WAIT_POLICY": "ACTIVE"}


@dataclass(frozen=True, kw_only=True)
class Pair:
    """How two parties run."""

    depth: int
    threads: int = 1
    spins: bool = False

    @property
    def name(self) -> str:
        """What the table calls it."""
        each = "one thread each" if self.threads == 1 else f"{self.threads} threads each"
        waits = ", spinning" if self.spins else ", passive wait" if self.threads > 1 else ""
        return f"two processes, depth {self.depth}, {each}{waits}"


ALONE = (Pair(depth=1), Pair(depth=2), Pair(depth=4))
FIGHTING = (Pair(depth=4, threads=2), Pair(depth=4, threads=2, spins=True))
PAIRS = ALONE + (FIGHTING if os.environ.get("TACIT_BENCH_THREADS") == "1" else ())


def rows(protect: str, repeats: int = REPEATS) -> list[tuple[str, str, str]]:
    """Return the speed of every pair as a share of that of one process with two threads."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        make_ca(folder / "keys")
        for name in ("bank", "platform"):
            make_party(folder / "keys", name)
        single = _start(stack, ["single", protect], threads=2)
        pairs = [_pair(stack, pair, folder, protect, number) for number, pair in enumerate(PAIRS)]
        times = [[_turn(worker) for worker in (single, *pairs)] for _ in range(repeats + 1)][1:]
    table = []
    for number, pair in enumerate(PAIRS, start=1):
        shares = [turn[0] / turn[number] for turn in times]
        target = ">= 0.85" if pair == Pair(depth=4) else ""
        name = f"{pair.name} / one process, two threads, wdl, {DATASET}, {protect}"
        spread = f"{min(shares):.2f} to {max(shares):.2f}"
        table.append((name, f"{median(shares):.2f} ({spread})", target))
    each = median(turn[0] for turn in times) / STEPS * 1e3
    table.append(("a step of the one process, milliseconds", f"{each:.1f}", ""))
    return table


def _start(
    stack: ExitStack, words: list[str], *, threads: int, spins: bool | None = None
) -> subprocess.Popen[str]:
    """Start this file in a process of its own and wait until it is ready."""
    waits = {None: {}, False: PASSIVE, True: SPINNING}[spins]
    env = {**os.environ, **waits, "OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
    worker = stack.enter_context(
        subprocess.Popen(  # noqa: S603
            [sys.executable, __file__, *words],
            env=env,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
    )
    stack.callback(worker.kill)
    return worker


def _pair(
    stack: ExitStack, pair: Pair, folder: Path, protect: str, number: int
) -> subprocess.Popen[str]:
    words = [str(folder / "keys"), protect, str(pair.depth)]
    label = _start(
        stack,
        ["label", *words, str(folder / f"journal-{number}")],
        threads=pair.threads,
        spins=pair.spins,
    )
    assert label.stdout is not None
    address = label.stdout.readline().strip()
    _start(stack, ["feature", *words, address], threads=pair.threads, spins=pair.spins)
    return label


def _turn(worker: subprocess.Popen[str]) -> float:
    assert worker.stdin is not None
    assert worker.stdout is not None
    worker.stdin.write("go\n")
    worker.stdin.flush()
    seconds = float(worker.stdout.readline())
    print(f"{seconds:.2f} s", *worker.args[2:5], file=sys.stderr)  # type: ignore[index]
    return seconds


def _single(protect: str) -> None:
    trial = _trial(protect)
    batches = (torch.from_numpy(rows) for rows in _endless(trial))
    steps = train(batches, features=trial.features, label=trial.label)
    for _ in sys.stdin:
        start = perf_counter()
        list(islice(steps, STEPS))
        print(perf_counter() - start, flush=True)


def _label(keys: str, protect: str, depth: str, journal: str) -> None:
    trial, plan = _trial(protect), replace(PLAN, depth=int(depth))
    listener = Listener(
        "127.0.0.1:0",
        identity=load_identity(Path(keys), name="bank"),
        peers=("platform",),
        limits=Limits(),
        log=lambda _: None,
    )
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
    with closing(listener):
        print(listener.address, flush=True)
        transport = listener.accept(timeout=600)
        connection = Connection(transport, Role.LABEL, timings=Timings(), depth=plan.depth)
        hello = hear_hello(connection)
        connection.send(answer_hello(connection, hello, name="bank", plan=plan, start=0))
        find_common([connection], _matching(trial))
        feature = RemoteFeature(connection, cut=plan.cut)
        first = 0
        for _ in sys.stdin:
            start = perf_counter()
            if first:
                connection.send(CheckpointMessage(step=first - 1))
            list(train(islice(batches, STEPS), features=[feature], label=label, first=first))
            first += STEPS
            connection.receive(CheckpointMessage)
            print(perf_counter() - start, flush=True)


def _feature(keys: str, protect: str, depth: str, address: str) -> None:
    trial, plan = _trial(protect), replace(PLAN, depth=int(depth))
    (columns,) = assign(trial.table, 1)
    bottom = trial.features[0].bottom
    party = FeatureParty(
        bottom,
        TableReader(trial.table, rows=trial.train_rows).source(columns),
        optimizer=adam(bottom, 1e-4),
        depth=plan.depth,
    )
    batches = (torch.from_numpy(rows) for rows in _endless(trial))
    transport = dial(
        address,
        identity=load_identity(Path(keys), name="platform"),
        peer="bank",
        limits=Limits(),
        timeout=60,
    )
    with Connection(transport, Role.FEATURE, timings=Timings(), depth=plan.depth) as connection:
        greet(connection, name="platform", plan=plan, offer=0)
        join_common(connection, _matching(trial))
        remote, first = RemoteLabel(connection), 0
        try:
            while True:
                list(
                    train(
                        islice(batches, STEPS),
                        features=[party],
                        label=remote,
                        first=first,
                        depth=plan.depth,
                    )
                )
                first += STEPS
                connection.send(CheckpointMessage(step=first - 1))
                connection.receive(CheckpointMessage)
        except LostError:
            pass


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["label", *words]:
            _label(*words)
        case ["feature", *words]:
            _feature(*words)
        case ["single", protect]:
            _single(protect)
        case given:
            protect, repeats = [*given, *("none", str(REPEATS))[len(given) :]]
            for row in rows(protect, int(repeats)):
                print(*row, sep=" | ")
            print("load average", *(f"{load:.1f}" for load in os.getloadavg()))
