"""A masked autoencoder on numbers and categories."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import final

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from tacit.nets import Inputs
from tacit.nets.initial_weights import draws_at, linear
from tacit.pretrain.base import (
    PRETRAINERS,
    FrozenBottom,
    Pretrainer,
)
from tacit.pretrain.epochs import Epochs
from tacit.pretrain.progress import FitProgress, State
from tacit.pretrain.standardise import dense_width, named, one_hot
from tacit.rng import Key
from tacit.spec import require

_HIDDEN = 256
_KNOTS = 129
_MASKED = 0.3
_BATCH = 256
_RATE = 2e-3
_DECAY = 0.01
_FAR = 3.0


@final
class Ranks(nn.Module):
    """Numbers by their rank in the fitted rows, as normal quantiles up to 3.

    Linear between 129 knots at equally spaced quantiles; equal knots share their middle rank.
    """

    knots: Tensor
    values: Tensor

    def __init__(self, columns: int) -> None:
        super().__init__()
        self.register_buffer("knots", torch.zeros(columns, _KNOTS))
        self.register_buffer("values", torch.zeros(columns, _KNOTS))

    def learn(self, numeric: Tensor) -> None:
        """Take the quantiles of these rows."""
        if not numeric.shape[1]:
            return
        shares = torch.linspace(0, 1, _KNOTS)
        ordered = numeric.sort(0).values
        self.knots = ordered[(shares * (len(ordered) - 1)).round().long()].T.contiguous()
        below = torch.searchsorted(self.knots, self.knots)
        above = torch.searchsorted(self.knots, self.knots, right=True) - 1
        middle = (below + above) / 2 / (_KNOTS - 1)
        self.values = torch.special.ndtri(middle.double()).clamp(-_FAR, _FAR).float()

    def forward(self, numeric: Tensor) -> Tensor:
        """Return ``[B, n]``."""
        if not numeric.shape[1]:
            return numeric
        x = numeric.T.contiguous()
        high = torch.searchsorted(self.knots, x).clamp(1, _KNOTS - 1)
        start, stop = self.knots.gather(1, high - 1), self.knots.gather(1, high)
        low_value, high_value = self.values.gather(1, high - 1), self.values.gather(1, high)
        into = ((x - start) / (stop - start).clamp(min=1e-30)).clamp(0, 1)
        return (low_value + into * (high_value - low_value)).T


@final
class MaskedBottom(FrozenBottom):
    """The encoder of the autoencoder, with nothing masked."""

    def __init__(self, inputs: Inputs, width: int) -> None:
        super().__init__(inputs, width)
        self.ranks = Ranks(inputs.numeric)
        self.encoder = _perceptron(_widths(inputs, width), Key.from_seed(0), "encoder")

    def embed(self, numeric: Tensor, categorical: Tensor) -> Tensor:
        """Return the code of the rows."""
        x = torch.cat([self.ranks(numeric), one_hot(self.inputs, categorical)], dim=1)
        shown = torch.zeros(len(x), self.inputs.columns, device=x.device)
        z: Tensor = self.encoder(torch.cat([x, shown], dim=1))
        return z


@final
@PRETRAINERS.register("masked")
@dataclass(frozen=True)
class MaskedAutoencoder(Pretrainer):
    """Train an autoencoder to restore rows of which some columns are masked; keep the encoder.

    ``min E[ sum_j w_j l_j(x_j, decode(encode((1 - m) x, m))_j) ]``, ``m_j ~ Bernoulli(0.3)``;
    squares for numbers (by rank), cross-entropy for categories, ``w = 1`` where masked and 0.5
    elsewhere.

    Guarantee: sees no labels. The embeddings show the inputs: the decoder, which stays with the
    feature party, restores them as well as ``width`` numbers can.

    References:
        Vincent et al., "Extracting and Composing Robust Features with Denoising Autoencoders"
        (2008), section 2.3; for columns, Yoon et al., "VIME" (NeurIPS 2020), Eq. 3 to 6.

    Departures: masked values are 0 with a mark, not drawn from other rows, and nothing predicts
    the mask.

    >>> x = torch.tensor([[0.5, 1], [1.5, 2.25], [2.5, 3], [3.5, 4.25]])
    >>> MaskedAutoencoder(width=2, epochs=1).fit(Inputs(2), x, seed=0)(x).shape
    torch.Size([4, 2])
    """

    width: int = 32
    epochs: int = 30

    def __post_init__(self) -> None:
        require(self.width >= 1, "masked: width must be at least 1", self.width)
        require(self.epochs >= 1, "masked: epochs must be at least 1", self.epochs)

    def embedding_width(self, inputs: Inputs) -> int:  # noqa: ARG002
        """Return the width."""
        return self.width

    def passes(self, inputs: Inputs) -> int:  # noqa: ARG002
        """Return the epochs."""
        return self.epochs

    def learn(
        self,
        inputs: Inputs,
        numeric: Tensor,
        categorical: Tensor,
        *,
        key: Key,
        progress: FitProgress,
    ) -> State:
        """Return ranks and the weights of the encoder."""
        ranks = Ranks(inputs.numeric)
        ranks.learn(numeric)
        widths = _widths(inputs, self.width)
        encoder = _perceptron(widths, key, "encoder")
        decoder = _perceptron([self.width, _HIDDEN, dense_width(inputs)], key, "decoder")
        rows = ranks(numeric)
        plan = Epochs(
            purpose="masked",
            epochs=self.epochs,
            steps=-(-len(rows) // _BATCH),
            rate=_RATE,
            weight_decay=_DECAY,
        )
        model = nn.Sequential(encoder, decoder)
        loss = partial(_masked_loss, inputs, model, rows, categorical)
        plan.train(model, loss, rows=len(rows), key=key, progress=progress)
        return {**named("ranks", ranks), **named("encoder", encoder)}

    def bottom(self, inputs: Inputs, state: State) -> FrozenBottom:
        """Return the encoder."""
        return MaskedBottom(inputs, self.width).freeze(state)


def _widths(inputs: Inputs, width: int) -> list[int]:
    return [dense_width(inputs) + inputs.columns, _HIDDEN, _HIDDEN, width]


def _perceptron(widths: Sequence[int], key: Key, part: str) -> nn.Sequential:
    layers: list[nn.Module] = []
    for number, (before, after) in enumerate(pairwise(widths)):
        layers += [linear(before, after, draws_at(key, "masked", part, number)), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def _masked_loss(
    inputs: Inputs,
    model: nn.Module,
    ranks: Tensor,
    categorical: Tensor,
    batch: Tensor,
    draws: torch.Generator,
) -> Tensor:
    """Return the mean loss of these rows, restored from what a random mask leaves of them."""
    numbers, codes = ranks[batch], categorical[batch]
    sizes = torch.tensor([1] * inputs.numeric + list(inputs.cardinalities))
    clean = torch.cat([numbers, one_hot(inputs, codes)], dim=1)
    mask = (torch.rand(len(batch), inputs.columns, generator=draws) < _MASKED).float()
    shown = clean * (1 - mask.repeat_interleave(sizes, dim=1))
    restored = model(torch.cat([shown, mask], dim=1))
    return (_losses(inputs, restored, numbers, codes) * (0.5 + 0.5 * mask)).mean()


def _losses(inputs: Inputs, restored: Tensor, numbers: Tensor, codes: Tensor) -> Tensor:
    """Return the loss of each row and column, ``[B, n + c]``."""
    first, *logits = torch.split(restored, [inputs.numeric, *inputs.cardinalities], dim=1)
    categories = [
        cross_entropy(part, codes[:, at], reduction="none")[:, None]
        for at, part in enumerate(logits)
    ]
    return torch.cat([(first - numbers).square(), *categories], dim=1)
