"""Numbers, tables and plots from the records of trials: over seeds, over steps and over days."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from tacit.experiment.sweep_store import TrialRecord
from tacit.fields import Fields
from tacit.papers.study import Cell, Spread, Tabulated
from tacit.report.figures import Plot, Series, line_plot
from tacit.report.tradeoff import value_of

LAYERS = {"cut": "cut", "first layer": "layer1"}  # as tables name them, and as records do
_GRID = 201
_LATE = 0.9  # the share of a training after which its last tenth begins
Points = Sequence[tuple[float, float]]


def number(record: TrialRecord, axis: str) -> float | None:
    """Return a measure by its dotted name, such as ``leak.cosine.q95``."""
    return value_of(Fields({"results": record.results or {}}, record.key), axis)


def grouped(
    records: Iterable[TrialRecord], *fields: str
) -> dict[tuple[Any, ...], list[TrialRecord]]:
    """Return records by fields of their configuration, in the order of first appearance."""
    found: dict[tuple[Any, ...], list[TrialRecord]] = {}
    for record in records:
        found.setdefault(tuple(record.config.get(f) for f in fields), []).append(record)
    return found


def protection_of(record: TrialRecord) -> str:
    """Return how a trial was protected: its protection, label mechanism and objective."""
    config = record.config
    parts = [config.get("protect") or "none", config.get("labels"), config.get("objective")]
    return " + ".join(str(p) for p in parts if p and p != "none") or "none"


def by_protection(records: Iterable[TrialRecord]) -> dict[str, list[TrialRecord]]:
    """Return the records of every way to protect, in the order of first appearance."""
    found: dict[str, list[TrialRecord]] = {}
    for record in records:
        found.setdefault(protection_of(record), []).append(record)
    return found


def present(values: Iterable[float | None]) -> list[float]:
    """Return the values that are not None."""
    return [value for value in values if value is not None]


def spread(values: Iterable[float | None]) -> Spread | None:
    """Return mean and standard deviation of the values that are not None.

    >>> spread([0.5, None, 0.7])
    Spread(mean=0.6, sd=0.14142135623730948, count=2)
    """
    there = present(values)
    if not there:
        return None
    sd = statistics.stdev(there) if len(there) > 1 else None
    return Spread(mean=statistics.fmean(there), sd=sd, count=len(there))


def mean(values: Iterable[float | None]) -> float | None:
    """Return the mean of the values that are not None."""
    found = spread(values)
    return None if found is None else found.mean


def spread_of(records: Iterable[TrialRecord], axis: str) -> Spread | None:
    """Return a measure's mean and standard deviation over trials."""
    return spread(number(record, axis) for record in records)


def mean_of(records: Iterable[TrialRecord], axis: str) -> float | None:
    """Return a measure's mean over trials."""
    return mean(number(record, axis) for record in records)


def frontier(points: Points) -> Points:
    """Return the points (utility, leak) that no other beats in both, by rising utility.

    >>> frontier([(0.6, 0.55), (0.65, 0.9), (0.7, 0.6), (0.68, 0.58)])
    [(0.6, 0.55), (0.68, 0.58), (0.7, 0.6)]
    """
    best: list[tuple[float, float]] = []
    for utility, leak in sorted(points, key=lambda point: (-point[0], point[1])):
        if not best or leak < best[-1][1]:
            best.append((utility, leak))
    return best[::-1]


def share_below(ours: Points, theirs: Points) -> float | None:
    """Return at which share of the common range of utility the first curve has less leak.

    Points are (utility, leak), more utility is better. Curves run through the points that no other
    of the same family beats, straight from one to the next.

    >>> share_below([(0.6, 0.5), (0.8, 0.6)], [(0.6, 0.7), (0.8, 0.8)])
    1.0
    >>> share_below([(0.6, 0.5)], [(0.8, 0.7), (0.9, 0.8)]) is None
    True
    """
    curves = [np.array(frontier(points)).reshape(-1, 2).T for points in (ours, theirs)]
    if min(curve.shape[1] for curve in curves) < 2:
        return None
    low = max(curve[0][0] for curve in curves)
    high = min(curve[0][-1] for curve in curves)
    if not high > low:
        return None
    grid = np.linspace(low, high, _GRID)
    mine, others = (np.interp(grid, *curve) for curve in curves)
    return float((mine < others).mean())


def leak_over_steps(
    record: TrialRecord, layer: str, attack: str
) -> tuple[list[float], list[float | None]]:
    """Return steps and the leak AUC of each window with its sign, at the cut or at a layer.

    The record is one of ``tasks.follow_leaks``.
    """
    trace: list[dict[str, Any]] = (record.results or {})["trace"]
    steps = [float(window["step"]) for window in trace]
    found = [w["cut"] if layer == "cut" else w["layers"].get(layer, {}) for w in trace]
    return steps, [values.get(attack) for values in found]


def steps_plot(drawn: Sequence[tuple[str, TrialRecord, str]], *, attack: str, title: str) -> Plot:
    """Return one line per (name, record, layer): the leak AUC over the steps of a training."""
    lines = []
    for style, (name, record, layer) in enumerate(drawn):
        x, y = leak_over_steps(record, layer, attack)
        lines.append(Series(name=name, x=x, y=y, style=style))
    return line_plot(lines, title=title, x="step", y=f"leak AUC of {attack}", span=(0.48, 1.02))


# A leak AUC as the papers take it, with its sign, then without one, and what noise alone gives the
# latter: pooled over batches or their mean, and the 95% quantile over batches.
POOLED = {"leak AUC": "signed", "sign-free": "mean", "noise": "null_mean"}
QUANTILE = {"leak AUC": "signed_q95", "sign-free": "q95", "noise": "null_q95"}
READ_LEAKS = (
    "Leak AUC is with its sign and over all pairs of a batch, as in the papers: 0.5 is nothing. "
    "Sign-free is the mean over batches of the better of both directions; noise is what that is "
    "for scores that know nothing, and what exceeds it is leakage."
)


def layer_leak(record: TrialRecord, layer: str, attack: str, kind: str = "signed") -> float | None:
    """Return the leak AUC at the cut or at a layer, over all batches of a training."""
    where = "leak" if layer == "cut" else f"layers.{layer}"
    return number(record, f"{where}.{attack}.{kind}")


def steps_table(
    title: str,
    protections: dict[str, list[TrialRecord]],
    layers: dict[str, str],
    attacks: Sequence[str],
) -> Tabulated:
    """Return pooled leak, highest window and last tenth of every protection, layer and attack."""
    rows: list[list[Cell]] = []
    for protection, same in protections.items():
        for shown, layer in layers.items():
            for attack in attacks:
                curves = [leak_over_steps(record, layer, attack)[1] for record in same]
                highest = [max(present(values), default=None) for values in curves]
                rows.append(
                    [
                        protection,
                        shown,
                        attack,
                        len(same),
                        _over(same, layer, attack, "signed"),
                        _over(same, layer, attack, "signed_q95"),
                        spread(highest),
                        spread(mean(_last_tenth(values)) for values in curves),
                        _over(same, layer, attack, "mean"),
                        _over(same, layer, attack, "null_mean"),
                    ]
                )
    names = ["protection", "layer", "attack", "seeds", "leak AUC", "95% quantile"]
    names += ["highest window", "last tenth", "sign-free", "noise"]
    return Tabulated(title=title, header=names, rows=rows, note=READ_LEAKS)


def _over(same: Sequence[TrialRecord], layer: str, attack: str, kind: str) -> Spread | None:
    return spread(layer_leak(record, layer, attack, kind) for record in same)


def _last_tenth(values: Sequence[float | None]) -> Sequence[float | None]:
    return values[-max(1, round(len(values) * (1 - _LATE))) :]


def over_days(record: TrialRecord, what: str, kind: str = "signed") -> list[float | None]:
    """Return the test AUC, or the leak AUC of an attack, day by day."""
    history: list[dict[str, Any]] = (record.results or {})["history"]
    if what == "auc":
        return [(day["test"] or {}).get("auc") for day in history]
    return [(day["leak"].get(what) or {}).get(kind) for day in history]


def spread_over_days(same: Sequence[TrialRecord], what: str, kind: str = "signed") -> Spread | None:
    """Return mean and standard deviation over seeds of the mean over days."""
    return spread(mean(over_days(record, what, kind)) for record in same)


def mean_over_days(same: Sequence[TrialRecord], what: str, kind: str = "signed") -> float | None:
    """Return the mean over days and seeds."""
    found = spread_over_days(same, what, kind)
    return None if found is None else found.mean


def days_plot(protections: dict[str, list[TrialRecord]], what: str, *, title: str, y: str) -> Plot:
    """Return a line per protection over days, with the range of its seeds as a band."""
    lines = []
    for style, (protection, same) in enumerate(protections.items()):
        days = list(zip(*(over_days(record, what) for record in same), strict=False))
        each = [present(values) for values in days]
        lines.append(
            Series(
                name=protection,
                x=list(range(1, len(days) + 1)),
                style=style,
                y=[sum(v) / len(v) if v else None for v in each],
                low=[min(v) if len(v) > 1 else None for v in each],
                high=[max(v) if len(v) > 1 else None for v in each],
            )
        )
    return line_plot(lines, title=title, x="day", y=y)
