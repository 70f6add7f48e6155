"""What a checked, secretly keyed release costs, against drawing and adding plain noise."""

from __future__ import annotations

from functools import partial

import torch

from tacit import Cut, Guard
from timing import paired_medians

SHAPES = ((128, 1600), (1024, 128), (32768, 128))


def rows() -> list[tuple[str, str, str]]:
    """Return one row per shape and per class that gets the isotropic part."""
    table = []
    for batch, width in SHAPES:
        for noisy in ("positives", "negatives"):
            cut = _cut(batch, width, noisy)
            guard = Guard("marvell(s=4)")
            ours, theirs = paired_medians(
                partial(guard.release, cut),
                partial(_plain, cut.grads),
                repeats=30 if batch > 10_000 else 300,
            )
            name = f"marvell(s=4) release / (randn + add), {batch} x {width}, noise on {noisy}"
            table.append((name, f"{ours / theirs:.2f}", "<= 1.6"))
    return table


def _plain(grads: torch.Tensor) -> torch.Tensor:
    return grads + torch.randn(grads.shape)


def _cut(batch: int, width: int, noisy: str) -> Cut:
    """Return a cut in which the class named gets the isotropic noise: it varies less."""
    rng = torch.Generator().manual_seed(0)
    labels = (torch.rand(batch, generator=rng) < 0.25).long()
    line = torch.randn(width, generator=rng)
    narrow = labels if noisy == "positives" else 1 - labels
    spread = torch.where(narrow == 1, 0.02, 0.3).unsqueeze(1)
    side = torch.where(labels == 1, -1.0, 0.3).unsqueeze(1)
    return Cut(grads=side * line + spread * torch.randn(batch, width, generator=rng), labels=labels)
