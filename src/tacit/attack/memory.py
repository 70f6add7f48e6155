"""The memory attack: the same example is released every epoch, so its scores add up."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Final, Literal, final

import numpy as np
import torch
from torch import Tensor

from tacit.attack.base import (
    ATTACKS,
    Attack,
    AuditForm,
    PreparedView,
    Scored,
    StreamingAttack,
    shift,
)
from tacit.attack.spectral import Principal
from tacit.errors import InputError
from tacit.rows import as_rows, exponent
from tacit.spec import require
from tacit.types import View

_KEEP: Final = 0.95  # of the running averages per batch: the last 20 batches count
_PRIOR: Final = 8.0  # batches of pure chance that each kind of evidence starts from
_BASE: Final = Principal()
_FLAT: Final = 1e-12  # a spread below this share of the scores is rounding


@final
@ATTACKS.register("memory")
@dataclass(frozen=True)
class Memory(Attack):
    """Add up another attack's scores of each example over all epochs: noise averages out.

    ``R(id) = s * sum_t a_t r_t(id)`` over the releases ``t`` of the example, with ``r_t`` the base
    attack's scores at mean zero and spread one within the batch, ``a_t = +-1`` the sign that makes
    batch ``t`` agree with the earlier ones and ``s`` the sign with ``sum (R - mean)^3 >= 0``: the
    fewer class, taken for the positives, is the longer tail. Two Gaussian classes at symmetrised KL
    divergence ``k`` per release, with independent noise, are told apart with
    ``AUC = Phi(sqrt(T k / 2))`` after ``T`` releases. On one view alone it is the base attack.

    Three kinds of evidence decide the sign of a batch, and their log-odds add up: the direction
    ``sum_i r_i (g_i - mean)`` that the scores follow, against the average of recent ones; the
    scores of the examples that were seen before, against their sums; and how often the base
    attack's own sign was kept recently. Each is weighted by how far it has exceeded chance so far,
    so that one noisy kind of evidence does not outweigh the others.

    Needs: ids, and what the base attack needs.

    References:
        Ours. It aims at a protection that draws new noise for every release (Li et al., ICLR 2022,
        sections 4.1 and 4.2): divergences of independent releases add up.

    >>> grads = torch.tensor([[1.0], [1.0], [1.0], [-3.0]])
    >>> stream = Memory().streaming(torch.Generator())
    >>> for order in ([0, 1, 2, 3], [3, 1, 0, 2]):
    ...     stream.add(View(grads=grads[order], ids=torch.tensor(order) + 70))
    >>> stream.result().ids.tolist(), stream.result().scores.argmax().item()
    ([70, 71, 72, 73], 3)
    """

    of: Attack = _BASE

    # The class declares what its default base attack does; each object what its own one does.
    needs: ClassVar[frozenset[str]] = _BASE.needs
    centre: ClassVar[Literal["mean", "median"]] = _BASE.centre
    reads: ClassVar[frozenset[str]] = _BASE.reads
    adds_up: ClassVar[bool] = True
    audit_forms: ClassVar[tuple[AuditForm, ...]] = (AuditForm("memory", 100),)

    def __post_init__(self) -> None:
        require(isinstance(self.of, Attack), "memory: of must be an attack", self.of)
        object.__setattr__(self, "needs", self.of.needs)
        object.__setattr__(self, "centre", self.of.centre)
        object.__setattr__(self, "reads", self.of.reads)
        # Of the base attack's causes, those that no protection changes hold here too.
        kept = tuple(cause for cause in self.of.causes if cause.when == "always")
        object.__setattr__(self, "causes", kept)
        object.__setattr__(self, "remedy", self.of.remedy)

    def score(self, prepared: PreparedView, rng: torch.Generator, /) -> Tensor:
        """Return the base attack's scores: in one view there is nothing to add up."""
        return self.of.score(prepared, rng)

    def streaming(self, rng: torch.Generator) -> StreamingAttack:
        """Return an attack that adds up scores by id; the base attack draws from ``rng``."""
        return _MemoryStream(self, rng)

    def hints_used(self) -> int | None:
        """Return how many hints the base attack uses at most."""
        return self.of.hints_used()


@final
class IdIndex:
    """The position 0, 1, ... of every id, in the order in which they were first seen."""

    def __init__(self) -> None:
        self._index: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._index)

    def positions(self, ids: Tensor) -> Tensor:
        """Return the position of each id; new ids get the next ones."""
        positions = self._index
        return torch.tensor([positions.setdefault(i, len(positions)) for i in ids.tolist()])

    def ids(self) -> Tensor:
        """Return every id by its position."""
        return torch.from_numpy(np.fromiter(self._index, dtype=np.int64, count=len(self)))


def ids_of(view: View, *, attack: Attack) -> Tensor:
    """Return the ids of a view, or raise if they are missing or of the wrong type."""
    if view.ids is None:
        raise InputError(f"{attack} over many views knows examples by their id: pass View(ids=...)")
    ids, rows = view.ids, len(as_rows(view.grads))
    if ids.dtype != torch.int64 or ids.shape != (rows,):
        raise InputError(
            f"ids must be int64 of shape ({rows},) like the rows of grads, "
            f"got {ids.dtype} of shape {tuple(ids.shape)}: number the examples"
        )
    return ids.detach().cpu()


def grown(values: Tensor, size: int) -> Tensor:
    """Return the values with room for ``size``, doubled so that growth costs little per id."""
    if size <= len(values):
        return values
    return torch.cat([values, values.new_zeros(max(size, 2 * len(values)) - len(values))])


@final
class _MemoryStream(StreamingAttack):
    """One sum per id, and the evidence for the sign of the next batch."""

    def __init__(self, attack: Memory, rng: torch.Generator) -> None:
        self._attack, self._rng = attack, rng
        self._index = IdIndex()
        self._sums = torch.zeros(0, dtype=torch.float64)
        self._signs = _SignTracker()

    def add(self, view: View) -> None:
        """Add the scores of one view to the sums of its ids."""
        ids = ids_of(view, attack=self._attack)
        rows = _scaled(view.grads)
        self._signs.check(rows)
        scores = _standard(self._attack(view, self._rng))
        known = len(self._index)
        positions = self._index.positions(ids)
        self._sums = grown(self._sums, len(self._index))
        if not scores.any():
            return
        seen = positions < known
        again = _agreement(scores[seen], self._sums[positions[seen]])
        self._sums.index_add_(0, positions, self._signs.next(scores, rows, again) * scores)

    def result(self) -> Scored:
        """Return the sums with the sign that makes the fewer class the higher one."""
        sums = self._sums[: len(self._index)].clone()
        if len(sums) and (sums - sums.mean()).pow(3).sum() < 0:
            sums = -sums
        return Scored(ids=self._index.ids(), scores=sums)


@final
class _SignTracker:
    """Decides for each batch whether the sign of its scores is reversed."""

    def __init__(self) -> None:
        self._direction: Tensor | None = None
        self._along, self._again = _SignEvidence(), _SignEvidence()
        self._kept, self._turned = _PRIOR, 0.0

    def check(self, rows: Tensor) -> None:
        """Refuse rows of another width than the earlier ones."""
        if self._direction is not None and len(self._direction) != rows.shape[1]:
            raise InputError(
                f"gradients must stay {len(self._direction)} wide, got {rows.shape[1]}: "
                "attack each cut by itself"
            )

    def next(self, scores: Tensor, rows: Tensor, again: float) -> float:
        """Return +1 or -1 for this batch, and update the evidence for the next ones."""
        direction = rows.T @ scores  # scores have mean zero, so the rows need not
        length = torch.linalg.vector_norm(direction)
        direction = direction / length if length > 0 else direction
        along = self._direction_evidence(scores, rows, direction)
        odds = self._along.odds(along) + self._again.odds(again)
        odds += math.log((self._kept + 1) / (self._turned + 1))
        sign = 1.0 if odds >= 0 else -1.0
        self._kept = _KEEP * self._kept + (sign > 0)
        self._turned = _KEEP * self._turned + (sign < 0)
        past = torch.zeros_like(direction) if self._direction is None else self._direction
        self._direction = _KEEP * past + sign * direction
        return sign

    def _direction_evidence(self, scores: Tensor, rows: Tensor, direction: Tensor) -> float:
        """Return how clearly the scores follow the average direction, in standard errors.

        It is the smaller of two statistics, because chance can imitate agreement in two ways: by
        scores that do not depend on the rows, and by a direction that is fitted to this batch's
        noise in ``d`` dimensions.
        """
        if self._direction is None or not self._direction.any():
            return 0.0
        mean = self._direction / torch.linalg.vector_norm(self._direction)
        positions = rows @ mean
        by_scores = _agreement(scores, positions)
        cosine = min(abs(float(direction @ mean)), 1 - 1e-12)
        by_direction = math.atanh(cosine) * math.sqrt(rows.shape[1])
        return math.copysign(min(abs(by_scores), by_direction), by_scores)


@final
class _SignEvidence:
    """Evidence for a sign, normal with variance one around an unknown ``+-m``.

    ``E z^2 = 1 + m^2`` whatever the sign, so ``m`` is learnt without knowing the right sign.
    """

    def __init__(self) -> None:
        self._square, self._weight = _PRIOR, _PRIOR

    def odds(self, z: float) -> float:
        """Return the log-odds of a positive sign; ``z = 0`` stands for no evidence."""
        if z == 0:
            return 0.0
        self._square = _KEEP * self._square + z * z
        self._weight = _KEEP * self._weight + 1
        return 2 * z * math.sqrt(max(0.0, self._square / self._weight - 1))


def _agreement(a: Tensor, b: Tensor) -> float:
    """Return the self-normalised ``sum ab / sqrt(sum a^2 b^2)``: normal if a and b are unrelated.

    Unlike a correlation, it stays normal where large values of both meet with unrelated signs.
    """
    product = (a - a.mean()) * (b - b.mean())
    length = float(torch.linalg.vector_norm(product))
    return float(product.sum()) / length if length > 0 else 0.0


def _standard(scores: Tensor) -> Tensor:
    """Return the scores at mean zero and spread one; scores that are all alike become zeros."""
    scores = scores.cpu()
    peak = scores.abs().max()
    scores = scores / peak if peak > 0 else scores  # squares of huge scores would overflow
    scores = scores - scores.mean()
    spread = scores.square().mean().sqrt()
    return scores / spread if spread > _FLAT else torch.zeros_like(scores)


def _scaled(grads: Tensor) -> Tensor:
    """Return gradients as ``float64`` rows with their largest value near one."""
    rows = as_rows(grads.detach()).double().cpu()
    return shift(rows, -(exponent(rows) or 0))
