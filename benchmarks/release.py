"""What a checked, secretly keyed release costs, against drawing and adding plain noise."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch

from tacit import Cut, Guard

SHAPES = ((128, 1600), (1024, 128), (32768, 128))


def rows() -> list[tuple[str, str, str]]:
    """Return one row per shape and per class that gets the isotropic part."""
    table = []
    for batch, width in SHAPES:
        for noisy in ("positives", "negatives"):
            cut = _cut(batch, width, noisy)
            guard = Guard("marvell(s=4)")
            grads = cut.grads
            ratio = paired_ratio(
                lambda guard=guard, cut=cut: guard.release(cut),  # type: ignore[misc]
                lambda grads=grads: grads + torch.randn(grads.shape),  # type: ignore[misc]
                repeats=15 if batch > 10_000 else 60,
            )
            name = f"marvell(s=4) release / (randn + add), {batch} x {width}, noise on {noisy}"
            table.append((name, f"{ratio:.2f}", "<= 1.6"))
    return table


def _cut(batch: int, width: int, noisy: str) -> Cut:
    """Return a cut in which the class named gets the isotropic noise: it varies less."""
    rng = torch.Generator().manual_seed(0)
    labels = (torch.rand(batch, generator=rng) < 0.25).long()
    line = torch.randn(width, generator=rng)
    narrow = labels if noisy == "positives" else 1 - labels
    spread = torch.where(narrow == 1, 0.02, 0.3).unsqueeze(1)
    side = torch.where(labels == 1, -1.0, 0.3).unsqueeze(1)
    return Cut(grads=side * line + spread * torch.randn(batch, width, generator=rng), labels=labels)


def paired_ratio(
    ours: Callable[[], object], theirs: Callable[[], object], *, repeats: int
) -> float:
    """Return the ratio of median times, measured in turns so that both see the same machine."""
    for _ in range(3):
        ours(), theirs()
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(repeats):
        for kept, run in zip(times, (ours, theirs), strict=True):
            start = time.perf_counter()
            run()
            kept.append(time.perf_counter() - start)
    return statistics.median(times[0]) / statistics.median(times[1])
