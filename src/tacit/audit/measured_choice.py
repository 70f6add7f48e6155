"""What each way to protect labels gives on a user's own table: trained, attacked and audited."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, final

from tacit.accounting import recommend
from tacit.audit.feature_table import FeatureTable
from tacit.audit.run import run_audit
from tacit.party.settings import SILENT
from tacit.tape import open_tape

Train = Callable[[Mapping[str, Any], Path], Mapping[str, Any]]
"""Trains with some settings, recorded in a new directory; returns the results."""

InputRecord = Mapping[str, Any]
"""What embeddings show of one column, as plain values."""

UNPROTECTED = "no protection"
_NOTHING = 0.5


@final
@dataclass(frozen=True, kw_only=True)
class MeasuredChoice:
    """One way to train, and what it gave.

    Attributes:
        name: of the way.
        settings: what it adds to the settings that all share.
        auc: on rows that were not trained on, one against the rest of many classes. They choose the
            way, so the model that is trained then is judged on others.
        leak: the highest leak AUC of the live attacks, 0.5 where nothing was sent.
        leak_low: the lower end of its interval.
        attack: which attack that was.
        shown: how many columns the embeddings of all epochs show, out of ``columns``.
        columns: how many there are.
        worst_input: the column that is shown best, and how much of it, 0 to 1.
        seconds: how long the training took.
        rank: 1 is the first choice; None where it leaks more than was asked for or is ruled out.
        why: the reason, in words.
    """

    name: str
    settings: Mapping[str, Any]
    auc: float | None
    leak: float
    leak_low: float
    attack: str
    shown: int
    columns: int
    worst_input: tuple[str, float] | None
    seconds: float
    rank: int | None = None
    why: str = ""

    def record(self) -> dict[str, Any]:
        """Return plain values."""
        return asdict(self)


def ways(*, target: float, epochs: int, examples: int, classes: int) -> dict[str, dict[str, Any]]:
    """Return the settings of each way that is measured, by name.

    >>> list(ways(target=0.65, epochs=5, examples=1000, classes=2))
    ['no protection', 'silent', 'planned Marvell', 'randomised labels']
    """
    planned = recommend(target=target, epochs=epochs, examples=examples, classes=classes)
    found: dict[str, dict[str, Any]] = {
        UNPROTECTED: {"protect": "none", "epochs": epochs},
        SILENT: {"protect": SILENT},
    }
    for one in planned:
        if one.labels is None:
            found["planned Marvell"] = {"protect": one.protect, "epochs": epochs}
        else:
            found["randomised labels"] = {
                "protect": "none",
                "labels": one.labels,
                "epochs": epochs,
            }
    return found


def measure_ways(
    settings: Mapping[str, Mapping[str, Any]],
    *,
    train: Train,
    features: FeatureTable,
    folder: Path,
    target: float,
    hide_inputs: bool,
    images: bool = False,
    seed: int = 0,
) -> tuple[MeasuredChoice, ...]:
    """Train in every way and return what came of it, the first choice first.

    What embeddings show is audited over all epochs that were sent. ``hide_inputs`` rules silence
    out: its embeddings are made to keep the inputs.

    Guarantee: empirical only, by the attacks that ran; silence leaks nothing by construction.
    """
    found = []
    for number, (name, given) in enumerate(settings.items()):
        run = folder / f"run-{number}"
        results = train(given, run)
        found.append(_measured(name, given, results, _inputs(run, features, seed)))
    return ranked(found, target=target, hide_inputs=hide_inputs, images=images)


def _measured(
    name: str, settings: Mapping[str, Any], results: Mapping[str, Any], rows: Sequence[InputRecord]
) -> MeasuredChoice:
    findings = results["verdict"].get("findings", ())
    leak = max(findings, key=lambda one: one["leak_auc"], default=None)
    shown = [row for row in rows if row["gain"] is not None and row["low"] > row["baseline"]]
    worst = max(shown, key=lambda row: row["gain"], default=None)
    return MeasuredChoice(
        name=name,
        settings=settings,
        auc=results["test"].get("auc"),
        leak=_NOTHING if leak is None else leak["leak_auc"],
        leak_low=_NOTHING if leak is None else leak["low"],
        attack="" if leak is None else leak["attack"],
        shown=len(shown),
        columns=len(rows),
        worst_input=None if worst is None else (worst["column"], worst["gain"]),
        seconds=results["seconds"],
    )


def _inputs(run: Path, features: FeatureTable, seed: int) -> Sequence[InputRecord]:
    """Return what the first feature party's embeddings show, of all epochs where there are some."""
    (sent,) = [*run.glob("feature_party_0.tape"), *run.glob("embeddings_0.npz")]
    record = run_audit(open_tape(sent), None, inputs=features, seed=seed).record
    rows: Sequence[InputRecord] = record["inputs_all_epochs"] or record["inputs"]
    return rows


def ranked(
    found: Sequence[MeasuredChoice], *, target: float, hide_inputs: bool, images: bool
) -> tuple[MeasuredChoice, ...]:
    """Return the ways in the order in which to take them, each with the reason.

    Of tables silence comes first: it leaks nothing by construction, whatever the other party does.
    The others stay at ``target`` or are out, and the one with the highest AUC comes first.
    """
    fits = [one for one in found if one.leak_low <= target and one.name != UNPROTECTED]
    if hide_inputs:
        fits = [one for one in fits if one.name != SILENT]
    order = sorted(
        fits, key=lambda one: (not images and one.name == SILENT, one.auc or 0.0), reverse=True
    )
    best = max((one.auc or 0.0 for one in fits), default=0.0)
    told = [
        replace(one, rank=number, why=_reason(one, best=best))
        for number, one in enumerate(order, start=1)
    ]
    names = {one.name for one in fits}
    rest = [
        replace(one, why=_why_not(one, target=target)) for one in found if one.name not in names
    ]
    return (*told, *rest)


def _reason(one: MeasuredChoice, *, best: float) -> str:
    said = (
        "no label can leak, at any number of epochs" if one.name == SILENT else "within the target"
    )
    behind = best - (one.auc or 0.0)
    return said if behind <= 0 else f"{said}; {behind:.3f} below the best AUC"


def _why_not(one: MeasuredChoice, *, target: float) -> str:
    if one.name == UNPROTECTED:
        return "gives the labels away; for comparison"
    if one.leak_low > target:
        return f"{one.attack} finds {one.leak:.3f}, above the target of {target:g}"
    return "ruled out: its embeddings show inputs"
