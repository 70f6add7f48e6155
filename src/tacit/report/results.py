"""The results of one training run, as the page reads them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

from tacit.fields import Fields

MEMORY = "memory"
"""The attack that adds up all releases of an example; what it reached may stand by itself."""


@final
@dataclass(frozen=True)
class Run:
    """One run's results, under the name that the page gives it."""

    name: str
    found: Fields

    @property
    def leaks(self) -> dict[str, Fields]:
        """What each attack reached over the whole run."""
        return leaks_of(self.found)

    @property
    def history(self) -> list[Fields]:
        """The measures at the end of each epoch or day."""
        return self.found.rows("history")

    @property
    def memory(self) -> float | None:
        """What the attack that remembers all epochs reached, a number or a record of its own."""
        return _memory(self.found)

    @property
    def test_auc(self) -> float | None:
        """The model's AUC on the test rows."""
        return self.found.need("test").number("auc")

    @property
    def bound(self) -> float | None:
        """What the last certificate claims for one release."""
        return self.found.need("certificate").number("auc_bound")

    def worst(self) -> tuple[float | None, str]:
        """Return the highest leak AUC and the attack that reached it.

        >>> Run("a", Fields({"leak": {"norm": {"pooled": 0.5}}, "memory_leak": 0.9}, "")).worst()
        (0.9, 'memory')
        """
        values = [(leak.number("pooled"), name) for name, leak in self.leaks.items()]
        known = [(value, name) for value, name in values if value is not None]
        return max(known, default=(None, ""))


def leaks_of(found: Fields) -> dict[str, Fields]:
    """Return what each attack reached in a run or a part of it, with what has added up by then.

    >>> found = Fields({"leak": {"norm": {"pooled": 0.5}}, "memory_leak": 0.9}, "")
    >>> {name: leak.number("pooled") for name, leak in leaks_of(found).items()}
    {'norm': 0.5, 'memory': 0.9}
    """
    leaks = found.named("leak")
    if (memory := _memory(found)) is not None and MEMORY not in leaks:
        leaks[MEMORY] = Fields({"pooled": memory}, f"{found.where}.memory_leak")
    return leaks


def _memory(found: Fields) -> float | None:
    if isinstance(found.value.get("memory_leak"), Mapping):
        return found.need("memory_leak").number("pooled")
    return found.number("memory_leak")
