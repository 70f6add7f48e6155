"""Which attacks an audit runs, and why it leaves others out."""

from __future__ import annotations

from collections.abc import Sequence

from tacit.attack import Attack
from tacit.attack import get as get_attack
from tacit.audit.truth import Survey, Truth
from tacit.errors import KnowledgeError

# Cheap first.
ATTACKS = (
    "norm",
    "cosine",
    "hint",
    "mean",
    "median",
    "majority",
    "principal",
    "energy",
    "energy(share=0.9)",
    "lowbits",
    "memory",
    "memory(of=lowbits)",
    "kmeans(by=direction)",
    "kmeans",
    "kmeans(by=both)",
    "supervised",
)


def choose(
    asked: Sequence[str | Attack] | None, found: Survey, truth: Truth
) -> tuple[list[Attack], list[dict[str, str]]]:
    """Return the attacks to run, and why others are left out; one that was asked for must run."""
    chosen, skipped = [], []
    wanted = ATTACKS if asked is None else [asked] if isinstance(asked, str) else asked
    for attack in {str(a): a for a in map(get_attack, wanted)}.values():
        reason = _unfit(attack, found, truth)
        if reason is None:
            chosen.append(attack)
        elif asked is not None:
            raise KnowledgeError(f"{attack}: {reason}: leave it out")
        else:
            skipped.append({"attack": str(attack), "reason": reason})
    return chosen, skipped


def _unfit(attack: Attack, found: Survey, truth: Truth) -> str | None:
    if "embeddings" in attack.needs and not found.embeddings:
        return "the tape has no embeddings"
    if truth.classes > 2 and attack.needs & {"positive", "hints", "centres"}:
        return f"it tells two classes apart, there are {truth.classes}"
    return None
