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
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Generic, TypeVar, final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tacit.errors import InputError
from tacit.protect.noise_terms import Isotropic, Part
from tacit.rng import Stream
from tacit.rows import GRID, as_rows, blocks, exponent, norms, on_host, piece, unit_rows
from tacit.spec import Registry, Specified
from tacit.types import Cut

M = TypeVar("M")

BATCH = "from this batch"
RUNNING = "from the running statistics of earlier batches"
NOISE_ONLY = "noise without signal: the batch cannot support the protection, no earlier one did"
EMPIRICAL = "empirical only: no bound is claimed"

# The length of a row of pure noise, in units of one example's gradient. It must not depend on
# labels, hence not on the gradients; a cross-entropy gradient of norm 1/16 is ordinary.
_COLD_LENGTH = 2.0**-4
NOTHING = (
    "none: the release holds nothing of single rows, only that the batch was such a one, the size "
    "of its gradients and their mean line up to its sign"
)
_MOST_CLASSES = 1 << 16  # beyond this, labels are rather ids that were passed by mistake


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Batch:
    """A cut that passed its checks: its rows in ``float64`` on the host, whatever they came as.

    Attributes:
        rows: ``[B, d]``, one gradient each.
        labels: ``[B]``, as they came.
        positive: which rows have label 1.
        classes: how many there are, as far as it is known.
        probs: ``[B]``, predicted probabilities of the positive class, in ``float64``.
        weight: the factor of one example's loss in the loss that was differentiated.
        exponent: every value of ``rows`` is below ``2 ** exponent``; None when all are zero.
        resolution: the finest difference that a release shows, relative to its largest value.
    """

    rows: Tensor
    labels: npt.NDArray[Any]
    positive: npt.NDArray[np.bool_]
    classes: int
    probs: Tensor | None
    weight: float
    exponent: int | None
    resolution: float

    @cached_property
    def owner(self) -> npt.NDArray[np.int64]:
        """The class of each row: 1 for label 1 and 0 for any other, or the labels of many."""
        found: npt.NDArray[np.int64] = (self.labels if self.classes > 2 else self.positive).astype(
            np.int64
        )
        return found

    def scale(self, exponent: int) -> float:
        """Return the unit of statistics of this or another batch, never below this batch's own."""
        return 2.0 ** max(exponent, exponent if self.exponent is None else self.exponent)

    @classmethod
    def of(cls, cut: Cut, *, needs: Collection[str] = (), classes: int = 2, seen: int = 2) -> Batch:
        """Return the checked rows of a cut, or say what is wrong with it.

        ``classes`` is how many there are: 2 stands for "as the labels show"; ``seen`` how many
        earlier batches have shown.
        """
        for name in ("grads", "labels"):
            if not isinstance(value := getattr(cut, name), Tensor):
                raise InputError(f"{name} must be a tensor, got {type(value).__name__}")
        flat = as_rows(cut.grads.detach())
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
        # Allocated by numpy, which asks for large pages: small ones took half of the time.
        rows = torch.from_numpy(np.empty(flat.shape)).copy_(flat)
        return cls(
            rows=rows,
            labels=labels,
            positive=positive,
            classes=max(classes, seen) if binary else _count_classes(labels, max(classes, seen)),
            probs=None if cut.probs is None else cut.probs.detach().to("cpu", torch.float64),
            weight=cut.weight,
            exponent=exponent(rows),
            resolution=max(GRID, torch.finfo(flat.dtype).eps),
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
        substitute: rows that the noise is added to in place of the gradients, which stay here.
    """

    noise: tuple[Part, ...]
    memory: M | None
    how: str
    assumption: str = EMPIRICAL
    sum_kl: float | None = None
    any_covariance: bool = False
    limit: float | None = None
    substitute: Tensor | None = None

    @property
    def signal(self) -> bool:
        """Whether the release holds the gradients."""
        return self.substitute is None


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
    keeps_gaussian: ClassVar[bool] = False
    """Whether every row of a batch gets the same isotropic Gaussian noise.

    Then classes that were Gaussian still are, and what a later stage claims of such classes holds.
    """
    memory_types: ClassVar[tuple[type, ...]] = ()
    """The dataclasses that memory may hold, besides None, numbers, text, arrays, tensors, tuples.

    A guard stores memory for a restart and makes nothing else out of what it has stored.
    """

    @abstractmethod
    def plan(self, batch: Batch, memory: M | None) -> Plan[M]:
        """Return the noise for this batch, given what earlier batches left in memory."""

    def largest_sum_kl(self) -> float | None:
        """Return the ``sum_kl`` that no claim about a release exceeds, whatever the batch.

        A budget is planned from it before the first step. None if nothing is claimed, or if what is
        claimed depends on the batch.
        """
        return None

    def why_unplanned(self) -> str:
        """Return why a budget cannot be planned, as what follows the spec in a sentence."""
        return "claims nothing that a budget could count"

    def classes_seen(self, memory: M | None) -> int:  # noqa: ARG002
        """Return how many classes memory holds statistics of; 2 where it keeps none by class."""
        return 2

    def apply(self, batch: Batch, stream: Stream, memory: object) -> Draft:
        """Return the rows with their noise drawn from the stream."""
        plan = self.plan(batch, memory)  # type: ignore[arg-type]
        # Made also where it is not needed, as long as it might be: the time must not tell.
        if not plan.signal or (memory is None and plan.memory is not None):
            stand_in = self.stand_in(batch, stream)
            if stand_in is not None and not plan.signal:
                plan = replace(stand_in, memory=plan.memory)
        given = batch.rows if plan.substitute is None else plan.substitute
        rows = draw(plan, given, stream)
        return Draft(rows=rows, plans=(plan,), given=(given,), memory=plan.memory)

    def stand_in(self, batch: Batch, stream: Stream) -> Plan[M] | None:
        """Return a plan that looks like that of other batches and depends on no single row.

        None if simulated rows do not support the protection either, as in a batch of few rows, and
        for more than two classes: there the mean of one class's gradients would tell which it is.
        """
        if batch.exponent is None or batch.classes > 2:
            return None
        made = simulated(batch, stream)
        plan = self.plan(made, None)
        if not plan.signal or not plan.noise:
            return None
        return Plan(
            noise=plan.noise,
            memory=None,
            how=NOISE_ONLY,
            assumption=NOTHING,
            sum_kl=0.0,
            substitute=made.rows,
        )


PROTECTIONS: Registry[Protection[Any]] = Registry("protection", base=Protection)


def draw(plan: Plan[Any], rows: Tensor, stream: Stream) -> Tensor:
    """Return the rows plus every part of the plan's noise."""
    out = torch.from_numpy(np.empty(rows.shape))
    total, width = rows.shape
    for block in blocks(total, width):
        part, base = piece(out, block), piece(rows, block)
        if not plan.noise:
            part.copy_(base)
        count = [noise.count(part.shape[0], width) for noise in plan.noise]
        # One draw for all parts: short draws cost more in calls than in arithmetic.
        drawn = stream.normal(sum(count)).split_with_sizes(count)
        for noise, normals in zip(plan.noise, drawn, strict=True):
            noise.write(base, part, block, normals)
            base = part
    return out


def noise_only(batch: Batch, memory: M | None) -> Plan[M]:
    """Return a plan of noise without signal, at a scale that does not depend on the labels."""
    std = _COLD_LENGTH * batch.weight / math.sqrt(batch.rows.shape[1])
    return Plan(
        noise=(Isotropic(std=std),),
        memory=memory,
        how=NOISE_ONLY,
        assumption=NOTHING,
        sum_kl=0.0,
        substitute=torch.zeros_like(batch.rows),
    )


def simulated(batch: Batch, stream: Stream) -> Batch:
    """Return a simulated batch of two classes, with the size and the span of this one.

    Row i is ``scale (centre of its simulated class + noise)``. The centres are the mean of the
    gradients' directions ``g / ||g||`` and its opposite, the noise has the directions' covariance;
    the scale is the power of two nearest to the gradients' median length. With one logit a
    direction is the same for either label up to its sign, so it tells nothing of single examples.
    """
    rows, (count, width) = batch.rows, batch.rows.shape
    length = norms(rows)
    lines = unit_rows(rows)
    middle = lines.mean(dim=0)
    core = (lines - middle) / math.sqrt(count)  # its covariance is core' core
    if count > width:
        around = core.T @ core
        around.diagonal().add_(1e-12)
        core = torch.linalg.cholesky(around).T
    labels = torch.empty(count, dtype=torch.int64)
    labels[stream.normal(count).argsort()] = torch.arange(count) % 2
    side = stream.normal(1).sign()  # which class has one row more must not show either
    noise = stream.normal(count, len(core)) @ core
    scale = 2.0 ** round(math.log2(float(length[length > 0].median())))
    made = ((1.0 - 2.0 * labels.unsqueeze(1)) * side * middle + noise) * scale
    return replace(
        batch,
        rows=made,
        labels=labels.numpy(),
        positive=(labels == 1).numpy(),
        exponent=exponent(made),
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
    return max(known, int(peak) + 1) if 0 <= peak < _MOST_CLASSES else known


def _check_classes(labels: npt.NDArray[Any], classes: int, seen: int) -> None:
    """Refuse labels that are no class indices, and two classes that are not 0 and 1."""
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


WITHHELD = "noise without signal: the release would have cost more than was planned"


def without_signal(stage: Protection[Any], batch: Batch, draft: Draft, stream: Stream) -> Draft:
    """Return a draft of simulated rows and noise, in place of the gradients and their noise.

    The noise is replaced too: what was planned for the true labels differs by class. To end the run
    instead would tell the peer about the labels of this very batch. What the protection remembers
    is as if the draft had been released.
    """
    last = draft.plans[-1]
    found = stage.stand_in(batch, stream) or noise_only(batch, None)
    plan = replace(found, how=WITHHELD, memory=last.memory)
    given = batch.rows if found.substitute is None else found.substitute
    return replace(
        draft,
        rows=draw(plan, given, stream),
        plans=(*draft.plans[:-1], plan),
        given=(*draft.given[:-1], given),
    )
