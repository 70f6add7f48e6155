"""What noise for classes of any covariance costs: whole update steps, and releases alone."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import nn

from session import DATASET, ROWS, _endless
from tacit import Cut, Guard
from tacit._config import PLAIN
from tacit.experiment.config import TrainConfig
from tacit.experiment.run import Experiment
from tacit.testing import low_rank_cut
from tacit.training import train
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
    for shape, target in (((1024, 128), ""), ((128, 1600), "<= 6")):
        cut = _filled(*shape)
        ours, theirs = paired_medians(
            partial(Guard(FULL).release, cut), partial(Guard(PUBLISHED).release, cut), repeats=60
        )
        name = f"release of {FULL} / of {PUBLISHED}, {shape[0]} x {shape[1]}"
        table.append((name, f"{ours / theirs:.2f}", target))
    ours, step = paired_medians(
        partial(Guard(FULL).release, _filled(128, 1600)), _conv_step(), repeats=8
    )
    name = f"release of {FULL}, 128 x 1600 / update step of 6 convolutions of 64 channels, 84 x 84"
    table.append((name, f"{ours / step:.3f}", "<= 0.15"))
    return table


def _conv_step() -> Callable[[], object]:
    """Return an update step of a net with a cut 5 x 5 x 64 wide after its fourth pool."""
    layers: list[nn.Module] = []
    for place in range(6):
        layers += [nn.Conv2d(3 if place == 0 else 64, 64, 3, padding=1), nn.ReLU()]
        layers += [nn.MaxPool2d(2)] * (place < 4)
    net = nn.Sequential(*layers, nn.Flatten(), nn.Linear(1600, 1))
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-4)
    rng = torch.Generator().manual_seed(0)
    images = torch.randn(128, 3, 84, 84, generator=rng)
    labels = (torch.arange(128) % 4 == 0).float()

    def step() -> None:
        loss = nn.functional.binary_cross_entropy_with_logits(net(images).squeeze(1), labels)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return step


def _session(protect: str) -> Callable[[], object]:
    """Return a function that trains a few steps more every time, without a monitor."""
    trial = Experiment(
        TrainConfig.of(
            {**PLAIN, "dataset": DATASET, "rows": ROWS, "protect": protect, "attacks": ()}
        )
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
