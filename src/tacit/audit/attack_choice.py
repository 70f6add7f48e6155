"""Which attacks an audit runs, and why it leaves others out."""

from __future__ import annotations

from collections.abc import Sequence

from tacit.attack import ATTACKS, Attack, AuditForm
from tacit.attack import get as get_attack
from tacit.audit.truth import TapeSummary, Truth
from tacit.errors import KnowledgeError, SpecError


def default_attacks() -> list[str]:
    """Return the attacks that an audit runs by default, as every registered attack declares.

    >>> default_attacks()[:3]
    ['norm', 'cosine', 'hint']
    """
    forms = [
        form
        for entry in ATTACKS
        for form in (
            (AuditForm(entry.name),) if entry.cls.audit_forms is None else entry.cls.audit_forms
        )
    ]
    return [form.spec for form in sorted(forms, key=lambda form: form.order)]


def choose(
    asked: Sequence[str | Attack] | None, found: TapeSummary, truth: Truth
) -> tuple[list[Attack], list[dict[str, str]]]:
    """Return the attacks to run, and why others are left out; one that was asked for must run."""
    chosen: dict[str, Attack] = {}
    skipped = []
    wanted = default_attacks() if asked is None else [asked] if isinstance(asked, str) else asked
    for spec in wanted:
        try:
            attack = get_attack(spec)
            reason = _unfit(attack, found, truth)
        except SpecError as error:  # a default form cannot be built if it needs a parameter
            if asked is not None:
                raise
            skipped.append({"attack": str(spec), "reason": str(error)})
            continue
        if reason is None:
            chosen[str(attack)] = attack
        elif asked is not None:
            raise KnowledgeError(f"{attack}: {reason}: leave it out")
        else:
            skipped.append({"attack": str(attack), "reason": reason})
    return list(chosen.values()), skipped


def _unfit(attack: Attack, found: TapeSummary, truth: Truth) -> str | None:
    if "embeddings" in attack.needs and not found.embeddings:
        return "the tape has no embeddings"
    if truth.classes > 2 and attack.about_one_class:
        return f"it tells two classes apart, there are {truth.classes}"
    return None
