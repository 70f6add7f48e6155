"""What crosses the cut: embeddings one way, gradients the other, and nothing else."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from torch import Tensor

RECORD_BYTES = 112
"""The size of one record of the label party's journal."""


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Embedding:
    """What a feature party sends for one step: its bottom model's output, one row per example."""

    step: int
    values: Tensor


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Gradient:
    """What the label party sends back for one step: a release, one row per example.

    ``record`` is the release's entry in the label party's journal, for the peer to keep.
    """

    step: int
    values: Tensor
    record: bytes | None = None
