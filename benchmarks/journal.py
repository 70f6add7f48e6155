"""What a step costs on its way to the peer: frame, journal, and a checkpoint now and then."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import perf_counter

import torch

from tacit.nets import Inputs
from tacit.nets.base import MODELS
from tacit.party.checkpoint import CheckpointStore
from tacit.party.journal import Journal, Sync, digest
from tacit.party.record_exchange import RecordCopy
from tacit.training import adam
from tacit.training.cut import Embedding
from tacit.wire.protocol.codec import decode, encode

COLUMNS = Inputs(numeric=13, cardinalities=(10_000,) * 26)
BATCH, WIDTH = 1024, 128
OLD = 1_000_000


def rows(folder: Path) -> list[tuple[str, float]]:
    """Return what was timed and its median in seconds."""
    sent = torch.randn(BATCH, WIDTH)
    message = Embedding(step=0, values=sent)
    return [
        (
            f"frame of {BATCH} x {WIDTH} float32, there and back",
            _median(lambda: decode(encode(message)), 200),
        ),
        (f"digest of one tensor, {BATCH} x {WIDTH} float32", _median(lambda: digest(sent), 200)),
        ('record(), sync="os": survives SIGKILL', _record(folder / "os", "os", 20_000)),
        ('record(), sync="always": survives a power cut', _record(folder / "al", "always", 200)),
        ('record(), sync="os", with a witness', _witnessed(folder, 20_000)),
        ("a feature party keeps a record", _kept(folder, 20_000)),
        *_old(folder / "old"),
        *_checkpoint(folder / "checkpoints"),
    ]


def _median(run: Callable[[], object], repeats: int) -> float:
    times = []
    for _ in range(repeats):
        start = perf_counter()
        run()
        times.append(perf_counter() - start)
    return median(times)


def _record(path: Path, sync: Sync, repeats: int) -> float:
    mark = bytes(32)
    with Journal.open(path, run="benchmark", secret=bytes(32), sync=sync) as journal:
        steps = iter(range(repeats))
        return _median(lambda: journal.record(next(steps), mark, mark), repeats)


def _witnessed(folder: Path, repeats: int) -> float:
    mark, witness = bytes(32), folder / "witness"
    with Journal.open(
        folder / "witnessed", run="benchmark", secret=bytes(32), witness=witness
    ) as journal:
        steps = iter(range(repeats))
        return _median(lambda: journal.record(next(steps), mark, mark), repeats)


def _kept(folder: Path, repeats: int) -> float:
    """Time the feature party's side with the records of the journal before."""
    copy = RecordCopy.open(folder / "copy", run="benchmark")
    with Journal.open(folder / "os", run="benchmark", secret=bytes(32)) as journal:
        records = iter([journal.read(number, 1) for number in range(repeats)])
        kept = _median(lambda: copy.keep(next(records)), repeats)
    copy.close()
    return kept


def _old(path: Path) -> list[tuple[str, float]]:
    """Time a journal of many steps: opening it, and asking for an old one."""
    _record(path, "os", OLD)
    start = perf_counter()
    with Journal.open(path, run="benchmark", secret=bytes(32)) as journal:
        opened = perf_counter() - start
        steps = iter(range(0, OLD, OLD // 1000))
        found = _median(lambda: journal.find(next(steps)), 1000)
    return [(f"opening a journal of {OLD:,} steps", opened), ("an old step of it", found)]


def _checkpoint(path: Path) -> list[tuple[str, float]]:
    """Time the feature party's half of the model with the optimiser's moments."""
    bottom = MODELS.get("wdl").build(parties=[COLUMNS], own=COLUMNS, seed=0).bottoms[0]
    optimizer = adam(bottom, 1e-4)
    for weight in bottom.parameters():
        weight.grad = torch.zeros_like(weight)
    optimizer.step()
    store, steps = CheckpointStore(path, run="benchmark"), iter(range(1000))
    models, optimizers = {"bottom": bottom}, {"bottom": optimizer}
    saved = _median(lambda: store.save(next(steps), models=models, optimizers=optimizers), 15)
    count = sum(weight.numel() for weight in bottom.parameters())
    name = f"wdl bottom, {count:,} weights with fused Adam"
    return [
        (f"saving a checkpoint: {name}", saved),
        ("reading and checking it", _median(store.latest, 15)),
    ]


def main() -> None:
    """Print the table; files go to the folder for temporary ones."""
    with tempfile.TemporaryDirectory() as folder:
        for name, seconds in rows(Path(folder)):
            print(f"{name:75} {1e3 * seconds:10.3f} ms")


if __name__ == "__main__":
    main()
