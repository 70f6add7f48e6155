"""Train on real tables and write the leakage table: ``make results``.

Takes a quarter of an hour on two cores. Needs the data sets (``tacit data list`` says where they
come from); those that are missing are left out and named.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from tacit._config import PLAIN
from tacit.data import names
from tacit.errors import UsageError
from tacit.experiment.config import TrainConfig
from tacit.experiment.run import run

DOC = Path(__file__).parents[1] / "docs" / "results.md"
PROTECTIONS = ("none", "marvell(s=4)", "iso(t=1) | marvell(s=4)")
ATTACKS = ("norm", "cosine", "energy", "principal")
EVERY_STEP = {"layers": True, "monitor_every": 1}
SETTINGS: dict[str, dict[str, Any]] = {
    "criteo": {"model": "wdl", "epochs": 5, "lr": 1e-4},
    "avazu": {"model": "wdl", "epochs": 5, "lr": 3e-4},
    "credit": {"model": "mlp", "epochs": 20, "lr": 1e-3},
    "spambase": {"model": "mlp", "epochs": 20, "lr": 1e-3, "batch_size": 256},
    "imdb": {"model": "mlp", "epochs": 10, "lr": 1e-3},
}
HEADER = (
    "data set",
    "protection",
    "test AUC",
    "train loss",
    "norm",
    "cosine",
    "energy",
    "principal",
    "norm, layer 1",
    "cosine, layer 1",
)
INTRO = """# Results

Leak AUC is the mean over training steps of the AUC within each batch (sign-free), as in the papers;
0.5 is nothing, 1.0 is every label. All attacks look at the cut, the last two columns at the first
layer of the feature party, to which the release was carried back. Batch 1024 unless said otherwise,
every step attacked, seed 0. What the defaults of `tacit train` reach is in
[defaults.md](defaults.md). One command makes this table: `make results`; one row alone is

    tacit train --dataset criteo --model wdl --epochs 5 --lr 1e-4 --batch-size 1024 \\
        --weight-decay 0 --bins 0 --rare 0 --protect 'marvell(s=4)' \\
        --layers --monitor-every 1 --attack norm --attack cosine --attack energy --attack principal

"""


def main() -> None:
    lines = [f"| {' | '.join(HEADER)} |", "|" + "---|" * len(HEADER)]
    for dataset, settings in SETTINGS.items():
        for protection in PROTECTIONS:
            values = {"dataset": dataset, "protect": protection, "attacks": ATTACKS, **EVERY_STEP}
            try:
                _, found = run(TrainConfig.of({**PLAIN, **settings, **values}))
            except UsageError as error:
                print(f"left out: {error}", file=sys.stderr)
                break
            lines.append(_row(dataset, protection, found))
            print(lines[-1], f"({found['seconds']:.0f} s)", file=sys.stderr, flush=True)
    DOC.write_text(INTRO + "\n".join(lines) + "\n\n" + _settings() + _other_sections())


def _row(dataset: str, protection: str, found: dict[str, Any]) -> str:
    leak = {name: values["mean"] for name, values in found["leak"].items()}
    first = next(iter(found["layers"].values()))
    cells = [
        found["test"]["auc"],
        found["train"]["loss"],
        *(leak[name] for name in ATTACKS),
        first["norm"]["mean"],
        first["cosine"]["mean"],
    ]
    shown = " | ".join(f"{cell:.3f}" for cell in cells)
    return f"| {dataset} | `{protection.replace('|', chr(92) + '|')}` | {shown} |"


def _settings() -> str:
    rows = [
        f"* {name}: " + ", ".join(f"{key} {value}" for key, value in settings.items())
        for name, settings in SETTINGS.items()
        if name in names()
    ]
    return "Settings:\n\n" + "\n".join(rows) + "\n"


def _other_sections() -> str:
    """Return what other measurements have written below the table."""
    before = DOC.read_text() if DOC.exists() else ""
    place = before.find("\n## ")
    return before[place:] if place >= 0 else ""


if __name__ == "__main__":
    main()
