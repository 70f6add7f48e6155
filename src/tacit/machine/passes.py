"""The passes over a batch that every release makes, one loop each, for ``float32`` on the CPU.

In torch each is a handful of calls, and between training steps a call costs more than its
arithmetic. Batches elsewhere or in other types go through torch; :func:`fits` tells which.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tacit.machine.kernels import MANY, kernels

__all__ = [
    "add_along",
    "add_to_rows",
    "box_muller",
    "class_sums",
    "fits",
    "peak",
    "row_squares",
    "same",
]

Vector = npt.NDArray[np.float64]


def fits(*tensors: Tensor, dtype: torch.dtype = torch.float32) -> bool:
    """Return whether all of these are of that type and on the CPU, without gaps."""
    for tensor in tensors:
        if tensor.dtype != dtype or not tensor.is_cpu or not tensor.is_contiguous():
            return False
    return True


def box_muller(words: Tensor) -> Tensor:
    """Return standard normals in the place of an even number of 32-bit words."""
    kernels()["_box_muller"](words.data_ptr(), words.shape[0] // 2)
    return words.view(torch.float32)


def peak(values: Tensor) -> float:
    """Return the largest magnitude; infinite or not a number if any value is."""
    found = np.zeros(MANY, dtype=np.int32)
    kernels()["_peak"](values.data_ptr(), values.numel(), found.ctypes.data)
    return float(found.max(keepdims=True).view(np.float32)[0])


def same(first: Tensor, second: Tensor) -> bool:
    """Return whether two tensors of one shape have the same bits."""
    _check_shapes(first, second)
    found = np.zeros(MANY, dtype=np.int32)
    kernels()["_difference"](first.data_ptr(), second.data_ptr(), first.numel(), found.ctypes.data)
    return not found.any()


def class_sums(rows: Tensor, second: npt.NDArray[np.bool_]) -> tuple[Vector, Vector]:
    """Return by column the sums of the values, and of their squares, of two kinds of rows.

    First those that ``second`` does not mark, then those that it does.
    """
    count, width = _fitting(rows, second)
    group, found = second.astype(np.int64), np.zeros((2, 2, width))
    sums, squares = found
    kernels()["_class_sums"](
        rows.data_ptr(), count, width, group.ctypes.data, sums.ctypes.data, squares.ctypes.data
    )
    return sums, squares


def add_to_rows(out: Tensor, places: Tensor, noise: Tensor, scale: float) -> None:
    """Add ``scale`` times as many rows of noise to the rows of ``out`` at some places."""
    where, width = places.numpy(), out.shape[1]
    inside = where.min() >= 0 and where.max() < out.shape[0]
    if not inside or noise.numel() != len(where) * width:
        raise IndexError(f"{tuple(out.shape)} has no place for {tuple(noise.shape)}")
    kernels()["_add_to_rows"](
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
    line, places = direction.numpy().astype(np.float32), np.full(count, -1, dtype=np.int64)
    _check_shapes(base, out)
    if len(line) != width:
        raise IndexError(f"{tuple(base.shape)} has no direction of {len(line)}")
    where, noise, scale = also or (None, base, 0.0)
    if where is not None:
        if noise.numel() != where.shape[0] * width:
            raise IndexError(f"{where.shape[0]} rows have no place for {tuple(noise.shape)}")
        places[where.numpy()] = np.arange(where.shape[0])
    arrays = (each.data_ptr() for each in (base, out, normals, std))
    kernels()["_add_along"](
        *arrays, line.ctypes.data, places.ctypes.data, noise.data_ptr(), count, width, scale
    )


def row_squares(first: Tensor, second: Tensor) -> Vector:
    """Return the squared length of each row of ``first - second``."""
    _check_shapes(first, second)
    count, width = first.shape
    found = np.empty(count + 16)
    kernels()["_row_squares"](first.data_ptr(), second.data_ptr(), count, width, found.ctypes.data)
    return found[:count]


def _check_shapes(first: Tensor, second: Tensor) -> None:
    """Refuse different ones: memory knows no shapes."""
    if first.shape != second.shape:
        raise IndexError(f"{tuple(first.shape)} is not the shape {tuple(second.shape)}")


def _fitting(rows: Tensor, *others: Tensor | npt.NDArray[Any]) -> tuple[int, int]:
    """Return a batch's shape, or refuse what is not as long as it is."""
    count, width = rows.shape
    if any(other.shape[0] != count for other in others):
        raise IndexError(
            f"{count} rows, but {[tuple(other.shape) for other in others]} beside them"
        )
    return count, width
