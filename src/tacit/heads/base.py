"""What a head is: a model on embeddings that were received, trained where the labels are.

No gradient leaves it, so it may use true labels, early stopping and any kind of model.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeAlias, final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tacit import measure
from tacit.errors import InputError
from tacit.nets import Inputs
from tacit.spec import Registry, Specified

Source: TypeAlias = Callable[[Tensor], tuple[Tensor, Tensor]]
"""The label party's own columns of some rows: numbers and category codes."""


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class EmbeddedRows:
    """What a head predicts from, row by row.

    Attributes:
        embeddings: ``[N, width]`` ``float32``, also a memory-mapped file; of several feature
            parties side by side.
        inputs: what the label party's own columns are; None without any.
        source: the way to them.
    """

    embeddings: npt.NDArray[np.float32]
    inputs: Inputs | None = None
    source: Source | None = None

    def __post_init__(self) -> None:
        if (self.inputs is None) != (self.source is None):
            raise InputError("a head's own columns need both inputs and a source")

    def __len__(self) -> int:
        return len(self.embeddings)

    @property
    def width(self) -> int:
        """Numbers in an embedding."""
        return int(self.embeddings.shape[1])

    def cut(self, rows: Tensor) -> Tensor:
        """Return the embeddings of some rows."""
        return torch.from_numpy(np.asarray(self.embeddings[rows.numpy()], dtype=np.float32))

    def take(self, rows: Tensor) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Return embeddings, own numbers and own codes of some rows."""
        cut = self.cut(rows)
        return (cut, None, None) if self.source is None else (cut, *self.source(rows))


@final
@dataclass(frozen=True, kw_only=True)
class HeadSettings:
    """How a head is trained; a head that is not trained by epochs takes the seed only."""

    epochs: int
    batch_size: int
    lr: float
    weight_decay: float
    seed: int


@final
@dataclass(frozen=True, kw_only=True)
class Fitted:
    """How the training of a head went: ``epoch`` is the one kept, by ``score`` on held-out rows.

    A head that is not trained by epochs has one epoch, no step, and the loss at its end.
    """

    epochs: int
    steps: int = 0
    epoch: int | None = None
    measure: str | None = None
    score: float | None = None
    losses: tuple[float, ...] = field(default=())


class FittedHead(ABC):
    """A head that was trained."""

    fitted: Fitted

    @abstractmethod
    def predict(self, examples: EmbeddedRows, rows: Tensor) -> Tensor:
        """Return ``[B]`` probabilities of the positive class, or ``[B, classes]``."""

    @abstractmethod
    def to_bytes(self) -> bytes:
        """Return what ``Head.load`` makes the same head from, without pickle."""


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class HeadEpoch:
    """The end of an epoch: how many are done and may be, the training loss, the head as it is.

    ``head`` changes with the next epoch: whoever wants its predictions makes them now.
    """

    number: int
    most: int
    loss: float
    head: FittedHead


OnEpoch: TypeAlias = Callable[[HeadEpoch], None]


class Head(Specified, ABC):
    """A kind of head. Subclasses are frozen dataclasses; their fields are its parameters."""

    suffix: ClassVar[str]
    """What the name of a file with a trained head ends with."""

    @abstractmethod
    def fit(
        self,
        examples: EmbeddedRows,
        labels: Tensor,
        *,
        train: Tensor,
        held: Tensor,
        classes: int,
        settings: HeadSettings,
        done: OnEpoch,
    ) -> FittedHead:
        """Train on the rows ``train``; ``held`` are rows to choose by, which may be none.

        ``labels`` ``[N]`` are those of all rows.
        """

    @abstractmethod
    def load(
        self, content: bytes, *, width: int, inputs: Inputs | None, classes: int
    ) -> FittedHead:
        """Return a head that was trained before, on so wide embeddings and such columns."""

    def check(self) -> None:
        """Refuse what cannot be trained here, such as an estimator that is not installed."""

    def describe(self) -> dict[str, Any]:
        """Return what results say of this head, as plain values."""
        return {"spec": str(self)}


def held_out_score(
    probs: npt.NDArray[np.float32], labels: npt.NDArray[np.int64]
) -> tuple[str, float]:
    """Return what held-out rows judge a head by, and how good its predictions are by it.

    The AUC of two classes, the accuracy of many; where all labels are of one class the loss with
    its sign turned, so that more is better everywhere.

    >>> held_out_score(np.float32([0.1, 0.9]), np.int64([0, 1]))
    ('auc', 1.0)
    """
    if probs.ndim > 1:
        return "accuracy", float(measure.accuracy(probs, labels))
    if len(np.unique(labels)) < 2:
        return "loss", -float(measure.log_loss(probs, labels))
    return "auc", float(measure.auc(probs, labels))


HEADS: Registry[Head] = Registry("head")
