"""What GAFM's tables have in common: its setting, its measures, its table 1."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tacit.experiment.config import TrainConfig
from tacit.experiment.sweep_store import TrialRecord
from tacit.papers._reading import number, spread_of
from tacit.papers._study import Cell, Published
from tacit.training.metrics import mean

ATTACKS = ("norm", "mean(hard=true)", "median(hard=true)")
MEASURES = {
    "train AUC": "train_auc",
    "test AUC": "test_auc",
    "norm": "late.norm",
    "mean": "late.mean(hard=true)",
    "median": "late.median(hard=true)",
    "TVD": "tvd",
}
COLUMNS = [name for measure in MEASURES for name in (measure, "paper")]
DELTAS = {"spambase": 0.05, "credit": 0.1, "imdb": 0.1}
# Batches of an epoch at the quick scale and in full: gradients are looked at every tenth epoch.
_STEPS = {"spambase": (3, 3), "credit": (6, 20), "imdb": (9, 24)}
_ROWS = {"spambase": None, "credit": 10_000, "imdb": 20_000}
_EVERY = 10
_LATE = 10  # the last tenth of a training counts
SCALED = (
    "10,000 rows of Credit and 20,000 of IMDB, in place of 30,000 and 50,000",
    "3 repetitions on Spambase and 2 on the others, in place of 10",
)
METHODS = {"GAFM": "gafm", "Marvell": "marvell(s=1)", "Max Norm": "max_norm", "Vanilla": "none"}


def sets(full: bool, *, seeds: tuple[int, int, int] = (3, 2, 10)) -> list[dict[str, Any]]:
    """Return the setting of every data set and repetition; ``seeds``: Spambase, others, full."""
    found = []
    for name in DELTAS:
        count = seeds[2] if full else seeds[0] if name == "spambase" else seeds[1]
        values = {
            "dataset": name,
            "model": "gafm_net",
            "epochs": 300,
            "batch_size": 1028,
            "lr": 1e-4,
            "attacks": ATTACKS,
            "monitor_every": _EVERY * _STEPS[name][full],
            "rows": None if full else _ROWS[name],
        }
        found += [{**values, "seed": seed} for seed in range(count)]
    return found


def of_set(values: dict[str, Any], **parameters: Any) -> dict[str, Any]:  # noqa: ANN401
    """Return the setting with GAFM as its objective, delta as the paper has it for the data."""
    given = {"delta": DELTAS[values["dataset"]], **parameters}
    text = ", ".join(f"{name}={value}" for name, value in given.items())
    return {**values, "objective": f"gafm({text})"}


def measured(config: TrainConfig) -> dict[str, Any]:
    """Train, and return what the tables need: AUCs without a sign, late leak AUCs, the TVD."""
    from tacit.experiment.run import run  # noqa: PLC0415 - loads torch

    trial, found = run(config)
    looked = [part["leak"] for part in found["history"] if part["leak"]]
    late = looked[-max(1, len(looked) // _LATE) :]
    components = found.get("components") or {}
    return {
        "train_auc": _sign_free(trial.score(trial.train_rows)["auc"]),
        "test_auc": _sign_free(found["test"]["auc"]),
        "test": found["test"],
        "late": {
            name: mean([leak[name]["mean"] for leak in late if name in leak]) for name in ATTACKS
        },
        "leak": found["leak"],
        "tvd": (components.get("tvd") or {}).get("whole"),
        "components": components if config.seed == 0 else None,
        "memory_leak": found["memory_leak"],
        "embedding_leak": found.get("embedding_leak"),
    }


def _sign_free(auc: float) -> float:
    return max(auc, 1 - auc)


def method_of(record: TrialRecord) -> str:
    """Return the paper's name of how a trial was protected."""
    objective = str(record.config.get("objective") or "")
    spec = "gafm" if objective.startswith("gafm") else record.config["protect"]
    return next((name for name, text in METHODS.items() if text == spec), str(spec))


def cells(same: Iterable[TrialRecord], paper: Sequence[float | None]) -> list[Cell]:
    """Return every measure over repetitions, each followed by the paper's number."""
    records = list(same)
    ours = [spread_of(records, axis) for axis in MEASURES.values()]
    return [cell for pair in zip(ours, paper, strict=True) for cell in pair]


def paper_cells(numbers: Sequence[float] | None) -> Sequence[float | None]:
    """Return a row of the paper's, or as many blanks."""
    return [None] * len(MEASURES) if numbers is None else numbers


def published_rows(
    table: Mapping[tuple[str, str], tuple[float, ...]], source: str
) -> list[Published]:
    """Return the rows of a table as published numbers: value, deviation, value, ..."""
    return [
        Published(
            what=f"{dataset}, {method}: {measure}",
            value=row[2 * at],
            sd=row[2 * at + 1],
            source=source,
        )
        for (dataset, method), row in table.items()
        for at, measure in enumerate(MEASURES)
    ]


def ratio(record: TrialRecord, attack: str) -> float | None:
    """Return leak AUC / training AUC, as appendix C.2 has it."""
    leak, auc = number(record, f"leak.{attack}.mean"), number(record, "train_auc")
    return None if leak is None or not auc else leak / auc
