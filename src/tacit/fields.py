"""Records as they come from JSON, read field by field: every field may be missing or null."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

from tacit.errors import InputError


def finite(value: Any) -> Any:  # noqa: ANN401 - any JSON value in, any out
    """Return a JSON value with NaN and infinities as null, which JSON cannot write.

    >>> finite({"auc": float("nan"), "rows": [1, 2.5]})
    {'auc': None, 'rows': [1, 2.5]}
    """
    if isinstance(value, Mapping):
        return {str(key): finite(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


@final
@dataclass(frozen=True)
class Fields:
    """One object of a record, and its path in the record.

    >>> row = Fields({"attack": "norm", "leak_auc": 0.52}, "table[0]")
    >>> row.text("attack"), row.number("leak_auc"), row.number("bound")
    ('norm', 0.52, None)
    """

    value: Mapping[str, Any]
    where: str

    def number(self, key: str) -> float | None:
        """Return a number, or ``None`` where there is none."""
        found = self.value.get(key)
        if found is None or (isinstance(found, (int, float)) and not isinstance(found, bool)):
            return found
        raise self._wrong(key, "a number or null")

    def text(self, key: str) -> str:
        """Return a text, empty where there is none."""
        found = self.value.get(key)
        if found is None or isinstance(found, str):
            return found or ""
        raise self._wrong(key, "a text or null")

    def flag(self, key: str) -> bool:
        """Return whether a flag is set."""
        found = self.value.get(key)
        if found is None or isinstance(found, bool):
            return bool(found)
        raise self._wrong(key, "true, false or null")

    def part(self, key: str) -> Fields | None:
        """Return the object under ``key``, or ``None`` where there is none."""
        found = self.value.get(key)
        if found is None:
            return None
        if not isinstance(found, Mapping):
            raise self._wrong(key, "an object or null")
        return Fields(found, self._place(key))

    def part_or_empty(self, key: str) -> Fields:
        """Return the object under ``key``, an empty one where there is none."""
        return self.part(key) or Fields({}, self._place(key))

    def named(self, key: str) -> dict[str, Fields]:
        """Return an object of objects by name."""
        inner = self.part_or_empty(key)
        return {name: inner.part_or_empty(name) for name in inner.value}

    def rows(self, key: str) -> list[Fields]:
        """Return a list of objects."""
        found = self._list(key)
        if not all(isinstance(row, Mapping) for row in found):
            raise self._wrong(key, "a list of objects")
        return [Fields(row, f"{self._place(key)}[{i}]") for i, row in enumerate(found)]

    def numbers(self, key: str) -> list[float | None]:
        """Return a list of numbers and nulls."""
        listed = self._listed(key)
        return [listed.number(place) for place in listed.value]

    def texts(self, key: str) -> list[str]:
        """Return a list of texts."""
        listed = self._listed(key)
        return [listed.text(place) for place in listed.value]

    def _listed(self, key: str) -> Fields:
        """Return a list as an object by index, so that each item is read by the same rules."""
        return Fields({str(i): part for i, part in enumerate(self._list(key))}, self._place(key))

    def _list(self, key: str) -> Sequence[Any]:
        found = self.value.get(key)
        if found is None:
            return []
        if not isinstance(found, (list, tuple)):
            raise self._wrong(key, "a list or null")
        return found

    def _place(self, key: str) -> str:
        return f"{self.where}.{key}" if self.where else key

    def _wrong(self, key: str, rule: str) -> InputError:
        found = self.value.get(key)
        return InputError(
            f"the record's field {self._place(key)} must be {rule}, got {found!r:.60}; "
            f"let tacit write the record again"
        )
