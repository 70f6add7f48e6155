"""Rows with a known best score, and how far an AUC may lie off by chance."""

from __future__ import annotations

import math
from statistics import NormalDist

import torch
from torch import Tensor

from tacit.attack import Attack, Supervised
from tacit.evaluate import cross_fit
from tacit.measure import auc, null_band
from tacit.types import View

QUADRATIC, MLP = Supervised(model="quadratic"), Supervised(model="mlp")
BEYOND = NormalDist().inv_cdf(1 - 5e-7)  # a deviation that chance exceeds once in a million


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def shifted(rows: int, width: int, delta: float, *, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Unit Gaussian noise on both classes, whose means lie ``delta`` apart."""
    rng = seeded(seed)
    labels = (torch.rand(rows, generator=rng) < 0.3).long()
    direction = torch.linalg.qr(torch.randn(width, 1, generator=rng))[0].flatten()
    noise = torch.randn(rows, width, generator=rng)
    return noise + delta * labels.unsqueeze(1) * direction, labels


def judged(attack: Attack, grads: Tensor, labels: Tensor, **more: Tensor) -> float:
    return auc(cross_fit(attack, View(grads=grads, **more), labels, rng=seeded(1)), labels)


def deviation(labels: Tensor, *, folds: bool = True) -> float:
    """How far an AUC may lie off by chance: cross-fitted scores spread up to sqrt(2) times more."""
    high = null_band(labels, level=1 - 1e-6).high - 0.5
    return high * math.sqrt(2) if folds else high
