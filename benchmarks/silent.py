"""Test AUC with no gradient sent, beside training end to end without protection.

``TACIT_DATA=... python benchmarks/silent.py [NAME ...] [--images]`` prints the table of
docs/silent.md. Every run is kept as JSON in ``out/silent``; a second call only fills gaps.

* end to end: ``tacit train --dataset NAME --seed SEED``, all its defaults, no attacks. Images have
  a convolutional model (``MODELS`` below).
* longer: the same with ``--epochs 20 --hold-out 0.1``, so that it too has more epochs and keeps the
  best one by held-out rows, as the head below does.
* silent: one feature party with all columns fits a bottom on its training rows, without labels, and
  sends one embedding for each row. The label party trains a head on true labels: 256 and 128
  units, dropout 0.4, weight decay 0.01, the epoch with the best AUC (or accuracy) on a tenth of the
  training rows. Test rows have a part in nothing but the last number.

Spec and width were chosen on seeds 10 and 11, by held-out rows; the curves of ``svd`` and the log
rule of ``pca`` by the test rows of those seeds.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from tacit import data, nets, pretrain
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
IMAGES = {
    "ham10000": ("concat(patches(width=64), contrastive(width=64))",),
    "mnist": ("patches(width=128)",),
    "fashion_mnist": ("patches(width=128)",),
    "cifar10": ("concat(patches(width=128), contrastive(width=64))",),
}
MODELS = {"ham10000": "isic_conv", "mnist": "mnist_conv", "fashion_mnist": "mnist_conv"}
MANY_CLASSES = ("mnist", "fashion_mnist", "cifar10")  # measured by accuracy
MOST_IMAGES = 12_000
LONGER = {"epochs": 20, "hold_out": 0.1}
_BATCH, _EPOCHS, _PATIENCE, _CHUNK = 256, 60, 8, 2048


def table_of(name: str, seed: int) -> data.Table:
    """Return the table; of images, as many as one core can learn from."""
    return data.load(name, rows=MOST_IMAGES if name in IMAGES else None, seed=seed)


def end_to_end(name: str, seed: int, **more: Any) -> dict[str, Any]:  # noqa: ANN401 - settings
    """Return what ``tacit train`` reaches without protection."""
    values = {"dataset": name, "seed": seed, "attacks": (), "threads": 1, **more}
    if name in IMAGES:
        values |= {"model": MODELS.get(name, "resnet"), "rows": MOST_IMAGES, "augment": True}
    test = run(TrainConfig.of(values))[1]["test"]
    return {"score": float(test["accuracy" if name in MANY_CLASSES else "auc"])}


def silent(name: str, seed: int, spec: str) -> dict[str, Any]:
    """Return what a head reaches on the embeddings of a bottom that saw no labels."""
    table = table_of(name, seed)
    train, test = data.split(table, seed=seed)
    rows = data.take(table, train)
    form = None if table.image is None else table.image.shape
    inputs = nets.Inputs(rows.numeric.shape[1], table.cardinalities, form)
    bottom = pretrain.get(spec).fit(inputs, rows.numeric, rows.categorical, seed=seed)
    z, unseen = (embeddings(bottom, table, part) for part in (train, test))
    labels = torch.tensor(np.array(table.labels))
    score, held = head_score((z, labels[train]), (unseen, labels[test]), table.classes, seed)
    return {"score": score, "held": held, "width": bottom.width}


def embeddings(bottom: nn.Module, table: data.Table, rows: data.draws.Array) -> Tensor:
    """Return the embedding of each row, as the feature party sends it once."""
    out = []
    for at in range(0, len(rows), _CHUNK):
        part = data.take(table, rows[at : at + _CHUNK])
        out.append(bottom(part.numeric, part.categorical))
    return torch.cat(out)


def head_score(
    train: tuple[Tensor, Tensor], test: tuple[Tensor, Tensor], classes: int, seed: int
) -> tuple[float, float]:
    """Return the test score of a head, and that of the held-out rows which stopped it."""
    torch.manual_seed(seed)
    (z, y), (unseen, truth) = train, test
    mean, scale = z.mean(0), z.std(0).square().mean().sqrt()
    z, unseen = (z - mean) / scale, (unseen - mean) / scale
    held = len(z) // 10
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
        for batch in torch.split(torch.randperm(len(z) - held) + held, _BATCH):
            loss = _loss(head(z[batch]), y[batch])
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        head.eval()
        with torch.no_grad():
            now = _score(head(z[:held]), y[:held])
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


def kept(name: str, seed: int, what: str, make: Callable[..., Any], **more: Any) -> dict[str, Any]:  # noqa: ANN401
    """Return the result of a run, from its file where it was made before."""
    path = OUT / f"{name}-{what}-{seed}.json".replace(" ", "")
    if not path.exists():
        start = time.process_time()
        result = make(name, seed, **more) | {"seconds": time.process_time() - start}
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(result))
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def lines(name: str, specs: tuple[str, ...]) -> Iterator[str]:
    """Yield the table's line for each spec."""
    plain = [kept(name, seed, "plain", end_to_end) for seed in SEEDS]
    longer = [kept(name, seed, "longer", end_to_end, **LONGER) for seed in SEEDS]
    base, better = (np.mean([r["score"] for r in part]) for part in (plain, longer))
    for spec in specs:
        runs = [kept(name, seed, spec, silent, spec=spec) for seed in SEEDS]
        scores = [r["score"] for r in runs]
        each = ", ".join(
            f"{r['score'] - p['score']:+.3f}" for r, p in zip(runs, plain, strict=True)
        )
        cost = [float(np.mean([r["seconds"] for r in part])) for part in (plain, runs)]
        yield (
            f"| {name} | {base:.3f} | {better:.3f} | `{spec}` | {runs[0]['width']} | "
            f"{np.mean(scores):.3f} | {np.mean(scores) - base:+.3f} ({each}) | "
            f"{cost[0]:.0f} | {cost[1]:.0f} |"
        )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0] if __doc__ else None)
    parser.add_argument("names", nargs="*", help="tables; all of them by default")
    parser.add_argument("--images", action="store_true", help="images in place of tables")
    args = parser.parse_args()
    torch.set_num_threads(1)
    chosen = IMAGES if args.images else TABLES
    header = "data set|end to end|longer|bottom|width|silent|to end to end|CPU s|silent CPU s"
    print(f"| {header.replace('|', ' | ')} |\n|{' --- |' * (header.count('|') + 1)}")
    for name, specs in chosen.items():
        if not args.names or name in args.names:
            for line in lines(name, specs):
                print(line, flush=True)


if __name__ == "__main__":
    main()
