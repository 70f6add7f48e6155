"""A dense net with dropout: the head that is used where no other is named."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from typing import Any, final

import numpy as np
import numpy.typing as npt
import torch
from safetensors.torch import load, save
from torch import Tensor, nn

from tacit import measure, objective
from tacit.errors import InputError
from tacit.heads.base import HEADS, EmbeddedRows, Fitted, FittedHead, Head, HeadSettings, OnEpoch
from tacit.nets import Inputs
from tacit.nets.embedding import FeatureEncoder
from tacit.nets.initial_weights import draws_at, linear
from tacit.objective.base import Loss
from tacit.spec import require

_CHUNK = 8192
_FITTED = "fitted"


@final
class DenseNet(nn.Module):
    """Two dense layers with dropout on scaled embeddings and the label party's own columns.

    Embeddings are moved to mean 0 by number and scaled by one factor for all, so that a direction
    keeps its share of the variance.
    """

    mean: Tensor
    scale: Tensor

    def __init__(
        self, net: Net, width: int, inputs: Inputs | None, classes: int, *, seed: int
    ) -> None:
        super().__init__()
        own = None if inputs is None or not inputs.columns else inputs
        self.own = (
            None
            if own is None
            else FeatureEncoder(own, net.embedding, draws=draws_at(seed, "head", "own"))
        )
        sizes = (
            width + (0 if self.own is None else self.own.width),
            net.first,
            net.second,
            1 if classes == 2 else classes,
        )
        self.layers = nn.ModuleList(
            linear(fan_in, fan_out, draws_at(seed, "head", number))
            for number, (fan_in, fan_out) in enumerate(pairwise(sizes))
        )
        self.dropout = nn.Dropout(net.dropout)
        self.register_buffer("mean", torch.zeros(width))
        self.register_buffer("scale", torch.ones(()))

    def rescale(self, embeddings: Tensor) -> None:
        """Take mean and scale of these embeddings."""
        self.mean.copy_(embeddings.mean(0))
        self.scale.copy_((embeddings - self.mean).square().mean().sqrt().clamp(min=1e-12))

    def forward(
        self, embeddings: Tensor, numeric: Tensor | None = None, codes: Tensor | None = None
    ) -> Tensor:
        """Return logits: ``[B]`` for two classes, ``[B, classes]`` for more."""
        x = (embeddings - self.mean) / self.scale
        if self.own is not None:
            x = torch.cat([x, self.own(numeric, codes)], dim=1)
        *hidden, last = self.layers
        for layer in hidden:
            x = self.dropout(torch.relu(layer(x)))
        logits: Tensor = last(x)
        return logits[:, 0] if logits.shape[1] == 1 else logits


@final
@HEADS.register("net")
@dataclass(frozen=True)
class Net(Head):
    """A net with two hidden layers and dropout, stopped where held-out rows stop improving.

    AdamW on cross-entropy; the weights kept are those of the epoch with the best AUC, or accuracy
    of many classes, on held-out rows, and training ends ``patience`` epochs after it.
    """

    first: int = 256
    second: int = 128
    dropout: float = 0.4
    embedding: int = 8
    patience: int = 8

    def __post_init__(self) -> None:
        require(self.first >= 1 <= self.second, "net: layers are at least 1 wide", self.first)
        require(0 <= self.dropout < 1, "net: dropout lies in [0, 1)", self.dropout)
        require(self.embedding >= 1, "net: embedding must be at least 1", self.embedding)
        require(self.patience >= 1, "net: patience must be at least 1", self.patience)

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
    ) -> FittedNet:
        """Train; torch's own generator, which dropout draws from, is as it was afterwards."""
        loss = _loss(classes)
        model = DenseNet(self, examples.width, examples.inputs, classes, seed=settings.seed)
        model.rescale(examples.take(train)[0])
        optimizer = torch.optim.AdamW(
            model.parameters(), lr=settings.lr, weight_decay=settings.weight_decay, fused=True
        )
        best, since, losses = _Best(loss), 0, []
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(settings.seed)
            for epoch in range(1, settings.epochs + 1):
                losses.append(
                    _epoch(model, optimizer, examples, labels, train, settings.batch_size, loss)
                )
                done(epoch, settings.epochs, losses[-1])
                since = 0 if best.look(model, examples, held, labels, epoch) else since + 1
                if len(held) and since == self.patience:
                    break
        if best.weights is not None:
            model.load_state_dict(best.weights)
        return FittedNet(
            model.eval(), loss, replace(best.fitted, epochs=len(losses), losses=tuple(losses))
        )

    def load(self, content: bytes, *, width: int, inputs: Inputs | None, classes: int) -> FittedNet:
        """Return the net of these bytes."""
        model = DenseNet(self, width, inputs, classes, seed=0)
        try:
            model.load_state_dict(load(content))
            facts = _metadata(content)
        except (RuntimeError, ValueError, KeyError) as error:
            raise InputError(
                f"this is not a saved head {self} for these columns: {error}"
            ) from None
        return FittedNet(
            model.eval(), _loss(classes), Fitted(**{**facts, "losses": tuple(facts["losses"])})
        )


@final
class FittedNet(FittedHead):
    """A trained net."""

    def __init__(self, model: DenseNet, loss: Loss, fitted: Fitted) -> None:
        self.model, self.fitted, self._loss = model, fitted, loss

    def predict(self, examples: EmbeddedRows, rows: Tensor) -> Tensor:
        """Return probabilities."""
        return torch.cat([*_probabilities(self.model, self._loss, examples, rows)])

    def to_bytes(self) -> bytes:
        """Return weights and record in safetensors' format."""
        return save(self.model.state_dict(), metadata={_FITTED: json.dumps(asdict(self.fitted))})


@final
class _Best:
    """The weights of the best epoch so far by held-out rows; none without such rows."""

    def __init__(self, loss: Loss) -> None:
        self._loss = loss
        self.weights: dict[str, Tensor] | None = None
        self.fitted = Fitted(epochs=0)

    def look(
        self, model: DenseNet, examples: EmbeddedRows, held: Tensor, labels: Tensor, epoch: int
    ) -> bool:
        """Keep the weights if they are the best so far; return whether they are."""
        if not len(held):
            return True
        model.eval()
        probs = torch.cat([*_probabilities(model, self._loss, examples, held)]).numpy()
        name, score = _score(probs, labels[held].numpy())
        if self.fitted.score is not None and score <= self.fitted.score:
            return False
        self.fitted = Fitted(epochs=0, epoch=epoch, measure=name, score=score)
        self.weights = {name: value.clone() for name, value in model.state_dict().items()}
        return True


def _score(probs: npt.NDArray[Any], labels: npt.NDArray[Any]) -> tuple[str, float]:
    """Return what held-out rows are judged by, and how good these predictions are by it."""
    if probs.ndim > 1:
        return "accuracy", float(measure.accuracy(probs, labels))
    if len(np.unique(labels)) < 2:
        return "loss", -float(measure.log_loss(probs, labels))
    return "auc", float(measure.auc(probs, labels))


def _metadata(content: bytes) -> dict[str, Any]:
    """Return the record in a file in safetensors' format: its header is JSON behind its length."""
    size = int.from_bytes(content[:8], "little")
    found: dict[str, Any] = json.loads(json.loads(content[8 : 8 + size])["__metadata__"][_FITTED])
    return found


def _loss(classes: int) -> Loss:
    found = objective.get("bce" if classes == 2 else "ce")
    assert isinstance(found, Loss)  # noqa: S101 - both are
    return found


def _epoch(
    model: DenseNet,
    optimizer: torch.optim.Optimizer,
    examples: EmbeddedRows,
    labels: Tensor,
    train: Tensor,
    size: int,
    loss: Loss,
) -> float:
    """Take one pass over the rows; return the mean loss."""
    model.train()
    total = 0.0
    for rows in torch.split(train[torch.randperm(len(train))], size):
        value = loss.loss(model(*examples.take(rows)), labels[rows])
        optimizer.zero_grad()
        value.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        total += float(value.detach()) * len(rows)
    return total / len(train)


@torch.no_grad()
def _probabilities(
    model: DenseNet, loss: Loss, examples: EmbeddedRows, rows: Tensor
) -> Iterator[Tensor]:
    for part in torch.split(rows, _CHUNK):
        yield loss.probabilities(model(*examples.take(part)))
