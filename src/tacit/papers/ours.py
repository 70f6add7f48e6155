"""Every protection against every attack, over epochs: a table that no paper has.

They come from the registries: a protection, a label mechanism or an attack that is registered
appears here without an edit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from tacit.attack import ATTACKS
from tacit.errors import TacitError, UsageError
from tacit.experiment.config import TrainConfig
from tacit.experiment.sweep_store import TrialRecord
from tacit.papers.records import grouped, protection_of, spread, spread_of
from tacit.papers.study import Cell, Finding, Study, Tabulated
from tacit.papers.tasks import audit_briefly, audit_fully
from tacit.protect import LABELS, PROTECTIONS
from tacit.report import lines
from tacit.spec import Registry

# The strengths of protections with a parameter; one that is not named here is tried at 1.
_USUAL = {
    "gaussian": ("gaussian(sigma=0.05)",),
    "iso": ("iso(t=1)", "iso(t=4)"),
    "marvell": (
        "marvell(s=1)",
        "marvell(s=4)",
        "marvell(s=4, covariance=full)",
        "iso(t=1) | marvell(s=4)",
    ),
    "rr": ("rr(epsilon=1)",),
    "gaussian_labels": ("gaussian_labels(sigma=1)",),
}
_GIVEN = {"positive", "hints", "centres", "embeddings", "labelled"}
_MORE = {"embeddings", "labelled"}  # these tell something without any gradient


def _specs(registry: Registry[Any]) -> Iterator[tuple[str, str | None]]:
    """Yield a spec of every entry, or its name and the reason why it has none."""
    for entry in registry:
        if entry.name in _USUAL:
            yield from ((spec, None) for spec in _USUAL[entry.name])
            continue
        reason = None
        for spec in (entry.name, f"{entry.name}(1)"):
            try:
                yield str(registry.get(spec)), None
                break
            except UsageError as error:
                reason = str(error)
        else:
            yield entry.name, reason


def _attacks() -> Iterator[tuple[str, str | None]]:
    for spec, reason in _specs(ATTACKS):
        unknown = set() if reason else ATTACKS.get(spec).needs - _GIVEN
        more = f"needs {', '.join(sorted(unknown))}, which no tape shows" if unknown else None
        yield spec, reason or more


def _plan(full: bool) -> list[dict[str, Any]]:
    base: dict[str, Any] = {"attacks": tuple(s for s, reason in _attacks() if reason is None)}
    if full:
        criteo = {**base, "dataset": "criteo", "model": "wdl", "epochs": 5, "lr": 1e-4}
        credit = {**base, "dataset": "credit", "model": "mlp(hidden=128)", "epochs": 20, "lr": 3e-4}
        settings = [{**values, "seed": seed} for values in (criteo, credit) for seed in range(3)]
    else:
        settings = [
            {
                **base,
                "dataset": "credit",
                "rows": 6000,
                "model": "mlp(hidden=32)",
                "epochs": 5,
                "lr": 1e-3,
                "batch_size": 256,
            }
        ]
    protections = [{"protect": spec} for spec, reason in _specs(PROTECTIONS) if reason is None]
    protections += [{"labels": spec} for spec, reason in _specs(LABELS) if reason is None]
    return [{**values, **protection} for values in settings for protection in protections]


def attack_briefly(config: TrainConfig) -> dict[str, Any]:
    """Train, and give each attack a minute; a refusal of the data is the result."""
    return _try(config, full=False)


def attack_fully(config: TrainConfig) -> dict[str, Any]:
    """Train, and give each attack all its time; a refusal of the data is the result."""
    return _try(config, full=True)


def _try(config: TrainConfig, *, full: bool) -> dict[str, Any]:
    try:
        return audit_fully(config) if full else audit_briefly(config)
    except TacitError as error:
        return {"refused": str(error)}


def _read(records: Sequence[TrialRecord]) -> Finding:
    ran = [record for record in records if "attacks" in (record.results or {})]
    refused = {
        f"{protection_of(r)}: {r.results['refused']}"
        for r in records
        if r.results and "refused" in r.results
    }
    tables, figures = [], []
    for (dataset,), found in grouped(ran, "dataset").items():
        names = list(dict.fromkeys(a for r in found for a in (r.results or {})["attacks"]))
        protections: dict[str, list[TrialRecord]] = {}
        for record in found:
            protections.setdefault(protection_of(record), []).append(record)
        tables.append(_table(dataset, names, protections))
        by_epoch = {protection: _highest_by_epoch(same) for protection, same in protections.items()}
        tables.append(_over_epochs(dataset, by_epoch))
        figures.append(
            lines(
                by_epoch,
                title=f"{dataset}: the strongest attack by epoch",
                x="epoch",
                y="highest leak AUC",
            )
        )
    not_tried = [
        f"{spec}: {reason}"
        for registry in (PROTECTIONS, LABELS)
        for spec, reason in _specs(registry)
        if reason
    ]
    not_tried += [f"{spec}: {reason}" for spec, reason in _attacks() if reason]
    return Finding(tables=tables, figures=figures, left_out=[*sorted(refused), *not_tried])


def _table(
    dataset: str, names: Sequence[str], protections: dict[str, list[TrialRecord]]
) -> Tabulated:
    rows: list[list[Cell]] = []
    for protection, same in protections.items():
        leaks = [spread_of(same, f"attacks.{name}.leak") for name in names]
        read = zip(names, leaks, strict=True)
        whole = [leak.mean for name, leak in read if leak and _plain(name)]
        epochs = [leak for leak in _highest_by_epoch(same) if leak is not None]
        rows.append(
            [protection, spread_of(same, "test.auc"), max([*whole, *epochs], default=None), *leaks]
        )
    return Tabulated(
        title=f"{dataset}: leak AUC of every attack on the whole recording",
        header=["protection", "test AUC", "highest of gradients", *names],
        rows=rows,
        note="0.5 is nothing, 1 is every label. The highest is of the whole recording or of an "
        "epoch: energy's sign can change, and then the whole hides what each part shows. "
        "Attacks that read embeddings or know some labels "
        f"({', '.join(name for name in names if not _plain(name))}) are not among the highest: "
        "part of what they reach is what features predict without any gradient.",
    )


def _plain(attack: str) -> bool:
    """Return whether an attack reads gradients alone."""
    return not ATTACKS.get(attack).needs & _MORE


def _highest_by_epoch(same: Sequence[TrialRecord]) -> list[float | None]:
    """Return the highest leak AUC of any attack after each epoch, averaged over seeds."""
    by_seed = []
    for record in same:
        attacks = (record.results or {})["attacks"]
        found = [attack for name, attack in attacks.items() if _plain(name)]
        epochs = max((len(attack["epochs"]) for attack in found), default=0)
        by_seed.append(
            [
                max(
                    (
                        e["leak"]
                        for attack in found
                        for e in attack["epochs"][at : at + 1]
                        if e["leak"] is not None
                    ),
                    default=None,
                )
                for at in range(epochs)
            ]
        )
    shortest = min(map(len, by_seed), default=0)
    means = [spread(by_epoch[at] for by_epoch in by_seed) for at in range(shortest)]
    return [None if mean is None else mean.mean for mean in means]


def _over_epochs(dataset: str, by_seed: dict[str, list[float | None]]) -> Tabulated:
    longest = max(map(len, by_seed.values()), default=0)
    marks = sorted({1, 2, (longest + 1) // 2, longest} & set(range(1, longest + 1)))
    rows = [
        [protection, *(by_epoch[mark - 1] if mark <= len(by_epoch) else None for mark in marks)]
        for protection, by_epoch in by_seed.items()
    ]
    return Tabulated(
        title=f"{dataset}: the highest leak AUC by the end of an epoch",
        header=["protection", *(f"epoch {mark}" for mark in marks)],
        rows=rows,
        note="Of the attacks that read gradients alone.",
    )


STUDIES = (
    Study(
        name="beyond",
        paper="ours",
        title="every protection against every attack, over epochs",
        place="no paper",
        plan=_plan,
        read=_read,
        scaled=(
            "6,000 rows of Credit, 5 epochs and one seed, in place of Credit (20 epochs) and "
            "Criteo (5 epochs) with 3 seeds",
            "a minute for each attack: what it had found by then counts",
        ),
        task="tacit.papers.ours:attack_briefly",
        full_task="tacit.papers.ours:attack_fully",
    ),
)
