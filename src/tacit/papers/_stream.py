"""Streams: one pass day by day, each day tested before it is trained on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tacit.experiment.sweep_store import TrialRecord
from tacit.papers._reading import known, protected, spread
from tacit.report.figures import Plot, Series, line_plot

# Small batches: a day of the sample that is here has few rows.
BASE: dict[str, Any] = {
    "dataset": "avazu",
    "model": "wdl",
    "stream": True,
    "epochs": 1,
    "monitor_every": 1,
}


def ways_of(records: Sequence[TrialRecord]) -> dict[str, list[TrialRecord]]:
    """Return the records of every protection."""
    found: dict[str, list[TrialRecord]] = {}
    for record in records:
        found.setdefault(protected(record), []).append(record)
    return found


def daily(record: TrialRecord, what: str) -> list[float | None]:
    """Return the test AUC, or the mean leak AUC of an attack, day by day."""
    history: list[dict[str, Any]] = (record.results or {})["history"]
    if what == "auc":
        return [(day["test"] or {}).get("auc") for day in history]
    return [(day["leak"].get(what) or {}).get("mean") for day in history]


def over_days(same: Sequence[TrialRecord], what: str) -> float | None:
    """Return the mean over days and seeds."""
    found = spread(value for record in same for value in daily(record, what))
    return None if found is None else found.mean


def daily_plot(ways: dict[str, list[TrialRecord]], what: str, *, title: str, y: str) -> Plot:
    """Return a line per protection over days, with the range of its seeds as a band."""
    lines = []
    for style, (way, same) in enumerate(ways.items()):
        days = list(zip(*(daily(record, what) for record in same), strict=False))
        each = [known(values) for values in days]
        lines.append(
            Series(
                name=way,
                x=list(range(1, len(days) + 1)),
                style=style,
                y=[sum(v) / len(v) if v else None for v in each],
                low=[min(v) if len(v) > 1 else None for v in each],
                high=[max(v) if len(v) > 1 else None for v in each],
            )
        )
    return line_plot(lines, title=title, x="day", y=y)
