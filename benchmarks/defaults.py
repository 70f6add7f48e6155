"""What the defaults of ``tacit train`` reach without protection, beside two models of scikit-learn.

``TACIT_DATA=... python benchmarks/defaults.py`` prints the table of docs/defaults.md. Every run is
kept as JSON in ``out/defaults``; a second call only fills gaps. The splits of these seeds had no
part in choosing the defaults, other splits of the same tables had. All three models have the same
training rows and are tested on the same others:

* logistic regression on one-hot categories and numbers by their ranks (as a normal distribution),
  its penalty chosen on a tenth of the training rows;
* HistGradientBoostingClassifier on numbers as they are and categories by their cross-fitted target
  encoding, stopped early on a tenth of the training rows.
"""

from __future__ import annotations

import json
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy import sparse
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import StratifiedKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, QuantileTransformer, StandardScaler, TargetEncoder

from tacit import data
from tacit.experiment.config import TrainConfig
from tacit.experiment.run import run

OUT = Path("out/defaults")
SEEDS = (0, 1, 2)
NAMES = ("ads", "spambase", "credit", "imdb", "avazu", "criteo")
PENALTIES = (0.01, 0.1, 1.0)
PROTECTED = "marvell(s=4)"
Split = tuple[data.Table, Any, Any]


def default(name: str, seed: int, _split: Split) -> float:
    """Return the test AUC of ``tacit train --dataset NAME --seed SEED``, without attacks."""
    return _trained(name, seed, "none")


def protected(name: str, seed: int, _split: Split) -> float:
    """Return the same with published Marvell, for what noise costs at these settings."""
    return _trained(name, seed, PROTECTED)


def _trained(name: str, seed: int, protect: str) -> float:
    values = {"dataset": name, "seed": seed, "protect": protect, "attacks": (), "threads": 1}
    return float(run(TrainConfig.of(values))[1]["test"]["auc"])


def logistic(_name: str, _seed: int, split: Split) -> float:
    """Return the test AUC of logistic regression."""
    table, train, test = split
    truth, (seen, unseen) = np.asarray(table.labels), _one_hot(table, train, test)
    held = len(train) // 10
    there = truth[train]

    def fitted(rows: slice, penalty: float) -> LogisticRegression:
        return LogisticRegression(C=penalty, max_iter=300).fit(seen[rows], there[rows])

    def judged(penalty: float) -> float:
        scores = fitted(slice(held, None), penalty).decision_function(seen[:held])
        return float(roc_auc_score(there[:held], scores))

    best = max(PENALTIES, key=judged)
    scores = fitted(slice(None), best).decision_function(unseen)
    return float(roc_auc_score(truth[test], scores))


def boosting(_name: str, _seed: int, split: Split) -> float:
    """Return the test AUC of gradient boosting."""
    table, train, test = split
    truth, numeric = np.asarray(table.labels), np.asarray(table.numeric)
    seen, unseen = [numeric[train]], [numeric[test]]
    if table.cardinalities:
        codes = np.asarray(table.categorical)
        encoder = TargetEncoder(
            target_type="binary", cv=StratifiedKFold(5, shuffle=True, random_state=0)
        )
        seen.append(encoder.fit_transform(codes[train], truth[train]))
        unseen.append(encoder.transform(codes[test]))
    model = HistGradientBoostingClassifier(max_iter=300, early_stopping=True, random_state=0)
    model.fit(np.hstack(seen), truth[train])
    return float(roc_auc_score(truth[test], model.decision_function(np.hstack(unseen))))


def _one_hot(table: data.Table, train: Any, test: Any) -> tuple[Any, Any]:  # noqa: ANN401
    """Return what logistic regression sees of both sets of rows."""
    parts = []
    if table.numeric_names:
        ranks = QuantileTransformer(output_distribution="normal", random_state=0)
        parts.append((make_pipeline(ranks, StandardScaler()), np.asarray(table.numeric)))
    if table.cardinalities:
        parts.append((OneHotEncoder(handle_unknown="ignore"), np.asarray(table.categorical)))
    sets = []
    for rows in (train, test):
        found = []
        for encoder, columns in parts:
            if rows is train:
                encoder.fit(columns[rows])
            found.append(encoder.transform(columns[rows]))
        sets.append(sparse.hstack(found).tocsr() if table.cardinalities else found[0])
    return sets[0], sets[1]


MODELS: dict[str, Callable[[str, int, Split], float]] = {
    "tacit": default,
    "boosting": boosting,
    "logistic": logistic,
    "protected": protected,
}


def work(name: str, seed: int) -> None:
    """Measure what is missing for one data set and seed."""
    todo = {model: OUT / f"{name} {model} {seed}.json" for model in MODELS}
    todo = {model: place for model, place in todo.items() if not place.exists()}
    if not todo:
        return
    table = data.load(name, data_dir=None, rows=None, seed=seed)
    train, test = data.split(table, seed=seed)
    for model, place in todo.items():
        start = time.process_time()
        auc = MODELS[model](name, seed, (table, train, test))
        kept = {
            "auc": auc,
            "train": len(train),
            "test": len(test),
            "seconds": time.process_time() - start,
        }
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(json.dumps(kept))
        print(name, seed, model, kept, file=sys.stderr, flush=True)


def rows() -> Iterator[list[str]]:
    """Yield the cells of the table: means over seeds, and of tacit the seeds' differences."""
    for name in NAMES:
        found = {
            model: [json.loads((OUT / f"{name} {model} {seed}.json").read_text()) for seed in SEEDS]
            for model in MODELS
        }
        aucs = {model: np.array([one["auc"] for one in same]) for model, same in found.items()}
        better = max(("logistic", "boosting"), key=lambda model: aucs[model].mean())
        apart = aucs["tacit"] - aucs[better]
        first = found["tacit"][0]
        yield [
            name,
            f"{first['train']:,} + {first['test']:,}",
            *(f"{aucs[model].mean():.3f}" for model in ("logistic", "boosting", "tacit")),
            f"{apart.mean():+.3f} ({', '.join(f'{one:+.3f}' for one in apart)})",
            f"{aucs['protected'].mean():.3f}",
            f"{np.mean([one['seconds'] for one in found['tacit']]):.0f}",
        ]


def main() -> None:
    """Measure what is missing and print the table."""
    warnings.simplefilter("ignore", ConvergenceWarning)
    torch.set_num_threads(1)
    for seed in SEEDS:
        for name in NAMES:
            work(name, seed)
    header = [
        "data set",
        "rows to train + test",
        "logistic regression",
        "boosting",
        "`tacit train`",
        "to the better",
        f"with `{PROTECTED}`",
        "CPU s",
    ]
    for cells in (header, ["---"] * len(header), *rows()):
        print(f"| {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
