"""Does the time of a release, or of a round trip, go with the labels?

``python benchmarks/label_time.py [--against OLDER/src]`` times 2,000 releases at batches of 32 and
1024 whose class counts differ from step to step, and 2,000 round trips of a feature party to a
label party over mutual TLS on loopback. It prints Spearman's rank correlation between the number of
positives and the time, which has a standard error of 0.022 if there is none. ``--against`` takes
turns with another version of the package, fifty steps each; that version runs its own copy of this
script where it has one, since modules may have other names there.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import torch
from scipy.stats import spearmanr
from torch import Tensor, nn

STEPS, TURN, WIDTH = 2_000, 50, 128
BATCHES = (32, 1024)
SPECS = ("marvell(s=4)", "marvell(s=4, covariance=full)")
HERE = str(Path(__file__).resolve().parents[1] / "src")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--against", default=None)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--serve", nargs=3, default=None)
    parser.add_argument("--work", action="store_true")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    if asked.serve is not None:
        serve(*asked.serve)
    elif asked.work:
        work()
    else:
        compare([HERE, *([asked.against] if asked.against else [])], asked.steps)


def compare(sources: list[str], steps: int) -> None:
    print("| what | version | median ms | rho | p |\n|---|---|---|---|---|")
    for kind in ("release", "round trip"):
        for batch in BATCHES:
            for spec in SPECS if kind == "release" else SPECS[:1]:
                with ExitStack() as stack:
                    workers = [stack.enter_context(_Worker(source)) for source in sources]
                    for worker in workers:
                        worker.ask(kind=kind, batch=batch, spec=spec, steps=TURN)  # warm up
                    found: list[list[tuple[int, float]]] = [[] for _ in workers]
                    for _ in range(steps // TURN):
                        for worker, rows in zip(workers, found, strict=True):
                            rows.extend(worker.ask(kind=kind, batch=batch, spec=spec, steps=TURN))
                for name, rows in zip(("this", "older"), found, strict=False):
                    positives, times = zip(*rows, strict=True)
                    rho, p = spearmanr(positives, times)
                    print(
                        f"| {kind}, {spec}, batch {batch} | {name} | {1e3 * median(times):.2f} "
                        f"| {rho:+.3f} | {p:.1g} |",
                        flush=True,
                    )


class _Worker:
    """A process with one version of the package that takes some steps when it is asked to."""

    def __init__(self, source: str) -> None:
        own = Path(source).resolve().parent / "benchmarks" / Path(__file__).name
        self._process = subprocess.Popen(  # noqa: S603 - this file
            [sys.executable, str(own if own.exists() else __file__), "--work"],
            env={**os.environ, "PYTHONPATH": source, "OMP_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> _Worker:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(30)

    def ask(self, **task: Any) -> list[tuple[int, float]]:  # noqa: ANN401
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(task) + "\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline())
        return [(int(count), float(seconds)) for count, seconds in answer]


def work() -> None:
    """Answer tasks until there are no more; each kind goes on where it was."""
    running: dict[str, Iterator[tuple[int, float]]] = {}
    with ExitStack() as stack:
        for line in sys.stdin:
            task = json.loads(line)
            name = f"{task['kind']} {task['batch']} {task['spec']}"
            if name not in running:
                make = releases if task["kind"] == "release" else trips
                running[name] = make(task["batch"], task["spec"], stack)
            print(json.dumps([next(running[name]) for _ in range(task["steps"])]), flush=True)


def releases(batch: int, spec: str, _stack: ExitStack) -> Iterator[tuple[int, float]]:
    """Yield the positives of a batch and the seconds of its release, of one run without end."""
    from tacit import Cut, Guard  # noqa: PLC0415 - of the version that is asked for

    guard, rng = Guard(spec), torch.Generator().manual_seed(1)
    line = torch.randn(WIDTH, WIDTH, generator=rng) / WIDTH**0.5
    while True:
        z = torch.randn(batch, WIDTH, generator=rng) @ line
        y = _labels(batch, rng)
        grads = ((0.2 - y).unsqueeze(1) * (1 + 0.5 * torch.tanh(z)) + 0.01 * z) / batch
        cut = Cut(grads=grads, labels=y, embeddings=z, weight=1 / batch)
        start = perf_counter()
        guard.release(cut)
        yield int(y.sum()), perf_counter() - start


def _labels(batch: int, rng: torch.Generator) -> Tensor:
    """Return labels of a batch; what share is positive differs a lot from batch to batch."""
    share = 0.1 + 0.8 * float(torch.rand(1, generator=rng))
    return (torch.rand(batch, generator=rng) < share).float()


def trips(batch: int, spec: str, stack: ExitStack) -> Iterator[tuple[int, float]]:
    """Yield the positives of a batch and the seconds until the release for it is back."""
    from tacit.party.proxies import RemoteLabel  # noqa: PLC0415
    from tacit.training.cut import Embedding  # noqa: PLC0415
    from tacit.wire.protocol.connection import Connection, Timings  # noqa: PLC0415
    from tacit.wire.protocol.header import Limits  # noqa: PLC0415
    from tacit.wire.protocol.state_machine import Role  # noqa: PLC0415
    from tacit.wire.transport.grpc_client import dial  # noqa: PLC0415
    from tacit.wire.transport.tls import load_identity, make_ca, make_party  # noqa: PLC0415

    keys = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    make_ca(keys)
    for name in ("bank", "platform"):
        make_party(keys, name)
    command = [sys.executable, __file__, "--serve", str(keys), str(batch), spec]
    label = stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))  # noqa: S603
    stack.callback(label.kill)
    assert label.stdout is not None
    address = label.stdout.readline().strip()
    identity = load_identity(keys, name="platform")
    line = dial(address, identity=identity, peer="bank", limits=Limits(), timeout=60)
    connection = Connection(line, Role.FEATURE, timings=Timings())
    _greet(connection, batch)
    remote, rng = RemoteLabel(connection), torch.Generator().manual_seed(2)
    for step in range(1_000_000):
        rows = _rows(batch, step)
        values = torch.randn(batch, WIDTH, generator=rng)
        start = perf_counter()
        remote.offer([Embedding(step=step, values=values)])
        remote.step(rows, [])
        yield int(_truth()[rows].sum()), perf_counter() - start


def _greet(connection: Any, batch: int) -> None:  # noqa: ANN401
    import numpy as np  # noqa: PLC0415

    from tacit.party.greeting import greet  # noqa: PLC0415
    from tacit.wire.psi.align import Matching, join_common  # noqa: PLC0415

    greet(connection, name="platform", plan=_plan(batch), offer=0)
    join_common(connection, Matching(ids=np.arange(_ROWS), private=False))


_ROWS = 20_000


def _truth() -> Tensor:
    """Return labels in stretches of different shares, the same on both sides."""
    rng = torch.Generator().manual_seed(3)
    share = 0.1 + 0.8 * torch.rand(_ROWS // 20, generator=rng).repeat_interleave(20)
    return (torch.rand(_ROWS, generator=rng) < share).long()


def _rows(batch: int, step: int) -> Tensor:
    """Return a batch out of few stretches, so that its share of positives differs from others'."""
    rng = torch.Generator().manual_seed(step)
    starts = 20 * torch.randint(_ROWS // 20, (8,), generator=rng)
    picked = torch.randint(8 * 20, (batch,), generator=rng)
    return starts[picked // 20] + picked % 20


def _plan(batch: int) -> Any:  # noqa: ANN401
    from tacit.wire.protocol.plan import TrainingPlan  # noqa: PLC0415

    return TrainingPlan(epochs=1, batch_size=batch, order_seed=0, cut=(WIDTH,))


def serve(keys: str, batch: str, spec: str) -> None:
    """Be the label party: a small top model, releases through the guard, the usual monitor."""
    import numpy as np  # noqa: PLC0415

    from tacit import Guard, LeakMonitor  # noqa: PLC0415
    from tacit.objective import get as objective  # noqa: PLC0415
    from tacit.party.acceptor import answer_hello, hear_hello  # noqa: PLC0415
    from tacit.party.proxies import RemoteFeature  # noqa: PLC0415
    from tacit.training import LabelParty, adam, train  # noqa: PLC0415
    from tacit.wire.protocol.connection import Connection, Timings  # noqa: PLC0415
    from tacit.wire.protocol.header import Limits  # noqa: PLC0415
    from tacit.wire.protocol.state_machine import Role  # noqa: PLC0415
    from tacit.wire.psi.align import Matching, find_common  # noqa: PLC0415
    from tacit.wire.transport.grpc_server import Listener  # noqa: PLC0415
    from tacit.wire.transport.tls import load_identity  # noqa: PLC0415

    torch.manual_seed(0)
    top = nn.Sequential(nn.Linear(WIDTH, 64), nn.ReLU(), nn.Linear(64, 1), nn.Flatten(0))
    guard = Guard(spec, watch=LeakMonitor(["norm", "energy"]))
    listener = Listener(
        "127.0.0.1:0",
        identity=load_identity(Path(keys), name="bank"),
        peers=("platform",),
        limits=Limits(),
        log=lambda _: None,
    )
    with closing(listener):
        print(listener.address, flush=True)
        connection = Connection(listener.accept(timeout=60), Role.LABEL, timings=Timings())
        hello = hear_hello(connection)
        plan = _plan(int(batch))
        connection.send(answer_hello(connection, hello, name="bank", plan=plan, start=0))
        find_common([connection], Matching(ids=np.arange(_ROWS), private=False))
        label = LabelParty(
            top, _truth(), guard=guard, objective=objective("bce"), optimizer=adam(top, 1e-4)
        )
        steps = (_rows(int(batch), step) for step in range(1_000_000))
        for _ in train(steps, features=[RemoteFeature(connection, cut=(WIDTH,))], label=label):
            pass


if __name__ == "__main__":
    main()
