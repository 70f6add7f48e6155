"""What the wire costs: round trips per second between two processes, under mutual TLS."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from threading import Thread
from time import perf_counter

import torch

from tacit.errors import LostError
from tacit.wire.protocol.header import Limits
from tacit.wire.transport.base import Transport
from tacit.wire.transport.grpc_client import dial
from tacit.wire.transport.grpc_server import Listener
from tacit.wire.transport.memory import memory_transports
from tacit.wire.transport.tls import load_identity, make_ca, make_party

SIZES = {"512 KiB": (2**19, 500), "64 bytes": (64, 2000)}
PATIENCE = 30.0


def rows(keys: Path) -> list[tuple[str, float]]:
    """Return what was measured and its median in round trips per second."""
    make_ca(keys)
    make_party(keys, "bank")
    make_party(keys, "clinic")
    context = get_context("spawn")
    mine, theirs = context.Pipe()
    bank = context.Process(target=_bank, args=(keys, theirs))
    bank.start()
    address, identity = mine.recv(), load_identity(keys, name="clinic")
    limits = Limits()

    def connect() -> Transport:
        return dial(address, identity=identity, peer="bank", limits=limits, timeout=PATIENCE)

    opened = ("a connection: dialled, used once and closed", _per_second(_visit(connect), 20))
    with connect() as transport:
        found = [
            (f"gRPC, {name} each way", _trips(transport, *size)) for name, size in SIZES.items()
        ]
    mine.send("done")
    bank.join(PATIENCE)
    return [*found, opened, *_in_memory()]


def _bank(keys: Path, parent: Connection) -> None:
    """Send back what comes, from one connection after the other."""
    torch.set_num_threads(1)
    listener = Listener(
        "127.0.0.1:0",
        identity=load_identity(keys, name="bank"),
        peers=["clinic"],
        limits=Limits(),
        log=lambda _: None,
    )
    parent.send(listener.address)
    while not parent.poll():
        try:
            _echo(listener.accept(timeout=1))
        except LostError:
            continue
    listener.close()


def _echo(transport: Transport) -> None:
    while True:
        transport.send(transport.receive(timeout=PATIENCE), timeout=PATIENCE)


def _visit(connect: Callable[[], Transport]) -> Callable[[], None]:
    def visit() -> None:
        with connect() as transport:
            transport.send(b"hello", timeout=PATIENCE)
            transport.receive(timeout=PATIENCE)

    return visit


def _trips(transport: Transport, size: int, count: int) -> float:
    frame = bytes(size)

    def trip() -> None:
        transport.send(frame, timeout=PATIENCE)
        transport.receive(timeout=PATIENCE)

    return _per_second(trip, count)


def _per_second(run: Callable[[], None], count: int) -> float:
    rates = []
    for _ in range(5):
        start = perf_counter()
        for _ in range(count):
            run()
        rates.append(count / (perf_counter() - start))
    return median(rates)


def _in_memory() -> list[tuple[str, float]]:
    left, right = memory_transports()

    def echo() -> None:
        try:
            _echo(right)
        except LostError:
            return

    Thread(target=echo, daemon=True).start()
    with left:
        return [
            (f"in memory, {name} each way", _trips(left, *size)) for name, size in SIZES.items()
        ]


def main() -> None:
    """Print the table; keys go to the folder for temporary files."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        for name, rate in rows(Path(folder)):
            print(f"{name:75} {rate:10.0f} per second")


if __name__ == "__main__":
    main()
