"""Train GAFM as its paper does and write its tables and pictures: ``python benchmarks/gafm.py``.

Every finished run is a line of the file given by ``--out``, and a run that is there is not done
again: an interrupted measurement goes on. ``--only`` names groups; in the end (with ``--write``, at
once) the tables go into docs/results.md and, with ``--page``, the pictures into a page. Several
files may be given to be written together. Needs the data sets (``tacit data list``).
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gafm_tables import write_pictures, write_tables
from tacit._config import PLAIN
from tacit.experiment.config import TrainConfig
from tacit.experiment.gafm_delta import choose_delta
from tacit.experiment.run import Experiment

ATTACKS = ("norm", "mean(hard=true)", "median(hard=true)", "mean")
PAPER = {"model": "gafm_net", "epochs": 300, "batch_size": 1028, "lr": 1e-4, "attacks": ATTACKS}
STEPS = {"spambase": 3, "credit": 6, "imdb": 9}
DELTAS = (0.1, 0.2, 0.3, 0.5)
BASELINES = ("none", "marvell(s=1)", "marvell(s=4)", "marvell(s=64)", "marvell(s=1024)", "max_norm")
EVERY = 10
LAST = 3
DOC = Path(__file__).parents[1] / "docs" / "results.md"
Run = dict[str, Any]


def plan() -> Iterator[tuple[str, Run]]:
    """Yield every run with its group, the most wanted first."""
    for seed in range(10):
        yield "table", {"dataset": "spambase", "objective": "gafm(delta=0.05)", "seed": seed}
    groups: dict[str, list[Run]] = {
        "baseline": [{"protect": p} for p in BASELINES],
        "ablation": [{"objective": f"gafm(ablate={part})"} for part in ("gan", "penalty")],
        "parties": [{"objective": "gafm", "parties": 3, "combine": "mean"}],
        "sigma": [{"objective": f"gafm(sigma={sigma})"} for sigma in (0.25, 1)],
        "after": [{"objective": "gafm", "protect": f"marvell(s={s})"} for s in (1, 4)],
        "delta": [{"objective": f"gafm(delta={delta})"} for delta in DELTAS],
    }
    for seed in range(3):
        for name, values in groups.items():
            for changed in values:
                yield name, {"dataset": "spambase", "seed": seed, **changed}


def large() -> Iterator[tuple[str, Run]]:
    """Yield the runs on the two large tables."""
    for seed in range(3):
        for dataset in ("imdb", "credit"):
            yield "table", {"dataset": dataset, "objective": "gafm(delta=0.1)", "seed": seed}


def measured(values: Run) -> Run:
    """Train once; return what the tables and pictures need of it."""
    every = EVERY * STEPS[values["dataset"]]
    config = TrainConfig.of({**PLAIN, **PAPER, "monitor_every": every, **values})
    start = time.process_time()
    trial = Experiment(config)
    found = trial.train()
    leaks = [part["leak"] for part in found["history"] if part["leak"]]
    return {
        "test": found["test"],
        "train_auc": _sign_free(trial.score(trial.train_rows)["auc"]),
        "leak": {name: _means([leak[name]["mean"] for leak in leaks]) for name in ATTACKS},
        "memory_leak": found["memory_leak"],
        "embedding_leak": found["embedding_leak"],
        "objective_record": found["objective_record"],
        "tvd": found["components"]["tvd"],
        "components": found["components"] if values["seed"] == 0 else None,
        "by_epoch": [round(part["test"]["auc"], 4) for part in found["history"]],
        "cpu_seconds": time.process_time() - start,
        "seconds": found["seconds"],
    }


def _sign_free(auc: float) -> float:
    return max(auc, 1 - auc)


def _means(values: list[float]) -> dict[str, float]:
    return {"all": float(np.mean(values)), "last": float(np.mean(values[-LAST:]))}


def go(runs: Iterator[tuple[str, Run]], out: Path) -> None:
    """Do what is not done yet."""
    done = [json.loads(line)["values"] for line in out.open()] if out.exists() else []
    for group, values in runs:
        if values in done:
            continue
        found = measured(values)
        with out.open("a") as file:
            file.write(json.dumps({"group": group, "values": values, **found}) + "\n")
        test = found["test"]
        print(
            group,
            values,
            f"test AUC {test['auc']:.3f}",
            f"{found['cpu_seconds']:.0f} s",
            file=sys.stderr,
            flush=True,
        )


def choice(out: Path) -> None:
    """Choose delta on a tenth of Spambase as appendix C.2 does; one more line in the file."""
    values = {"dataset": "spambase", "objective": "gafm(delta=auto)", "seed": 0}
    if out.exists() and any(json.loads(line)["values"] == values for line in out.open()):
        return
    config = TrainConfig.of({**PLAIN, **PAPER, **values})
    found = choose_delta(config, tell=lambda line: print(line, file=sys.stderr, flush=True))
    with out.open("a") as file:
        line = {"group": "choice", "values": values, "choice": asdict(found)}
        file.write(json.dumps(line) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, nargs="+", default=[Path("gafm.jsonl")])
    parser.add_argument("--only", nargs="+", default=[], help="groups, large or choice")
    parser.add_argument("--write", action="store_true", help="only write what is there")
    parser.add_argument("--page", type=Path, help="write the pictures to this page")
    given = parser.parse_args()
    torch.set_num_threads(1)
    if not given.write:
        chosen = (found for found in plan() if not given.only or found[0] in given.only)
        go(chosen, given.out[0])
        if not given.only or "large" in given.only:
            go(large(), given.out[0])
        if not given.only or "choice" in given.only:
            choice(given.out[0])
    lines = [json.loads(line) for path in given.out if path.exists() for line in path.open()]
    write_tables(DOC, lines)
    if given.page:
        write_pictures(given.page, lines)


if __name__ == "__main__":
    main()
