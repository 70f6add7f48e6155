"""What honest trainings show to the watch over embeddings, and what looking costs.

Prints the table of docs/threat-model.md: the most extreme value of every measure in each training,
beside the limit. ``--cost`` prints only what a look costs, against a whole update step.
``--fresh N`` runs the trainings, and some on data that no limit was set by, with seeds from N on:
the limits were set while looking at the trainings of the table, so these say more about the next.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from functools import partial
from itertools import count
from typing import Any

import torch

from full import _session
from tacit._config import PLAIN
from tacit.experiment.config import TrainConfig
from tacit.experiment.run import Experiment
from tacit.training import Embedding, train
from tacit.training import embedding_watch as limits
from tacit.training.embedding_watch import EmbeddingWatch
from timing import paired_medians

FULL, STEPS = "marvell(s=4, covariance=full)", 4
RR = "rr(epsilon=0.575)"
MNIST = {"dataset": "mnist", "rows": 6000, "model": "mnist_conv", "batch_size": 128}
TRAININGS: tuple[dict[str, Any], ...] = (
    {"dataset": "credit", "model": "wdl"},
    {"dataset": "credit", "model": "wdl", "lr": 1e-3, "protect": FULL, "epochs": 10, "seed": 1},
    {"dataset": "credit", "model": "mlp", "lr": 1e-3, "protect": "marvell(s=4)", "seed": 2},
    {"dataset": "credit", "model": "mlp(hidden=8)", "lr": 1e-2, "labels": RR, "seed": 3},
    {"dataset": "credit", "model": "gafm_net", "objective": "gafm"},
    {"dataset": "spambase", "model": "mlp", "lr": 1e-3, "batch_size": 256, "epochs": 20},
    {"dataset": "spambase", "model": "wdl", "lr": 1e-3, "protect": FULL, "epochs": 20, "seed": 1},
    {"dataset": "spambase", "model": "wdl", "lr": 1e-2, "batch_size": 64, "seed": 2},
    {"dataset": "spambase", "model": "mlp", "parties": 2, "combine": "concat", "epochs": 20},
    {"dataset": "criteo", "model": "wdl", "rows": 40000},
    {"dataset": "criteo", "model": "wdl", "rows": 40000, "lr": 1e-3, "protect": FULL, "seed": 1},
    {"dataset": "criteo", "model": "mlp", "rows": 40000, "lr": 1e-2, "seed": 2},
    {"dataset": "avazu", "model": "wdl", "rows": 40000},
    {"dataset": "avazu", "model": "wdl", "rows": 40000, "lr": 1e-2, "seed": 1},
    {"dataset": "avazu", "model": "mlp", "rows": 40000, "lr": 1e-3, "protect": "iso(t=1)"},
    {"dataset": "ads", "model": "wdl", "lr": 1e-3, "protect": "marvell(s=4)"},
    {"dataset": "ads", "model": "mlp(hidden=8)", "lr": 1e-2, "seed": 1},
    {"dataset": "ads", "model": "mlp", "lr": 1e-2, "protect": "iso(t=1)", "depth": 2, "seed": 2},
    {"dataset": "ads", "model": "wdl", "parties": 3, "protect": "max_norm", "seed": 3},
    {**MNIST, "lr": 1e-3},
    {**MNIST, "lr": 1e-3, "labels": RR, "epochs": 5, "seed": 1},
    {**MNIST, "lr": 1e-2, "protect": FULL, "seed": 2},
)
FASHION = {**MNIST, "dataset": "fashion_mnist"}
OTHERS: tuple[dict[str, Any], ...] = (
    {**FASHION, "lr": 1e-3},
    {**FASHION, "lr": 1e-2, "protect": FULL},
    {"dataset": "imdb", "model": "mlp", "lr": 1e-3, "rows": 10000},
    {"dataset": "imdb", "model": "wdl", "lr": 1e-3, "rows": 10000, "protect": FULL},
    {"dataset": "breast_cancer", "model": "mlp", "lr": 1e-2, "batch_size": 64, "epochs": 20},
    {"dataset": "digits", "model": "mlp", "lr": 1e-3, "batch_size": 128, "epochs": 20},
)
MEASURES: tuple[tuple[str, Callable[..., float], float], ...] = (
    ("equal", max, limits.MOST_EQUAL),
    ("gap", max, 1.0),
    ("flat", min, limits.FLATTEST),
    ("fall", min, limits.RANK_FALL),
    ("shift", max, limits.FARTHEST),
    ("change", max, limits.LARGEST_CHANGE),
    ("overlap", min, limits.LEAST_OVERLAP),
)


def honest(values: dict[str, Any]) -> tuple[list[float], int, int]:
    """Return the most extreme measures of a training, how many steps it had, how many were odd."""
    trial = Experiment(TrainConfig.of({**PLAIN, "attacks": (), "epochs": 3, **values}))
    worst = [math.nan] * len(MEASURES)
    steps = 0
    for part in trial.schedule.parts(first=0):
        places = trial.reader.batches(part.batches)
        for _ in train(
            places, features=trial.ends, label=trial.label, first=steps, depth=trial.config.depth
        ):
            steps += 1
            for look in trial.label.watch.last.values():
                for place, (name, pick, _) in enumerate(MEASURES):
                    value = getattr(look, name)
                    if value is not None:
                        held = worst[place]
                        worst[place] = value if math.isnan(held) else pick(held, value)
    return worst, steps, trial.label.watch.warnings["odd_embeddings"]


def cost() -> tuple[str, str, str]:
    """Return what looking takes of an update step, 1024 rows of width 128."""
    watch, steps = EmbeddingWatch(), count()
    values = torch.randn(1024, 128, generator=torch.Generator().manual_seed(0))

    def look() -> None:
        for _ in range(STEPS):
            watch([Embedding(step=next(steps), values=values)])

    ours, step = paired_medians(look, partial(_session("none")), repeats=60)
    return "looking at embeddings / update step, wdl, 1024 x 128", f"{ours / step:.4f}", "<= 0.02"


def main() -> None:
    trainings = TRAININGS
    if "--fresh" in sys.argv:
        first = int(sys.argv[sys.argv.index("--fresh") + 1])
        trainings = tuple(
            {**values, "seed": first + at} for at, values in enumerate(TRAININGS + OTHERS)
        )
    if "--cost" not in sys.argv:
        print("| training | steps |", *(f"{name} |" for name, _, _ in MEASURES), "warned |")
        print("|---" * (len(MEASURES) + 3) + "|")
        print("| *limit* | |", *(f"{limit:.2g} |" for _, _, limit in MEASURES), "|")
        for values in trainings:
            worst, steps, warned = honest(values)
            name = ", ".join(
                str(value) if isinstance(value, str) else f"{key}={value}"
                for key, value in values.items()
            )
            cells = ("–" if math.isnan(value) else f"{value:.2g}" for value in worst)
            print(
                f"| {name} | {steps} |", *(f"{cell} |" for cell in cells), f"{warned} |", flush=True
            )
    print(*cost(), sep=" | ")


if __name__ == "__main__":
    main()
