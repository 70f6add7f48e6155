"""What crosses the cut: embeddings one way, gradients the other, and nothing else."""

from __future__ import annotations

from dataclasses import dataclass
from reprlib import repr as shown
from typing import final

from torch import Tensor

from tacit.errors import InputError

RECORD_BYTES = 112
"""The size of one record of the label party's journal."""


def check_record(record: object) -> None:
    """Refuse anything but the bytes of one record of a journal, or None."""
    if record is not None and (not isinstance(record, bytes) or len(record) != RECORD_BYTES):
        raise InputError(f"a record has {RECORD_BYTES} bytes, got {shown(record)}")


def _check_step(step: object) -> None:
    if type(step) is not int or not 0 <= step < 2**63:
        raise InputError(f"a step must be a whole number from 0 to {2**63 - 1}, got {shown(step)}")


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Embedding:
    """What a feature party sends for one step: its bottom model's output, one row per example."""

    step: int
    values: Tensor

    def __post_init__(self) -> None:
        _check_step(self.step)


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Gradient:
    """What the label party sends back for one step: a release, one row per example.

    ``record`` is the release's entry in the label party's journal, for the peer to keep.
    """

    step: int
    values: Tensor
    record: bytes | None = None

    def __post_init__(self) -> None:
        _check_step(self.step)
        check_record(self.record)
