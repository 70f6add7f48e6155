"""The verdict on a measured leak, compared with a claim, a baseline and the null band.

No verdict says that labels are safe: if one attack finds nothing, another may.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, final

State = Literal["leaks", "unknown", "within", "nothing found"]
_ORDER: tuple[State, ...] = ("leaks", "unknown", "within", "nothing found")


@final
@dataclass(frozen=True)
class Judgement:
    """A state and the sentence that explains it."""

    state: State
    text: str


def judge(
    *,
    leak: float,
    low: float,
    high: float,
    null_high: float,
    baseline: float | None,
    bound: float | None,
    threshold: float | None,
    remedy: str,
) -> Judgement:
    """Return the verdict on one attack.

    The limit is the threshold asked for, or what features alone predict, or the band of noise.
    """
    seen = f"measured {leak:.3f} [{low:.3f}, {high:.3f}]"
    broken = bound is not None and low > bound
    if broken and leak > null_high:
        return Judgement(
            "leaks", f"claimed at most {bound:.3f} for honest batches, {seen}: {remedy}"
        )
    limit, name = _limit(null_high, baseline, threshold)
    if leak <= null_high:
        band = f"{seen}, inside the band of noise up to {null_high:.3f}"
        if null_high >= 1:
            return Judgement("unknown", f"{band}: too few examples, record more steps to decide")
        if broken:
            limit, name = bound or 0.0, "the claim of"
        elif threshold is None or high <= threshold:
            return Judgement("nothing found", band)
        return Judgement(
            "unknown", f"{band}, and reaching beyond {name} {limit:.3f}: record more steps"
        )
    if low > limit:
        return Judgement("leaks", f"{seen}, above {name} {limit:.3f}: {remedy}")
    if high <= limit:
        return Judgement("within", f"{seen}, not above {name} {limit:.3f}")
    return Judgement("unknown", f"{seen} spans {name} {limit:.3f}: record more steps to decide")


def _limit(null_high: float, baseline: float | None, threshold: float | None) -> tuple[float, str]:
    if threshold is not None:
        return threshold, "the threshold"
    if baseline is not None and baseline > null_high:
        return baseline, "what features alone predict,"
    return null_high, "the band of noise up to"


def headline(table: Sequence[dict[str, Any]]) -> Judgement:
    """Return the verdict on all attacks together: the worst of them."""
    if not table:
        return Judgement("unknown", "No attack could be run on this tape.")
    state = min((row["state"] for row in table), key=_ORDER.index)
    rows = [row for row in table if row["state"] == state]
    worst = max(rows, key=severity)
    name, value = worst["attack"], severity(worst)
    lead = {
        "leaks": f"Labels leak: {name} reaches {value:.3f}.",
        "unknown": f"Undecided: {name} reaches {value:.3f}, too uncertain to judge.",
        "within": f"No attack exceeds the limit; {name} comes closest with {value:.3f}.",
        "nothing found": f"These attacks found nothing; {name} comes closest with {value:.3f}.",
    }
    return Judgement(state, f"{lead[state]} {worst['verdict']}.")


def severity(row: dict[str, Any]) -> float:
    """Return what an attack reached: its leak AUC, or its clustering accuracy with many classes."""
    value = row["leak_auc"] if row["leak_auc"] is not None else row["clustering_accuracy"]
    return float(value or 0.0)


def advice(table: Sequence[dict[str, Any]], *, baseline: bool) -> list[str]:
    """Return what to do next, the most pressing first; each row brings its own remedy."""
    ways: dict[str, list[str]] = {}
    for row in sorted(table, key=severity, reverse=True):
        if row["state"] == "leaks":
            ways.setdefault(row["remedy"], []).append(row["attack"])
    found = [f"{', '.join(names)}: {way}." for way, names in ways.items()]
    if any(row["state"] == "unknown" for row in table):
        found.append("Record more steps: some intervals are too wide to decide.")
    if not baseline:
        found.append(
            "Record embeddings from the first epoch on, or give the features: without a prediction "
            "baseline, what labels show through the features counts as leakage."
        )
    return found or ["Audit again after the next change: other attacks may find more."]
