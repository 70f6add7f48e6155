"""What noise for classes of any covariance costs: a whole update step, and wide cuts alone."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from session import DATASET, ROWS, _endless
from tacit import Cut, Guard
from tacit.runtime import train
from tacit.study.config import TrainConfig
from tacit.study.trial import Trial
from tacit.testing import low_rank_cut
from timing import paired_medians

FULL, PUBLISHED = "marvell(s=4, covariance=full)", "marvell(s=4)"
STEPS = 4


def rows() -> list[tuple[str, str, str]]:
    """Return an update step with and without the noise, and releases of two shapes."""
    table = []
    for protect, target in ((FULL, "<= 1.15"), (PUBLISHED, "")):
        ours, bare = paired_medians(_session(protect), _session("none"), repeats=40)
        name = f"update step with {protect} / with none, wdl, {DATASET}, batch 1024, cut 128"
        table.append((name, f"{ours / bare:.2f}", target))
    for shape, target in (((1024, 128), "<= 3"), ((128, 1600), "<= 6")):
        cut = _filled(*shape)
        ours, theirs = paired_medians(
            partial(Guard(FULL).release, cut), partial(Guard(PUBLISHED).release, cut), repeats=60
        )
        name = f"release of {FULL} / of {PUBLISHED}, {shape[0]} x {shape[1]}"
        table.append((name, f"{ours / theirs:.2f}", target))
    return table


def _session(protect: str) -> Callable[[], object]:
    """Return a function that trains a few steps more every time, without a monitor."""
    trial = Trial(
        TrainConfig.of({"dataset": DATASET, "rows": ROWS, "protect": protect, "attacks": ()})
    )
    batches = (torch.from_numpy(rows) for rows in _endless(trial))
    steps = train(batches, features=trial.features, label=trial.label)
    return lambda: [next(steps) for _ in range(STEPS)]


def _filled(batch: int, width: int) -> Cut:
    """Return a low-rank cut with a little in every direction: no rank is there to be saved."""
    cut = low_rank_cut(batch, width)
    rest = torch.randn(batch, width, generator=torch.Generator().manual_seed(1))
    return Cut(grads=cut.grads + 1e-3 * rest, labels=cut.labels)


if __name__ == "__main__":
    for row in rows():
        print(*row, sep=" | ")
