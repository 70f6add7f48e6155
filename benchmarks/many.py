"""MNIST, ten classes: what Marvell's noise hides from k-means, and what it costs.

ExPLOit's net with the cut after the fourth convolution (Config-1: four convolutions against two
dense layers), Adam at 1e-3, batch 128, 8,000 images. After some epochs, ``kmeans(by=direction)``
sorts the gradients that were released in that epoch ("per epoch"), and the sums over all epochs so
far of each example's unit gradients ("accumulated"), the first 3,000 examples each.

    python benchmarks/many.py                     # everything: an hour on two idle cores
    python benchmarks/many.py 'marvell(s=4)' 0    # one run, one line of JSON per judged epoch
    python benchmarks/many.py 'marvell(s=4)' 0 4  # its first four epochs, the same numbers
    python benchmarks/many.py --table FILE...     # the table of such lines
"""

from __future__ import annotations

import gzip
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from tacit import Cut, Guard, Known, View, attack, measure
from tacit.attack.clustering import KMeans

SPECS = {
    "none": 3, "marvell(s=4)": 3, "marvell(s=1)": 1, "marvell(s=8)": 1,
    "marvell(s=4, covariance=full)": 1, "marvell(s=2)": 1, "marvell(s=0.5)": 1,
}  # fmt: skip
ROWS, TEST, EPOCHS, BATCH, JUDGED, SORTED = 8000, 4000, 10, 128, (1, 4, 7, 10), 3000
KMEANS = KMeans(by="direction")


def main() -> None:
    torch.set_num_threads(1)
    match sys.argv[1:]:
        case []:
            for spec, seeds in SPECS.items():
                for seed in range(seeds):
                    report(spec, seed)
        case ["--table", *files]:
            print(table([json.loads(line) for f in files for line in open(f)]))  # noqa: SIM115
        case [spec, seed, *rest]:
            report(spec, int(seed), *map(int, rest))


def report(spec: str, seed: int, epochs: int = EPOCHS) -> None:
    for found in run(spec, seed, epochs):
        print(json.dumps(found), flush=True)


def images(part: str, count: int, order: Tensor | None = None) -> tuple[Tensor, Tensor]:
    place = Path(os.environ["TACIT_DATA"]) / "mnist"
    pixels = gzip.decompress((place / f"{part}-images-idx3-ubyte.gz").read_bytes())[16:]
    digits = gzip.decompress((place / f"{part}-labels-idx1-ubyte.gz").read_bytes())[8:]
    x = torch.from_numpy(np.frombuffer(pixels, np.uint8).reshape(-1, 1, 28, 28).copy())
    y = torch.from_numpy(np.frombuffer(digits, np.uint8).copy()).long()
    rows = torch.arange(count) if order is None else order[:count]
    return x[rows].float() / 255, y[rows]


def net(seed: int) -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(seed)
    widths, pools = (1, 32, 32, 64, 64), (2, 2, 2, 1)
    convs = [
        nn.Sequential(nn.Conv2d(a, b, 3, padding=1), nn.MaxPool2d(p), nn.ReLU())
        for a, b, p in zip(widths[:-1], widths[1:], pools, strict=True)
    ]
    bottom = nn.Sequential(*convs, nn.Flatten())
    return bottom, nn.Sequential(nn.Linear(576, 128), nn.ReLU(), nn.Linear(128, 10))


def run(spec: str, seed: int, epochs: int) -> Iterator[dict[str, Any]]:
    rng = torch.Generator().manual_seed(seed)
    x, y = images("train", ROWS, torch.randperm(60000, generator=rng))
    x_test, y_test = images("t10k", TEST)
    bottom, top = net(seed)
    optimizer = torch.optim.Adam([*bottom.parameters(), *top.parameters()], lr=1e-3)
    guard = Guard(spec, seed=seed, classes=10)
    sums, start = torch.zeros(ROWS, 576, dtype=torch.float64), time.process_time()
    for epoch in range(1, epochs + 1):
        sent, claims = torch.zeros(ROWS, 576), []
        meters = {(a, c): measure.LeakMeter() for a in ("norm", "energy") for c in range(10)}
        for rows in torch.split(torch.randperm(ROWS, generator=rng), BATCH):
            z = bottom(x[rows])
            cut = z.detach().requires_grad_()
            loss = functional.cross_entropy(top(cut), y[rows])
            optimizer.zero_grad()
            torch.autograd.backward(loss)
            release = guard.release(Cut(grads=cut.grad, labels=y[rows], weight=1 / len(rows)))
            torch.autograd.backward(z, release.grads)
            optimizer.step()
            sent[rows] = release.grads
            claims.append(release.certificate.sum_kl)
            if epoch in JUDGED:
                judge(meters, release.grads, y[rows])
        sums += functional.normalize(sent.double(), dim=1)
        if epoch in JUDGED:
            with torch.no_grad():
                right = float((top(bottom(x_test)).argmax(1) == y_test).double().mean())
            yield {
                "spec": spec, "seed": seed, "epoch": epoch, "accuracy": right,
                "kmeans": sorted_right(sent, y), "accumulated": sorted_right(sums, y),
                "sum_kl": float(np.mean([k for k in claims if k is not None] or [np.nan])),
                "unclaimed": sum(k is None for k in claims), **leaks(meters),
                "seconds": time.process_time() - start,
            }  # fmt: skip


def judge(meters: dict[Any, measure.LeakMeter], grads: Tensor, labels: Tensor) -> None:
    for name in {name for name, _ in meters}:
        scores = attack.get(name)(View(grads=grads), torch.Generator())
        for c in range(10):
            meters[name, c].add(scores, (labels == c).long())


def leaks(meters: dict[Any, measure.LeakMeter]) -> dict[str, float]:
    rng = np.random.default_rng(0)
    found = {key: m.compute(rng=rng, resamples=2).leak_auc for key, m in meters.items()}
    return {n: float(np.mean([found[n, c] for c in range(10)])) for n in {n for n, _ in meters}}


def sorted_right(grads: Tensor, labels: Tensor) -> float:
    view = View(grads=grads[:SORTED], known=Known(classes=10))
    groups = KMEANS.clusters(view, torch.Generator().manual_seed(0))
    return measure.clustering_accuracy(groups, labels[:SORTED])


def table(lines: list[dict[str, Any]]) -> str:
    head = ("protection", "seed", "test accuracy", *(f"epoch {e}" for e in JUDGED),
            *(f"accumulated to {e}" for e in JUDGED[1:]), "norm", "energy", "sumKL")  # fmt: skip
    out = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    for spec, seed in dict.fromkeys((one["spec"], one["seed"]) for one in lines):
        mine = {o["epoch"]: o for o in lines if (o["spec"], o["seed"]) == (spec, seed)}
        last = mine[max(mine)]
        cells = [f"{last['accuracy']:.3f}", *(_cell(mine, e, "kmeans") for e in JUDGED)]
        cells += [_cell(mine, e, "accumulated") for e in JUDGED[1:]]
        cells += [f"{last['norm']:.2f}", f"{last['energy']:.2f}", f"{last['sum_kl']:.2f}"]
        out.append(f"| `{spec}` | {seed} | {' | '.join(cells)} |")
    return "\n".join(out)


def _cell(mine: dict[int, dict[str, Any]], epoch: int, name: str) -> str:
    return f"{mine[epoch][name]:.2f}" if epoch in mine else ""


if __name__ == "__main__":
    main()
