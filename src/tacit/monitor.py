"""Live leakage: cheap attacks on releases while training runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import numpy as np
import torch

from tacit.attack import Attack, reveal
from tacit.attack import get as get_attack
from tacit.errors import KnowledgeError
from tacit.measure import LeakMeter, PooledLeak
from tacit.spec import require
from tacit.types import Cut, Release, View

__all__ = ["LeakMonitor"]


@final
class LeakMonitor:
    """Attacks the releases it is shown, pools the scores and reports per attack.

    Pass it as ``Guard(..., watch=monitor)``. It lives at the label party, because judging an attack
    takes the labels. It draws from a generator of its own and changes no tensor, so training with
    and without it is bitwise equal.

    Args:
        attacks: spec strings; each gets the side information it declares, fresh in every batch.
        every: look at every n-th release only.
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
        seed: int = 0,
    ) -> None:
        require(every >= 1, "every must be at least 1", every)
        self.attacks = tuple({str(a): a for a in map(get_attack, attacks)}.values())
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
        for attack in self.attacks:
            try:
                known = reveal(
                    attack,
                    clean=cut.grads,
                    released=release.grads,
                    labels=cut.labels,
                    rng=self._rng,
                )
            except KnowledgeError:
                continue
            view = View(grads=release.grads, embeddings=cut.embeddings, ids=cut.ids, known=known)
            scores = attack(view, self._rng)
            for meters in (self._meters, self._recent):
                meters[str(attack)].add(scores, cut.labels)

    def report(self) -> dict[str, PooledLeak]:
        """Return what each attack has found so far; attacks without a usable batch are left out."""
        return self._compute(self._meters)

    def recent(self) -> dict[str, PooledLeak]:
        """Return what each attack has found since the last call, e.g. in one epoch or one day."""
        found = self._compute(self._recent)
        self._recent = self._fresh()
        return found

    def _fresh(self) -> dict[str, LeakMeter]:
        return {str(attack): LeakMeter() for attack in self.attacks}

    def _compute(self, meters: dict[str, LeakMeter]) -> dict[str, PooledLeak]:
        rng = np.random.default_rng(self._seed)
        usable = {name: meter for name, meter in meters.items() if meter.batches}
        return {name: meter.compute(rng=rng) for name, meter in usable.items()}
