"""The passes over a batch that every release makes, one loop each, for ``float32`` on the CPU.

In torch each is a handful of calls, and between training steps a call costs more than its
arithmetic. Batches elsewhere or in other types go through torch; :func:`fits` tells which.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from llvmlite import ir
from torch import Tensor

from tacit.machine.lanes import ADDRESS, INT, REAL, WIDE, Array, Lanes, compiled, in_groups, repeat
from tacit.machine.normals import normals_of

__all__ = [
    "add_along",
    "add_to_rows",
    "box_muller",
    "class_sums",
    "fits",
    "peak",
    "row_lengths",
    "same",
]

Vector = npt.NDArray[np.float64]

_ZERO = ir.Constant(ADDRESS, 0)
_MANY = 64  # lanes where each result waits for the one before it


def fits(*tensors: Tensor, dtype: torch.dtype = torch.float32) -> bool:
    """Return whether all of these are of that type and on the CPU, without gaps."""
    for tensor in tensors:
        if tensor.dtype != dtype or not tensor.is_cpu or not tensor.is_contiguous():
            return False
    return True


def box_muller(words: Tensor) -> Tensor:
    """Return standard normals in the place of an even number of 32-bit words."""
    _machine()["_box_muller"](words.data_ptr(), words.shape[0] // 2)
    return words.view(torch.float32)


def peak(values: Tensor) -> float:
    """Return the largest magnitude; infinite or not a number if any value is."""
    found = np.zeros(_MANY, dtype=np.int32)
    _machine()["_peak"](values.data_ptr(), values.numel(), found.ctypes.data)
    return float(found.max(keepdims=True).view(np.float32)[0])


def same(first: Tensor, second: Tensor) -> bool:
    """Return whether two tensors of one shape have the same bits."""
    if first.shape != second.shape:
        raise IndexError(f"{tuple(first.shape)} is not the shape {tuple(second.shape)}")
    found = np.zeros(_MANY, dtype=np.int32)
    _machine()["_difference"](first.data_ptr(), second.data_ptr(), first.numel(), found.ctypes.data)
    return not found.any()


def class_sums(rows: Tensor, second: npt.NDArray[np.bool_]) -> tuple[Vector, Vector]:
    """Return by column the sums of the values, and of their squares, of two kinds of rows.

    First those that ``second`` does not mark, then those that it does.
    """
    count, width = _fitting(rows, second)
    group, found = second.astype(np.int64), np.zeros((2, 2, width))
    sums, squares = found
    _machine()["_class_sums"](
        rows.data_ptr(), count, width, group.ctypes.data, sums.ctypes.data, squares.ctypes.data
    )
    return sums, squares


def add_to_rows(out: Tensor, places: Tensor, noise: Tensor, scale: float) -> None:
    """Add ``scale`` times as many rows of noise to the rows of ``out`` at some places."""
    where, width = places.numpy(), out.shape[1]
    inside = where.min() >= 0 and where.max() < out.shape[0]
    if not inside or noise.numel() != len(where) * width:
        raise IndexError(f"{tuple(out.shape)} has no place for {tuple(noise.shape)}")
    _machine()["_add_to_rows"](
        out.data_ptr(), places.data_ptr(), noise.data_ptr(), len(where), width, scale
    )


def add_along(
    base: Tensor,
    out: Tensor,
    normals: Tensor,
    std: Tensor,
    direction: Tensor,
    also: tuple[Tensor, Tensor, float] | None = None,
) -> None:
    """Write ``base[i] + normals[i] * std[i] * direction`` to row i of ``out``, maybe ``base``.

    Standard deviations and direction are ``float64``. ``also`` is what :func:`add_to_rows` takes:
    places, noise and scale, added on the way.
    """
    count, width = _fitting(base, normals, std)
    line, places = direction.numpy().astype(np.float32), np.full(count, -1)
    if out.shape != base.shape or len(line) != width:
        raise IndexError(f"{tuple(base.shape)} does not go to {tuple(out.shape)} along {len(line)}")
    where, noise, scale = also or (None, base, 0.0)
    if where is not None:
        if noise.numel() != where.shape[0] * width:
            raise IndexError(f"{where.shape[0]} rows have no place for {tuple(noise.shape)}")
        places[where.numpy()] = np.arange(where.shape[0])
    arrays = (each.data_ptr() for each in (base, out, normals, std))
    _machine()["_add_along"](
        *arrays, line.ctypes.data, places.ctypes.data, noise.data_ptr(), count, width, scale
    )


def row_lengths(first: Tensor, second: Tensor) -> Vector:
    """Return the length of each row of ``first - second``."""
    count, width = _fitting(first, second)
    found = np.empty(count + 16)
    _machine()["_row_lengths"](first.data_ptr(), second.data_ptr(), count, width, found.ctypes.data)
    return np.sqrt(found[:count])


def _fitting(rows: Tensor, *others: Tensor | npt.NDArray[Any]) -> tuple[int, int]:
    """Return a batch's shape, or refuse what is not as long as it is; memory knows no shapes."""
    count, width = rows.shape
    if any(other.shape[0] != count for other in others):
        raise IndexError(
            f"{count} rows, but {[tuple(other.shape) for other in others]} beside them"
        )
    return count, width


@cache
def _machine() -> dict[str, Callable[..., None]]:
    return compiled(
        {
            _box_muller: [ADDRESS] * 2,
            _peak: [ADDRESS] * 3,
            _difference: [ADDRESS] * 4,
            _class_sums: [ADDRESS] * 6,
            _add_to_rows: [*[ADDRESS] * 5, REAL],
            _add_along: [*[ADDRESS] * 9, REAL],
            _row_lengths: [ADDRESS] * 5,
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

    in_groups(code, count, body, group=_MANY)


def _difference(
    code: ir.IRBuilder, first: ir.Value, second: ir.Value, count: ir.Value, found: ir.Value
) -> None:
    one, other, target = (Array(code, each, INT) for each in (first, second, found))

    def body(place: ir.Value, lanes: int) -> None:
        apart = one.get(place, lanes) ^ other.get(place, lanes)
        target.put(_ZERO, target.get(_ZERO, lanes) | apart)

    in_groups(code, count, body, group=_MANY)


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
            added = source.get(place, lanes) * _single(code, scale).spread(lanes)
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
            added = more.get(at, lanes) * _single(code, scale).spread(lanes)
            target.put(at, along(at, lanes) + added)

        with code.if_else(code.icmp_signed("<", place, _ZERO)) as (without, within):
            with without:
                in_groups(code, width, lambda at, lanes: target.put(at, along(at, lanes)))
            with within:
                in_groups(code, width, both)

    repeat(code, count, row)


def _row_lengths(
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


def _single(code: ir.IRBuilder, value: ir.Value) -> Lanes:
    undefined = ir.Constant(ir.VectorType(value.type, 1), ir.Undefined)
    return Lanes(code, code.insert_element(undefined, value, ir.Constant(INT, 0)))
