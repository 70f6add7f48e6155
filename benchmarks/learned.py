"""The attacks that learn, on trainings recorded for the purpose: the tables of learned_attacks.md.

``python benchmarks/learned.py mnist criteo noise ...`` records what is missing under
``out/learned`` and prints one line per attack and epoch: clustering accuracy and processor seconds.
"""

from __future__ import annotations

import csv
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from tacit import attack
from tacit.measure import clustering_accuracy
from tacit.tape import open_tape
from tacit.types import Known, View

OUT = Path("out/learned")
WARM = "exploit(trials=1, start=kmeans, epochs=40)"
ONCE, MEMORY = "exploit(trials=1, epochs=80)", "exploit(trials=1, epochs=80, memory=true)"
COLD = ["kmeans", "kmeans(by=direction)", "kmeans(by=both)", "exploit", WARM]
IMAGES: dict[str, Any] = {"epochs": 10, "batch-size": 64}
RUNS: dict[str, list[tuple[dict[str, Any], list[str], tuple[int, ...]]]] = {
    "mnist": [
        (
            {
                "dataset": "mnist",
                "rows": 9600,
                "model": "mnist_conv",
                "seed": seed,
                "epochs": 10,
                "batch-size": 256,
            },
            [*COLD, "completion", "unsplit"],
            (9,),
        )
        for seed in (2, 3)
    ],
    "marvell": [
        (
            {
                "dataset": "mnist",
                "rows": 9600,
                "model": "mnist_conv",
                "seed": seed,
                "epochs": 10,
                "batch-size": 256,
                "protect": "marvell(s=4)",
            },
            COLD[:-1],
            (0, 9),
        )
        for seed in (2, 3, 4)
    ],
    "images": [
        (
            {
                "dataset": name,
                "rows": 6000,
                "model": f"mnist_conv(config={config})",
                "seed": 0,
                **IMAGES,
            },
            ["kmeans", "kmeans(by=both)", "exploit(trials=1)", WARM],
            (0, 9),
        )
        for name in ("mnist", "fashion_mnist")
        for config in (1, 2)
    ],
    "cifar10": [
        (
            {
                "dataset": "cifar10",
                "rows": 2400,
                "model": f"resnet(config={config})",
                "seed": 0,
                **IMAGES,
            },
            ["kmeans", "kmeans(by=both)", "exploit(trials=1)", WARM],
            (0, 9),
        )
        for config in (1, 2)
    ],
    "criteo": [
        (
            {
                "dataset": "criteo",
                "rows": 20_000,
                "model": "exploit_criteo",
                "seed": 0,
                "epochs": 5,
                "batch-size": 256,
            },
            [
                "norm",
                "kmeans(by=direction)",
                "kmeans(by=both)",
                "exploit",
                "completion(labelled=50)",
            ],
            (4,),
        )
    ],
    "noise": [
        (
            {
                "dataset": "mnist",
                "rows": 4000,
                "model": "mnist_conv",
                "seed": 0,
                "epochs": 8,
                "batch-size": 64,
                "protect": f"gaussian(sigma={sigma})",
            },
            [ONCE, MEMORY, "kmeans(by=both)"],
            (7,),
        )
        for sigma in (0.003, 0.01, 0.03, 0.1, 0.3)
    ],
}


def main() -> None:
    """Record and attack the groups that were named, or all of them."""
    torch.set_num_threads(1)
    for group in sys.argv[1:] or RUNS:
        for settings, specs, epochs in RUNS[group]:
            run = recorded(settings)
            tested = json.loads((run / "results.json").read_text())["test"]["accuracy"]
            print(json.dumps({**settings, "test": round(tested, 4)}), flush=True)
            truth = labels(run)
            for epoch in epochs:
                for spec in specs:
                    start = time.process_time()
                    right = attacked(run, spec, epoch, truth)
                    spent = time.process_time() - start
                    print(f"  epoch {epoch + 1}  {spec}: {right:.4f}  {spent:.1f} s", flush=True)


def recorded(settings: dict[str, Any]) -> Path:
    """Return the folder of a recorded training, which is run if it is not there."""
    name = "-".join(str(value) for value in settings.values())
    run = OUT / "".join(c if c.isalnum() or c in "-._" else "_" for c in name)
    if not (run / "results.json").is_file():
        words = [f"--{key}={value}" for key, value in settings.items()]
        command = [
            sys.executable,
            "-m",
            "tacit.cli",
            "train",
            "--lr=1e-3",
            "--threads=1",
            "--weight-decay=0",
            "--bins=0",
            "--rare=0",
        ]
        done = [*command, "--record", "--json", f"--out={run}", *words]
        subprocess.run(done, check=True, stdout=subprocess.DEVNULL)  # noqa: S603
    return run


def labels(run: Path) -> dict[int, int]:
    """Return the labels of a run by id: the attacks never see them."""
    with (run / "labels.csv").open(newline="") as file:
        return {int(line["id"]): int(float(line["label"])) for line in csv.DictReader(file)}


def attacked(run: Path, spec: str, epoch: int, truth: dict[int, int]) -> float:
    """Return how many examples an attack on one epoch (a memory: on all up to it) gets right."""
    classes = max(truth.values()) + 1
    counts = torch.bincount(torch.tensor(list(truth.values())), minlength=classes).double()
    known = Known(classes=classes, prior=counts / counts.sum())
    views = list(seen(run, epoch, every="memory=true" in spec))
    if spec == "norm":
        return best_threshold(views, truth)
    if spec.startswith("completion"):
        return completed(spec, views, truth, classes)
    stream = attack.get(spec).streaming(torch.Generator().manual_seed(0))
    assert stream is not None
    for view in views:
        stream.add(replace(view, known=known))
    found = stream.result()
    assert found.clusters is not None
    return clustering_accuracy(found.clusters, [truth[i] for i in found.ids.tolist()])


def seen(run: Path, epoch: int, *, every: bool) -> Iterator[View]:
    """Yield the views of an epoch, or of all up to it."""
    for view in open_tape(run / "feature_party_0.tape"):
        if view.epoch == epoch or (every and view.epoch is not None and view.epoch < epoch):
            yield view


def best_threshold(views: list[View], truth: dict[int, int]) -> float:
    """Return the accuracy of the norm attack at the threshold that the labels show to be best."""
    norms = torch.cat([view.grads.flatten(1).norm(dim=1) for view in views])
    found = torch.tensor(_labels(views, truth))
    above = found[norms.argsort()]
    right = torch.cat([torch.zeros(1), (above == 0).cumsum(0)]) + (
        above.sum() - torch.cat([torch.zeros(1), above.cumsum(0)])
    )
    return float(right.max() / len(found))


def completed(spec: str, views: list[View], truth: dict[int, int], classes: int) -> float:
    """Return what model completion gets right of the examples that it was not told."""
    found = torch.tensor(_labels(views, truth))
    learner = attack.get(spec)
    assert isinstance(learner, attack.Completion)
    order = torch.randperm(len(found), generator=torch.Generator().manual_seed(5))
    told = torch.cat([order[found[order] == c][: learner.labelled] for c in range(classes)])
    view = View(
        grads=torch.cat([v.grads for v in views]),
        embeddings=torch.cat([v.embeddings for v in views if v.embeddings is not None]),
        known=Known(classes=classes, labelled=(told, found[told])),
    )
    probs = learner.probabilities(view, torch.Generator().manual_seed(0), honest=False)
    others = torch.ones(len(found), dtype=torch.bool)
    others[told] = False
    return float((probs.argmax(dim=1) == found)[others].double().mean())


def _labels(views: list[View], truth: dict[int, int]) -> list[int]:
    return [truth[i] for view in views if view.ids is not None for i in view.ids.tolist()]


if __name__ == "__main__":
    main()
