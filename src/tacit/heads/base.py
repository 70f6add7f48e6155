"""What a head is: a model on embeddings that were received, trained where the labels are.

No gradient leaves it, so it may use true labels, early stopping and any kind of model.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias, final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tacit.errors import InputError
from tacit.nets import Inputs
from tacit.spec import Registry, Specified

OnEpoch: TypeAlias = Callable[[int, int, float], None]
"""Called after each epoch: how many are done, how many there may be, and the training loss."""

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

    def take(self, rows: Tensor) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Return embeddings, own numbers and own codes of some rows."""
        cut = torch.from_numpy(np.asarray(self.embeddings[rows.numpy()], dtype=np.float32))
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
    """How the training of a head went: ``epoch`` is the one kept, by ``score`` on held-out rows."""

    epochs: int
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


class Head(Specified, ABC):
    """A kind of head. Subclasses are frozen dataclasses; their fields are its parameters."""

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


HEADS: Registry[Head] = Registry("head")
