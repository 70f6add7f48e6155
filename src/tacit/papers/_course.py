"""The course of trainings as figures and tables: what ``_traced`` has kept, over steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tacit.experiment.sweep_store import TrialRecord
from tacit.papers._reading import known, number, protected, spread
from tacit.papers._study import Cell, Tabulated
from tacit.report.figures import Plot, Series, line_plot

PLACES = {"cut": "cut", "first layer": "layer1"}
_LATE = 0.9


def course(record: TrialRecord, place: str, attack: str) -> tuple[list[float], list[float | None]]:
    """Return steps and the leak AUC of each window, at the cut or at a layer."""
    trace: list[dict[str, Any]] = (record.results or {})["trace"]
    steps = [float(window["step"]) for window in trace]
    found = [w["cut"] if place == "cut" else w["layers"].get(place, {}) for w in trace]
    return steps, [values.get(attack) for values in found]


def course_plot(drawn: Sequence[tuple[str, TrialRecord, str]], *, attack: str, title: str) -> Plot:
    """Return one line per (name, record, place): the leak AUC over the steps of a training."""
    lines = []
    for style, (name, record, place) in enumerate(drawn):
        x, y = course(record, place, attack)
        lines.append(Series(name=name, x=x, y=y, style=style))
    return line_plot(lines, title=title, x="step", y=f"leak AUC of {attack}", span=(0.48, 1.02))


def mean_leak(record: TrialRecord, place: str, attack: str, kind: str = "mean") -> float | None:
    """Return the mean over all batches of the leak AUC at the cut or at a layer."""
    where = "leak" if place == "cut" else f"layers.{place}"
    return number(record, f"{where}.{attack}.{kind}")


def late(record: TrialRecord, place: str, attack: str) -> float | None:
    """Return the leak AUC in the last tenth of a training."""
    _, values = course(record, place, attack)
    found = spread(values[-max(1, round(len(values) * (1 - _LATE))) :])
    return None if found is None else found.mean


def by_protection(records: Sequence[TrialRecord]) -> dict[str, TrialRecord]:
    """Return the first record of every way to protect."""
    found: dict[str, TrialRecord] = {}
    for record in records:
        found.setdefault(protected(record), record)
    return found


def course_table(
    title: str, ways: dict[str, TrialRecord], places: dict[str, str], attacks: Sequence[str]
) -> Tabulated:
    """Return mean, highest window and last tenth of every protection, place and attack."""
    rows: list[list[Cell]] = []
    for way, record in ways.items():
        for place, name in places.items():
            for attack in attacks:
                values = known(course(record, name, attack)[1])
                rows.append(
                    [
                        way,
                        place,
                        attack,
                        mean_leak(record, name, attack),
                        mean_leak(record, name, attack, "q95"),
                        max(values, default=None),
                        late(record, name, attack),
                    ]
                )
    return Tabulated(
        title=title,
        header=[
            "protection",
            "layer",
            "attack",
            "mean",
            "95% quantile",
            "highest window",
            "last tenth",
        ],
        rows=rows,
        note="Leak AUC within a batch (sign-free), over the batches of the whole training.",
    )
