"""Images: a bottom frozen without labels, alone and beside a copy that was tuned with labels.

``TACIT_DATA=... python benchmarks/hybrid.py [NAME ...]`` prints the table of docs/silent.md. Runs
are kept in ``out/silent``, and the frozen bottoms are those of ``benchmarks/silent.py``.

* frozen: the head on the embedding of ``concat(patches, contrastive)``, as in ``silent.py``.
* beside a tuned copy: the contrastive encoder is copied, the copy trained for ten epochs with a top
  model of 64 units on protected gradients (``TUNED``), then frozen too, and the head learns on both
  embeddings side by side, with true labels.
* beside a copy: the copy as it was, so that a wider head input alone cannot explain a gain. It adds
  nothing that the frozen embedding does not have.

``rr`` keeps 64% of all labels; all else, also in ten epochs, is computed from what it gave.
``marvell`` is planned so that what ten releases of each row add up to gives the reference AUC 0.65:
``Phi(sqrt(10 sum_kl / 2)) = 0.65``; that is a reference value and not a bound.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from statistics import NormalDist

import numpy as np
import torch
from torch import Tensor, nn

from silent import IMAGES, SEEDS, fitted, frozen_score, kept, silent, table_of
from tacit import Guard, data, objective, pretrain
from tacit.data.draws import Array
from tacit.pretrain import FrozenBottom
from tacit.protect import RandomizedLabels

NAMES = ("ham10000", "cifar10")
EPOCHS, BATCH, RATE, HIDDEN, KEEP, LEAK = 10, 256, 1e-3, 64, 0.64, 0.65
TUNED = ("rr", "marvell")


def beside(name: str, seed: int, protection: str | None) -> dict[str, float]:
    """Return the score of the head on the frozen embedding beside that of a tuned copy."""
    table = table_of(name, seed)
    train, test = data.split(table, seed=seed)
    spec = IMAGES[name].specs[0]
    bottom = fitted(name, seed, spec, table, train)
    copy = contrastive_part(bottom, spec)
    if protection is not None:
        tune(copy, table, train, guard_of(protection, table.classes, seed), seed)
    both = SideBySide(bottom, copy)
    score, held = frozen_score(both, table, train, test, seed=seed)
    return {"score": score, "held": held}


class SideBySide(nn.Module):
    """Two embeddings of the same rows."""

    def __init__(self, *bottoms: FrozenBottom) -> None:
        super().__init__()
        self.bottoms = nn.ModuleList(bottoms)

    def forward(self, numeric: Tensor, categorical: Tensor) -> Tensor:
        """Return ``[B, sum of widths]``."""
        return torch.cat([bottom(numeric, categorical) for bottom in self.bottoms], dim=1)


def contrastive_part(bottom: FrozenBottom, spec: str) -> FrozenBottom:
    """Return a copy of the second part of ``concat(patches, contrastive)``."""
    both = pretrain.get(spec)
    assert isinstance(both, pretrain.Concat)
    state = bottom.state_dict()
    second = {
        name.removeprefix("second."): tensor.clone()
        for name, tensor in state.items()
        if name.startswith("second.")
    }
    return both.b.bottom(bottom.inputs, second)


def guard_of(protection: str, classes: int, seed: int) -> Guard:
    """Return the guard of a protection, planned for the epochs."""
    if protection == "rr":
        epsilon = math.log(KEEP / (1 - KEEP) * (classes - 1))
        return Guard(
            "none",
            seed=seed,
            labels=f"rr(epsilon={epsilon:.4f}, correction=forward)",
            classes=classes,
        )
    each = 2 * NormalDist().inv_cdf(LEAK) ** 2 / EPOCHS
    return Guard(f"marvell(sum_kl={each:.5f}, covariance=full)", seed=seed)


def tune(copy: FrozenBottom, table: data.Table, train: Array, guard: Guard, seed: int) -> None:
    """Train the copy on what the guard releases; the running averages of its layers stay."""
    draws = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    binary, ids = table.classes == 2, torch.from_numpy(train)
    layers = [nn.ReLU(), nn.Linear(copy.width, HIDDEN), nn.ReLU()]
    top = nn.Sequential(*layers, nn.Linear(HIDDEN, 1 if binary else table.classes))
    weights = [*copy.requires_grad_(True).parameters(), *top.parameters()]
    optimizer = torch.optim.AdamW(weights, lr=RATE, weight_decay=0.01)
    labels = torch.tensor(np.array(table.labels))[train]
    if guard.label_guard is not None:
        labels = guard.labels(ids, labels)
    loss = objective.corrected(objective.get("bce" if binary else "ce"), guard.flips)
    assert isinstance(loss, objective.Loss)
    for _ in range(EPOCHS):
        for batch in torch.split(torch.randperm(len(train), generator=draws), BATCH):
            rows, y = data.take(table, train[batch.numpy()]), labels[batch]
            z = guard(copy.embed(rows.numeric, rows.categorical), y, ids=ids[batch])
            outputs = top(z)[:, 0] if binary else top(z)
            optimizer.zero_grad()
            loss.loss(outputs, y.targets if isinstance(y, RandomizedLabels) else y).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    copy.requires_grad_(False)


def lines(name: str) -> Iterator[str]:
    """Yield the table's line for each arm."""
    spec = IMAGES[name].specs[0]
    frozen = [kept(name, seed, spec, silent, spec=spec)["score"] for seed in SEEDS]
    yield f"| {name} | frozen alone | {np.mean(frozen):.3f} | |"
    for protection in (None, *TUNED):
        runs = [kept(name, seed, arm(protection), beside, protection=protection) for seed in SEEDS]
        gains = [r["score"] - f for r, f in zip(runs, frozen, strict=True)]
        each = ", ".join(f"{gain:+.3f}" for gain in gains)
        mean = np.mean([r["score"] for r in runs])
        yield f"| {name} | {arm(protection)} | {mean:.3f} | {np.mean(gains):+.3f} ({each}) |"


def arm(protection: str | None) -> str:
    """Return the name of an arm."""
    return "beside a copy" if protection is None else f"beside a copy tuned under {protection}"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0] if __doc__ else None)
    parser.add_argument("names", nargs="*", default=NAMES, help="ham10000, cifar10")
    args = parser.parse_args()
    torch.set_num_threads(1)
    print("| data set | embedding | score | to frozen alone |\n| --- | --- | --- | --- |")
    for name in args.names:
        for line in lines(name):
            print(line, flush=True)


if __name__ == "__main__":
    main()
