"""A label party on several workers: each computes its share of a step, one guard protects it all.

What a protection knows of the classes, the noise, the ledger and the journal are at worker 0 and
nowhere else: the cut gradients of a step go there, are protected once as the one batch that they
are, and only the rows of that release come back. So the guarantees are those of a single process
that computed the whole batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import final

import torch
from torch import Tensor

from tacit.errors import PeerError, ReplayError, TacitError
from tacit.party.journal import Journal, digest
from tacit.party.journaled_label import (
    Answer,
    JournaledLabelEnd,
    Measured,
    Measuring,
    answered,
    charge_again,
    check_asked,
)
from tacit.party.workers.collectives import Collectives
from tacit.training.cut import Embedding, Gradient
from tacit.training.party import LabelParty, Rows
from tacit.types import Cut


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Share:
    """One worker's rows of a release."""

    grads: Tensor
    step: int


@final
class ReleaseServer:
    """Protects whole steps at worker 0, with the guard, the journal and all labels.

    Args:
        labels: of all common examples; randomised ones where there is a label mechanism.
        journal: of this run.
        scope: stands for the common examples in their order.
    """

    def __init__(self, labels: Tensor, journal: Journal, *, scope: bytes) -> None:
        self._labels = labels
        self._journal = journal
        self._scope = scope

    def protect(self, party: LabelParty, whole: Cut) -> Tensor:
        """Return the release of a step, which is on record then; or raise, and nothing is."""
        assert whole.embeddings is not None and whole.step is not None and whole.ids is not None  # noqa: S101, PT018
        step, seen = whole.step, self._journal.mark(self._scope + digest(whole.embeddings))
        try:
            self._journal.check(step, seen)
        except ReplayError as error:
            raise PeerError(str(error)) from error
        held = self._journal.find(step)
        release = party.guard.release(whole)
        sent = self._journal.mark(digest(release.grads))
        other = held is not None and (held.embedding, held.release) != (seen, sent)
        charge_again(party, whole.ids, times=self._journal.repeats(step) + other)
        self._journal.record(step, seen, sent)
        return release.grads

    def record_of(self, step: int) -> bytes | None:
        """Return the record of a step's release."""
        held = self._journal.find(step)
        return None if held is None else held.record

    def asked(self, step: int, pieces: Sequence[Tensor]) -> bytes:
        """Return the mark of what all workers were asked to evaluate, if it may be answered."""
        content = b"".join(piece.numpy().tobytes() for piece in pieces)
        seen = self._journal.mark(b"evaluation" + self._scope + content)
        check_asked(self._journal, step, seen)
        return seen

    def answer(self, party: LabelParty, step: int, seen: bytes, measured: Measured) -> Answer:
        """Put an answer on record and return it."""
        return answered(self._journal, party, step, seen, measured)

    def labels(self, rows: Tensor) -> Tensor:
        """Return the labels of some rows."""
        return self._labels[rows]

    def sync(self) -> None:
        """Bring the journal to disk."""
        self._journal.sync()


@final
class ReleaseClient:
    """Takes a worker's share of a step to worker 0 and brings its share of the release back.

    Args:
        group: of the label party's workers.
        server: at worker 0, what protects whole steps.
    """

    def __init__(self, group: Collectives, server: ReleaseServer | None = None) -> None:
        self._group = group
        self._server = server
        self.party: LabelParty | None = None

    def release(self, cut: Cut) -> Share:
        """Return this worker's rows of the step's one release."""
        assert cut.step is not None  # noqa: S101 - label parties number their steps
        pieces = self._group.gather(_packed(cut))
        whole = self._group.only_first(
            f"step {cut.step}", lambda: self._protected(cut, pieces or [])
        )
        return Share(grads=self._group.scatter(whole, like=cut.grads), step=cut.step)

    def _protected(self, cut: Cut, pieces: Sequence[Tensor]) -> Tensor:
        """Protect the step at worker 0; the gradient of a mean over shares is a mean over all."""
        assert self._server is not None and self.party is not None  # noqa: S101, PT018 - worker 0
        parts = [_unpacked(piece, like=cut) for piece in pieces]
        steps, rows, grads, embeddings, probs = zip(*parts, strict=True)
        if len(set(steps)) != 1:
            raise TacitError(f"the workers are at different steps: {sorted(set(steps))}")
        ids = torch.cat(rows)
        whole = Cut(
            grads=torch.cat(grads) / len(pieces),
            labels=self._server.labels(ids),
            probs=None if cut.probs is None else torch.cat(probs),
            ids=ids,
            embeddings=torch.cat(embeddings),
            step=cut.step,
            weight=1 / len(ids),
        )
        return self._server.protect(self.party, whole)


@final
class ShardedLabel(JournaledLabelEnd):
    """A label party of which this is one worker.

    A step that was interrupted is always taken again from the last checkpoint, at all workers.
    """

    def __init__(
        self, party: LabelParty, group: Collectives, server: ReleaseServer | None = None
    ) -> None:
        self.party = party
        self._group = group
        self._server = server

    def can_repeat(self, step: int) -> bool:  # noqa: ARG002
        """Never: the other workers may not have got as far."""
        return False

    def step(self, rows: Rows, embeddings: Sequence[Embedding]) -> list[Gradient]:
        """Return this worker's share of the releases of a step."""
        gradients = self.party.step(rows, embeddings)
        record = None if self._server is None else self._server.record_of(embeddings[0].step)
        return [replace(gradient, record=record) for gradient in gradients]

    def update(self) -> float:
        """Update the top model, the same at all workers; return the loss over all of them."""
        loss = torch.tensor([self.party.update()], dtype=torch.float64)
        return float(self._group.add(loss)) / self._group.workers

    def predict(self, rows: Rows, embeddings: Sequence[Tensor]) -> Tensor:
        """Return predicted probabilities."""
        return self.party.predict(rows, embeddings)

    def evaluate(self, step: int, asked: Sequence[bytes], measure: Measuring) -> Answer:
        """Return the answer at worker 0, which has the journal; the others answer nothing."""
        shown = torch.frombuffer(bytearray(b"".join(asked)), dtype=torch.uint8)
        pieces = self._group.gather(shown)
        server = self._server
        seen = self._group.only_first(
            f"the evaluation after step {step}",
            lambda: b"" if server is None else server.asked(step, pieces or []),
        )
        measured = measure()
        if server is None or seen is None:
            return Answer()
        return server.answer(self.party, step, seen, measured)

    def sync(self) -> None:
        """Bring the journal to disk, where it is."""
        if self._server is not None:
            self._server.sync()


def _fields(cut: Cut) -> list[Tensor]:
    assert cut.embeddings is not None and cut.ids is not None and cut.step is not None  # noqa: S101, PT018
    probs = [] if cut.probs is None else [cut.probs]
    return [torch.tensor([cut.step]), cut.ids, cut.grads, cut.embeddings, *probs]


def _packed(cut: Cut) -> Tensor:
    """Return everything that worker 0 needs of a share, as one row of bytes."""
    flat = [part.detach().contiguous().reshape(-1) for part in _fields(cut)]
    return torch.cat([part.view(torch.uint8) for part in flat])


def _unpacked(piece: Tensor, *, like: Cut) -> tuple[int, Tensor, Tensor, Tensor, Tensor]:
    """Undo :func:`_packed` for a share of the same shape."""
    found, at = [], 0
    for field in _fields(like):
        size = field.numel() * field.element_size()
        part = piece[at : at + size].clone().view(field.dtype)
        found.append(part.reshape(field.shape))
        at += size
    step, ids, grads, embeddings = found[:4]
    probs = found[4] if len(found) > 4 else torch.empty(0)
    return int(step), ids, grads, embeddings, probs
