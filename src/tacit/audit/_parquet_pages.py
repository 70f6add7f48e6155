"""How many values the pages of a Parquet file hold, by the pages' own headers.

A file's footer can declare a thousand values for pages that hold a billion, and who reads the
pages believes the pages. Only their headers are read here, in Thrift's compact protocol.

References: Apache Parquet, ``parquet.thrift`` (PageHeader); Thrift compact protocol.
"""

from __future__ import annotations

from typing import BinaryIO, final

__all__ = ["count_values"]

_LONGEST = 1 << 20  # bytes of a header
_DEEPEST = 8
_SIZE, _PAGES, _VALUES = 3, (5, 8), 1  # fields: compressed size, data page, number of values

Struct = dict[int, "int | Struct"]


def count_values(file: BinaryIO, *, start: int, size: int) -> int:
    """Return the number of values in the pages of one column, or raise ValueError."""
    values, end = 0, start + size
    while start < end:
        file.seek(start)
        header = _Compact(file.read(min(_LONGEST, end - start)))
        page = header.read_struct()
        for field in _PAGES:
            data = page.get(field)
            if isinstance(data, dict):
                values += _number(data.get(_VALUES))
        start += header.place + _number(page.get(_SIZE))
    return values


def _number(value: int | Struct | None) -> int:
    if not isinstance(value, int) or value < 0:
        raise ValueError("a page without a size or a number of values")
    return value


@final
class _Compact:
    """Reads numbers out of a Thrift structure, and steps over everything else."""

    def __init__(self, content: bytes) -> None:
        self.place = 0
        self._content = content

    def read_struct(self, depth: int = 0) -> Struct:
        """Return the whole numbers and structures of a structure, by their field numbers."""
        if depth > _DEEPEST:
            raise ValueError("a page header that is nested too deep")
        found: Struct = {}
        field = 0
        while head := self._byte():
            delta, kind = head >> 4, head & 15
            field = field + delta if delta else self._signed()
            value = self._value(kind, depth)
            if value is not None:
                found[field] = value
        return found

    def _value(self, kind: int, depth: int) -> int | Struct | None:
        if kind in (1, 2):  # a truth value is in its kind
            return None
        if kind in (4, 5, 6):
            return self._signed()
        if kind == 12:
            return self.read_struct(depth + 1)
        steps = {3: 1, 7: 8}
        if kind in steps:
            self._skip(steps[kind])
        elif kind == 8:
            self._skip(self._unsigned())
        elif kind in (9, 10):
            self._skip_list(depth)
        else:
            raise ValueError(f"a page header with a field of kind {kind}")
        return None

    def _skip_list(self, depth: int) -> None:
        head = self._byte()
        count = head >> 4 if head >> 4 < 15 else self._unsigned()
        for _ in range(min(count, len(self._content))):
            if head & 15 in (1, 2):
                self._skip(1)
            else:
                self._value(head & 15, depth + 1)

    def _byte(self) -> int:
        self._skip(1)
        return self._content[self.place - 1]

    def _skip(self, count: int) -> None:
        if self.place + count > len(self._content):
            raise ValueError("a page header that is cut short")
        self.place += count

    def _unsigned(self) -> int:
        value = 0
        for shift in range(0, 70, 7):
            byte = self._byte()
            value |= (byte & 127) << shift
            if byte < 128:
                return value
        raise ValueError("a page header with a number of more than 64 bits")

    def _signed(self) -> int:
        value = self._unsigned()
        return (value >> 1) ^ -(value & 1)
