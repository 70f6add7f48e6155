"""The settings that a training has wherever it runs: in one process or between parties.

Flags of ``tacit train``, keys of ``party.toml`` and of a sweep, and the template of ``tacit init``
are made from these fields, their defaults and their descriptions.
"""

from __future__ import annotations

from abc import ABC
from collections.abc import Callable
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from tacit import _config as defaults

SILENT = "silent"
"""What ``protect`` says where no gradient is sent: a mode of a run, no protection of gradients."""


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
    protect: str | None = Field(
        default=None, description="A spec of `tacit list protections`, or silent: send no gradient."
    )
    pretrain: str | None = Field(
        default=None,
        description="With silent: how the bottom learns without labels, of `tacit list pretrain`. "
        "[auto]",
    )
    width: int | None = Field(
        default=None,
        ge=1,
        le=4096,
        description="With silent: numbers in an embedding; fewer show less of the inputs. "
        "[the method's own]",
    )
    embed_bits: Literal[32, 8, 4] = Field(
        default=32, description="With silent: bits of a number sent; fewer save traffic only."
    )
    embed_noise: float = Field(
        default=0.0,
        ge=0,
        description="With silent: noise on embeddings, in standard deviations of each number.",
    )
    head: str | None = Field(
        default=None,
        description="The model on embeddings sent once: of `tacit list heads`, or "
        "sklearn:Estimator(...). [net]",
    )
    private_head: bool = Field(
        default=False,
        description="Predict with a head that true labels train, of which nothing is sent.",
    )
    hold_out: float | None = Field(
        default=None,
        gt=0,
        le=0.5,
        description="Share of the training rows to choose the best epoch by. [0; of a head 0.1]",
    )
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

    @model_validator(mode="before")
    @classmethod
    def _defaults_of_silent(cls, values: Any) -> Any:  # noqa: ANN401 - before anything is checked
        """Take the defaults of a head where only a head is trained."""
        if isinstance(values, dict) and values.get("protect") == SILENT:
            return {**{n: v for n, v in defaults.SILENT.items() if n in cls.model_fields}, **values}
        return values

    @property
    def silent(self) -> bool:
        """Whether nothing that depends on labels is sent."""
        return self.protect == SILENT

    @field_validator("protect", "labels", "objective", "budget", "pretrain", "head")
    @classmethod
    def _known_spec(cls, text: str | None, info: Any) -> str | None:  # noqa: ANN401 - pydantic's
        if text == SILENT and info.field_name == "protect":
            return text
        from tacit.accounting import Budget  # noqa: PLC0415 - loads numpy
        from tacit.heads import get as get_head  # noqa: PLC0415 - torch loads when used
        from tacit.objective import get as get_objective  # noqa: PLC0415 - torch loads when used
        from tacit.pretrain import get as get_pretrainer  # noqa: PLC0415 - as above
        from tacit.protect import get, get_labels  # noqa: PLC0415 - as above

        readers: dict[str, Callable[[str], object]] = {
            "protect": get,
            "labels": get_labels,
            "objective": get_objective,
            "budget": Budget.parse,
            "pretrain": get_pretrainer,
            "head": get_head,
        }
        return None if text is None else str(readers[info.field_name](text))

    @field_validator("attacks")
    @classmethod
    def _known_attacks(cls, texts: tuple[str, ...]) -> tuple[str, ...]:
        from tacit.attack import get  # noqa: PLC0415 - torch loads only when it is used

        return tuple(str(get(text)) for text in texts)
