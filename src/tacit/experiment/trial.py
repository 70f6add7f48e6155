"""What every run in one process has: its rows, its parties' columns, and what is told of it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, final

import numpy as np
import torch
from torch import Tensor

from tacit import data
from tacit.experiment.batches import held_out
from tacit.experiment.config import TrainConfig


@final
@dataclass(frozen=True, kw_only=True)
class Progress:
    """What an observer is told: after every step, and with ``test`` at the end of a part.

    A part is an epoch, or a day of a stream. ``loss`` is None while bottoms learn without labels;
    ``doing`` then says what goes on.
    """

    step: int
    steps: int
    part: int
    loss: float | None
    test: dict[str, float] | None = None
    leak: dict[str, dict[str, float]] | None = None
    note: str | None = None
    doing: str | None = None


Observer: TypeAlias = Callable[[Progress], None]


class Trial(ABC):
    """A run that is set up. What cannot be trained is refused here, before anything is written.

    Attributes:
        table: the rows.
        columns: of each feature party.
        learning_rows: all that may be learned from, without labels.
        train_rows: those whose labels are trained on.
        held_rows: those whose labels choose an epoch.
        test_rows: those that have a part in nothing but the last numbers.
        truth: the labels of all rows.
    """

    def __init__(self, config: TrainConfig) -> None:
        self.config = config
        self.table = data.load(
            config.dataset, data_dir=config.data_dir, rows=config.rows, seed=config.seed
        )
        self.columns = data.assign(self.table, config.parties or len(self.table.parties) or 1)
        self.learning_rows, self.test_rows = data.split(self.table, seed=config.seed)
        self.train_rows, self.held_rows = held_out(
            self.learning_rows, config.hold_out, groups=self.table.groups
        )
        # A copy of the labels: the file is read-only.
        self.truth: Tensor = torch.from_numpy(np.array(self.table.labels))

    @abstractmethod
    def record(self, folder: Path) -> None:
        """Write what is seen on the way to the other side into that folder."""

    @abstractmethod
    def train(self, observer: Observer | None = None) -> dict[str, Any]:
        """Train and measure; return the results as plain values."""

    @abstractmethod
    def files(self) -> Mapping[str, bytes]:
        """Return the trained models by the names of their files, and what an audit needs."""
