"""What a step costs at each party and what a run leaves on disk, for ``docs/scale.md``.

Seconds are CPU seconds of one thread, medians: they are the same on a busy machine and an idle one.
The speed of several workers by the clock needs as many cores as processes; it is not measured here.
"""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Callable
from statistics import median

import numpy as np
import torch

from session import DATASET, ROWS, _endless
from tacit._config import PLAIN
from tacit.accounting import Ledger
from tacit.experiment.config import TrainConfig
from tacit.experiment.run import Experiment
from tacit.guard import Guard
from tacit.party._checkpoint_format import settings, weights
from tacit.party.journal import digest
from tacit.training.cut import Embedding, Gradient
from tacit.types import Cut
from tacit.wire.protocol.codec import encode

REPEATS = 15


def cpu(run: Callable[[], object], *, repeats: int = REPEATS) -> float:
    """Return milliseconds of CPU time, the median after three rounds to warm up."""
    times = []
    for _ in range(repeats + 3):
        start = time.process_time()
        run()
        times.append(time.process_time() - start)
    return 1e3 * median(times[3:])


def wire() -> None:
    """Print the bytes of one step's two frames."""
    print("bytes per example and direction, batch 1024:")
    for width, narrow in itertools.product((16, 64, 128, 512), (False, True)):
        values = torch.zeros(1024, width)
        there = encode(Embedding(step=1, values=values), narrow=narrow)
        back = encode(Gradient(step=1, values=values), narrow=narrow)
        bits = 16 if narrow else 32
        sizes = f"{len(there) / 1024:.2f} there, {len(back) / 1024:.2f} back"
        print(f"  cut {width}, {bits} bits: {sizes}")


def parties(batch: int) -> None:
    """Print what a step costs each party without protection."""
    trial = Experiment(
        TrainConfig.of(
            {**PLAIN, "dataset": DATASET, "rows": ROWS, "attacks": (), "batch_size": batch}
        )
    )
    batches = (torch.from_numpy(rows) for rows in _endless(trial))
    (feature,), label = trial.features, trial.label
    spent: dict[str, list[float]] = {"feature": [], "label": []}
    for step in range(REPEATS + 3):
        rows, at = next(batches), [time.process_time()]
        embedding = feature.forward(step, rows)
        at.append(time.process_time())
        (gradient,) = label.step(rows, [embedding])
        label.update()
        at.append(time.process_time())
        feature.backward(gradient)
        at.append(time.process_time())
        spent["feature"].append(at[1] - at[0] + at[3] - at[2])
        spent["label"].append(at[2] - at[1])
    for name, model in (("feature", feature.bottom), ("label", label.top)):
        count = sum(p.numel() for p in model.parameters())
        took = 1e3 * median(spent[name][3:])
        print(
            f"{name} party, {DATASET}, wdl, batch {batch}: {took:.1f} ms a step, "
            f"{1e3 * took / batch:.1f} s per million examples, {count:,} parameters"
        )


def protection() -> None:
    """Print what worker 0 does for all workers: the release and the two digests on record."""
    rng = torch.Generator().manual_seed(0)
    for batch, width in ((1024, 128), (8192, 128), (65536, 128), (8192, 16)):
        labels = (torch.rand(batch, generator=rng) < 0.25).long()
        grads = torch.randn(batch, width, generator=rng) * 1e-3 + labels[:, None] * 1e-3
        hashed = cpu(lambda g=grads: (digest(g), digest(g)), repeats=5)  # type: ignore[misc]
        line = f"worker 0, {batch} x {width}: digests {hashed:.1f} ms"
        for spec in ("marvell(s=4)", "marvell(s=4, covariance=full)"):
            guard = Guard(spec, seed=1)

            def release(
                guard: Guard = guard, g: torch.Tensor = grads, y: torch.Tensor = labels
            ) -> None:
                guard.release(Cut(grads=g, labels=y, embeddings=g, weight=1 / len(g)))

            line += f", {spec} {cpu(release, repeats=5):.1f} ms"
        print(line)


def storage() -> None:
    """Print bytes on disk: the ledger per example, a checkpoint per parameter."""
    count = 100_000
    ledger = Ledger(run="scale", examples=count)
    guard = Guard("marvell(s=4)", seed=1, ledger=ledger)
    for step, rows in enumerate(torch.randperm(count).view(-1, 1000)):
        g = torch.randn(1000, 4)
        y = (torch.arange(1000) % 4 == 0).long()
        guard.release(Cut(grads=g, labels=y, ids=rows, embeddings=g, step=step))
    arrays, _ = ledger.to_state()
    size = sum(np.asarray(array).nbytes for array in arrays.values())
    print(f"ledger in a checkpoint: {size / count:.1f} bytes per example")
    model = torch.nn.Linear(100, 100)
    optimizer = torch.optim.Adam(model.parameters(), fused=True)
    model(torch.ones(1, 100)).sum().backward()
    optimizer.step()
    held = sum(t.nbytes for t in (*weights(model).values(), *settings(optimizer)[0].values()))
    print(f"checkpoint: {held / 10_100:.1f} bytes per parameter")


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    wire()
    storage()
    protection()
    for size in (1024, 8192):
        parties(size)
