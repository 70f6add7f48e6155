"""What the learned attacks compute with: standardised rows, and a surrogate of the top model.

The surrogate is a network of fully connected layers with ReLU between them. Its loss gradient at
the input has a closed form, ``W1 (m1 * (W2 (m2 * (W3 (p - y)))))`` with ``m`` the masks of the
hidden units that are on: matching gradients needs no second differentiation.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Final, final

import numpy as np
import torch
from torch import Tensor, nn

_DIRECTIONS: Final = 48  # of the gradients, and as many of the remainder of the embeddings
_BASIS_ROWS: Final = 1500  # for the directions, where there are more columns than rows
_TINY: Final = 1e-12


@final
@dataclass(frozen=True, eq=False)
class Rows:
    """Embeddings and gradients, one row of each per example."""

    embeddings: Tensor
    gradients: Tensor

    def __len__(self) -> int:
        return len(self.embeddings)

    def __getitem__(self, chosen: Tensor | slice) -> Rows:
        return Rows(self.embeddings[chosen], self.gradients[chosen])

    def double(self) -> Rows:
        """Return the rows in ``float64``."""
        return Rows(self.embeddings.double(), self.gradients.double())

    @classmethod
    def joined(cls, parts: list[Rows]) -> Rows:
        """Return the rows of all parts, one after the other."""
        sent, back = zip(*((part.embeddings, part.gradients) for part in parts), strict=True)
        return cls(torch.cat(sent), torch.cat(back))


def unit(rows: Tensor) -> Tensor:
    """Return the rows at length one, differentiably; rows shorter than 1e-12 stay short."""
    found: Tensor = rows / torch.linalg.vector_norm(rows, dim=1, keepdim=True).clamp_min(_TINY)
    return found


def content_order(rows: Rows) -> tuple[Tensor, Tensor]:
    """Return an order of the rows by their content, and in that order a number per distinct row.

    Fits in that order do not depend on the order in which rows came, and equal rows can share one
    surrogate label.
    """
    columns = (rows.gradients[:, 0], rows.embeddings.sum(dim=1), rows.gradients.sum(dim=1))
    order = torch.from_numpy(np.lexsort([column.double().numpy() for column in columns]))
    sorted_rows = rows[order]
    new = torch.zeros(len(rows), dtype=torch.bool)
    for part in (sorted_rows.embeddings, sorted_rows.gradients):
        new[1:] |= (part[1:] != part[:-1]).any(dim=1)
    return order, new.long().cumsum(0)


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class RowTransform:
    """The coordinates in which a surrogate sees rows: centred, scaled, in principal directions.

    Gradients of a network lie near few directions. Rows wider than twice ``48`` are written in the
    gradients' strongest directions and in those of the rest of the embeddings: an orthonormal basis
    turns gradients at the embeddings into gradients at their coordinates.
    """

    centre: Tensor
    scale: float
    length: float
    basis: Tensor | None

    @classmethod
    def fit(cls, rows: Rows) -> RowTransform:
        """Return the transform with the centre, scale and directions of these rows."""
        centre = rows.embeddings.mean(dim=0)
        same = rows.embeddings.shape[1] == rows.gradients.shape[1]
        basis = None
        if same and rows.gradients.shape[1] > 2 * _DIRECTIONS:
            basis = _basis(rows.embeddings - centre, unit(rows.gradients))
        seen = rows.embeddings - centre
        seen = seen if basis is None else seen @ basis
        scale = float(seen.square().mean().sqrt())
        length = float(rows.gradients.square().sum(dim=1).mean().sqrt())
        scale, length = (size if size > _TINY else 1.0 for size in (scale, length))
        return cls(centre=centre, scale=scale, length=length, basis=basis)

    @classmethod
    def identity(cls, width: int) -> RowTransform:
        """Return the transform that leaves rows of a width as they are."""
        return cls(centre=torch.zeros(width), scale=1.0, length=1.0, basis=None)

    def __call__(self, rows: Rows) -> Rows:
        """Return coordinates of the embeddings and of the gradients."""
        sent, back = rows.embeddings - self.centre.to(rows.embeddings.dtype), rows.gradients
        if self.basis is not None:
            basis = self.basis.to(back.dtype)
            sent, back = sent @ basis, back @ basis
        return Rows(sent / self.scale, back / self.length)


def _basis(embeddings: Tensor, directions: Tensor) -> Tensor:
    """Return orthonormal columns: the gradients' strongest directions, then the embeddings'."""
    first = _principal(directions)
    rest = embeddings - (embeddings @ first) @ first.T
    found: Tensor = torch.linalg.qr(torch.cat([first, _principal(rest)], dim=1)).Q
    return found


def _principal(rows: Tensor) -> Tensor:
    """Return the strongest directions ``[d, k]`` of the rows, about zero."""
    count = min(_DIRECTIONS, *rows.shape)
    if rows.shape[1] <= len(rows):
        vectors: Tensor = torch.linalg.eigh((rows.T @ rows).double()).eigenvectors
        return vectors[:, -count:].flip(1).float()
    rows = rows[:: -(-len(rows) // _BASIS_ROWS)]
    vectors = torch.linalg.eigh((rows @ rows.T).double()).eigenvectors
    along = rows.T @ vectors[:, -min(count, len(rows)) :].flip(1).float()
    found: Tensor = torch.linalg.qr(along).Q
    return found


def hidden_widths(classes: int) -> tuple[int, ...]:
    """Return the widths of a surrogate's hidden layers, as ExPLOit's authors have them (5.1).

    >>> hidden_widths(10), hidden_widths(2)
    ((128, 64), (32, 32))
    """
    return (128, 64) if classes > 2 else (32, 32)


def fully_connected(widths: list[int], rng: torch.Generator, *, lift: float = 0.0) -> nn.Sequential:
    """Return linear layers of these widths with ReLU between them.

    Weights and biases are uniform in ``+-1 / sqrt(inputs)`` and drawn from ``rng`` alone. ``lift``
    is added to the hidden biases.
    """
    layers: list[nn.Module] = []
    for fan, width in itertools.pairwise(widths):
        # On "meta", the layer's own start draws nothing from torch's global generator.
        linear = nn.Linear(fan, width, device="meta").to_empty(device="cpu")
        hidden = len(layers) // 2 < len(widths) - 2
        with torch.no_grad():
            linear.weight.copy_((2 * torch.rand(fan, width, generator=rng) - 1).T / fan**0.5)
            linear.bias.copy_((2 * torch.rand(width, generator=rng) - 1) / fan**0.5)
            linear.bias.add_(lift if hidden else 0.0)
        layers += [linear, nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def logits_and_masks(net: nn.Sequential, rows: Tensor) -> tuple[Tensor, list[Tensor]]:
    """Return the logits ``[B, classes]``, and for each hidden layer which units are on."""
    masks: list[Tensor] = []
    for layer in net:
        if isinstance(layer, nn.ReLU):
            masks.append((rows > 0).to(rows.dtype))
            rows = rows * masks[-1]
        else:
            rows = layer(rows)
    return rows, masks


def input_gradient(net: nn.Sequential, residual: Tensor, masks: list[Tensor]) -> Tensor:
    """Return the loss gradient at the input for ``residual = p - y``, differentiably."""
    linear = [layer for layer in net if isinstance(layer, nn.Linear)]
    found = residual @ linear[-1].weight
    for layer, mask in zip(linear[-2::-1], reversed(masks), strict=True):
        found = (found * mask) @ layer.weight
    return found
