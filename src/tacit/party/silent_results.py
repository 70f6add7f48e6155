"""The results of a training that sent no gradient, in the form of all results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tacit.party.settings import SILENT, TrainingSettings
from tacit.training.verdict import LIMIT
from tacit.types import Certificate

_WORDS = (
    "Nothing that depends on labels was sent. No attack on what the feature parties have seen can "
    "find more of the labels than their features tell. What embeddings show of the inputs is "
    "measured by tacit audit --inputs."
)


def silent_certificate() -> Certificate:
    """Return what is claimed where no gradient was sent.

    >>> silent_certificate().auc_bound
    0.5
    """
    return Certificate(
        spec=SILENT,
        how="by construction",
        assumption="nothing that depends on labels is sent",
        sum_kl=0.0,
        auc_bound=0.5,
        gaussian_auc=0.5,
        power=0.0,
        measured_power=0.0,
    )


def silent_results(
    settings: TrainingSettings,
    *,
    dataset: str,
    classes: int,
    head: dict[str, Any],
    pretrain: Sequence[str],
    width: int,
    history: Sequence[dict[str, Any]],
    test: dict[str, float] | None,
) -> dict[str, Any]:
    """Return the results of a silent training wherever it ran.

    Args:
        settings: what was asked for.
        dataset: its name.
        classes: how many there are.
        head: what became of the head: its spec, steps, and the epoch that was kept.
        pretrain: how the bottom of each feature party learned, where that is known here.
        width: numbers in what the label party gets of each row, of all parties side by side.
        history: the measures after each epoch of the head.
        test: the measures of the head that was kept.
    """
    said = settings.pretrain or "auto"
    return {
        "dataset": dataset,
        "model": f"silent: {', '.join(dict.fromkeys(pretrain)) or said} -> {head['spec']}",
        "protection": SILENT,
        "labels": None,
        "budget": settings.budget,
        "objective": settings.objective or ("bce" if classes == 2 else "ce"),
        "epochs": settings.epochs,
        "steps": head["steps"],
        "test": test,
        "leak": {},
        "memory_leak": None,
        "verdict": {
            "state": "within",
            "text": _WORDS,
            "limit": LIMIT,
            "releases": 0.0,
            "findings": [],
        },
        "embedding_leak": None,
        "objective_record": {},
        "sum_kl_per_release": 0.0,
        "rows_without_noise": None,
        "history": list(history),
        "certificate": vars(silent_certificate()),
        "label_certificate": None,
        "planned": None,
        "ledger": None,
        "warnings": {"odd_embeddings": 0},
        "releases": 0,
        "release_parameters": {},
        "head": head,
        "pretrain": list(pretrain),
        "width": width,
    }
