"""Live leakage: cheap attacks on releases while training runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import final

import numpy as np
import torch
from torch import Tensor

from tacit.attack import Attack, reveal
from tacit.attack import get as get_attack
from tacit.attack.base import Sight
from tacit.errors import KnowledgeError
from tacit.measure import LeakMeter, OneVsRest, PooledLeak, meter_for
from tacit.spec import require
from tacit.types import Cut, Release, View

__all__ = ["LeakMonitor"]

_OF_A_CLASS = frozenset({"positive", "hints", "centres"})


@final
class LeakMonitor:
    """Attacks the releases it is shown, pools the scores and reports per attack.

    Pass it as ``Guard(..., watch=monitor)``. It lives at the label party, because judging an attack
    takes the labels. It draws from a generator of its own and changes no tensor, so training with
    and without it is bitwise equal.

    Args:
        attacks: spec strings; each gets the side information it declares, fresh in every batch.
        every: look at every n-th release only.
        classes: how many there are. Of more than two, each is judged against the rest and the mean
            is reported; side information is then about the class in question.
        seed: of the generator for side information and bootstrap intervals; nothing secret.

    >>> from tacit import Guard, testing
    >>> monitor = LeakMonitor(["cosine"])
    >>> release = Guard("none", watch=monitor).release(testing.low_rank_cut())
    >>> round(monitor.report()["cosine"].leak_auc, 2)
    1.0
    """

    def __init__(
        self,
        attacks: Sequence[str | Attack] = ("norm", "cosine", "energy", "principal"),
        *,
        every: int = 1,
        classes: int = 2,
        seed: int = 0,
    ) -> None:
        require(every >= 1, "every must be at least 1", every)
        self.attacks = tuple({str(a): a for a in map(get_attack, attacks)}.values())
        self._classes = classes
        self._meters = self._fresh()
        self._recent = self._fresh()
        self._every = every
        self._seed = seed
        self._rng = torch.Generator().manual_seed(seed)
        self._seen = 0

    def __call__(self, cut: Cut, release: Release) -> None:
        """Attack one release and pool the scores; batches that offer no side information pass."""
        self._seen += 1
        if (self._seen - 1) % self._every:
            return
        shared = list[Sight]()
        for attack in self.attacks:
            meters = (self._meters[str(attack)], self._recent[str(attack)])
            if self._classes > 2 and attack.needs & _OF_A_CLASS:
                for number in range(self._classes):
                    member = (cut.labels == number).long()
                    scores = self._scores(attack, replace(cut, labels=member), release, [])
                    for meter in meters:
                        if scores is not None and isinstance(meter, OneVsRest):
                            meter.add_class(number, scores, member)
            elif (scores := self._scores(attack, cut, release, shared)) is not None:
                for meter in meters:
                    meter.add(scores, cut.labels)

    def _scores(
        self, attack: Attack, cut: Cut, release: Release, shared: list[Sight]
    ) -> Tensor | None:
        """Return an attack's scores, or None where the batch offers no side information.

        Attacks that need none share what they see, and what they make of it.
        """
        if not attack.needs and shared:
            return attack.scores(shared[0], self._rng)
        try:
            known = reveal(
                attack, clean=cut.grads, released=release.grads, labels=cut.labels, rng=self._rng
            )
        except KnowledgeError:
            return None
        known = replace(known, classes=self._classes)
        view = View(grads=release.grads, embeddings=cut.embeddings, ids=cut.ids, known=known)
        sight = attack.look(view)
        if not attack.needs:
            shared.append(sight)
        return attack.scores(sight, self._rng)

    def report(self) -> dict[str, PooledLeak]:
        """Return what each attack has found so far; attacks without a usable batch are left out."""
        return self._compute(self._meters)

    def recent(self) -> dict[str, PooledLeak]:
        """Return what each attack has found since the last call, e.g. in one epoch or one day."""
        found = self._compute(self._recent)
        self._recent = self._fresh()
        return found

    def _fresh(self) -> dict[str, LeakMeter | OneVsRest]:
        return {str(attack): meter_for(self._classes) for attack in self.attacks}

    def _compute(self, meters: dict[str, LeakMeter | OneVsRest]) -> dict[str, PooledLeak]:
        rng = np.random.default_rng(self._seed)
        usable = {name: meter for name, meter in meters.items() if meter.batches}
        return {name: meter.compute(rng=rng) for name, meter in usable.items()}
