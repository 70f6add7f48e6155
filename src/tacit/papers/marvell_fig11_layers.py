"""Marvell, ICLR 2022, figure 11: leakage at each of eight fully connected layers."""

from __future__ import annotations

from typing import Any

from tacit.papers._layered import ATTACKS, PROTECTIONS, read_layers
from tacit.papers._study import Study


def _plan(full: bool) -> list[dict[str, Any]]:
    values: dict[str, Any] = {
        "dataset": "criteo",
        "model": "wdl(layers=11)",
        "cut": 8,
        "lr": 1e-4,
        "layers": True,
        "attacks": ATTACKS,
    }
    values |= {"epochs": 5, "rows": 4_584_061} if full else {"epochs": 3}
    return [{**values, "monitor_every": 1 if full else 2, "protect": p} for p in PROTECTIONS]


STUDY = Study(
    name="fig11-layers",
    paper="marvell",
    title="leak at each of eight fully connected layers, with and without Marvell",
    place="figure 11, A.7.3",
    plan=_plan,
    read=read_layers,
    scaled=(
        "the sample of Criteo that is here (137,139 rows in place of 4.6 million) and 3 epochs in "
        "place of 5",
        "every second batch is attacked, in place of every one",
    ),
    departs=("curves are means of windows of batches, in place of a Gaussian kernel",),
    task="tacit.papers._traced:traced",
)
