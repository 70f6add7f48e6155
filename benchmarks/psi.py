"""What private set intersection costs: both parties on this machine's cores, against bare calls.

``python benchmarks/psi.py`` takes about a minute; ``--ids 1000000`` is the whole size at once.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from hashlib import sha256
from multiprocessing import get_context
from multiprocessing.connection import Connection
from os import cpu_count
from pathlib import Path
from time import perf_counter, process_time
from typing import Any, final

import numpy as np
import numpy.typing as npt
from coincurve import GLOBAL_CONTEXT
from coincurve._libsecp256k1 import ffi, lib

from tacit.wire.psi.curve import fresh_scalar
from tacit.wire.psi.ecdh import PsiSide
from tacit.wire.psi.pool import process_pool

CORES = cpu_count() or 1
OVERLAP = 0.6
WHOLE = 1_000_000
RAW_IDS = 8192  # per core


@final
@dataclass(frozen=True)
class Cost:
    """What one party spent on all of its ids."""

    seconds: float
    cpu: float
    megabytes: float
    worker_megabytes: float
    common: int
    check: str


def raw() -> tuple[float, float]:
    """Return ids per second of one party with bare calls on all cores, and CPU per id in us."""
    with ProcessPoolExecutor(CORES, mp_context=get_context("spawn")) as pool:
        list(pool.map(_bare, [1] * CORES))  # the processes are there
        start = perf_counter()
        cpu = sum(pool.map(_bare, [RAW_IDS] * CORES))
        seconds = perf_counter() - start
    return CORES * RAW_IDS / seconds, cpu / (CORES * RAW_IDS) * 1e6


def _bare(count: int) -> float:
    """Do what an own id and a peer's cost at least; return the CPU seconds."""
    point, value = ffi.new("secp256k1_pubkey *"), ffi.new("unsigned char[32]")
    secret, even, context = fresh_scalar(), b"\x02", GLOBAL_CONTEXT.ctx
    parse, multiply = lib.secp256k1_ec_pubkey_parse, lib.secp256k1_ecdh
    start, own, tried = process_time(), 0, 0
    while own < count:
        tried += 1
        if not parse(context, point, even + sha256(tried.to_bytes(4, "big")).digest(), 33):
            continue
        own += 1
        multiply(context, value, point, secret, ffi.NULL, ffi.NULL)
        # What comes from the peer is a point as well; the one just found serves.
        parse(context, point, even + sha256(tried.to_bytes(4, "big")).digest(), 33)
        multiply(context, value, point, secret, ffi.NULL, ffi.NULL)
    return process_time() - start


def protocol(count: int) -> tuple[Cost, Cost]:
    """Return what the feature and the label party spent on so many ids each."""
    context = get_context("spawn")
    ends = context.Pipe()
    results = [context.Pipe(duplex=False) for _ in ends]
    roles = ("feature", "label")
    parties = [
        context.Process(target=_party, args=(role, count, end, result))
        for role, end, (_, result) in zip(roles, ends, results, strict=True)
    ]
    for party in parties:
        party.start()
    feature, label = (reader.recv() for reader, _ in results)
    for party in parties:
        party.join()
    assert feature.check == label.check, "the parties differ"
    assert feature.common == label.common == round(count * OVERLAP), "not the plain intersection"
    return feature, label


def _party(role: str, count: int, peer: Connection, result: Connection) -> None:
    ids = _ids(role, count)
    with process_pool() as pool:
        list(pool.map(abs, range(64)))  # the processes are there
        peer.send_bytes(b"ready")
        peer.recv_bytes()
        start = perf_counter()
        side = PsiSide(role, ids, executor=pool)
        (_ask if role == "feature" else _reply)(side, peer)
        matched = side.result()
        seconds = perf_counter() - start
        worker = max(_peak(child.pid) for child in multiprocessing.active_children())
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    shared = ids[matched.rows].astype(np.int64)
    low = count - round(count * OVERLAP)
    assert np.array_equal(np.sort(shared), np.arange(low, count)), "not the plain intersection"
    result.send(
        Cost(
            seconds=seconds,
            cpu=sum(use.ru_utime + use.ru_stime for use in used),
            megabytes=_peak("self"),
            worker_megabytes=worker,
            common=len(matched),
            check=matched.digest + sha256(shared.tobytes()).hexdigest(),
        )
    )


def _ids(role: str, count: int) -> npt.NDArray[Any]:
    """Return ids in an order of their own: numbers at one party, text at the other."""
    first = 0 if role == "feature" else count - round(count * OVERLAP)
    numbers = np.random.default_rng(first).permutation(np.arange(first, first + count))
    return numbers if role == "feature" else numbers.astype("U20")


def _ask(side: PsiSide, peer: Connection) -> None:
    message: bytes | None = side.start()
    while message is not None:
        peer.send_bytes(message)
        message = side.answer(peer.recv_bytes())


def _reply(side: PsiSide, peer: Connection) -> None:
    while not side.done:
        answer = side.answer(peer.recv_bytes())
        assert answer is not None
        peer.send_bytes(answer)


def _peak(pid: int | str | None) -> float:
    # The kernel's other number, ru_maxrss, is handed on by whoever started a process.
    lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM"))


def rows(count: int) -> list[tuple[str, str]]:
    """Return what was measured; the bare calls are measured before and after, others may work."""
    before = raw()
    parties = protocol(count)
    after = raw()
    bare = (before[0] + after[0]) / 2
    bare_cpu = (before[1] + after[1]) / 2
    seconds, cpu = max(p.seconds for p in parties), sum(p.cpu for p in parties)
    rate = 2 * count / seconds
    share: Callable[[float], str] = lambda part: f"{100 * part:.0f} %"  # noqa: E731
    return [
        ("ids on each side", f"{count:,}"),
        ("common ids, equal to the plain intersection", f"{parties[0].common:,}"),
        (f"bare calls, {CORES} cores: a party's ids per second", f"{bare:,.0f}"),
        (f"protocol, both parties on {CORES} cores: ids per second", f"{rate:,.0f}"),
        ("protocol / bare calls, by the clock", share(rate / bare)),
        ("bare calls: CPU per id of a party", f"{bare_cpu:.0f} us"),
        ("protocol: CPU per id of a party", f"{cpu / 2 / count * 1e6:.0f} us"),
        ("protocol / bare calls, by CPU", share(bare_cpu / (cpu / 2 / count * 1e6))),
        ("seconds, from ids to rows", f"{seconds:.1f}"),
        ("CPU seconds of both parties", f"{cpu:.1f}"),
        (f"seconds for {WHOLE:,}, in proportion", f"{seconds * WHOLE / count:.0f}"),
        (f"CPU seconds for {WHOLE:,} / {CORES} cores", f"{cpu * WHOLE / count / CORES:.0f}"),
        ("peak memory of a party", f"{max(p.megabytes for p in parties):.0f} MB"),
        ("peak memory of each of its workers", f"{parties[0].worker_megabytes:.0f} MB"),
    ]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ids", type=int, default=50_000, help="on each side")
    for name, value in rows(parser.parse_args().ids):
        print(f"| {name:60} | {value:>12} |")


if __name__ == "__main__":
    main()
