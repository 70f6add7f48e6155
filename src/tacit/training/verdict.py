"""The verdict on the label leakage of a finished run, for its log and its results."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, final

from tacit.attack import get
from tacit.evaluate.remedy import TARGET, AuditedSetting, reads_embeddings_only, remedy
from tacit.measure import auc_bound

LIMIT = TARGET
"""A leak AUC above this is reported, whatever was claimed."""

State = Literal["leaks", "unknown", "within"]


@final
@dataclass(frozen=True, kw_only=True)
class MemoryLeak:
    """The leak AUC of the memory attack over all releases, with its interval where there is one."""

    leak: float
    low: float | None = None
    high: float | None = None


@final
@dataclass(frozen=True, kw_only=True)
class _Finding:
    """One attack beside the limit: what its certificate claims, or ``LIMIT`` if that is lower."""

    attack: str
    leak: float
    low: float
    high: float
    claim: float | None
    remedy: str

    @property
    def limit(self) -> float:
        return LIMIT if self.claim is None else min(LIMIT, self.claim)

    @property
    def state(self) -> State:
        """Above the limit with its whole interval, only with its value, or not."""
        if self.leak <= self.limit:
            return "within"
        return "leaks" if self.low > self.limit else "unknown"

    def __str__(self) -> str:
        claimed = self.claim is not None and self.claim < LIMIT
        whose = f" claimed of honest batches ({self.limit:.3f})" if claimed else f" {LIMIT:g}"
        where = "above what is" if claimed else "above"
        if self.state == "unknown":
            where = "and its interval reaches below what is" if claimed else "its interval spans"
        interval = f"[{self.low:.3f}, {self.high:.3f}]"
        return f"{self.attack} reaches {self.leak:.3f} {interval}, {where}{whose}"

    def record(self) -> dict[str, Any]:
        return {
            "attack": self.attack,
            "leak_auc": self.leak,
            "low": self.low,
            "high": self.high,
            "claim": self.claim,
            "limit": self.limit,
            "state": self.state,
            "remedy": self.remedy,
        }


def verdict_of(
    live: Mapping[str, Mapping[str, float]],
    memory: MemoryLeak | None,
    *,
    setting: AuditedSetting,
    sum_kl: float | None,
) -> dict[str, Any]:
    """Return the verdict on a run: its state, the words, and each finding.

    Args:
        live: what each live attack found in single releases.
        memory: what adding up over all of them found.
        setting: what was in use, and how often each example was released.
        sum_kl: what a release claims on average; None where nothing is claimed.

    >>> setting = AuditedSetting(spec="marvell(s=4, covariance=full)", releases=60)
    >>> found = verdict_of({}, MemoryLeak(leak=0.984), setting=setting, sum_kl=0.5)
    >>> found["state"], found["text"][:52]
    ('leaks', 'Labels leak after 60 epochs: memory reaches 0.984 [0')
    """
    findings = [
        _Finding(
            attack=name,
            leak=leak["pooled"],
            low=leak["low"],
            high=leak["high"],
            claim=_claim(name, sum_kl, releases=1),
            remedy=remedy(get(name), setting),
        )
        for name, leak in live.items()
    ]
    if memory is not None:
        findings.append(
            _Finding(
                attack="memory",
                leak=memory.leak,
                low=memory.leak if memory.low is None else memory.low,
                high=memory.leak if memory.high is None else memory.high,
                claim=_claim("memory", sum_kl, releases=setting.epochs),
                remedy=remedy(get("memory"), setting),
            )
        )
    findings.sort(key=lambda one: one.leak, reverse=True)
    states = {one.state for one in findings}
    ordered: tuple[State, ...] = ("leaks", "unknown", "within")
    return {
        "state": next((state for state in ordered if state in states), "unknown"),
        "text": _words(findings, setting),
        "limit": LIMIT,
        "releases": setting.releases,
        "findings": [one.record() for one in findings],
    }


def _claim(attack: str, sum_kl: float | None, *, releases: int) -> float | None:
    if sum_kl is None or reads_embeddings_only(get(attack)):
        return None
    return auc_bound(releases * sum_kl)


def _words(findings: list[_Finding], setting: AuditedSetting) -> str:
    if not findings:
        return "No attack was run, so nothing is known of what leaked."
    above = [one for one in findings if one.state == "leaks"]
    lead = f"Labels leak after {setting.often}"
    if not above:
        above = [one for one in findings if one.state == "unknown"]
        lead = f"Undecided after {setting.often}"
    if not above:
        worst = findings[0]
        return (
            f"No live attack came above its limit after {setting.often}; {worst.attack} comes "
            f"closest with {worst.leak:.3f}. Other attacks may find more: audit a recording."
        )
    ways: dict[str, list[str]] = {}
    for one in above:
        ways.setdefault(one.remedy, []).append(one.attack)
    told = "; ".join(map(str, above))
    return f"{lead}: {told}. " + " ".join(
        f"{', '.join(names)}: {way}." for way, names in ways.items()
    )
