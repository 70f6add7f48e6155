"""Matrices of one width, as wide as a cut: moments of rows, factors, and noise of their shape.

For ``float32`` on the CPU, as :mod:`tacit.machine.passes`; :func:`fits_matrices` tells.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tacit.machine.passes import fits
from tacit.machine.products import WIDTH, products

__all__ = [
    "Directed",
    "Moments",
    "add_shaped",
    "directed",
    "factor",
    "fits_matrices",
    "moments",
]

Places = npt.NDArray[np.int64]
Vector = npt.NDArray[np.float64]


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Moments:
    """Covariances of two kinds of rows and the difference of their means, and what follows.

    Attributes:
        covs: ``[2, d, d]``, S0 and S1, divided by the number of rows.
        difference: D, second mean less the first, in float64.
        image: ``(S0 + S1) D``, in float64.
        gap: ``D'D``.
        along: ``D'(S0 + S1) D``.
        traces: of S0 and S1.
        centres: squared lengths of both means.
    """

    covs: Tensor
    difference: Vector
    image: Vector
    gap: float
    along: float
    traces: tuple[float, float]
    centres: tuple[float, float]


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Directed:
    """Noise covariances ``[2, d, d]`` and their Frobenius norms; x, and D less what it makes."""

    x: Vector
    rest: Vector
    noise: Tensor
    spreads: tuple[float, float]


def fits_matrices(*tensors: Tensor) -> bool:
    """Return whether the machine code takes all of these, one matrix each."""
    return fits(*tensors) and all(tensor.shape[-1] % WIDTH == 0 for tensor in tensors)


def moments(rows: Tensor, sides: tuple[Places, Places], unit: float) -> Moments:
    """Return the moments of two kinds of rows times ``unit``.

    Products are added up before the mean goes, 64 rows at a time: errors are in units of the rows'
    own squares.
    """
    places, width = np.concatenate(sides), rows.shape[1]
    _check_places(rows, places)
    means, covs = np.empty((2, width), dtype=np.float32), torch.empty(2, width, width)
    _check_squares(covs, 2, width)
    vectors, numbers = np.empty((2, width)), np.empty(6)
    given, found = (rows.data_ptr(), places.ctypes.data), (vectors.ctypes.data, numbers.ctypes.data)
    products()["_moments"](
        *given, *map(len, sides), means.ctypes.data, covs.data_ptr(), *found, width, unit
    )
    gap, along, trace0, trace1, square0, square1 = numbers.tolist()
    return Moments(
        covs=covs, difference=vectors[0], image=vectors[1], gap=gap, along=along,
        traces=(trace0, trace1), centres=(square0, square1),
    )  # fmt: skip


def directed(
    known: Moments, *, cover: float, floor: float, power: float, limit: float, steps: int
) -> Directed | None:
    """Return the noise that hides a difference D of two means, best for its power.

    With ``W = S0 + S1`` and V what is left of W when D is projected out on both sides, one kind of
    rows gets ``S1 + cover V + floor I + power x x' / x'x``, the other one S0 and the same besides,
    where ``(W + cover V + floor I + power I) x = D``. That is solved by so many steps, until the
    rest has a squared length of ``limit`` or less; None if they do not suffice.
    """
    width, noise = len(known.difference), torch.empty_like(known.covs)
    _check_squares(known.covs, 2, width)
    vectors = np.zeros((6, width))
    vectors[0], vectors[1] = known.difference, known.image
    numbers = np.array([cover, floor, power, limit, known.gap, known.along, 0.0, 0.0, 0.0])
    given = (vectors.ctypes.data, numbers.ctypes.data)
    products()["directed"](known.covs.data_ptr(), *given, noise.data_ptr(), steps, width)
    size, square0, square1 = numbers[6:].tolist()
    if not size <= limit:
        return None
    return Directed(
        x=vectors[2], rest=vectors[3], noise=noise,
        spreads=(math.sqrt(square0), math.sqrt(square1)),
    )  # fmt: skip


def factor(matrices: Tensor) -> bool:
    """Put U in the place of each symmetric ``U'U`` of ``[n, d, d]``; False if one has none.

    Zero below the diagonal.

    >>> matrices = 4.0 * torch.eye(32).unsqueeze(0)
    >>> factor(matrices), matrices.sum().item()
    (True, 64.0)
    """
    count, _, width = matrices.shape
    _check_squares(matrices, count, width)
    products()["_factor"](matrices.data_ptr(), count, width)
    # What is not a number stays so until the last pivot.
    return all(last > 0.0 for last in matrices.numpy()[:, -1, -1].tolist())


def add_shaped(
    base: Tensor, out: Tensor, places: Tensor, normals: Tensor, core: Tensor, scale: float
) -> None:
    """Write ``base + scale * normals @ core`` to some rows of ``out``, which may be ``base``.

    ``normals`` has a row for each of them; ``core`` is zero below the diagonal.
    """
    where, width = places.numpy(), out.shape[1]
    _check_places(out, where)
    drawn = normals.numel() == len(where) * width and core.shape == (width, width)
    if base.shape != out.shape or not drawn or width % WIDTH:
        shapes = [tuple(each.shape) for each in (base, normals, core)]
        raise IndexError(f"{len(where)} rows of {tuple(out.shape)} do not go with {shapes}")
    arrays = (each.data_ptr() for each in (base, out, places, normals, core))
    products()["_add_shaped"](*arrays, len(where), width, scale)


def _check_places(rows: Tensor, places: Places) -> None:
    """Refuse places outside; as unsigned numbers, negative ones are too large."""
    if len(places) and not places.view(np.uint64).max() < rows.shape[0]:
        raise IndexError(f"{tuple(rows.shape)} has no such rows: {places.min()} to {places.max()}")


def _check_squares(matrices: Tensor, count: int, width: int) -> None:
    if matrices.shape != (count, width, width) or width % WIDTH:
        raise IndexError(f"{tuple(matrices.shape)} are not {count} of {width} by {width}")
