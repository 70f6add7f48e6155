"""The label party with its journal: a step is released once, and then only as the same bytes.

The evaluation after a step is answered once too, and then only with the same answer.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import final

from torch import Tensor

from tacit.errors import PeerError, ReplayError
from tacit.party.journal import Journal, digest
from tacit.party.journal_records import NOTHING
from tacit.training.cut import Embedding, Gradient
from tacit.training.party import LabelEnd, LabelParty, Rows


@final
@dataclass(frozen=True, kw_only=True)
class Measured:
    """The measures of an evaluation that are shared with feature parties, None for none.

    ``bits`` is the most that such a note says, whether or not there is one now.
    """

    note: str | None
    bits: float


@final
@dataclass(frozen=True, kw_only=True)
class Answer:
    """What goes back for an evaluation: a note if measures are shared, and its record."""

    note: str | None = None
    record: bytes | None = None


Measuring = Callable[[], Measured]
"""Measures an evaluation; among several workers all of them call it."""


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class _Done:
    """The last step: what came in, what went out, and the loss."""

    step: int
    seen: bytes
    gradients: list[Gradient]
    loss: float | None = None


class JournaledLabelEnd(LabelEnd, ABC):
    """A label party whose releases are on record; ``party`` does the work."""

    party: LabelParty

    @abstractmethod
    def can_repeat(self, step: int) -> bool:
        """Whether the bytes of a step are still at hand."""

    @abstractmethod
    def evaluate(self, step: int, asked: Sequence[bytes], measure: Measuring) -> Answer:
        """Return the answer to the evaluation after a step, which is on record then.

        ``asked`` are digests of the embeddings that came, one per feature party. Other embeddings
        than before raise ``PeerError``, and nothing is measured.
        """

    @abstractmethod
    def sync(self) -> None:
        """Bring the record to disk, so that no checkpoint outlives what was released before it."""


@final
class JournaledLabelParty(JournaledLabelEnd):
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
        sent = self._journal.mark(_digest([g.values for g in gradients]))
        other = held is not None and (held.embedding, held.release) != (seen, sent)
        charge_again(self.party, rows, times=self._journal.repeats(step) + other)
        self._journal.record(step, seen, sent)
        entry = self._journal.find(step)
        gradients = [replace(g, record=entry and entry.record) for g in gradients]
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

    def evaluate(self, step: int, asked: Sequence[bytes], measure: Measuring) -> Answer:
        """Return the answer to the evaluation after a step, a new one or the one of before."""
        seen = self._journal.mark(b"evaluation" + self._scope + b"".join(asked))
        check_asked(self._journal, step, seen)
        return answered(self._journal, self.party, step, seen, measure())

    def sync(self) -> None:
        """Bring the journal to disk, so that no checkpoint outlives what was released before it."""
        self._journal.sync()

    def _seen(self, values: Sequence[Tensor]) -> bytes:
        """Return a digest of everything here that a release depends on."""
        return self._journal.mark(self._scope + _digest(values))


def check_asked(journal: Journal, step: int, seen: bytes) -> None:
    """Raise ``PeerError`` if an evaluation was answered before for other embeddings."""
    try:
        journal.check_evaluation(step, seen)
    except ReplayError as error:
        raise PeerError(str(error)) from error


def answered(
    journal: Journal, party: LabelParty, step: int, seen: bytes, measured: Measured
) -> Answer:
    """Put the answer to an evaluation on record, count what it tells, and return it.

    An evaluation that was answered without measures before is answered so again, whatever the
    settings are now; and where they are no longer shared, none are sent.
    """
    held, note = journal.evaluation(step), measured.note
    same = held is not None and held.embedding == seen
    if held is None or not same or (note is not None and held.release != NOTHING):
        sent = NOTHING if note is None else journal.mark(b"note" + note.encode())
        journal.record_evaluation(step, seen, sent)
        held = journal.evaluation(step)
    elif held.release == NOTHING:
        note = None
    assert held is not None  # noqa: S101 - it is on record by now
    if held.release != NOTHING and party.guard.ledger is not None:
        party.guard.ledger.charge_measures(measured.bits * journal.evaluations(step))
    return Answer(note=note, record=held.record)


def charge_again(party: LabelParty, rows: Rows, *, times: int) -> None:
    """Count a step that was allowed again as what it is, so many more releases.

    Those before it count too: a ledger from an earlier checkpoint does not have them.
    """
    guard = party.guard
    if guard.ledger is None or guard.last_certificate is None:
        return
    for _ in range(times):
        guard.ledger.charge(
            party.counted(rows), guard.last_certificate, covered=guard.label_guard is not None
        )


def _digest(parts: Sequence[Tensor]) -> bytes:
    if len(parts) == 1:
        return digest(parts[0])
    return hashlib.sha256(b"".join(map(digest, parts))).digest()
