"""The settings that a training has wherever it runs: in one process or between parties.

Flags of ``tacit train``, keys of ``party.toml`` and of a sweep, and the template of ``tacit init``
are made from these fields, their defaults and their descriptions.
"""

from __future__ import annotations

from abc import ABC
from collections.abc import Callable
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from tacit import _config as defaults


class TrainingSettings(BaseModel, ABC):
    """What decides how a model is split, trained, protected and watched.

    A description ends with the default in brackets where the default itself would say nothing.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: str = Field(default="wdl", description="A name of `tacit list models`.")
    cut: int | None = Field(
        default=None, ge=1, description="Layers at the feature party. [the model's own]"
    )
    combine: Literal["sum", "mean", "max", "product", "concat"] = Field(
        default="sum", description="sum, mean, max, product or concat."
    )
    protect: str | None = Field(default=None, description="A spec of `tacit list protections`.")
    labels: str | None = Field(default=None, description="A spec of `tacit list labels`. [none]")
    budget: str | None = Field(
        default=None, description="auc=, sum_kl= or epsilon= to stay within. [none]"
    )
    objective: str | None = Field(
        default=None, description="bce, ce or gafm(...). [by the classes]"
    )
    epochs: int = Field(default=defaults.EPOCHS, ge=1, description="Passes over the training rows.")
    batch_size: int = Field(default=defaults.BATCH_SIZE, ge=2, description="Examples per step.")
    depth: int = Field(default=1, ge=1, le=4, description="Steps under way at once, 1 to 4.")
    lr: float = Field(
        default=defaults.LR, gt=0, description="Learning rate of Adam, at this party."
    )
    weight_decay: float = Field(
        default=defaults.WEIGHT_DECAY,
        ge=0,
        lt=1,
        description="L2 penalty; randomised labels want more.",
    )
    seed: int = Field(default=0, description="Of the order of rows.")
    attacks: tuple[str, ...] = Field(
        default=("norm", "cosine", "energy"), description="An attack to run; repeat it."
    )
    monitor_every: int = Field(default=32, ge=1, description="Attack every n-th release.")
    threads: int | None = Field(default=None, ge=1, description="Threads of torch. [all cores]")

    @field_validator("protect", "labels", "objective", "budget")
    @classmethod
    def _known_spec(cls, text: str | None, info: Any) -> str | None:  # noqa: ANN401 - pydantic's
        from tacit.accounting import Budget  # noqa: PLC0415 - loads numpy
        from tacit.objective import get as get_objective  # noqa: PLC0415 - torch loads when used
        from tacit.protect import get, get_labels  # noqa: PLC0415 - as above

        readers: dict[str, Callable[[str], object]] = {
            "protect": get,
            "labels": get_labels,
            "objective": get_objective,
            "budget": Budget.parse,
        }
        return None if text is None else str(readers[info.field_name](text))

    @field_validator("attacks")
    @classmethod
    def _known_attacks(cls, texts: tuple[str, ...]) -> tuple[str, ...]:
        from tacit.attack import get  # noqa: PLC0415 - torch loads only when it is used

        return tuple(str(get(text)) for text in texts)
