"""What a run tells its observers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

__all__ = ["Observer", "Progress"]


@final
@dataclass(frozen=True, kw_only=True)
class Progress:
    """What an observer is told: after every step, and with ``test`` at the end of a part.

    A part is an epoch, or a day of a stream.
    """

    step: int
    steps: int
    part: int
    loss: float
    test: dict[str, float] | None = None
    leak: dict[str, dict[str, float]] | None = None
    note: str | None = None


Observer = Callable[[Progress], None]
