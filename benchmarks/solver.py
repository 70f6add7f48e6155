"""How long one Marvell solve takes over the certified instances."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

from tacit.protect.marvell.isotropic_solver import solve_marvell

__all__ = ["rows"]

GOLDEN = Path(__file__).parents[1] / "tests" / "golden" / "marvell_golden.json"


def microseconds(inputs: dict[str, Any], repeats: int = 5, calls: int = 50) -> float:
    """Time one instance; the fastest of several repeats leaves out other processes."""
    times = []
    for _ in range(repeats):
        start = perf_counter()
        for _ in range(calls):
            solve_marvell(**inputs)
        times.append(perf_counter() - start)
    return min(times) / calls * 1e6


def inputs(row: dict[str, Any]) -> dict[str, Any]:
    amount = {"power": row["P"]} if "P" in row else {"sum_kl": row["eps"]}
    return {name: row[name] for name in "dpuv"} | {"gap": row["D"]} | amount


def rows() -> list[tuple[str, str, str]]:
    """Give (what, measured, target) for both modes."""
    golden = json.loads(GOLDEN.read_text())
    found = []
    for what, key in (("power", "instances"), ("target", "target_instances")):
        times = [microseconds(inputs(row)) for row in golden[key]]
        measured = f"{median(times):.1f} us (slowest {max(times):.1f} us)"
        found.append((f"marvell solver, {what} mode, median of {len(times)}", measured, "20 us"))
    return found


if __name__ == "__main__":
    for row in rows():
        print(*row, sep=" | ")
