"""Figures 10 and 11 of the Marvell paper: leakage at every layer of the feature party."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from tacit.experiment.sweep_store import TrialRecord
from tacit.papers._course import by_protection, course, course_plot, course_table
from tacit.papers._reading import known
from tacit.papers._study import Finding, PaperClaim

ATTACKS = ("norm", "cosine")
PROTECTIONS = ("none", "marvell(s=4)")
_WHERE = "A.7.3"


def read_layers(records: Sequence[TrialRecord]) -> Finding:
    """Return leak AUC over training at every layer, and what A.7.3 says about it."""
    ways = by_protection(records)
    first = next(iter(ways.values()))
    names = list((first.results or {})["layers"])
    places = {f"{name} (cut)" if name == names[-1] else name: name for name in names}
    title = str(first.config["dataset"])
    return Finding(
        tables=[course_table(f"{title}: leak AUC at every layer", ways, places, ATTACKS)],
        claims=[_claim(ways, names, *what) for what in _CLAIMS],
        figures=[
            course_plot(
                [(name, record, place) for name, place in places.items()],
                attack=attack,
                title=f"{way}: {attack} leak at every layer",
            )
            for way, record in ways.items()
            for attack in ATTACKS
        ],
    )


def _means(record: TrialRecord, names: Sequence[str], attack: str) -> list[float]:
    found = [known(course(record, name, attack)[1]) for name in names]
    return [float(np.mean(values)) for values in found if values]


def _apart(record: TrialRecord, names: Sequence[str]) -> float:
    """Return the median over windows of the largest difference between layers, worst attack."""
    reach = []
    for attack in ATTACKS:
        values = np.array([course(record, name, attack)[1] for name in names], dtype=float)
        reach.append(float(np.median(values.max(axis=0) - values.min(axis=0))))
    return max(reach)


_Rule = Callable[[TrialRecord, Sequence[str]], tuple[bool, str]]


def _high(record: TrialRecord, names: Sequence[str]) -> tuple[bool, str]:
    least = min(v for attack in ATTACKS for v in _means(record, names, attack))
    return least > 0.8, f"at least {least:.3f}"


def _around(record: TrialRecord, names: Sequence[str]) -> tuple[bool, str]:
    most = max(v for attack in ATTACKS for v in _means(record, names, attack))
    return most < 0.7, f"at most {most:.3f}"


def _close(record: TrialRecord, names: Sequence[str]) -> tuple[bool, str]:
    apart = _apart(record, names)
    return apart <= 0.05, f"{apart:.3f} apart (median over training)"


def _earlier(attack: str, sign: int) -> _Rule:
    def rule(record: TrialRecord, names: Sequence[str]) -> tuple[bool, str]:
        *before, cut = _means(record, names, attack)
        more = float(np.mean(before)) - cut
        return sign * more > 0, f"earlier layers {more:+.3f} against the cut"

    return rule


_CLAIMS: tuple[tuple[str, str, _Rule], ...] = (
    (
        "without protection norm and cosine leak are very high at every layer (above 0.8)",
        "none",
        _high,
    ),
    (
        "with Marvell at s = 4 they are around 0.6 at every layer (below 0.7)",
        "marvell(s=4)",
        _around,
    ),
    ("with Marvell the layers are within about 0.05 of each other", "marvell(s=4)", _close),
    (
        "with Marvell earlier layers leak more than the cut by norm",
        "marvell(s=4)",
        _earlier("norm", 1),
    ),
    (
        "with Marvell earlier layers leak less than the cut by cosine",
        "marvell(s=4)",
        _earlier("cosine", -1),
    ),
)


def _claim(
    ways: dict[str, TrialRecord], names: Sequence[str], text: str, way: str, rule: _Rule
) -> PaperClaim:
    if way not in ways or len(names) < 2:
        return PaperClaim(
            text=text, source=_WHERE, holds=None, found="no trial with several layers"
        )
    holds, found = rule(ways[way], names)
    return PaperClaim(text=text, source=_WHERE, holds=holds, found=found)
