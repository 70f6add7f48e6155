"""Live leakage: cheap attacks on each release while training runs."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tacit.accounting.ledger import SavedState
from tacit.attack import ATTACKS, Attack, StreamingAttack
from tacit.attack import get as get_attack
from tacit.attack.base import PreparedView
from tacit.attack.memory import IdIndex, grown, ids_of
from tacit.attack.spectral import principal_direction
from tacit.errors import InputError, KnowledgeError
from tacit.evaluate import reveal
from tacit.measure import LeakMeter, OneVsRest, PooledLeak, auc, bootstrap_auc, leak_auc, meter_for
from tacit.measure.intervals import Interval
from tacit.rows import on_host
from tacit.spec import require
from tacit.types import Cut, Release, View

Arrays = dict[str, npt.NDArray[Any]]

_FORMAT = 1
_SMALL = 127  # classes that fit into a byte
_DENSE = 1 << 26  # ids below this are indices of an array: half a gigabyte at most


@final
class MemoryMonitor:
    """Adds up the scores of each example over all the releases it is shown.

    The principal direction is found anew in every n-th release only and kept in between, so this
    is ``memory(of=principal)`` with directions that are a few steps old; an audit of a tape runs
    the attack itself. It lives at the label party and changes nothing.

    >>> from tacit import Guard, testing
    >>> from dataclasses import replace
    >>> monitor, cut = MemoryMonitor(), testing.low_rank_cut()
    >>> release = Guard("none", watch=monitor).release(
    ...     replace(cut, ids=torch.arange(len(cut.labels)))
    ... )
    >>> round(monitor.leak(), 2)
    1.0
    """

    def __init__(self, *, every: int = 32) -> None:
        require(every >= 1, "every must be at least 1", every)
        self._every = every
        self._seen = 0
        self._direction: Tensor | None = None
        self._sums = np.zeros(0)
        self._labels = np.zeros(0, dtype=np.int8)
        self._cast: Tensor | None = None  # the direction in the type of the rows
        self._collected: list[tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any]]] = []

    def __call__(self, cut: Cut, release: Release) -> None:
        """Score one release; cuts without ids or with very large ones cannot be followed."""
        if cut.ids is None or len(cut.ids) == 0:
            return
        ids = on_host(cut.ids)
        if int(ids.min()) < 0 or int(ids.max()) >= _DENSE:
            return
        rows = release.grads.flatten(1)
        if self._seen % self._every == 0:
            self._add_up()
            self._update_direction(rows)
        self._seen += 1
        assert self._cast is not None  # noqa: S101 - the first release sets it
        if self._cast.dtype != rows.dtype or self._cast.device != rows.device:
            self._cast = self._cast.to(rows)
        scores = on_host(torch.mv(rows, self._cast))
        self._collected.append((np.array(ids), scores, np.array(on_host(cut.labels))))

    def _add_up(self) -> None:
        """Add the scores of collected releases to the sums; in one go, which is faster."""
        for ids, found, labels in self._collected:
            scores = found.astype(np.float64)
            scores -= scores.mean()
            spread = math.sqrt(np.square(scores).mean())
            self._grow(int(ids.max()) + 1)
            if self._labels.itemsize == 1 and labels.max() > _SMALL:
                self._labels = self._labels.astype(np.int32)
            self._labels[ids] = labels
            if 0 < spread < math.inf:
                np.add.at(self._sums, ids, scores / spread)
        self._collected.clear()

    def leak(self) -> float | None:
        """Return the leak AUC of the sums, or None before two classes were seen."""
        self._add_up()
        known = self._labels >= 0
        labels = self._labels[known]
        both = len(labels) > 0 and labels.min() < labels.max()
        return leak_auc(self._sums[known], labels) if both else None

    def interval(self) -> Interval | None:
        """Return the 95% bootstrap interval of the leak AUC, None but for two classes."""
        self._add_up()
        known = self._labels >= 0
        labels, sums = self._labels[known], self._sums[known]
        if len(labels) == 0 or (labels.min(), labels.max()) != (0, 1):
            return None
        low, high = bootstrap_auc(sums, labels, rng=np.random.default_rng(0), resamples=200)
        return Interval(1 - high, 1 - low) if auc(sums, labels) < 0.5 else Interval(low, high)

    def to_state(self) -> SavedState:
        """Return a copy of everything as a checkpoint takes it.

        The labels of all examples are in it as they were shown: it stays with the label party.
        """
        self._add_up()
        arrays: Arrays = {"sums": self._sums.copy(), "labels": self._labels.copy()}
        if self._direction is not None:
            arrays["direction"] = np.array(on_host(self._direction))
        return arrays, {"format": _FORMAT, "seen": self._seen}

    def load_state(self, arrays: Arrays, values: dict[str, Any]) -> None:
        """Go on where the monitor of the state was, or raise and change nothing."""
        seen = values.get("seen")
        kept = {"int8", "int32"} & {str(arrays["labels"].dtype) if "labels" in arrays else ""}
        forms = {"sums": "float64", "labels": min(kept, default="int8"), "direction": "float64"}
        if not seen:
            del forms["direction"]
        if (
            values.get("format") != _FORMAT
            or type(seen) is not int
            or {n: f"{a.dtype}" for n, a in arrays.items() if a.ndim == 1} != forms
            or len(arrays["sums"]) != len(arrays["labels"])
        ):
            raise InputError(
                f"this is not the state of a memory monitor, of format {_FORMAT}, got "
                f"{sorted(arrays)} and {sorted(values)}: pass what to_state returned"
            )
        self._seen = seen
        self._sums, self._labels = np.array(arrays["sums"]), np.array(arrays["labels"])
        self._direction = torch.from_numpy(np.array(arrays["direction"])).clone() if seen else None
        self._cast = self._direction
        self._collected.clear()

    def _update_direction(self, rows: Tensor) -> None:
        found = principal_direction(rows.double())
        if self._direction is not None and float(found @ self._direction.to(found)) < 0:
            found = -found
        self._direction = self._cast = found.contiguous()  # laid out as it is after a restart

    def _grow(self, size: int) -> None:
        if size > len(self._sums):
            more = max(size, 2 * len(self._sums)) - len(self._sums)
            self._sums = np.append(self._sums, np.zeros(more))
            self._labels = np.append(self._labels, np.full(more, -1, dtype=self._labels.dtype))


@final
class LeakMonitor:
    """Attacks the releases it is shown, pools the scores and reports per attack.

    Pass it as ``Guard(..., watch=monitor)``. It lives at the label party, because judging an attack
    takes the labels. It draws from a generator of its own and changes no tensor, so training with
    and without it is bitwise equal.

    An attack that adds up over epochs, such as ``memory``, follows every example by its id over the
    whole run, as an audit of the recorded run does: every cut needs ids then, and what it reports
    is one score per example.

    Args:
        attacks: spec strings; each gets the side information it declares, fresh in every batch.
            By default every registered attack that declares itself ``live``.
        every: look at every n-th release only; attacks that add up look at all of them.
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
        attacks: Sequence[str | Attack] | None = None,
        *,
        every: int = 1,
        classes: int = 2,
        seed: int = 0,
    ) -> None:
        require(every >= 1, "every must be at least 1", every)
        if attacks is None:
            attacks = [entry.name for entry in ATTACKS if entry.cls.live]
        self.attacks = tuple({str(a): a for a in map(get_attack, attacks)}.values())
        self._classes = classes
        self._seed = seed
        self._streamed = {
            str(a): _StreamedAttack(a, classes=classes, seed=seed)
            for a in self.attacks
            if a.adds_up
        }
        self._meters = self._fresh()
        self._recent = self._fresh()
        self._every = every
        self._rng = torch.Generator().manual_seed(seed)  # the attacks' own draws: no secret
        self._seen = 0
        self._zeros = 0

    def __call__(self, cut: Cut, release: Release) -> None:
        """Attack one release and pool the scores; an attack skips batches that cannot inform it."""
        for streamed in self._streamed.values():
            streamed.add(cut, release)
        self._seen += 1
        self._zeros += not bool(release.grads.any())
        if (self._seen - 1) % self._every:
            return
        shared = list[PreparedView]()
        for attack in self.attacks:
            if attack.adds_up:
                continue
            meters = (self._meters[str(attack)], self._recent[str(attack)])
            if self._classes > 2 and attack.about_one_class:
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
        self, attack: Attack, cut: Cut, release: Release, shared: list[PreparedView]
    ) -> Tensor | None:
        """Return an attack's scores, or None if the batch cannot inform it.

        Attacks without needs share one prepared view, with what is cached in it.
        """
        if not attack.needs and shared:
            return attack.scores(shared[0], self._rng)
        view = _view(attack, cut, release, classes=self._classes, rng=self._rng)
        if view is None:
            return None
        prepared = attack.prepare(view)
        if not attack.needs:
            shared.append(prepared)
        return attack.scores(prepared, self._rng)

    def report(self) -> dict[str, PooledLeak]:
        """Return what each attack has found so far; attacks without a usable batch are left out."""
        if self._seen and self._zeros == self._seen:
            warnings.warn(
                f"all {self._seen} releases are zero, so nothing can be found in them: check that "
                "the loss depends on what the guard returned",
                stacklevel=2,
            )
        return self._compute(self._meters, new_only=False)

    def recent(self) -> dict[str, PooledLeak]:
        """Return what each attack has found since the last call, e.g. in one epoch or one day.

        For an attack that adds up over epochs, it is what the attack has found in all so far.
        """
        found = self._compute(self._recent, new_only=True)
        self._recent = self._fresh()
        return found

    def _fresh(self) -> dict[str, LeakMeter | OneVsRest]:
        return {str(a): meter_for(self._classes) for a in self.attacks if not a.adds_up}

    def _compute(
        self, meters: dict[str, LeakMeter | OneVsRest], *, new_only: bool
    ) -> dict[str, PooledLeak]:
        rng = np.random.default_rng(self._seed)
        asked = {
            str(attack): self._streamed[str(attack)].meter(new_only=new_only)
            if attack.adds_up
            else meters[str(attack)]
            for attack in self.attacks
        }
        usable = {name: meter for name, meter in asked.items() if meter.batches}
        return {name: meter.compute(rng=rng) for name, meter in usable.items()}


@final
class _StreamedAttack:
    """A streaming attack on all releases, with the labels by which it is judged."""

    def __init__(self, attack: Attack, *, classes: int, seed: int) -> None:
        self._attack = attack
        self._classes = classes
        self._rng = torch.Generator().manual_seed(seed)
        # Side information about one class makes it an attack on that class: one stream for each.
        self._each = classes > 2 and attack.about_one_class
        self._streams = [self._begin(seed) for _ in range(classes if self._each else 1)]
        self._index = IdIndex()
        self._labels = torch.zeros(0, dtype=torch.int64)
        self._new = False

    def _begin(self, seed: int) -> StreamingAttack:
        stream = self._attack.streaming(torch.Generator().manual_seed(seed))
        if stream is None:
            raise InputError(
                f"{self._attack} adds up over epochs but has no way to follow examples: "
                "give it a streaming method, or set adds_up = False"
            )
        return stream

    def add(self, cut: Cut, release: Release) -> None:
        """Show one release to the attack; refuse one without ids."""
        if cut.ids is None:
            raise InputError(
                f"{self._attack} adds up what is released about each example over the epochs and "
                "knows examples by their id: pass ids= with every batch, or leave it out of the "
                "monitor's attacks"
            )
        ids = ids_of(View(grads=release.grads, ids=cut.ids), attack=self._attack)
        self._keep(ids, cut.labels.detach().cpu().long())
        for number, stream in enumerate(self._streams):
            known = replace(cut, labels=(cut.labels == number).long()) if self._each else cut
            view = _view(self._attack, known, release, classes=self._classes, rng=self._rng)
            if view is not None:
                stream.add(view)
                self._new = True

    def _keep(self, ids: Tensor, labels: Tensor) -> None:
        positions = self._index.positions(ids)
        self._labels = grown(self._labels, len(self._index))
        self._labels[positions] = labels

    def meter(self, *, new_only: bool) -> LeakMeter | OneVsRest:
        """Return a meter of the scores so far; with ``new_only`` an empty one if nothing is new."""
        meter = meter_for(self._classes)
        if new_only and not self._new:
            return meter
        self._new = self._new and not new_only
        for number, stream in enumerate(self._streams):
            found = stream.result()
            if len(found.ids) == 0:
                continue
            labels = self._labels[self._index.positions(found.ids)]
            if self._each and isinstance(meter, OneVsRest):
                meter.add_class(number, found.scores, (labels == number).long())
            else:
                meter.add(found.scores, labels)
        return meter


def _view(
    attack: Attack, cut: Cut, release: Release, *, classes: int, rng: torch.Generator
) -> View | None:
    """Return an attack's view of a release, or None if the batch cannot inform it."""
    try:
        known = reveal(attack, clean=cut.grads, released=release.grads, labels=cut.labels, rng=rng)
    except KnowledgeError:
        return None
    known = replace(known, classes=classes)
    return View(grads=release.grads, embeddings=cut.embeddings, ids=cut.ids, known=known)
