"""Marvell, ICLR 2022, figure 10: leakage at each of four convolutional layers."""

from __future__ import annotations

from typing import Any

from tacit.papers._layered import ATTACKS, PROTECTIONS, read_layers
from tacit.papers._study import Study


def _plan(full: bool) -> list[dict[str, Any]]:
    values: dict[str, Any] = {
        "layers": True,
        "attacks": ATTACKS,
        "batch_size": 128,
        "monitor_every": 1,
    }
    if full:
        values |= {"dataset": "isic", "model": "isic_conv", "epochs": 1000, "lr": 1e-5}
    else:
        values |= {
            "dataset": "ham10000",
            "model": "isic_conv",
            "epochs": 1,
            "rows": 4000,
            "lr": 1e-3,
        }
    return [{**values, "protect": spec} for spec in PROTECTIONS]


STUDY = Study(
    name="fig10-layers",
    paper="marvell",
    title="leak at each of four convolutional layers, with and without Marvell",
    place="figure 10, A.7.3",
    plan=_plan,
    read=read_layers,
    scaled=(
        "HAM10000 (4,000 images of 32 x 32, enlarged to 84 x 84) stands in for ISIC (5,840)",
        "one epoch at a rate of 1e-3, in place of 1000 at 1e-5",
    ),
    departs=("curves are means of windows of batches, in place of a Gaussian kernel",),
    task="tacit.papers._traced:traced",
)
