"""Loops over rows, written down for the machine; :mod:`tacit.machine.passes` calls them."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from llvmlite import ir

from tacit.machine.lanes import ADDRESS, INT, REAL, WIDE, Array, Lanes, single
from tacit.machine.loops import compiled, in_groups, repeat
from tacit.machine.normals import normals_of

__all__ = ["MANY", "kernels"]

MANY = 64
"""Lanes where each result waits for the one before it."""

_ZERO = ir.Constant(ADDRESS, 0)


@cache
def kernels() -> dict[str, Callable[..., None]]:
    """Return the machine's functions by name, made when first asked for."""
    return compiled(
        {
            _box_muller: [ADDRESS] * 2,
            _peak: [ADDRESS] * 3,
            _difference: [ADDRESS] * 4,
            _class_sums: [ADDRESS] * 6,
            _add_to_rows: [*[ADDRESS] * 5, REAL],
            _add_along: [*[ADDRESS] * 9, REAL],
            _row_squares: [ADDRESS] * 5,
        }
    )


def _box_muller(code: ir.IRBuilder, words: ir.Value, half: ir.Value) -> None:
    first = Array(code, words, INT)
    second = first.row(half, ir.Constant(ADDRESS, 1))

    def body(place: ir.Value, lanes: int) -> None:
        found = normals_of(first.get(place, lanes), second.get(place, lanes))
        for array, normals in zip((first, second), found, strict=True):
            array.put(place, normals.bits())

    in_groups(code, half, body)


def _peak(code: ir.IRBuilder, values: ir.Value, count: ir.Value, found: ir.Value) -> None:
    """Positive real numbers are in the order of their bits, and what is no number is above."""
    source, target = Array(code, values, INT), Array(code, found, INT)

    def body(place: ir.Value, lanes: int) -> None:
        magnitude = source.get(place, lanes) & 0x7FFFFFFF
        target.put(_ZERO, magnitude.most(target.get(_ZERO, lanes)))

    in_groups(code, count, body, group=MANY)


def _difference(
    code: ir.IRBuilder, first: ir.Value, second: ir.Value, count: ir.Value, found: ir.Value
) -> None:
    one, other, target = (Array(code, each, INT) for each in (first, second, found))

    def body(place: ir.Value, lanes: int) -> None:
        apart = one.get(place, lanes) ^ other.get(place, lanes)
        target.put(_ZERO, target.get(_ZERO, lanes) | apart)

    in_groups(code, count, body, group=MANY)


def _class_sums(
    code: ir.IRBuilder,
    rows: ir.Value,
    count: ir.Value,
    width: ir.Value,
    group: ir.Value,
    sums: ir.Value,
    squares: ir.Value,
) -> None:
    def row(number: ir.Value) -> None:
        own = Array(code, group, ADDRESS).whole(number)
        source = Array(code, rows, REAL).row(number, width)
        total, square = (Array(code, each, WIDE).row(own, width) for each in (sums, squares))

        def body(place: ir.Value, lanes: int) -> None:
            values = source.get(place, lanes).wide()
            total.put(place, total.get(place, lanes) + values)
            square.put(place, square.get(place, lanes) + values * values)

        in_groups(code, width, body)

    repeat(code, count, row)


def _add_to_rows(
    code: ir.IRBuilder,
    out: ir.Value,
    places: ir.Value,
    noise: ir.Value,
    count: ir.Value,
    width: ir.Value,
    scale: ir.Value,
) -> None:
    def row(number: ir.Value) -> None:
        target = Array(code, out, REAL).row(Array(code, places, ADDRESS).whole(number), width)
        source = Array(code, noise, REAL).row(number, width)

        def body(place: ir.Value, lanes: int) -> None:
            added = source.get(place, lanes) * single(code, scale).spread(lanes)
            target.put(place, target.get(place, lanes) + added)

        in_groups(code, width, body)

    repeat(code, count, row)


def _add_along(
    code: ir.IRBuilder,
    base: ir.Value,
    out: ir.Value,
    normals: ir.Value,
    std: ir.Value,
    direction: ir.Value,
    places: ir.Value,
    noise: ir.Value,
    count: ir.Value,
    width: ir.Value,
    scale: ir.Value,
) -> None:
    def row(number: ir.Value) -> None:
        source, target = (Array(code, each, REAL).row(number, width) for each in (base, out))
        normal = Array(code, normals, REAL).get(number, 1).wide()
        step = (normal * Array(code, std, WIDE).get(number, 1)).narrow()
        place = Array(code, places, ADDRESS).whole(number)
        more = Array(code, noise, REAL).row(place, width)

        def along(at: ir.Value, lanes: int) -> Lanes:
            line = Array(code, direction, REAL).get(at, lanes)
            return source.get(at, lanes) + line * step.spread(lanes)

        def both(at: ir.Value, lanes: int) -> None:
            added = more.get(at, lanes) * single(code, scale).spread(lanes)
            target.put(at, along(at, lanes) + added)

        with code.if_else(code.icmp_signed("<", place, _ZERO)) as (without, within):
            with without:
                in_groups(code, width, lambda at, lanes: target.put(at, along(at, lanes)))
            with within:
                in_groups(code, width, both)

    repeat(code, count, row)


def _row_squares(
    code: ir.IRBuilder,
    first: ir.Value,
    second: ir.Value,
    count: ir.Value,
    width: ir.Value,
    found: ir.Value,
) -> None:
    """Sixteen sums go on beside each other, in the room behind those that are ready."""
    target = Array(code, found, WIDE)
    room = target.row(count, ir.Constant(ADDRESS, 1))
    nothing = Lanes(code, ir.Constant(ir.VectorType(WIDE, 16), [0.0] * 16))

    def row(number: ir.Value) -> None:
        left, right = (Array(code, each, REAL).row(number, width) for each in (first, second))
        room.put(_ZERO, nothing)

        def body(place: ir.Value, lanes: int) -> None:
            gap = (left.get(place, lanes) - right.get(place, lanes)).wide()
            room.put(_ZERO, room.get(_ZERO, lanes) + gap * gap)

        in_groups(code, width, body)
        target.put(number, room.get(_ZERO, 16).sum())

    repeat(code, count, row)
