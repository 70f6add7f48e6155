"""Test AUC with no gradient sent, beside training end to end without protection.

``TACIT_DATA=... python benchmarks/silent.py [NAME ...] [--images]`` prints the table of
docs/silent.md. Every run is kept as JSON in ``out/silent``; a second call only fills gaps.

* end to end: ``tacit train --dataset NAME --seed SEED``, all its defaults, no attacks. Images have
  no such run: five epochs are too few for them.
* longer: the same with ``--epochs 20 --hold-out 0.1``, so that it too has more epochs and keeps the
  best one by held-out rows, as the head below does. Images have the settings of ``IMAGES``.
* silent: one feature party with all columns fits a bottom on its training rows, without labels, and
  sends one embedding for each row. The label party trains a head on true labels: 256 and 128
  units, dropout 0.4, weight decay 0.01, the epoch with the best AUC (or accuracy) on a tenth of the
  training rows, the same rows as in the run above. Test rows have a part in nothing but the last
  number. Rows of one group, as images of one lesion, are never on two sides.

Spec and width (not those of images) were chosen on seeds 10 and 11, by held-out rows; the curves of
``svd`` and the log rule of ``pca`` by the test rows of those seeds.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, final

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from tacit import data, nets, pretrain
from tacit.data.draws import Array
from tacit.experiment.batches import held_out
from tacit.experiment.config import TrainConfig
from tacit.experiment.run import run
from tacit.measure import auc

OUT = Path("out/silent")
SEEDS = (0, 1, 2)
TABLES = {
    "credit": ("masked", "random(32)"),
    "spambase": ("masked(epochs=100)", "pca(32)", "random(32)"),
    "ads": ("svd(width=128)", "random(128)"),
    "imdb": ("pca(128)", "random(128)"),
    "avazu": ("svd(width=256)",),
    "criteo": ("svd(width=256)", "svd(width=512)"),
}


@final
@dataclass(frozen=True, kw_only=True)
class ImageRuns:
    """How images are learned from, in a size that fits one core."""

    specs: tuple[str, ...]
    model: str
    epochs: int
    augment: bool = False
    batch_size: int = 64
    rows: int | None = 10_000


IMAGES = {
    "ham10000": ImageRuns(
        specs=("concat(patches(width=64), contrastive(width=64))",),
        model="isic_conv(channels=32)",
        epochs=10,
        augment=True,
        rows=None,
    ),
    "mnist": ImageRuns(specs=("patches(width=128)",), model="mnist_conv", epochs=10),
    "fashion_mnist": ImageRuns(specs=("patches(width=128)",), model="mnist_conv", epochs=10),
    "cifar10": ImageRuns(
        specs=("concat(patches(width=128), contrastive(width=64))",),
        model="mnist_conv(channels=48, size=32, colours=3)",
        epochs=16,
        augment=True,
    ),
}
MANY_CLASSES = ("mnist", "fashion_mnist", "cifar10")  # measured by accuracy
HOLD_OUT = 0.1
LONGER = {"epochs": 20, "hold_out": HOLD_OUT}
_BATCH, _EPOCHS, _PATIENCE, _CHUNK = 256, 60, 8, 2048


def table_of(name: str, seed: int) -> data.Table:
    """Return the table; of images, as many as one core can learn from."""
    return data.load(name, rows=IMAGES[name].rows if name in IMAGES else None, seed=seed)


def end_to_end(name: str, seed: int, **more: Any) -> dict[str, Any]:  # noqa: ANN401 - settings
    """Return what ``tacit train`` reaches without protection."""
    values = {"dataset": name, "seed": seed, "attacks": (), "threads": 1, **more}
    if name in IMAGES:
        runs = IMAGES[name]
        values |= {"model": runs.model, "rows": runs.rows, "epochs": runs.epochs}
        values |= {"augment": runs.augment, "batch_size": runs.batch_size, **more}
    result = run(TrainConfig.of(values))[1]
    score = float(result["test"]["accuracy" if name in MANY_CLASSES else "auc"])
    return {"score": score, "selected": result["selected"]}


def silent(name: str, seed: int, spec: str) -> dict[str, Any]:
    """Return what a head reaches on the embeddings of a bottom that saw no labels."""
    table = table_of(name, seed)
    train, test = data.split(table, seed=seed)
    bottom = fitted(name, seed, spec, table, train)
    score, held = frozen_score(bottom, table, train, test, seed=seed)
    return {"score": score, "held": held, "width": bottom.width}


def fitted(
    name: str, seed: int, spec: str, table: data.Table, train: Array
) -> pretrain.FrozenBottom:
    """Return a bottom fitted on the training rows, from its file where it was fitted before."""
    path = file_of(name, spec, seed, "safetensors")
    method, inputs = pretrain.get(spec), inputs_of(table)
    if path.exists():
        return method.bottom(inputs, load_file(path))
    rows = data.take(table, train)
    bottom = method.fit(inputs, rows.numeric, rows.categorical, seed=seed)
    save_file(dict(bottom.state_dict()), path)
    return bottom


def inputs_of(table: data.Table) -> nets.Inputs:
    """Return what the columns of one party with the whole table are."""
    form = None if table.image is None else table.image.shape
    first = data.take(table, np.arange(1))
    return nets.Inputs(first.numeric.shape[1], table.cardinalities, form)


def frozen_score(
    bottom: nn.Module, table: data.Table, train: Array, test: Array, *, seed: int
) -> tuple[float, float]:
    """Return the test score of a head on a frozen bottom, and that of its held-out rows."""
    labels = torch.tensor(np.array(table.labels))
    parts = (*held_out(train, HOLD_OUT, groups=table.groups), test)
    sent = [(embeddings(bottom, table, rows), labels[rows]) for rows in parts]
    return head_score(*sent, classes=table.classes, seed=seed)


def embeddings(bottom: nn.Module, table: data.Table, rows: Array) -> Tensor:
    """Return the embedding of each row, as the feature party sends it once."""
    out = []
    for at in range(0, len(rows), _CHUNK):
        part = data.take(table, rows[at : at + _CHUNK])
        out.append(bottom(part.numeric, part.categorical))
    return torch.cat(out)


Rows: TypeAlias = tuple[Tensor, Tensor]
"""Embeddings and their labels."""


def head_score(
    train: Rows, held: Rows, test: Rows, *, classes: int, seed: int
) -> tuple[float, float]:
    """Return the test score of a head, and that of the held-out rows which stopped it."""
    torch.manual_seed(seed)
    both = torch.cat([held[0], train[0]])
    mean, scale = both.mean(0), both.std(0).square().mean().sqrt()
    (z, y), (judged, known), (unseen, truth) = (
        ((rows - mean) / scale, labels) for rows, labels in (train, held, test)
    )
    head = nn.Sequential(
        nn.Linear(z.shape[1], 256),
        nn.ReLU(),
        nn.Dropout(0.4),
        nn.Linear(256, 128),
        nn.ReLU(),
        nn.Dropout(0.4),
        nn.Linear(128, 1 if classes == 2 else classes),
    )
    optimizer = torch.optim.AdamW(head.parameters(), lr=1e-3, weight_decay=0.01)
    best, found, since = -1.0, 0.0, 0
    for _ in range(_EPOCHS):
        head.train()
        for batch in torch.split(torch.randperm(len(z)), _BATCH):
            loss = _loss(head(z[batch]), y[batch])
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        head.eval()
        with torch.no_grad():
            now = _score(head(judged), known)
            if now > best:
                best, found, since = now, _score(head(unseen), truth), 0
            else:
                since += 1
        if since == _PATIENCE:
            break
    return found, best


def _loss(logits: Tensor, y: Tensor) -> Tensor:
    if logits.shape[1] > 1:
        return cross_entropy(logits, y)
    return binary_cross_entropy_with_logits(logits[:, 0], y.float())


def _score(logits: Tensor, y: Tensor) -> float:
    if logits.shape[1] > 1:
        return float((logits.argmax(1) == y).float().mean())
    return float(auc(logits[:, 0].numpy(), y.numpy()))


def file_of(name: str, what: str, seed: int, ending: str) -> Path:
    """Return where a run is kept, or a bottom."""
    OUT.mkdir(parents=True, exist_ok=True)
    return OUT / f"{name}-{what}-{seed}.{ending}".replace(" ", "")


def kept(name: str, seed: int, what: str, make: Callable[..., Any], **more: Any) -> dict[str, Any]:  # noqa: ANN401
    """Return the result of a run, from its file where it was made before."""
    path = file_of(name, what, seed, "json")
    if not path.exists():
        start = time.process_time()
        result = make(name, seed, **more) | {"seconds": time.process_time() - start}
        path.write_text(json.dumps(result))
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def lines(name: str, specs: tuple[str, ...]) -> Iterator[str]:
    """Yield the table's line for each spec, with the differences to the better of both arms."""
    settings = {"hold_out": HOLD_OUT} if name in IMAGES else LONGER
    arms = {"longer": [kept(name, seed, "longer", end_to_end, **settings) for seed in SEEDS]}
    if name in TABLES:
        arms["plain"] = [kept(name, seed, "plain", end_to_end) for seed in SEEDS]
    means = {arm: float(np.mean([r["score"] for r in runs])) for arm, runs in arms.items()}
    best = max(means, key=lambda arm: means[arm])
    for spec in specs:
        runs = [kept(name, seed, spec, silent, spec=spec) for seed in SEEDS]
        mean = float(np.mean([r["score"] for r in runs]))
        each = ", ".join(
            f"{r['score'] - b['score']:+.3f}" for r, b in zip(runs, arms[best], strict=True)
        )
        shown = [f"{means[arm]:.3f}" if arm in means else "" for arm in ("plain", "longer")]
        cost = [float(np.mean([r["seconds"] for r in part])) for part in (arms[best], runs)]
        yield (
            f"| {name} | {shown[0]} | {shown[1]} | `{spec}` | {runs[0]['width']} | {mean:.3f} | "
            f"{mean - means[best]:+.3f} ({each}) | {cost[0]:.0f} | {cost[1]:.0f} |"
        )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0] if __doc__ else None)
    parser.add_argument("names", nargs="*", help="tables; all of them by default")
    parser.add_argument("--images", action="store_true", help="images in place of tables")
    args = parser.parse_args()
    torch.set_num_threads(1)
    images = {name: runs.specs for name, runs in IMAGES.items()}
    chosen = images if args.images else TABLES
    header = "data set|end to end|longer|bottom|width|silent|to the better|CPU s|silent CPU s"
    print(f"| {header.replace('|', ' | ')} |\n|{' --- |' * (header.count('|') + 1)}")
    for name, specs in chosen.items():
        if not args.names or name in args.names:
            for line in lines(name, specs):
                print(line, flush=True)


if __name__ == "__main__":
    main()
