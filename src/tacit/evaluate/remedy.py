"""What to do about an attack that succeeds, given what was in use when it did.

It depends on what the attack declares (what it reads, why it succeeds, a remedy of its own), on the
protection and the label mechanism that ran, and on how often each example was released. What was in
use already is never the advice.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

from tacit.accounting import Recommendation, recommend
from tacit.accounting.budget import rounded_down
from tacit.attack import Attack
from tacit.errors import UsageError
from tacit.measure import sum_kl_for_error
from tacit.spec import Item, parse

TARGET = 0.65
"""The leak AUC that advice aims at where none was asked for."""


@final
@dataclass(frozen=True, kw_only=True)
class AuditedSetting:
    """The protection and the training that an attack is judged under.

    Attributes:
        spec: the protection; None where it is not known.
        labels: the label mechanism; None without one, or where it is not known.
        releases: how often each example was released.
        classes: how many there are.
        target: the leak AUC to come to.
    """

    spec: str | None
    labels: str | None = None
    releases: float = 1.0
    classes: int = 2
    target: float = TARGET

    @property
    def epochs(self) -> int:
        """How many epochs to plan for: an example that is left out of some batches counts too."""
        return max(1, math.ceil(self.releases - 1e-9))

    @property
    def often(self) -> str:
        """The number of epochs in words."""
        return "1 epoch" if self.epochs == 1 else f"{self.epochs} epochs"

    @property
    def advised(self) -> str | None:
        """The protection of gradients that is planned for so many epochs; None for many classes."""
        noise = [one.protect for one in self._recommended if one.labels is None]
        return noise[0] if noise else None

    @property
    def randomised(self) -> str:
        """The label mechanism for the target, which holds for any number of epochs."""
        return next(one.labels for one in self._recommended if one.labels is not None)

    @property
    def _recommended(self) -> tuple[Recommendation, ...]:
        target = self.target if 0.5 < self.target < 1 else TARGET
        return recommend(target=target, epochs=self.epochs, examples=1, classes=self.classes)


def reads_embeddings_only(attack: Attack) -> bool:
    """Whether an attack looks at embeddings alone, which no noise on gradients changes.

    >>> from tacit.attack import get
    >>> [reads_embeddings_only(get(spec)) for spec in ("kmeans", "kmeans(by=both)", "norm")]
    [True, False, False]
    """
    return attack.reads == {"embeddings"}


def remedy(attack: Attack, setting: AuditedSetting) -> str:
    """Return what to do about an attack that succeeds, in words.

    >>> from tacit.attack import get
    >>> remedy(get("memory"), AuditedSetting(spec="marvell(s=4, covariance=full)", releases=20))
    ... # doctest: +NORMALIZE_WHITESPACE
    'noise averages out over 20 epochs; use marvell(sum_kl=0.0148, covariance=full), which is
    planned for 20 epochs, train fewer, or randomise labels once with rr(epsilon=0.619)'
    """
    if setting.labels is not None:
        return _randomised_already(setting.labels)
    cause = _cause(attack, setting)
    if attack.remedy:
        return f"{cause}{attack.remedy}"
    rest = f"randomise labels once with {setting.randomised}"
    if reads_embeddings_only(attack):
        return (
            f"embeddings show it, which no noise on gradients hides; train fewer epochs, or {rest}"
        )
    if setting.advised is None:
        return f"{cause}{rest}"
    ways = _ways(setting, setting.advised)
    return f"{cause}{', '.join(ways)}, or {rest}"


def _randomised_already(labels: str) -> str:
    return (
        f"labels are randomised once with {labels} already, so neither epochs nor noise on "
        "gradients matter; take a smaller epsilon (or a larger sigma), and see by an audit how "
        "much of it features alone predict"
    )


def _cause(attack: Attack, setting: AuditedSetting) -> str:
    """Return why an attack succeeds, where that is known."""
    noise = _last_marvell(setting.spec)
    holds = {
        "always": True,
        "without_marvell": noise is None,
        "isotropic_marvell": noise is not None and not _full(noise),
    }
    for cause in attack.causes:
        if holds[cause.when]:
            return f"{cause.text}; "
    if attack.adds_up and setting.epochs > 1 and _protected(setting):
        return f"noise averages out over {setting.often}; "
    return ""


def _ways(setting: AuditedSetting, advised: str) -> list[str]:
    """Return what can be changed about the protection of gradients, and about the epochs."""
    fewer = ["train fewer"] if setting.epochs > 1 else []
    planned = f"{advised}, which is planned for {setting.often}"
    if not _protected(setting):
        return [f"protect the gradients with {planned}"]
    noise = _last_marvell(setting.spec)
    if noise is not None and not _full(noise):
        return [f"use covariance=full, as {planned}", *fewer]
    used = None if noise is None else _sum_kl(noise)
    wanted = _sum_kl(parse(advised)[0])
    if used is None or wanted is None or used > wanted * (1 + 1e-6):
        return [f"use {planned}", *fewer]
    smaller = f"marvell(sum_kl={rounded_down(used / 2):g}, covariance=full)"
    which = f"{setting.spec} is planned for {setting.often} already, so more noise is needed"
    return [f"{which}: use {smaller}", *fewer]


def _protected(setting: AuditedSetting) -> bool:
    return setting.spec not in (None, "none")


def _last_marvell(spec: str | None) -> Item | None:
    """Return the last stage of a chain that is Marvell's; None for text that is no spec."""
    try:
        stages = () if spec is None else parse(spec)
    except UsageError:  # a protection of another system has any name
        return None
    return next((stage for stage in reversed(stages) if stage.name == "marvell"), None)


def _full(noise: Item) -> bool:
    chosen = dict(noise.named).get("covariance")
    return (chosen.name if isinstance(chosen, Item) else chosen) == "full"


def _sum_kl(noise: Item) -> float | None:
    """Return the divergence of a release that a Marvell asks for; None where it asks for power."""
    asked = dict(noise.named)
    if isinstance(error := asked.get("error"), int | float):
        share = asked.get("share", 0.5)
        return sum_kl_for_error(float(error), share if isinstance(share, float) else 0.5)
    found = asked.get("sum_kl")
    return float(found) if isinstance(found, int | float) else None
