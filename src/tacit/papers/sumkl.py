"""Marvell's technical report: levels of sumKL from 0.01 to 3.6, day by day."""

from __future__ import annotations

import time
from collections.abc import Sequence
from statistics import median
from typing import Any

from tacit.experiment.config import TrainConfig
from tacit.experiment.sweep_store import TrialRecord
from tacit.papers.claims import bounded, falling
from tacit.papers.marvell_2021 import STREAM
from tacit.papers.records import (
    POOLED,
    READ_LEAKS,
    by_protection,
    days_plot,
    mean,
    mean_over_days,
    spread_over_days,
)
from tacit.papers.study import (
    Cell,
    Finding,
    PaperClaim,
    Published,
    Study,
    Tabulated,
    published_table,
)

_LEVELS = (3.6, 1.44, 0.64, 0.49, 0.16, 0.01)
_SPECS = ("none", "max_norm", *(f"marvell(sum_kl={level:g})" for level in _LEVELS))
_WHERE = "Experiments, Effectiveness"
_DROPS = {
    row["protection"]: float(row["AUC below no protection"])
    for row in published_table("sumkl_levels")
}
# The report's order, from the most: groups in brackets are about equal.
_UTILITY_ORDER = [
    ["none"],
    [
        "marvell(sum_kl=3.6)",
        "max_norm",
        "marvell(sum_kl=1.44)",
        "marvell(sum_kl=0.64)",
        "marvell(sum_kl=0.49)",
    ],
    ["marvell(sum_kl=0.16)"],
    ["marvell(sum_kl=0.01)"],
]
_LEAK_ORDER = [
    ["none"],
    ["marvell(sum_kl=3.6)"],
    ["marvell(sum_kl=1.44)"],
    ["marvell(sum_kl=0.64)"],
    ["marvell(sum_kl=0.49)"],
    ["max_norm"],
    ["marvell(sum_kl=0.16)"],
    ["marvell(sum_kl=0.01)"],
]
_PAPER_MS = float(published_table("sumkl_solver")[0]["milliseconds"])
_TIMES = 25


def _plan(full: bool) -> list[dict[str, Any]]:
    size = {"batch_size": 1024, "lr": 1e-4} if full else {"batch_size": 256, "lr": 1e-3}
    values = {**STREAM, "attacks": ("norm",), **size}
    return [{**values, "protect": s, "seed": n} for s in _SPECS for n in range(3)]


def train_and_time_solver(config: TrainConfig) -> dict[str, Any]:
    """Train, and time how long the solver takes at a sumKL of 0.04 on a cut 128 wide."""
    from tacit.experiment.run import run  # noqa: PLC0415 - loads torch
    from tacit.protect import solve_marvell  # noqa: PLC0415 - loads torch

    found = run(config)[1]
    spent = []
    for at in range(_TIMES):
        gap = 1 + 0.01 * at  # no two problems alike: a solution may be kept
        start = time.perf_counter()
        solve_marvell(d=128, p=0.17, u=0.002, v=0.01, gap=gap, sum_kl=0.04)
        spent.append(time.perf_counter() - start)
    return {**found, "solver_ms": 1000 * median(spent)}


def _read(records: Sequence[TrialRecord]) -> Finding:
    protections = by_protection(records)
    utility = {protection: mean_over_days(same, "auc") for protection, same in protections.items()}
    leak = {protection: mean_over_days(same, "norm") for protection, same in protections.items()}
    plain = utility.get("none")
    rows: list[list[Cell]] = [
        [
            protection,
            len(same),
            spread_over_days(same, "auc"),
            _minus(plain, utility[protection]),
            _DROPS.get(protection),
            *(spread_over_days(same, "norm", kind) for kind in POOLED.values()),
            _distance(leak[protection]),
        ]
        for protection, same in protections.items()
    ]
    spent = [
        float(record.results["solver_ms"])
        for record in records
        if record.results and "solver_ms" in record.results
    ]
    ours = median(spent) if spent else None
    tables = [
        Tabulated(
            title="Means over days",
            rows=rows,
            header=[
                *("protection", "seeds", "AUC", "below no protection", "paper: below"),
                *("norm", "sign-free", "noise", "|leak - 0.5|"),
            ],
            note=READ_LEAKS,
        ),
        Tabulated(
            title="Time to solve for the noise at a sumKL of 0.04, ms",
            header=["ours", "paper"],
            rows=[[ours, _PAPER_MS]],
        ),
    ]
    figures = [
        days_plot(protections, "auc", title="AUC by day", y="AUC"),
        days_plot(protections, "norm", title="Leak by day", y="leak AUC of norm"),
    ]
    return Finding(
        tables=tables, claims=[*_orders(utility, leak), *_range(utility, leak)], figures=figures
    )


def _minus(a: float | None, b: float | None) -> float | None:
    return None if a is None or b is None else a - b


def _distance(leak: float | None) -> float | None:
    return None if leak is None else abs(leak - 0.5)


def _orders(utility: dict[str, float | None], leak: dict[str, float | None]) -> list[PaperClaim]:
    claims = []
    for text, order, values in (
        (
            "performance: inf > [3.6, max_norm, 1.44, 0.64, 0.49] > 0.16 > 0.01",
            _UTILITY_ORDER,
            utility,
        ),
        (
            "leakage, |leak AUC - 0.5|: inf > 3.6 > 1.44 > 0.64 > 0.49 > max_norm > 0.16 > 0.01",
            _LEAK_ORDER,
            {protection: _distance(value) for protection, value in leak.items()},
        ),
    ):
        means = [mean(values.get(protection) for protection in group) for group in order]
        claims.append(falling(f"the order of {text}", source=_WHERE, values=means))
    return claims


def _range(utility: dict[str, float | None], leak: dict[str, float | None]) -> list[PaperClaim]:
    middle = [f"marvell(sum_kl={level:g})" for level in (0.16, 0.49, 0.64)]
    return [
        bounded(
            "from 0.16 to 0.64 the AUC drops by less than 0.02",
            source=_WHERE,
            values=[_minus(utility.get("none"), utility.get(protection)) for protection in middle],
            below=0.02,
        ),
        bounded(
            "from 0.16 to 0.64 the leak AUC is between 0.5 and 0.6",
            source=_WHERE,
            values=[leak.get(protection) for protection in middle],
            at_least=0.5,
            at_most=0.6,
        ),
    ]


STUDIES = (
    Study(
        name="sumkl-levels",
        paper="sumkl",
        title="performance and leakage day by day for sumKL from 0.01 to 3.6",
        place="Experiments of the technical report",
        plan=_plan,
        read=_read,
        scaled=(
            "the 43,256 rows of Avazu that are here, in batches of 256 at a rate of 1e-3, in "
            "place of all 40 million in batches of 1,024 at 1e-4",
        ),
        departs=("the report's conversion data are not public: the ten days of Avazu stand in",),
        published=[
            *(
                Published(what=f"{protection}: AUC below no protection", value=value, source=_WHERE)
                for protection, value in _DROPS.items()
            ),
            Published(what="solver at sumKL 0.04, ms", value=_PAPER_MS, source="Efficiency"),
        ],
        task="tacit.papers.sumkl:train_and_time_solver",
    ),
)
