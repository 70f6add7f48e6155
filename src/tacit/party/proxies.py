"""Remote parties, as the training loop sees them.

The loop runs on both sides: at the feature party with a :class:`RemoteLabel`, at the label party
with a :class:`RemoteFeature`. What one asks for is what the other is at.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import final

import torch
from torch import Tensor

from tacit.errors import LostError
from tacit.party.journal import digest
from tacit.party.journaled_label import Answer
from tacit.training.cut import Embedding, Gradient
from tacit.training.party import FeatureEnd, LabelEnd, Rows
from tacit.wire.protocol.connection import Connection
from tacit.wire.protocol.messages import Evaluate, Predict

Asking = type[Evaluate] | type[Predict]

LARGEST = 1e9
"""Beyond it a top model may overflow. The limit is a fixed one: whether a given model does
overflow is for nobody to try out, because its weights have seen the labels."""


@final
class RemoteLabel(LabelEnd):
    """The label party, from where the features are.

    ``keep`` is given the record of every answer that comes with one.
    """

    def __init__(
        self,
        connection: Connection,
        *,
        asking: Asking = Evaluate,
        keep: Callable[[bytes], None] | None = None,
    ) -> None:
        self._connection = connection
        self._asking = asking
        self._keep = keep
        self._part = 0
        self.note: str | None = None

    def offer(self, embeddings: Sequence[Embedding]) -> None:
        """Send the embeddings; releases of earlier ones may still be due.

        Where the connection is lost, a message that came before says why, such as a refusal.
        """
        (embedding,) = embeddings
        with suppress(LostError):
            self._connection.send(embedding)

    def step(self, rows: Rows, embeddings: Sequence[Embedding]) -> list[Gradient]:  # noqa: ARG002
        """Wait for the release of embeddings that were sent."""
        gradient = self._connection.receive(Gradient)
        self._kept(gradient.record)
        return [gradient]

    def update(self) -> float:
        """Return NaN: the label party does not send the loss."""
        return math.nan

    def predict(self, rows: Rows, embeddings: Sequence[Tensor]) -> Tensor:
        """Send embeddings to be predicted; the predictions stay there, so none are returned."""
        (values,) = embeddings
        self._connection.send(self._asking(part=self._part, values=values))
        receipt = self._connection.receive(self._asking)
        self._part += 1
        if isinstance(receipt, Evaluate):
            self.note = receipt.note
            self._kept(receipt.record)
        return torch.full((len(rows),), math.nan)

    def _kept(self, record: bytes | None) -> None:
        if record is not None and self._keep is not None:
            with self._connection.blamed():
                self._keep(record)


@final
class RemoteFeature(FeatureEnd):
    """A feature party, from where the labels are.

    A release that could not be sent does not stop the step that it belongs to: whether the peer
    has it is not known, so the top model must be as if it had. The loss shows at the next step.
    """

    def __init__(
        self, connection: Connection, *, cut: tuple[int, ...], asking: Asking = Evaluate
    ) -> None:
        self._connection = connection
        self._cut = cut
        self._asking = asking
        self._lost: LostError | None = None
        self._owed: int | None = None
        self._shown = hashlib.sha256()
        self._last: Embedding | None = None
        self._sent: Gradient | None = None

    def forward(self, step: int, rows: Rows) -> Embedding:
        """Wait for the embeddings of a batch; the step before it may be asked for again."""
        self._raise_lost()
        while (embedding := self._connection.receive(Embedding)).step != step:
            self._send_again(embedding)
        self._check(embedding.values, rows)
        self._last = embedding
        return embedding

    def backward(self, gradient: Gradient) -> None:
        """Send the release."""
        self._sent = gradient
        try:
            self._connection.send(gradient)
        except LostError as error:
            self._lost = error

    def embed(self, rows: Rows) -> Tensor:
        """Wait for embeddings to be predicted; the receipt for them goes out with the next."""
        self._raise_lost()
        self.settle()
        message = self._connection.receive(self._asking)
        values = message.values
        assert values is not None  # noqa: S101 - the protocol lets only those through
        self._check(values, rows)
        self._owed = message.part
        self._shown.update(digest(values))
        return values

    @property
    def shown(self) -> bytes:
        """A digest of all embeddings that were sent to be predicted, in their order."""
        return self._shown.digest()

    def settle(self, answer: Answer | None = None) -> None:
        """Send the receipt that is due, with the answer if it is the last one."""
        if self._owed is None:
            return
        part, self._owed = self._owed, None
        if self._asking is Predict:
            self._connection.send(Predict(part=part))
            return
        answer = answer or Answer()
        self._connection.send(Evaluate(part=part, note=answer.note, record=answer.record))

    def _send_again(self, embedding: Embedding) -> None:
        """Send the last release once more, for the same embedding only."""
        last, sent = self._last, self._sent
        assert last is not None and sent is not None  # noqa: S101, PT018 - so says the protocol
        if digest(embedding.values) != digest(last.values):
            raise self._connection.wrong(
                f"step {embedding.step} came again with another embedding: two releases of a step "
                "let noise be cancelled"
            )
        self._connection.send(sent)

    def _raise_lost(self) -> None:
        if self._lost is not None:
            raise self._lost

    def _check(self, values: Tensor, rows: Rows) -> None:
        wanted = (len(rows), *self._cut)
        if values.dtype != torch.float32 or tuple(values.shape) != wanted:
            raise self._connection.wrong(
                f"embeddings must be torch.float32 {wanted} by the plan, "
                f"got {values.dtype} {tuple(values.shape)}"
            )
        low, high = torch.aminmax(values)
        if max(-float(low), float(high)) > LARGEST:
            raise self._connection.wrong(
                f"embeddings must be at most {LARGEST:g} in size, got {low:g} to {high:g}: scale "
                "the features, or lower the learning rate"
            )
