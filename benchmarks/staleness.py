"""What overlapping steps cost in quality: loss and test AUC at depth 1, 2 and 4, several seeds.

One process, the same schedule as over the network: ``python benchmarks/staleness.py [EPOCHS]``.
Every run is what ``tacit train --dataset criteo --depth D --seed S --protect P`` does with the
settings of ``tacit._config.PLAIN``.
"""

from __future__ import annotations

import sys
from statistics import mean

import torch

from session import DATASET
from tacit._config import PLAIN
from tacit.experiment.config import TrainConfig
from tacit.experiment.run import run

DEPTHS, SEEDS, PROTECT = (1, 2, 4), (0, 1, 2), ("none", "marvell(s=4)")
Key = tuple[str, int, int]


def one(protect: str, depth: int, seed: int, epochs: int) -> tuple[float, float, float]:
    """Return training loss, test loss and test AUC of the last epoch."""
    settings = {"dataset": DATASET, "protect": protect, "depth": depth, "seed": seed}
    _, found = run(TrainConfig.of({**PLAIN, **settings, "epochs": epochs, "attacks": ()}))
    return found["train"]["loss"], found["test"]["loss"], found["test"]["auc"]


def main(epochs: int) -> None:
    """Print every run as it ends, then the table."""
    torch.set_num_threads(1)
    found: dict[Key, tuple[float, float, float]] = {}
    for seed in SEEDS:
        for protect in PROTECT:
            for depth in DEPTHS:
                found[protect, depth, seed] = one(protect, depth, seed, epochs)
                print(protect, depth, seed, *found[protect, depth, seed], flush=True)
    print(f"\nwdl, {DATASET}, {epochs} epochs, seeds {SEEDS}\n")
    print(
        "| protection | depth | training loss | test loss | test AUC | AUC less depth 1, per seed |"
    )
    print("|---|---|---|---|---|---|")
    for protect in PROTECT:
        for depth in DEPTHS:
            each = [found[protect, depth, seed] for seed in SEEDS]
            losses, tests, aucs = ([run[k] for run in each] for k in range(3))
            less = [found[protect, depth, seed][2] - found[protect, 1, seed][2] for seed in SEEDS]
            print(
                f"| {protect} | {depth} | {mean(losses):.4f} | {mean(tests):.4f} | "
                f"{mean(aucs):.4f} | {', '.join(f'{d:+.4f}' for d in less)} |"
            )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 3)
