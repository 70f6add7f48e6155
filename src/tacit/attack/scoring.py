"""Published attacks that look at each gradient's length, direction or distance from a centre."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, final

import torch
from torch import Tensor

from tacit.attack.base import ATTACKS, Attack, AuditForm, Cause, PreparedView
from tacit.errors import InputError
from tacit.rows import norms, unit_rows
from tacit.spec import require

_BLOCK = 1 << 22  # cosines held at a time, 32 MB: all of them would take 8 GB at 32,768 rows


@final
@ATTACKS.register("norm")
@dataclass(frozen=True)
class Norm(Attack):
    """Score by gradient length: models are less sure of positives, so their gradients are longer.

    ``r(g) = ||g||``, and ``||g|| = |p - y| * ||dh/dz||``: only the first factor depends on ``y``.

    Needs: nothing besides the gradients.

    References:
        Li et al., ICLR 2022, section 3.3, attack 1; the 2021 version, section 3.2.

    >>> from tacit.types import View
    >>> view = View(grads=torch.tensor([[3.0, 4.0], [0.0, 1.0]]))
    >>> Norm()(view, torch.Generator()).tolist()
    [5.0, 1.0]
    """

    audit_forms: ClassVar[tuple[AuditForm, ...]] = (AuditForm("norm", 10),)
    live: ClassVar[bool] = True
    causes: ClassVar[tuple[Cause, ...]] = (
        Cause("the length of gradients gives labels away", "without_marvell"),
    )

    def score(self, prepared: PreparedView, _rng: torch.Generator, /) -> Tensor:
        """Return the Euclidean norm of each row."""
        return prepared.restore(norms(prepared.rows), degree=1)


@final
@ATTACKS.register("cosine")
@dataclass(frozen=True)
class Cosine(Attack):
    """Score by the angle to one known positive gradient.

    ``r(g) = cos(g, g+)``; a zero gradient has no direction and scores 0.

    Needs: one clean gradient of a positive example, a new one for each batch.

    References:
        Li et al., ICLR 2022, section 3.3, attack 2 (the oracle scenario, "cosine leak AUC").

    >>> from tacit.types import Known, View
    >>> grads = torch.tensor([[2.0, 0.0], [0.0, 1.0], [-3.0, 0.0]])
    >>> view = View(grads=grads, known=Known(positive=torch.tensor([5.0, 0.0])))
    >>> Cosine()(view, torch.Generator()).tolist()
    [1.0, 0.0, -1.0]
    """

    needs: ClassVar[frozenset[str]] = frozenset({"positive"})
    audit_forms: ClassVar[tuple[AuditForm, ...]] = (AuditForm("cosine", 20),)
    live: ClassVar[bool] = True

    def score(self, prepared: PreparedView, _rng: torch.Generator, /) -> Tensor:
        """Return the cosine of each row with the known positive gradient."""
        length = norms(prepared.rows)
        length[length == 0] = 1.0  # zero rows score zero
        return (prepared.rows @ unit_rows(prepared.positive.unsqueeze(0))[0]) / length


@final
@ATTACKS.register("majority")
@dataclass(frozen=True)
class Majority(Attack):
    """Count the gradients that point the other way: the rarer class has most of them against it.

    ``r(g_i) = #{j != i : cos(g_i, g_j) < 0} / (B - 1)``; above one half means positive.

    Needs: nothing besides the gradients and the guess that positives are the fewer.

    References:
        Li et al., ICLR 2022, section 3.3, attack 2 (majority counting); the 2021 version,
        section 3.2, "Other Related Attacks".

    Departures: the paper decides at one half, here the fraction itself is the score. A cosine
    within rounding of zero is no vote, so orthogonal rows do not vote by chance.

    >>> from tacit.types import View
    >>> view = View(grads=torch.tensor([[1.0], [2.0], [-1.0]]))
    >>> Majority()(view, torch.Generator()).tolist()
    [0.5, 0.5, 1.0]
    """

    audit_forms: ClassVar[tuple[AuditForm, ...]] = (AuditForm("majority", 60),)

    def score(self, prepared: PreparedView, _rng: torch.Generator, /) -> Tensor:
        """Return the fraction of the other rows at an obtuse angle."""
        units = unit_rows(prepared.rows)
        count, width = units.shape
        slack = width * torch.finfo(units.dtype).eps
        step = max(1, _BLOCK // count)
        blocks = (units[start : start + step] for start in range(0, count, step))
        against = torch.cat([(block @ units.T < -slack).sum(dim=1) for block in blocks])
        return against.double() / max(1, count - 1)


@final
@ATTACKS.register("hint")
@dataclass(frozen=True)
class Hint(Attack):
    """Score by the closest of a few rows of this batch that are known to be positive.

    ``r(g_i) = max over drawn hints h != i of sim(g_i, g_h)`` with ``sim`` the inner product, the
    cosine or minus the distance. ``k`` hints are drawn for each call, all if there are fewer.

    ``use=longest`` takes the similarity to the longest drawn hint alone, as the authors' released
    code does for the inner product.

    Needs: rows of the batch known to be positive, other ones in each batch.

    References:
        Li et al., 2021 version, section 5.3, hint attack (``k = 5``, inner product).

    Departures: the paper assigns a label, here the similarity itself is the score. What the
    attacker knows already does not count as success: a drawn hint is scored against the other
    drawn hints only, and a single one gets the mean of the other rows' scores.

    >>> from tacit.types import Known, View
    >>> grads = torch.tensor([[2.0], [3.0], [-1.0], [4.0]])
    >>> view = View(grads=grads, known=Known(hints=torch.tensor([0, 1])))
    >>> Hint()(view, torch.Generator()).tolist()
    [6.0, 6.0, -2.0, 12.0]
    """

    k: int = 5
    by: Literal["inner", "cosine", "distance"] = "inner"
    use: Literal["nearest", "longest"] = "nearest"

    needs: ClassVar[frozenset[str]] = frozenset({"hints"})
    audit_forms: ClassVar[tuple[AuditForm, ...]] = (AuditForm("hint", 30),)

    def __post_init__(self) -> None:
        require(self.k >= 1, "hint: k must be at least 1", self.k)

    def hints_used(self) -> int:
        """Return ``k``."""
        return self.k

    def score(self, prepared: PreparedView, rng: torch.Generator, /) -> Tensor:
        """Return the largest similarity of each row to a drawn hint other than itself."""
        rows = unit_rows(prepared.rows) if self.by == "cosine" else prepared.rows
        drawn = self._drawn(prepared.hints, rng)
        if self.use == "longest":
            longest = norms(prepared.rows[drawn]).argsort(descending=True)
            drawn = drawn[longest]
        best = torch.full_like(rows[:, 0], -torch.inf)
        for hint in drawn.tolist():
            similar = self._similarity(rows, rows[hint])
            similar[hint] = -torch.inf
            # Of the longest alone, later ones only score what it cannot: itself.
            open_rows = best == -torch.inf if self.use == "longest" else similar > best
            best = torch.where(open_rows, similar, best)
        if len(drawn) == 1:
            others = best[best > -torch.inf]
            best[drawn] = others.sum() / max(1, len(others))
        return prepared.restore(best, degree={"inner": 2, "cosine": 0, "distance": 1}[self.by])

    def _drawn(self, hints: Tensor, rng: torch.Generator) -> Tensor:
        if len(hints) <= self.k:
            return hints
        order = torch.randperm(len(hints), generator=rng, device=rng.device)
        return hints[order[: self.k].to(hints.device)]

    def _similarity(self, rows: Tensor, hint: Tensor) -> Tensor:
        return -norms(rows - hint) if self.by == "distance" else rows @ hint


@final
@ATTACKS.register("mean")
@dataclass(frozen=True)
class Mean(Attack):
    """Score by which class's mean gradient is nearer.

    ``r(g) = ||g - mu_0|| - ||g - mu_1||``; ``hard=true`` gives the paper's assignment, 1 where
    ``||g - mu_1|| <= ||g - mu_0||`` and 0 elsewhere.

    Needs: the mean of the released gradients of each class.

    References:
        Han et al. (GAFM), section 3.4, Eq. 9.

    Departures: the difference of distances by default: it ranks, an assignment only splits.

    >>> from tacit.types import Known, View
    >>> view = View(
    ...     grads=torch.tensor([[0.0], [2.0], [5.0]]),
    ...     known=Known(centres=torch.tensor([[0.0], [4.0]])),
    ... )
    >>> Mean()(view, torch.Generator()).tolist()
    [-4.0, 0.0, 4.0]
    >>> Mean(hard=True)(view, torch.Generator()).tolist()
    [0.0, 1.0, 1.0]
    """

    hard: bool = False

    needs: ClassVar[frozenset[str]] = frozenset({"centres"})
    centre: ClassVar[Literal["mean", "median"]] = "mean"
    audit_forms: ClassVar[tuple[AuditForm, ...]] = (AuditForm("mean", 40),)

    def score(self, prepared: PreparedView, _rng: torch.Generator, /) -> Tensor:
        """Return how much nearer the mean of class 1 is."""
        return _nearer(self, prepared, hard=self.hard)


@final
@ATTACKS.register("median")
@dataclass(frozen=True)
class Median(Attack):
    """Score by which class's median gradient is nearer: outliers do not move it.

    ``r(g) = ||g - m_0|| - ||g - m_1||`` with medians per coordinate; ``hard=true`` gives the
    paper's assignment, 1 where ``||g - m_1|| <= ||g - m_0||`` and 0 elsewhere. ``split=all`` cuts
    at the median ``m`` of all gradients instead, ``r(g) = (g - m) . (m_1 - m_0)``, and
    ``hard=true`` then says 1 where ``r(g) >= 0``.

    Needs: the median of the released gradients of each class.

    References:
        Han et al. (GAFM), section 3.4, Eq. 10; ``split=all`` is the procedure of the authors'
        released code, which their tables show.

    Departures: as for the mean attack; which median of a vector is meant the paper does not say.
    Half of the gradients lie above the median of all, however rare positives are, so
    ``split=all`` with ``hard=true`` has an AUC of ``1 - (1 - 2 p) / (4 (1 - p))`` for a share
    ``p <= 1/2`` of positives where the classes are wholly apart: 0.82 at 22%.

    >>> from tacit.types import Known, View
    >>> view = View(
    ...     grads=torch.tensor([[0.0], [1.0], [5.0]]),
    ...     known=Known(centres=torch.tensor([[0.5], [5.0]])),
    ... )
    >>> Median()(view, torch.Generator()).tolist()
    [-4.5, -3.5, 4.5]
    >>> Median(hard=True)(view, torch.Generator()).tolist()
    [0.0, 0.0, 1.0]
    >>> Median(hard=True, split="all")(view, torch.Generator()).tolist()
    [0.0, 1.0, 1.0]
    """

    hard: bool = False
    split: Literal["centres", "all"] = "centres"

    needs: ClassVar[frozenset[str]] = frozenset({"centres"})
    centre: ClassVar[Literal["mean", "median"]] = "median"
    audit_forms: ClassVar[tuple[AuditForm, ...]] = (AuditForm("median", 50),)

    def score(self, prepared: PreparedView, _rng: torch.Generator, /) -> Tensor:
        """Return how much nearer the median of class 1 is, or how far beyond that of all."""
        if self.split == "centres":
            return _nearer(self, prepared, hard=self.hard)
        negative, positive = _two_centres(self, prepared)
        ranked = prepared.rows.sort(dim=0).values  # torch.median takes the lower of two
        middle = (ranked[(len(ranked) - 1) // 2] + ranked[len(ranked) // 2]) / 2
        beyond = (prepared.rows - middle) @ (positive - negative)
        return (beyond >= 0).double() if self.hard else prepared.restore(beyond, degree=2)


def _nearer(attack: Attack, prepared: PreparedView, *, hard: bool) -> Tensor:
    from_0, from_1 = (norms(prepared.rows - centre) for centre in _two_centres(attack, prepared))
    return (from_1 <= from_0).double() if hard else prepared.restore(from_0 - from_1, degree=1)


def _two_centres(attack: Attack, prepared: PreparedView) -> Tensor:
    if len(prepared.centres) != 2:
        raise InputError(f"{attack} takes two centres, got {len(prepared.centres)}: class 0 first")
    return prepared.centres
