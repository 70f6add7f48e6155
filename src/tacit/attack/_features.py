"""What a learner sees of rows: a fixed, label-free map to features that hold second-order terms."""

from __future__ import annotations

import torch
from torch import Tensor

from tacit.attack.spectral import _coordinates
from tacit.rows import norms

__all__ = ["second_order"]

_DIRECTIONS = 1024  # coordinates at most: time grows with them
_SQUARES = 256
_PRODUCTS = 12
# Squares and products are many: at a smaller scale the same penalty weighs more on them.
_SECOND = 0.3
# So do weak directions: most hold rounding, but what they hold can still be learnt.
_FADE, _FAINTEST = 0.25, 0.05
# A coordinate this many standard deviations out says no more than "far out"; its square would
# otherwise outweigh all others.
_FAR = 10.0
_FLOOR = 1e-9  # of the mean energy: below it, energies differ by rounding alone
_FLAT = 1e-8  # features have no unit: less than this is rounding


def second_order(rows: Tensor, *, directions: int) -> Tensor:
    """Return features ``[B, p]`` of the rows, each with mean 0; ``p`` is 0 for rows all alike.

    In the principal basis of the rows, strongest direction first: standardised coordinates
    ``x_j``, their squares, the products of the strongest twelve, the log norm, and the log
    energies of the halves and quarters of the spectrum. The log-likelihood ratio of two Gaussians
    is a linear function of ``x_j``, ``x_j^2`` and ``x_j x_k``; the log energies cover all
    directions, also those beyond the first ``directions``.

    >>> second_order(torch.randn(50, 3, generator=torch.Generator()), directions=3).shape
    torch.Size([50, 15])
    """
    along = _signed(_coordinates(rows.double()).flip(1))
    strong = along[:, : min(directions, _DIRECTIONS)]
    spread = strong.square().mean(dim=0).sqrt()
    near = (strong / spread).clamp(-_FAR, _FAR)
    top = near[:, :_PRODUCTS]
    first, second = torch.triu_indices(top.shape[1], top.shape[1], 1)
    energy = torch.cat([norms(rows).square().unsqueeze(1), _bands(along.square())], dim=1)
    weight = (spread / spread.max() if len(spread) else spread).pow(_FADE).clamp_min(_FAINTEST)
    found = [
        _standard(near) * weight,
        _standard(_log(energy)),
        _standard(near[:, :_SQUARES].square()) * weight[:_SQUARES] * _SECOND,
        _standard(top[:, first] * top[:, second]) * _SECOND,
    ]
    features = torch.cat(found, dim=1)
    return features[:, features.any(dim=0)]


def _signed(along: Tensor) -> Tensor:
    """Return each coordinate with its longer tail positive: a basis has no sign of its own."""
    return torch.where(along.pow(3).sum(dim=0) < 0, -along, along)


def _standard(columns: Tensor) -> Tensor:
    """Return the columns at mean 0 and variance 1; those that do not vary are 0."""
    centred = columns - columns.mean(dim=0)
    spread = centred.square().mean(dim=0).sqrt()
    return centred / torch.where(spread > _FLAT, spread, torch.inf)


def _bands(energy: Tensor) -> Tensor:
    """Return the energy ``[B, 6]`` in the two halves and four quarters of the spectrum."""
    parts = [band for count in (2, 4) for band in energy.tensor_split(count, dim=1)]
    return torch.stack([band.sum(dim=1) for band in parts], dim=1)


def _log(energy: Tensor) -> Tensor:
    """Return the log of each energy over its mean; zero where a band has none at all."""
    mean = energy.mean(dim=0)
    return torch.log(energy / torch.where(mean > 0, mean, 1.0) + _FLOOR) * (mean > 0)
