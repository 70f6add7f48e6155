"""What a protection is: a pure plan of noise for one batch, and one way to draw any plan.

A protection looks at a :class:`Batch` and at what it remembers of earlier ones, and returns a
:class:`Plan`: which noise each row gets, described by standard deviations and directions. It
draws nothing itself. :func:`draw` draws every plan, and the guard can check what was released
against what was planned, whatever the protection.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Generic, TypeVar, final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tacit.errors import InputError
from tacit.protect.parts import Isotropic, Part, write_both
from tacit.rng import Stream
from tacit.rows import as_rows, blocks, detached, exponent, on_host, piece, working
from tacit.spec import Registry, Specified
from tacit.types import Cut

__all__ = [
    "BATCH",
    "EMPIRICAL",
    "NOISE_ONLY",
    "PROTECTIONS",
    "RUNNING",
    "Batch",
    "Draft",
    "Plan",
    "Protection",
    "draw",
    "noise_only",
]

M = TypeVar("M")

BATCH = "from this batch"
RUNNING = "from the running statistics of earlier batches"
NOISE_ONLY = "noise without signal: the batch cannot support the protection, no earlier one did"
EMPIRICAL = "empirical only: no bound is claimed"

# The length of a row of pure noise, in units of one example's gradient. It must not depend on
# labels, hence not on the gradients; a cross-entropy gradient of norm 1/16 is ordinary.
_COLD_LENGTH = 2.0**-4
_MOST_CLASSES = 1 << 16  # beyond this, labels are rather ids that were passed by mistake


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Batch:
    """A cut that passed its checks: rows in a working type, and how coarse the release will be.

    Labels are on the host, because what is computed from them alone is small.
    """

    rows: Tensor
    labels: npt.NDArray[Any]
    positive: npt.NDArray[np.bool_]  # which rows have label 1
    classes: int
    probs: Tensor | None
    weight: float
    exponent: int | None
    resolution: float

    @cached_property
    def sides(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Where the rows with another label are, and where those with label 1."""
        return np.flatnonzero(~self.positive), np.flatnonzero(self.positive)

    @classmethod
    def of(cls, cut: Cut, *, needs: Collection[str] = (), classes: int = 2, seen: int = 2) -> Batch:
        """Return the checked rows of a cut, or say what is wrong with it.

        ``classes`` is how many there are: 2 stands for "as the labels show"; ``seen`` how many
        earlier batches have shown.
        """
        for name in ("grads", "labels"):
            if not isinstance(value := getattr(cut, name), Tensor):
                raise InputError(f"{name} must be a tensor, got {type(value).__name__}")
        flat = as_rows(detached(cut.grads))
        _check_column(cut.labels, "labels", flat.shape[0])
        labels = on_host(cut.labels)
        positive = labels == 1
        binary = bool((positive | (labels == 0)).all())
        if "labels" in needs and not binary:
            (_check_binary if "binary" in needs else _check_classes)(labels, classes, seen)
        if cut.probs is not None:
            _check_column(cut.probs, "probs", flat.shape[0])
        if "probs" in needs:
            _check_probs(cut.probs)
        if not isinstance(cut.weight, int | float) or not 0 < cut.weight < math.inf:
            raise InputError(f"weight must be positive and finite, got {cut.weight}")
        return cls(
            rows=working(flat).contiguous(),
            labels=labels,
            positive=positive,
            classes=max(classes, seen) if binary else _count_classes(labels, max(classes, seen)),
            probs=None if cut.probs is None else cut.probs.detach().double().to(flat.device),
            weight=cut.weight,
            exponent=exponent(flat),
            resolution=torch.finfo(flat.dtype).eps,
        )


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Plan(Generic[M]):
    """What a protection will do to one batch, before anything is drawn.

    Attributes:
        noise: independent parts, added up.
        memory: what to remember for later batches.
        how: where the parameters came from.
        assumption: what must be true for ``sum_kl`` to hold.
        sum_kl: computed from the standard deviations in ``noise``; None where nothing is claimed.
        any_covariance: whether ``sum_kl`` allows for classes of any covariance, not only uI and vI.
        limit: the root of the allowed noise power per row; None without a budget.
        signal: False releases the noise without the gradients.
    """

    noise: tuple[Part, ...]
    memory: M | None
    how: str
    assumption: str = EMPIRICAL
    sum_kl: float | None = None
    any_covariance: bool = False
    limit: float | None = None
    signal: bool = True


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Draft:
    """Rows after a protection, not yet checked; per stage its plan and the rows it was given."""

    rows: Tensor
    plans: tuple[Plan[Any], ...]
    given: tuple[Tensor, ...]
    memory: object


class Protection(Specified, ABC, Generic[M]):
    """A transformation of cut gradients into something safer to release.

    Subclasses are frozen dataclasses registered in ``PROTECTIONS``; their fields are parameters.
    """

    needs: ClassVar[frozenset[str]] = frozenset()
    """What the cut must have: ``"labels"`` (class indices, ``"binary"``: 0 and 1), ``"probs"``."""
    scale_free: ClassVar[bool] = True
    """Whether multiplying all gradients by a factor multiplies the release by it."""
    identity: ClassVar[bool] = False
    """Whether releasing the gradients untouched is what was asked for."""
    raw_rows: ClassVar[int] = 0
    """How many rows of a batch the published rule leaves as they are."""

    @abstractmethod
    def plan(self, batch: Batch, memory: M | None) -> Plan[M]:
        """Return the noise for this batch, given what earlier batches left in memory."""

    def apply(self, batch: Batch, stream: Stream, memory: object) -> Draft:
        """Return the rows with their noise drawn from the stream."""
        plan = self.plan(batch, memory)  # type: ignore[arg-type]
        rows = draw(plan, batch.rows, stream)
        return Draft(rows=rows, plans=(plan,), given=(batch.rows,), memory=plan.memory)


PROTECTIONS: Registry[Protection[Any]] = Registry("protection")


def draw(plan: Plan[Any], rows: Tensor, stream: Stream) -> Tensor:
    """Return the rows (or zeros, without signal) plus every part of the plan's noise."""
    out = torch.empty_like(rows)
    total, width = rows.shape
    for block in blocks(total, width):
        part, base = piece(out, block), piece(rows, block)
        if not plan.signal:
            base = part.zero_()
        elif not plan.noise:
            part.copy_(base)
        inside = [noise.inside(block, total) for noise in plan.noise]
        count = [n.count(part.shape[0], width, i) for n, i in zip(plan.noise, inside, strict=True)]
        # One draw for all parts: short draws cost more in calls than in arithmetic.
        drawn = stream.normal(sum(count), dtype=rows.dtype, device=rows.device)
        split = drawn.split_with_sizes(count)
        done = 2 * write_both(plan.noise, base, part, block, inside, split)
        for number, noise in enumerate(plan.noise[done:], start=done):
            noise.write(part if number else base, part, block, inside[number], split[number])
    return out


def noise_only(batch: Batch, memory: M | None) -> Plan[M]:
    """Return the plan of last resort: noise at a scale that no label has touched."""
    std = _COLD_LENGTH * batch.weight / math.sqrt(batch.rows.shape[1])
    return Plan(
        noise=(Isotropic(std=std),),
        memory=memory,
        how=NOISE_ONLY,
        assumption="none: the release holds no gradient, only that the batch was such a one",
        sum_kl=0.0,
        signal=False,
    )


def _check_column(column: Tensor, name: str, length: int) -> None:
    if column.shape != (length,):
        raise InputError(
            f"{name} must be [{length}] like the gradients' rows, got {tuple(column.shape)}"
        )


def _check_probs(probs: Tensor | None) -> None:
    if probs is None:
        raise InputError("this protection needs predicted probabilities: pass probs=")
    if not ((probs >= 0) & (probs <= 1)).all():
        raise InputError("probs must lie between 0 and 1: pass probabilities, not logits")


def _count_classes(labels: npt.NDArray[Any], known: int) -> int:
    peak = float(labels.max())
    return max(known, int(peak) + 1) if peak < _MOST_CLASSES else known


def _check_classes(labels: npt.NDArray[Any], classes: int, seen: int) -> None:
    """Refuse what are no class indices, and two classes that go by other names than 0 and 1."""
    low, high = labels.min(), labels.max()
    whole = labels.dtype.kind != "f" or bool((labels == np.floor(labels)).all())
    if not (whole and low >= 0 and high < _MOST_CLASSES):  # NaN is no number, so not this either
        wrong = ~((labels >= 0) & (labels < _MOST_CLASSES) & (labels == np.floor(labels)))
        odd = labels[wrong][0]
        raise InputError(f"labels must be class indices 0, 1, ..., got {odd:g}: map them first")
    if classes > 2 and high >= classes:
        raise InputError(
            f"labels must lie in 0..{classes - 1} for {classes} classes, got {high:g}: map them "
            "first, or tell the guard of more classes"
        )
    if max(classes, seen) == 2 <= high and ((labels == low) | (labels == high)).all():
        raise InputError(
            f"labels must be 0 or 1 here, got {high:g}: map them first, or say how many classes "
            "there are, Guard(classes=...)"
        )


def _check_binary(labels: npt.NDArray[Any], classes: int, seen: int) -> None:  # noqa: ARG001
    wrong = labels[(labels != 0) & (labels != 1)]
    if len(wrong):
        raise InputError(f"labels must be 0 or 1 here, got {wrong[0]:g}: map them first")
