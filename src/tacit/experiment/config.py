"""The configuration of one training run: flags and TOML files alike become this."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, Self, final

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from tacit import _config as defaults
from tacit._config import checked, read_toml


@final
class TrainConfig(BaseModel):
    """Everything that decides what a training run does."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    dataset: str = "ads"
    data_dir: Path | None = None
    rows: int | None = Field(default=None, ge=10)
    model: str = "wdl"
    cut: int | None = Field(default=None, ge=1)
    parties: int | None = Field(default=None, ge=1, le=8)
    combine: Literal["sum", "mean", "max", "product", "concat"] = "sum"
    protect: str = "none"
    labels: str | None = None
    budget: str | None = None
    objective: str | None = None
    epochs: int = Field(default=defaults.EPOCHS, ge=1)
    batch_size: int = Field(default=defaults.BATCH_SIZE, ge=2)
    depth: int = Field(default=1, ge=1, le=4)
    lr: float = Field(default=defaults.LR, gt=0)
    weight_decay: float = Field(default=defaults.WEIGHT_DECAY, ge=0, lt=1)
    bins: int | None = Field(default=defaults.BINS, ge=2, le=256)
    rare: int | None = Field(default=defaults.RARE, ge=2)
    augment: bool = False
    hold_out: float | None = Field(default=None, gt=0, le=0.5)
    seed: int = 0
    stream: bool = False
    layers: bool = False
    attacks: tuple[str, ...] = ("norm", "cosine", "energy")
    monitor_every: int = Field(default=32, ge=1)
    threads: int | None = Field(default=None, ge=1)

    @field_validator("bins", "rare", mode="before")
    @classmethod
    def _zero_is_none(cls, value: Any) -> Any:  # noqa: ANN401 - before it is checked
        """Zero leaves columns as they are; TOML has no None."""
        return None if value == 0 else value

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

    @field_validator("objective")
    @classmethod
    def _known_objective(cls, text: str | None) -> str | None:
        from tacit.objective import get  # noqa: PLC0415 - torch loads only when it is used

        return None if text is None else str(get(text))

    @field_validator("budget")
    @classmethod
    def _known_budget(cls, text: str | None) -> str | None:
        from tacit.accounting import Budget  # noqa: PLC0415 - loads numpy

        return None if text is None else str(Budget.parse(text))

    @field_validator("attacks")
    @classmethod
    def _known_attacks(cls, texts: tuple[str, ...]) -> tuple[str, ...]:
        from tacit.attack import get  # noqa: PLC0415 - torch loads only when it is used

        return tuple(str(get(text)) for text in texts)

    @model_validator(mode="after")
    def _held_out_rows_have_a_use(self) -> Self:
        if self.hold_out is not None and self.stream:
            raise ValueError(
                "--hold-out is for epochs: a stream is tested on a day before it trains on it, "
                "leave one of both out"
            )
        if self.hold_out is not None and self.budget is not None and self.labels is None:
            raise ValueError(
                "--hold-out with --budget needs --labels: which epoch is kept depends on labels, "
                "and the ledger counts that only where they are randomised"
            )
        return self

    @classmethod
    def of(cls, values: dict[str, Any], *, source: str = "the command line") -> TrainConfig:
        """Return the checked configuration, or one line that names field, value and way out."""
        return checked(cls, values, source=source)


def read_config(path: Path, overrides: dict[str, Any]) -> TrainConfig:
    """Return the configuration of a TOML file, with flags taking the place of its values."""
    values = read_toml(path, source=f"--config {path}")
    return TrainConfig.of(values | overrides, source=str(path))
