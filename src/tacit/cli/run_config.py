"""The configuration of the run that a tape belongs to."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tacit.errors import UsageError

if TYPE_CHECKING:
    from tacit.experiment.config import TrainConfig


def config_beside(tape: Path) -> TrainConfig | None:
    """Return the configuration of the run of ``tacit train`` that a tape lies in, if it does."""
    from tacit.experiment.config import read_config  # noqa: PLC0415 - loads torch

    path = tape.parent / "config.toml"
    if tape.suffix not in (".tape", ".npz"):
        return None
    try:
        return read_config(path, {})
    except UsageError:
        return None
