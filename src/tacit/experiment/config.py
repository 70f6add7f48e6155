"""The configuration of one training run: flags and TOML files alike become this."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Self, final

from pydantic import Field, field_validator, model_validator

from tacit import _config as defaults
from tacit._config import checked, read_toml
from tacit.party.settings import TrainingSettings


@final
class TrainConfig(TrainingSettings):
    """Everything that decides what a training run in one process does."""

    dataset: str = Field(default="ads", description="A name of `tacit data list`, or a file.")
    data_dir: Path | None = Field(default=None, description="Where data sets lie. [TACIT_DATA]")
    rows: int | None = Field(default=None, ge=10, description="Use only so many rows. [all]")
    parties: int | None = Field(
        default=None, ge=1, le=8, description="Feature parties. [as in the schema, or 1]"
    )
    protect: str = Field(
        default="none",
        description="A spec of `tacit list protections`, or silent: send no gradient.",
    )
    bins: int | None = Field(
        default=defaults.BINS,
        ge=2,
        le=256,
        description="Encode numbers by so many quantiles, 0: none.",
    )
    rare: int | None = Field(
        default=defaults.RARE, ge=2, description="One value for all of fewer rows, 0: keep all."
    )
    augment: bool = Field(default=False, description="Shift and mirror images.")
    seed: int = Field(
        default=0, description="Random seed, also of the noise; for experiments only."
    )
    threads: int | None = Field(
        default=None,
        ge=1,
        description="Threads of torch; last bits depend on it. [OMP_NUM_THREADS, or free cores]",
    )
    stream: bool = Field(default=False, description="One pass in time order, by day.")
    layers: bool = Field(default=False, description="Measure every layer too.")
    compare_silent: bool = Field(
        default=False, description="Train with no gradient sent too, and compare."
    )

    @field_validator("bins", "rare", mode="before")
    @classmethod
    def _zero_is_none(cls, value: Any) -> Any:  # noqa: ANN401 - before it is checked
        """Zero leaves columns as they are; TOML has no None."""
        return None if value == 0 else value

    @model_validator(mode="after")
    def _held_out_rows_have_a_use(self) -> Self:
        if self.hold_out is not None and self.stream and not self.silent:
            raise ValueError(
                "--hold-out is for epochs: a stream is tested on a day before it trains on it, "
                "leave one of both out"
            )
        charged = self.budget is not None and not self.silent
        if self.hold_out is not None and charged and self.labels is None:
            raise ValueError(
                "--hold-out with --budget needs --labels: which epoch is kept depends on labels, "
                "and the ledger counts that only where they are randomised"
            )
        return self

    @model_validator(mode="after")
    def _fits_what_is_sent(self) -> Self:
        """Settings of a silent run are also those of the one to compare with."""
        if self.compare_silent and not self.silent:
            return self
        fitting: Self = super()._fits_what_is_sent()  # type: ignore[operator] # pydantic's
        return fitting

    @model_validator(mode="after")
    def _heads_have_rows_and_bottoms(self) -> Self:
        for flag, why in (
            ("stream", "embeddings are sent once, and a stream is trained on day by day"),
            ("layers", "no gradient comes back to any layer"),
            ("augment", "an embedding is sent once, of the image as it is"),
            ("compare_silent", "this run is silent itself"),
        ):
            if self.silent and getattr(self, flag):
                raise ValueError(
                    f"--{flag.replace('_', '-')} does not go with --protect silent: "
                    f"{why}; leave it out"
                )
        for flag in ("private_head", "compare_silent"):
            if self.stream and getattr(self, flag):
                raise ValueError(
                    f"--{flag.replace('_', '-')} is for epochs: its head is tested on rows that a "
                    "stream trains on; leave one of both out"
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
