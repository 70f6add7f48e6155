"""Records of trials to numbers: groups, means over seeds, and which curve lies below another."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from tacit.experiment.sweep_store import TrialRecord
from tacit.fields import Fields
from tacit.papers._study import Spread
from tacit.report.tradeoff import value_of

_GRID = 201
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


def protected(record: TrialRecord) -> str:
    """Return how a trial was protected: its protection, label mechanism and objective."""
    config = record.config
    parts = [config.get("protect") or "none", config.get("labels"), config.get("objective")]
    return " + ".join(str(p) for p in parts if p and p != "none") or "none"


def known(values: Iterable[float | None]) -> list[float]:
    """Return the values that are there."""
    return [value for value in values if value is not None]


def spread(values: Iterable[float | None]) -> Spread | None:
    """Return mean and standard deviation of the values that are there.

    >>> spread([0.5, None, 0.7])
    Spread(mean=0.6, sd=0.14142135623730948, count=2)
    """
    there = known(values)
    if not there:
        return None
    sd = statistics.stdev(there) if len(there) > 1 else None
    return Spread(mean=statistics.fmean(there), sd=sd, count=len(there))


def spread_of(records: Iterable[TrialRecord], axis: str) -> Spread | None:
    """Return a measure's mean and standard deviation over trials."""
    return spread(number(record, axis) for record in records)


def mean_of(records: Iterable[TrialRecord], axis: str) -> float | None:
    """Return a measure's mean over trials."""
    found = spread_of(records, axis)
    return None if found is None else found.mean


def frontier(points: Points) -> Points:
    """Return the points (worth, leak) that no other beats in both, by rising worth.

    >>> frontier([(0.6, 0.55), (0.65, 0.9), (0.7, 0.6), (0.68, 0.58)])
    [(0.6, 0.55), (0.68, 0.58), (0.7, 0.6)]
    """
    best: list[tuple[float, float]] = []
    for worth, leak in sorted(points, key=lambda point: (-point[0], point[1])):
        if not best or leak < best[-1][1]:
            best.append((worth, leak))
    return best[::-1]


def share_below(ours: Points, theirs: Points) -> float | None:
    """Return at which share of the common range of worth the first curve has less leak.

    Points are (worth, leak), more worth is better. Curves run through the points that are not
    beaten by another of the same family, straight from one to the next.

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


def yes(values: Iterable[float | None], rule: Callable[[float], bool]) -> bool | None:
    """Return whether all values follow a rule; None where there is no value."""
    there = known(values)
    return all(map(rule, there)) if there else None


def by_name(
    groups: Mapping[tuple[Any, ...], Sequence[TrialRecord]], name: str
) -> Sequence[TrialRecord]:
    """Return the records of a group of one field, empty where there is none."""
    return groups.get((name,), ())
