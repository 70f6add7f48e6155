"""What embeddings show of the inputs, and what hiding it costs, for docs/silent.md.

``TACIT_DATA=... python benchmarks/inputs.py [NAME ...]`` prints the table of label-free bottoms,
``... inputs.py --trained`` that of bottoms trained end to end. Every result is kept as JSON in
``out/inputs``; a second call only fills gaps.

* A bottom is fitted on the training rows without labels, as in ``benchmarks/silent.py``. Its
  embeddings are sent as they are, or rounded to so many bits (even steps between the smallest and
  the largest value of each column of the training rows), or with Gaussian noise of so many
  standard deviations of each column. The head is that of ``benchmarks/silent.py``, trained and
  tested on what was sent.
* ``audit_inputs`` looks at what was sent of the training rows: 1,000 are known to the attacker,
  5,000 others are judged (of Spambase 3,141), the columns are those of the data set.
* Trained: ``tacit train --dataset credit --seed S --record``, then the embeddings of its last epoch
  and those of all its epochs together.

Every spec, width, number of bits and noise that was tried is in the table. Test rows have a part in
nothing but the test AUC.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from silent import HOLD_OUT, embeddings, head_score
from tacit import data, nets, pretrain
from tacit.audit import FeatureTable, InputAudit, audit_inputs
from tacit.audit.inputs import inputs_record
from tacit.experiment.batches import held_out
from tacit.tape import open_tape

OUT = Path("out/inputs")
SEEDS = (0, 1, 2)
BOTTOMS = {
    "credit": (
        "masked(width=32)",
        "masked(width=8)",
        "masked(width=4)",
        "masked(width=2)",
        "pca(16)",
    ),
    "spambase": ("masked(width=32, epochs=100)", "masked(width=8, epochs=100)", "pca(32)"),
    "imdb": ("masked(width=32)", "masked(width=8)", "pca(128)"),
}
CHANGES = ("8 bits", "4 bits", "noise 0.1", "noise 0.3", "noise 1.0")
"""What is done to the embeddings of the first bottom of each data set."""


def changed(train: Tensor, test: Tensor, change: str, seed: int) -> tuple[Tensor, Tensor]:
    """Return both parts as they are sent: unchanged, rounded or with noise."""
    kind = change.partition(" ")
    if not change:
        return train, test
    if kind[2] == "bits":
        low, high = train.min(0).values, train.max(0).values
        step = ((high - low) / (2 ** int(kind[0]) - 1)).clamp(min=1e-12)
        top = 2 ** int(kind[0]) - 1
        first, second = (
            low + step * ((z - low) / step).round().clamp(0, top) for z in (train, test)
        )
        return first, second
    scale = float(kind[2]) * train.std(0)
    draws = torch.Generator().manual_seed(seed)
    first, second = (z + scale * torch.randn(z.shape, generator=draws) for z in (train, test))
    return first, second


def label_free(name: str, seed: int, spec: str) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yield each way to send a bottom's embeddings, and a function that measures it."""
    table = data.load(name, seed=seed)
    train, test = data.split(table, seed=seed)
    rows = data.take(table, train)
    inputs = nets.Inputs(rows.numeric.shape[1], table.cardinalities)
    labels = torch.tensor(np.array(table.labels))
    features = FeatureTable.of_data(table).take(train)
    parts: list[Tensor] = []

    def measure(change: str) -> dict[str, Any]:
        if not parts:
            bottom = pretrain.get(spec).fit(inputs, rows.numeric, rows.categorical, seed=seed)
            parts.extend(embeddings(bottom, table, part) for part in (train, test))
        sent, later = changed(parts[0], parts[1], change, seed)
        own, held = held_out(np.arange(len(train)), HOLD_OUT, groups=None)
        known = labels[train]
        score, _ = head_score(
            (sent[own], known[own]),
            (sent[held], known[held]),
            (later, labels[test]),
            classes=table.classes,
            seed=seed,
        )
        return {"auc": score, **summary(audit_inputs(sent, features, seed=seed))}

    for change in ("", *(CHANGES if spec == BOTTOMS[name][0] else ())):
        yield change, partial(measure, change)


def summary(found: InputAudit) -> dict[str, Any]:
    """Return what the table says of an audit, and all of its rows."""
    return {
        "width": found.width,
        "known": found.known,
        "judged": found.judged,
        **numbers(found.table()),
    }


def numbers(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the median and mean gain of columns, how many reach one half, and the worst."""
    gains = [row["gain"] for row in rows if row["gain"] is not None]
    return {
        "median": float(np.median(gains)),
        "mean": float(np.mean(gains)),
        "half": sum(gain >= 0.5 for gain in gains),
        "columns": len(gains),
        "worst": max(gains),
        "rows": rows,
    }


def trained(seed: int) -> dict[str, Any]:
    """Return what one epoch and all epochs of a bottom trained on Credit show."""
    run = OUT / f"credit-run-{seed}"
    if not (run / "results.json").is_file():
        command = ["train", "--dataset", "credit", "--seed", str(seed), "--record", "--json"]
        subprocess.run(  # noqa: S603 - our own command
            [sys.executable, "-m", "tacit.cli", *command, "--out", str(run)],
            check=True,
            stdout=subprocess.DEVNULL,
        )
    features = FeatureTable.of_data(data.load("credit", seed=seed))
    tape = open_tape(next(run.glob("feature_party_*.tape")))
    record = inputs_record(tape, features, seed=seed, progress=lambda *_: None)
    results = json.loads((run / "results.json").read_text())
    return {
        "auc": results["test"]["auc"],
        "about": record["inputs_about"],
        "latest": numbers(record["inputs"]),
        "every": numbers(record["inputs_all_epochs"]),
    }


def kept(name: str, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Return a result, from its file where it was made before."""
    path = OUT / f"{name}.json".replace(" ", "")
    if not path.exists():
        start = time.process_time()
        result = make() | {"seconds": time.process_time() - start}
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(result))
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def lines(name: str, seeds: tuple[int, ...]) -> Iterator[str]:
    """Yield the table's line for each bottom and each way to send its embeddings."""
    for spec in BOTTOMS[name]:
        found: dict[str, list[dict[str, Any]]] = {}
        for seed in seeds:
            for change, make in label_free(name, seed, spec):
                file = f"{name}-{spec}-{change or 'plain'}-{seed}"
                found.setdefault(change, []).append(kept(file, make))
        for change, runs in found.items():
            yield line(f"{name} | `{spec}` | {change or 'as they are'}", runs)


def line(start: str, runs: list[dict[str, Any]]) -> str:
    """Return a line with the mean of the seeds."""
    means = {
        key: float(np.mean([r[key] for r in runs]))
        for key in ("auc", "median", "mean", "half", "worst")
    }
    return (
        f"| {start} | {means['auc']:.3f} | {means['median']:.2f} | {means['mean']:.2f} | "
        f"{means['half']:.0f} of {runs[0]['columns']} | {means['worst']:.2f} |"
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0] if __doc__ else None)
    parser.add_argument("names", nargs="*", help="data sets; all by default")
    parser.add_argument("--trained", action="store_true", help="bottoms trained end to end")
    parser.add_argument("--seeds", nargs="*", type=int, default=SEEDS)
    args = parser.parse_args()
    torch.set_num_threads(1)
    header = "data set|bottom|sent|test AUC|median R2|mean R2|columns with R2 of .5|worst R2"
    print(f"| {header.replace('|', ' | ')} |\n|{' --- |' * (header.count('|') + 1)}")
    if args.trained:
        runs = [kept(f"credit-trained-{seed}", partial(trained, seed)) for seed in args.seeds]
        for key, name in (("latest", "last epoch"), ("every", "all epochs together")):
            print(line(f"credit | trained end to end | {name}", [r | r[key] for r in runs]))
        return
    for name in args.names or BOTTOMS:
        for text in lines(name, tuple(args.seeds)):
            print(text, flush=True)


if __name__ == "__main__":
    main()
