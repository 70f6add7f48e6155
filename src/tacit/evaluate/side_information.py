"""Side information for an attack, built by the evaluator from the labels.

Only the evaluator has the labels. :func:`reveal` gives an attack what it declares and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, final

import torch
from torch import Tensor

from tacit.attack.base import Attack, shift
from tacit.errors import InputError, KnowledgeError
from tacit.rows import as_rows, exponent
from tacit.types import Known


def reveal(
    attack: Attack, *, clean: Tensor, released: Tensor, labels: Tensor, rng: torch.Generator
) -> Known:
    """Return exactly the side information that the attack declares, for one batch.

    Args:
        attack: whose ``needs`` say what to reveal.
        clean: ``[B, ...]``, the gradients before protection; one positive is drawn from them.
        released: ``[B, ...]``, the gradients the attacker sees; centres are taken over these.
        labels: ``[B]`` class indices; class 1 is the positive one.
        rng: draws the positive and the hints.

    Raises:
        KnowledgeError: the batch cannot supply what the attack declares, e.g. has no positive.

    >>> from tacit.attack import Hint
    >>> g = torch.tensor([[1.0], [-2.0], [3.0]])
    >>> reveal(Hint(), clean=g, released=g, labels=torch.tensor([0, 1, 0]),
    ...        rng=torch.Generator()).hints
    tensor([1])
    """
    labels = class_indices(labels, like=released)
    batch = _Batch(attack, clean.detach(), released.detach(), labels, rng)
    if len(clean) != len(released):
        raise InputError(
            f"clean must have {len(released)} rows like released, got {len(clean)}: pass one batch"
        )
    wanted = attack.needs - {"embeddings"}
    for name in sorted(wanted - _BUILDERS.keys()):
        raise KnowledgeError(
            f"known.{name} cannot be drawn for {attack}: pass View(known=Known({name}=...))"
        )
    return Known(**{name: _BUILDERS[name](batch) for name in wanted})  # type: ignore[arg-type]


@final
@dataclass(frozen=True, eq=False)
class _Batch:
    """A batch with its labels, and the attack it is revealed to."""

    attack: Attack
    clean: Tensor
    released: Tensor
    labels: Tensor
    rng: torch.Generator

    def classes(self) -> int:
        return max(2, int(self.labels.max()) + 1)

    def drawn_positives(self, count: int | None) -> Tensor:
        """Return the indices of ``count`` positive rows (all for None), ascending."""
        if self.classes() > 2:
            raise InputError(
                f"{self.attack} tells class 1 from class 0, got {self.classes()} classes: "
                "pass (labels == c).long()"
            )
        rows = (self.labels == 1).nonzero().flatten()
        if len(rows) == 0:
            raise KnowledgeError(
                f"{self.attack} needs a positive example and the batch has none: "
                "leave this batch out"
            )
        order = torch.randperm(len(rows), generator=self.rng, device=self.rng.device)
        return rows[order[:count].to(rows.device)].sort().values

    def positive(self) -> Tensor:
        return self.clean[self.drawn_positives(1)[0]].clone()

    def hints(self) -> Tensor:
        return self.drawn_positives(self.attack.hints_used())

    def labelled(self) -> tuple[Tensor, Tensor]:
        """Return half of the rows of each class, but at least two, ascending, and their classes."""
        counts = torch.bincount(self.labels)
        if (counts > 0).sum() < 2 or counts[counts > 0].min() < 2:
            raise KnowledgeError(
                f"{self.attack} needs known.labelled with two classes and two rows of each, "
                f"the batch has {counts.tolist()} rows of its classes: leave this batch out"
            )
        order = torch.randperm(len(self.labels), generator=self.rng, device=self.rng.device)
        order = order.to(self.labels.device)
        drawn = [order[self.labels[order] == c] for c in counts.nonzero()]
        rows = torch.cat([found[: max(2, len(found) // 2)] for found in drawn]).sort().values
        return rows, self.labels[rows]

    def centres(self) -> Tensor:
        rows = as_rows(self.released, name="released").double()
        power = exponent(rows, name="released") or 0
        found = [self._centre(shift(rows, -power), c) for c in range(self.classes())]
        return shift(torch.stack(found), power).reshape(-1, *self.released.shape[1:])

    def _centre(self, rows: Tensor, index: int) -> Tensor:
        rows = rows[self.labels == index]
        if len(rows) == 0:
            raise KnowledgeError(
                f"{self.attack} needs the centre of class {index} and the batch has no such row: "
                "leave this batch out"
            )
        if self.attack.centre == "mean":
            return rows.mean(dim=0)
        ranked = rows.sort(dim=0).values  # torch.median takes the lower of two middle values
        return (ranked[(len(rows) - 1) // 2] + ranked[len(rows) // 2]) / 2

    def prior(self) -> Tensor:
        counts = torch.bincount(self.labels, minlength=self.classes())
        return counts.double() / len(self.labels)


_BUILDERS: Final[Mapping[str, Callable[[_Batch], Tensor | tuple[Tensor, Tensor] | int]]] = {
    "positive": _Batch.positive,
    "hints": _Batch.hints,
    "labelled": _Batch.labelled,
    "centres": _Batch.centres,
    "prior": _Batch.prior,
    "classes": _Batch.classes,
}


def class_indices(labels: Tensor, *, like: Tensor) -> Tensor:
    """Return the labels as int64 class indices on the rows' device, or raise if they are none."""
    if labels.shape != like.shape[:1]:
        raise InputError(f"labels must be [{len(like)}], got shape {tuple(labels.shape)}")
    whole = labels.detach().to(device=like.device, dtype=torch.int64)
    if not torch.equal(whole.to(labels.dtype), labels.to(whole.device)) or int(whole.min()) < 0:
        raise InputError("labels must be class indices 0, 1, ...: map them first")
    return whole
