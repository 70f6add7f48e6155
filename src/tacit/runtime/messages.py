"""What crosses the cut: embeddings one way, gradients the other, and nothing else."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from torch import Tensor

__all__ = ["Embedding", "Gradient"]


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Embedding:
    """What a feature party sends for one step: its bottom model's output, one row per example."""

    step: int
    values: Tensor


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Gradient:
    """What the label party sends back for one step: a release, one row per example."""

    step: int
    values: Tensor
