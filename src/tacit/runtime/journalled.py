"""The label party with its journal: a step is released once, and then only as the same bytes."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from torch import Tensor

from tacit.errors import PeerError, ReplayError
from tacit.runtime.journal import Journal, digest
from tacit.runtime.messages import Embedding, Gradient
from tacit.runtime.party import LabelEnd, LabelParty, Rows

__all__ = ["Journalled", "KeptLabel", "charge_again"]


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class _Done:
    """The last step: what came in, what went out, and the loss."""

    step: int
    seen: bytes
    gradients: list[Gradient]
    loss: float | None = None


class KeptLabel(LabelEnd, ABC):
    """A label party whose releases are on record; ``party`` does the work."""

    party: LabelParty

    @abstractmethod
    def can_repeat(self, step: int) -> bool:
        """Whether the bytes of a step are still at hand."""

    @abstractmethod
    def sync(self) -> None:
        """Bring the record to disk, so that no checkpoint outlives what was released before it."""


@final
class Journalled(KeptLabel):
    """Writes every release into the journal before it is handed out.

    Guarantee: for a step on record, the same embeddings get the same bytes, and other embeddings
    get nothing. A release that comes out differently from the one on record is not handed out.
    The operator may allow another one (``Journal.allow_again``); the ledger is then charged twice.

    Args:
        party: the label party that does the work.
        journal: of this run.
        scope: stands for the common examples in their order. The same embeddings for other
            examples are another step: whether their release has the same bytes would tell whether
            their labels are the same.
    """

    def __init__(self, party: LabelParty, journal: Journal, *, scope: bytes = b"") -> None:
        self.party = party
        self._journal = journal
        self._scope = scope
        self._done: _Done | None = None
        self._again = False

    def can_repeat(self, step: int) -> bool:
        """Whether the bytes of a step are still at hand."""
        return self._done is not None and self._done.step == step

    def step(self, rows: Rows, embeddings: Sequence[Embedding]) -> list[Gradient]:
        """Return the releases of a step, new ones or those that were returned before."""
        step, seen = embeddings[0].step, self._seen([e.values for e in embeddings])
        try:
            self._journal.check(step, seen)
        except ReplayError as error:
            raise PeerError(str(error)) from error
        self._again = self.can_repeat(step)
        if self._again and self._done is not None and self._done.seen == seen:
            return self._done.gradients
        held = self._journal.find(step)
        gradients = self.party.step(rows, embeddings)
        sent = _digest([g.values for g in gradients])
        other = held is not None and (held.embedding, held.release) != (seen, sent)
        charge_again(self.party, rows, times=self._journal.repeats(step) + other)
        self._journal.record(step, seen, sent)
        self._done = _Done(step=step, seen=seen, gradients=gradients)
        self._again = False
        return gradients

    def update(self) -> float:
        """Update the top model, unless the step was only sent again."""
        done = self._done
        if self._again and done is not None and done.loss is not None:
            return done.loss
        loss = self.party.update()
        if done is not None:
            self._done = _Done(step=done.step, seen=done.seen, gradients=done.gradients, loss=loss)
        return loss

    def predict(self, rows: Rows, embeddings: Sequence[Tensor]) -> Tensor:
        """Return predicted probabilities."""
        return self.party.predict(rows, embeddings)

    def sync(self) -> None:
        """Bring the journal to disk, so that no checkpoint outlives what was released before it."""
        self._journal.sync()

    def _seen(self, values: Sequence[Tensor]) -> bytes:
        """Return what stands for everything that a release follows from at this party's end."""
        plain = _digest(values)
        return hashlib.sha256(self._scope + plain).digest() if self._scope else plain


def charge_again(party: LabelParty, rows: Rows, *, times: int) -> None:
    """Count a step that was allowed again as what it is, so many more releases.

    Those before it count too: a ledger from an earlier checkpoint does not have them.
    """
    guard = party.guard
    if guard.ledger is None or guard.last_certificate is None:
        return
    for _ in range(times):
        guard.ledger.charge(party.counted(rows), guard.last_certificate,
                            covered=guard.label_guard is not None)  # fmt: skip


def _digest(parts: Sequence[Tensor]) -> bytes:
    if len(parts) == 1:
        return digest(parts[0])
    return hashlib.sha256(b"".join(map(digest, parts))).digest()
