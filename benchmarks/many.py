"""Ten classes: what Marvell's noise hides from k-means, and what it costs.

``mnist``: ExPLOit's net with the cut after the fourth convolution (Config-1: four convolutions
against two dense layers), Adam at 1e-3, batch 128, 8,000 images. ``digits``: scikit-learn's 1,797
digits, four dense layers cut in the middle, Adam at 3e-3. After some epochs,
``kmeans(by=direction)`` sorts the gradients that were released in that epoch, and the sums over all
epochs so far of each example's unit gradients ("accumulated"), of the first 3,000 examples.

    python benchmarks/many.py mnist                     # everything: an hour on two idle cores
    python benchmarks/many.py mnist 'marvell(s=4)' 0    # one run, a line of JSON per judged epoch
    python benchmarks/many.py mnist 'marvell(s=4)' 0 4  # its first four epochs, the same numbers
    python benchmarks/many.py --table FILE...           # the table of such lines
"""

from __future__ import annotations

import gzip
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional

from tacit import Cut, Guard, Known, View, attack, measure
from tacit.attack.clustering import KMeans

SPECS = {
    "none": 3,
    "marvell(s=4)": 3,
    "marvell(s=4, covariance=full)": 3,
    "marvell(s=0.5)": 3,
    "marvell(s=1)": 3,
    "marvell(s=2)": 3,
    "marvell(s=8)": 3,
}
SORTED, CLASSES, BATCH = 3000, 10, 128
KMEANS = KMeans(by="direction")
Rows = tuple[Tensor, Tensor]


def main() -> None:
    torch.set_num_threads(1)
    match sys.argv[1:]:
        case ["--table", *files]:
            lines = [line for name in files for line in Path(name).read_text().splitlines()]
            print(table([json.loads(line) for line in lines]))
        case [name]:
            for spec, seeds in SPECS.items():
                for seed in range(seeds):
                    report(SETTINGS[name], spec, seed, SETTINGS[name].epochs)
        case [name, spec, seed]:
            report(SETTINGS[name], spec, int(seed), SETTINGS[name].epochs)
        case [name, spec, seed, epochs]:
            report(SETTINGS[name], spec, int(seed), int(epochs))


def report(setting: Setting, spec: str, seed: int, epochs: int) -> None:
    for found in run(setting, spec, seed, epochs):
        print(json.dumps(found), flush=True)


def mnist(rng: torch.Generator) -> tuple[Rows, Rows]:
    x, y = _mnist_part("train")
    rows = torch.randperm(60000, generator=rng)[:8000]
    x_test, y_test = _mnist_part("t10k")
    return (x[rows].float() / 255, y[rows]), (x_test[:4000].float() / 255, y_test[:4000])


def _mnist_part(part: str) -> Rows:
    place = Path(os.environ["TACIT_DATA"]) / "mnist"
    pixels = gzip.decompress((place / f"{part}-images-idx3-ubyte.gz").read_bytes())[16:]
    named = gzip.decompress((place / f"{part}-labels-idx1-ubyte.gz").read_bytes())[8:]
    x = torch.from_numpy(np.frombuffer(pixels, np.uint8).reshape(-1, 1, 28, 28).copy())
    return x, torch.from_numpy(np.frombuffer(named, np.uint8).copy()).long()


def mnist_net() -> tuple[nn.Module, nn.Module]:
    widths, pools = (1, 32, 32, 64, 64), (2, 2, 2, 1)
    convs = [
        nn.Sequential(nn.Conv2d(a, b, 3, padding=1), nn.MaxPool2d(p), nn.ReLU())
        for a, b, p in zip(widths[:-1], widths[1:], pools, strict=True)
    ]
    bottom = nn.Sequential(*convs, nn.Flatten())
    return bottom, nn.Sequential(nn.Linear(576, 128), nn.ReLU(), nn.Linear(128, 10))


def digits(rng: torch.Generator) -> tuple[Rows, Rows]:
    x, y = (torch.from_numpy(np.asarray(part)) for part in load_digits(return_X_y=True))
    order = torch.randperm(len(y), generator=rng)
    x, y = x[order].float() / 16, y[order].long()
    return (x[:1437], y[:1437]), (x[1437:], y[1437:])


def digits_net() -> tuple[nn.Module, nn.Module]:
    bottom = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU())
    return bottom, nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 10))


@final
@dataclass(frozen=True, kw_only=True)
class Setting:
    """A data set with its net, and when the releases are judged."""

    data: Callable[[torch.Generator], tuple[Rows, Rows]]
    net: Callable[[], tuple[nn.Module, nn.Module]]
    epochs: int
    judged: tuple[int, ...]
    lr: float


SETTINGS = {
    "mnist": Setting(data=mnist, net=mnist_net, epochs=10, judged=(1, 4, 7, 10), lr=1e-3),
    "digits": Setting(data=digits, net=digits_net, epochs=20, judged=(1, 3, 10, 20), lr=3e-3),
}


def run(setting: Setting, spec: str, seed: int, epochs: int) -> Iterator[dict[str, Any]]:
    rng = torch.Generator().manual_seed(seed)
    (x, y), (x_test, y_test) = setting.data(rng)
    torch.manual_seed(seed)
    bottom, top = setting.net()
    optimizer = torch.optim.Adam([*bottom.parameters(), *top.parameters()], lr=setting.lr)
    guard = Guard(spec, seed=seed, classes=CLASSES)
    sums, start = torch.zeros(1), time.process_time()
    for epoch in range(1, epochs + 1):
        sent, claims, meters = torch.zeros(1), [], _meters()
        for rows in torch.split(torch.randperm(len(y), generator=rng), BATCH):
            z = bottom(x[rows])
            cut = z.detach().requires_grad_()
            optimizer.zero_grad()
            torch.autograd.backward(functional.cross_entropy(top(cut), y[rows]))
            release = guard.release(Cut(grads=cut.grad, labels=y[rows], weight=1 / len(rows)))
            torch.autograd.backward(z, release.grads)
            optimizer.step()
            sent = sent if sent.dim() == 2 else torch.zeros(len(y), release.grads.shape[1])
            sent[rows] = release.grads
            claims.append(release.certificate.sum_kl)
            for name, meter in meters.items() if epoch in setting.judged else ():
                scores = attack.get(name)(View(grads=release.grads), torch.Generator())
                meter.add(scores, y[rows])
        sums = sums + functional.normalize(sent.double(), dim=1)
        if epoch in setting.judged:
            with torch.no_grad():
                right = float((top(bottom(x_test)).argmax(1) == y_test).double().mean())
            yield {
                "spec": spec,
                "seed": seed,
                "epoch": epoch,
                "accuracy": right,
                "kmeans": sorted_right(sent, y),
                "accumulated": sorted_right(sums, y),
                "sum_kl": float(np.mean([k for k in claims if k is not None] or [np.nan])),
                "unclaimed": sum(k is None for k in claims),
                **{
                    n: m.compute(rng=np.random.default_rng(0), resamples=2).leak_auc
                    for n, m in meters.items()
                },
                "seconds": time.process_time() - start,
            }


def _meters() -> dict[str, measure.OneVsRest]:
    return {name: measure.OneVsRest(CLASSES) for name in ("norm", "energy")}


def sorted_right(grads: Tensor, labels: Tensor) -> float:
    view = View(grads=grads[:SORTED], known=Known(classes=CLASSES))
    groups = KMEANS.clusters(view, torch.Generator().manual_seed(0))
    return measure.clustering_accuracy(groups, labels[:SORTED])


def table(lines: list[dict[str, Any]]) -> str:
    """Return a row per protection: lowest to highest of its seeds, by epoch."""
    epochs = sorted({one["epoch"] for one in lines})
    head = (
        "protection",
        "seeds",
        *(f"k-means, {e}" for e in epochs),
        *(f"accumulated, {e}" for e in epochs[1:]),
        *(f"accuracy, {e}" for e in epochs),
        "norm",
        "energy",
        "sumKL",
    )
    out = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    for spec in dict.fromkeys(one["spec"] for one in lines):
        mine = [one for one in lines if one["spec"] == spec]
        cells = [_range(mine, "kmeans", e) for e in epochs]
        cells += [_range(mine, "accumulated", e) for e in epochs[1:]]
        cells += [_range(mine, "accuracy", e) for e in epochs]
        last = max(one["epoch"] for one in mine)
        cells += [_range(mine, name, last) for name in ("norm", "energy", "sum_kl")]
        seeds = ", ".join(str(seed) for seed in sorted({one["seed"] for one in mine}))
        out.append(f"| `{spec}` | {seeds} | {' | '.join(cells)} |")
    return "\n".join(out)


def _range(lines: list[dict[str, Any]], name: str, epoch: int) -> str:
    values = [one[name] for one in lines if one["epoch"] == epoch and not np.isnan(one[name])]
    ends = [f"{value:.{3 if name == 'accuracy' else 2}f}" for value in sorted(values)]
    return "-".join(dict.fromkeys([*ends[:1], *ends[-1:]]))


if __name__ == "__main__":
    main()
