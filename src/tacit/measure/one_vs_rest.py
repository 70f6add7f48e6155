"""Scores judged against many classes: each class against the rest, and the mean of all."""

from __future__ import annotations

from dataclasses import fields
from typing import final

import numpy as np

from tacit.errors import InputError
from tacit.measure._arrays import Values, class_labels, positive_count
from tacit.measure.pooled import LeakMeter, PooledLeak

__all__ = ["OneVsRest", "meter_for"]

_COUNTS = ("batches", "examples", "skipped")


@final
class OneVsRest:
    """A ``LeakMeter`` for every class against the rest; its record is their mean.

    ``leak_auc = mean over classes c of max(a_c, 1 - a_c)`` with ``a_c`` the pooled AUC of the
    scores for "is of class c". A class that no batch had together with others is left out.

    Guarantee:
        The ends of the interval and of the band of noise are means of the classes' own: the mean
        leaks of scores without information stays below ``null_high`` at least as surely as one
        class's does.

    >>> meter = OneVsRest(3)
    >>> meter.add([3.0, 3.1, 1.0, 2.0, 2.1], [2, 2, 0, 1, 1])
    >>> round(meter.compute(rng=np.random.default_rng(0)).leak_auc, 3)  # 1, 2/3 and 1
    0.889
    """

    __slots__ = ("_meters",)

    def __init__(self, classes: int) -> None:
        if positive_count(classes, name="classes") < 2:
            raise InputError(f"one against the rest takes two classes or more, got {classes}")
        self._meters = [LeakMeter() for _ in range(classes)]

    @property
    def batches(self) -> int:
        """How many batches could be judged for the class that had most of them."""
        return max(meter.batches for meter in self._meters)

    def add(self, scores: Values, labels: Values) -> None:
        """Add one batch of scores that do not know of a class: all classes are judged by them."""
        truth = class_labels(labels, classes=len(self._meters))
        for number in range(len(self._meters)):
            self.add_class(number, scores, truth == number)

    def add_class(self, number: int, scores: Values, member: Values) -> None:
        """Add one batch of scores for "is of this class", with what is true."""
        self._meters[number].add(scores, member)

    def compute(
        self, *, rng: np.random.Generator, resamples: int = 200, level: float = 0.95
    ) -> PooledLeak:
        """Return the mean over classes of everything added so far; more batches may follow."""
        usable = [meter for meter in self._meters if meter.batches]
        if not usable:
            raise InputError("a pool needs a batch with two classes, got none; add larger batches")
        found = [meter.compute(rng=rng, resamples=resamples, level=level) for meter in usable]
        names = [field.name for field in fields(PooledLeak)]
        most = {name: max(getattr(one, name) for one in found) for name in _COUNTS}
        means = {n: float(np.mean([getattr(one, n) for one in found])) for n in names}
        return PooledLeak(**{**means, **most})


def meter_for(classes: int) -> LeakMeter | OneVsRest:
    """Return the meter for so many classes."""
    return LeakMeter() if classes == 2 else OneVsRest(classes)
