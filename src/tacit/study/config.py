"""The configuration of one training run: flags and TOML files alike become this."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, final

from pydantic import BaseModel, ConfigDict, Field, field_validator

from tacit.study._checked import checked, read_toml

__all__ = ["TrainConfig", "read_config"]


@final
class TrainConfig(BaseModel):
    """Everything that decides what a training run does."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    dataset: str = "ads"
    data_dir: Path | None = None
    rows: int | None = Field(default=None, ge=10)
    model: str = "wdl"
    cut: int | None = Field(default=None, ge=1)
    parties: int = Field(default=1, ge=1, le=8)
    combine: Literal["sum", "mean", "max", "product", "concat"] = "sum"
    protect: str = "none"
    labels: str | None = None
    budget: str | None = None
    objective: str | None = None
    epochs: int = Field(default=5, ge=1)
    batch_size: int = Field(default=1024, ge=2)
    lr: float = Field(default=1e-4, gt=0)
    seed: int = 0
    stream: bool = False
    layers: bool = False
    attacks: tuple[str, ...] = ("norm", "cosine", "energy")
    monitor_every: int = Field(default=32, ge=1)
    threads: int | None = Field(default=None, ge=1)

    @field_validator("protect")
    @classmethod
    def _known_protection(cls, text: str) -> str:
        from tacit.protect import get  # noqa: PLC0415 - torch loads only when it is used

        return str(get(text))

    @field_validator("labels")
    @classmethod
    def _known_mechanism(cls, text: str | None) -> str | None:
        from tacit.protect import get_labels  # noqa: PLC0415 - torch loads only when it is used

        return None if text is None else str(get_labels(text))

    @field_validator("budget")
    @classmethod
    def _known_budget(cls, text: str | None) -> str | None:
        from tacit.measure import Budget  # noqa: PLC0415 - loads numpy

        return None if text is None else str(Budget.parse(text))

    @field_validator("attacks")
    @classmethod
    def _known_attacks(cls, texts: tuple[str, ...]) -> tuple[str, ...]:
        from tacit.attack import get  # noqa: PLC0415 - torch loads only when it is used

        return tuple(str(get(text)) for text in texts)

    @classmethod
    def of(cls, values: dict[str, Any], *, source: str = "the command line") -> TrainConfig:
        """Return the checked configuration, or one line that names field, value and way out."""
        return checked(cls, values, source=source)


def read_config(path: Path, overrides: dict[str, Any]) -> TrainConfig:
    """Return the configuration of a TOML file, with flags taking the place of its values."""
    values = read_toml(path, source=f"--config {path}")
    return TrainConfig.of(values | overrides, source=str(path))
