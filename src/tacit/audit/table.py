"""The rows of an audit's table: what each attack measured, next to what was claimed."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, final

import numpy as np
import numpy.typing as npt

from tacit.attack import Attack
from tacit.audit.attack_run import AttackRun, PooledResult
from tacit.audit.gallery import RecoveredLabels
from tacit.audit.row_window import RowWindow
from tacit.audit.truth import Truth
from tacit.audit.verdict import Judgement, judge
from tacit.evaluate.remedy import TARGET, AuditedSetting, remedy
from tacit.measure import LeakMeter, auc, auc_bound, clustering_accuracy, gaussian_auc
from tacit.types import Certificate

Values = npt.NDArray[np.float64]
_STOPPED = " (stopped when its time was up)"


@final
@dataclass(frozen=True, kw_only=True)
class AuditClaim:
    """What a certificate claims for one release, and what follows for many."""

    certificate: dict[str, Any] | None
    releases: float

    @classmethod
    def of(cls, given: Certificate | Mapping[str, Any] | None, *, releases: float) -> AuditClaim:
        """Return the claim of a certificate, for so many releases of each example."""
        plain = asdict(given) if isinstance(given, Certificate) else given
        return cls(certificate=None if plain is None else dict(plain), releases=releases)

    @property
    def spec(self) -> str | None:
        """The protection that ran, if it is known."""
        return None if self.certificate is None else self.certificate.get("spec")

    @property
    def labels(self) -> str | None:
        """The label mechanism that ran, if it is known."""
        return None if self.certificate is None else self.certificate.get("labels")

    def remedy(self, attack: Attack, *, classes: int, threshold: float | None) -> str:
        """Return what to do about an attack if it succeeds."""
        setting = AuditedSetting(
            spec=self.spec,
            labels=self.labels,
            releases=self.releases,
            classes=classes,
            target=TARGET if threshold is None else threshold,
        )
        return remedy(attack, setting)

    def bound(self, attack: Attack, *, accumulated: bool) -> float | None:
        """Return the claimed limit of an attack on gradients alone, without labels."""
        total = self._sum_kl(self.releases if accumulated else 1)
        if total is None or {"embeddings", "labelled"} & (attack.needs | attack.reads):
            return None
        return auc_bound(total)

    def reference(self, epochs: Sequence[int]) -> list[dict[str, float]]:
        """Return bound and reference value after each epoch: the divergence adds up."""
        if self._sum_kl(1) is None:
            return []
        # Below one where a last batch that is not full is dropped.
        each = self.releases / len(epochs)
        totals = [(e, self._sum_kl(each * n) or 0.0) for n, e in enumerate(epochs, start=1)]
        return [
            {"epoch": epoch, "gaussian_auc": gaussian_auc(total), "auc_bound": auc_bound(total)}
            for epoch, total in totals
        ]

    def _sum_kl(self, releases: float) -> float | None:
        single = None if self.certificate is None else self.certificate.get("sum_kl")
        return None if single is None else releases * float(single)


def row_of(
    run: AttackRun,
    claim: AuditClaim,
    *,
    baseline: dict[str, Any] | None,
    threshold: float | None,
    truth: Truth,
) -> dict[str, Any] | None:
    """Return the row of an attack that ran over the tape, or None if it could judge nothing."""
    row = _empty(run.attack, accumulated=run.accumulated, seconds=run.spent)
    row["remedy"] = claim.remedy(run.attack, classes=truth.classes, threshold=threshold)
    row["clustering_accuracy"] = run.accuracy()
    if row["clustering_accuracy"] is not None and truth.classes > 2:
        return _timed(_many_classes(row, truth), stopped=run.stopped)
    pooled = run.pooled()
    if pooled is None:
        return None
    bound = claim.bound(run.attack, accumulated=run.accumulated)
    row |= _measured(pooled, baseline, bound, threshold, row["remedy"])
    return _timed(row, stopped=run.stopped)


def supervised_row(
    attack: Attack,
    window: RowWindow,
    claim: AuditClaim,
    *,
    baseline: dict[str, Any] | None,
    threshold: float | None,
    truth: Truth,
    seed: int,
    seconds: float,
) -> tuple[dict[str, Any], tuple[Values, Values], RecoveredLabels | None]:
    """Return the row of an attack that learns from labels, its scores and the recovered labels.

    With many classes, an example's recovered label is its most likely class; two are only ranked.
    """
    start = time.perf_counter()
    scores = window.supervised(attack, classes=truth.classes, seed=seed, seconds=seconds)
    view, labels = window.latest()
    row = _empty(attack, accumulated=False, seconds=time.perf_counter() - start)
    row["remedy"] = claim.remedy(attack, classes=truth.classes, threshold=threshold)
    if truth.classes > 2:
        each = [auc(scores[:, c], (labels == c).long()) for c in range(truth.classes)]
        row |= {"leak_auc": float(np.mean(each)), "examples": len(labels)}
        found = scores.argmax(dim=1)
        row["clustering_accuracy"] = float((found == labels).double().mean())
        row = _many_classes(row, truth)
        assert view.ids is not None  # noqa: S101 - recordings have them
        named = RecoveredLabels(view.ids.numpy(), labels.numpy(), found.numpy())
        return _timed(row, stopped=row["seconds"] > seconds), (np.empty(0), np.empty(0)), named
    meter = LeakMeter()
    meter.add(scores, labels)
    pooled = PooledResult.of(meter, seed)
    # Folds that share their training rows spread wider than independent scores would.
    pooled = replace(pooled, null_high=min(1.0, 0.5 + math.sqrt(2) * (pooled.null_high - 0.5)))
    row |= _measured(pooled, baseline, None, threshold, row["remedy"])
    row = _timed(row, stopped=row["seconds"] > seconds)
    return row, (scores.numpy(), labels.numpy().astype(np.float64)), None


def _timed(row: dict[str, Any], *, stopped: bool) -> dict[str, Any]:
    """Return the row; its verdict says if time ran out."""
    return row | {"verdict": row["verdict"] + _STOPPED} if stopped else row


def _empty(attack: Attack, *, accumulated: bool, seconds: float) -> dict[str, Any]:
    names = (
        "leak_auc",
        "low",
        "high",
        "null_low",
        "null_high",
        "baseline",
        "bound",
        "verdict",
        "state",
        "mean",
        "q95",
        "clustering_accuracy",
        "batches",
        "examples",
    )
    return {
        "attack": str(attack),
        **dict.fromkeys(names),
        "accumulated": accumulated,
        "seconds": seconds,
    }


def _measured(
    pooled: PooledResult,
    baseline: dict[str, Any] | None,
    bound: float | None,
    threshold: float | None,
    advice: str,
) -> dict[str, Any]:
    leak = pooled.leak
    level = None if baseline is None else baseline["auc"]
    verdict = judge(
        leak=leak.leak_auc,
        low=leak.low,
        high=leak.high,
        null_high=pooled.null_high,
        baseline=level,
        bound=bound,
        threshold=threshold,
        remedy=advice,
    )
    return {
        "leak_auc": leak.leak_auc,
        "low": leak.low,
        "high": leak.high,
        "null_low": leak.null_low,
        "null_high": pooled.null_high,
        "baseline": level,
        "bound": bound,
        "verdict": verdict.text,
        "state": verdict.state,
        "mean": leak.mean,
        "q95": leak.q95,
        "batches": leak.batches,
        "examples": leak.examples,
    }


def _many_classes(row: dict[str, Any], truth: Truth) -> dict[str, Any]:
    """Judge a clustering by the accuracy of always naming the largest class.

    Groups are named by the labels, so random groups get more right than that; it is added.
    """
    right, count = row["clustering_accuracy"], row["examples"] or len(truth.labels)
    share = float(np.bincount(truth.labels).max() / len(truth.labels))
    named = 0.0 if row["leak_auc"] is not None else _naming_gain(truth)
    limit = share + named + 3.3 * math.sqrt(share * (1 - share) / count)
    low = right - 1.96 * math.sqrt(right * (1 - right) / count)
    seen = f"{right:.1%} sorted right, {limit:.1%} at most by chance"
    if right <= limit:
        found = Judgement("nothing found", f"{right:.1%} sorted right, no more than by chance")
    elif low <= limit:
        found = Judgement("unknown", f"{seen}: record more steps to decide")
    else:
        found = Judgement("leaks", seen)
    return row | {"verdict": found.text, "state": found.state, "examples": count}


def _naming_gain(truth: Truth) -> float:
    """Return how much accuracy the best naming adds to random groups of equal size."""
    rng = np.random.default_rng(0)
    size = len(truth.labels)
    drawn = [
        clustering_accuracy(rng.integers(0, truth.classes, size=size), truth.labels)
        for _ in range(5)
    ]
    return float(np.mean(drawn)) - 1 / truth.classes
