"""Helpers for gradients as rows: one example each, whatever the shape behind the batch."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy.typing as npt
import torch
from torch import Tensor

from tacit.errors import InputError
from tacit.machine import fits, peak

__all__ = [
    "FLOATS",
    "as_rows",
    "blocks",
    "detached",
    "exponent",
    "norms",
    "on_host",
    "piece",
    "shaped",
    "to_place",
    "unit_rows",
    "working",
]

FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
_BLOCK = 1 << 18


def as_rows(tensor: Tensor, *, name: str = "grads") -> Tensor:
    """Return ``[B, ...]`` as ``[B, d]``; ``[B]`` is ``B`` rows of one.

    >>> as_rows(torch.zeros(4, 5, 5, 64)).shape
    torch.Size([4, 1600])
    """
    if tensor.dtype not in FLOATS:
        raise InputError(f"{name} must be floating point, got {tensor.dtype}: convert to float32")
    if tensor.dim() == 0 or tensor.numel() == 0:
        raise InputError(
            f"{name} must be [batch, ...] with at least one value, got shape {tuple(tensor.shape)}"
        )
    return tensor if tensor.dim() == 2 else tensor.reshape(tensor.shape[0], -1)


def shaped(tensor: Tensor, shape: torch.Size, *, dtype: torch.dtype | None = None) -> Tensor:
    """Return a tensor in a shape and type; one that has both costs no call into torch."""
    if dtype is not None and tensor.dtype != dtype:
        tensor = tensor.to(dtype)
    return tensor if tensor.shape == shape else tensor.reshape(shape)


def blocks(count: int, width: int) -> Iterator[slice]:
    """Yield slices of whole rows, about 262,144 values each.

    Several passes over one block stay in the processor's cache; several passes over a large
    batch go to memory every time.

    >>> [s.stop for s in blocks(3000, 128)]
    [2048, 3000]
    """
    step = max(1, _BLOCK // width)
    for start in range(0, count, step):
        yield slice(start, min(start + step, count))


def piece(tensor: Tensor, block: slice) -> Tensor:
    """Return a block of rows; a block that is all of them costs no call into torch."""
    return tensor if block.stop - block.start == tensor.shape[0] else tensor[block]


def detached(tensor: Tensor) -> Tensor:
    """Return a tensor without its graph; one that has none costs no call into torch."""
    return tensor.detach() if tensor.requires_grad else tensor


def working(rows: Tensor) -> Tensor:
    """Return the rows in a type fit for arithmetic: 16-bit floats become ``float32``."""
    return rows if rows.dtype in (torch.float32, torch.float64) else rows.float()


def on_host(tensor: Tensor) -> npt.NDArray[Any]:
    """Return a small tensor as a numpy array; types that numpy lacks become ``float32``."""
    plain = detached(tensor)
    plain = plain if plain.device.type == "cpu" else plain.cpu()
    array: npt.NDArray[Any] = (plain.float() if plain.dtype == torch.bfloat16 else plain).numpy()
    return array


def to_place(array: npt.NDArray[Any], like: Tensor) -> Tensor:
    """Return a numpy array as a tensor on the device of another."""
    tensor = torch.from_numpy(array)
    return tensor if like.device.type == "cpu" else tensor.to(like.device)


def exponent(rows: Tensor, *, name: str = "grads") -> int | None:
    """Return ``k`` with every value below ``2**k``, or None when all are zero; refuse NaN and inf.

    Dividing by ``2**k`` is exact, so statistics taken after it do not depend on the scale.

    >>> exponent(torch.tensor([[3.0, -5.0]]))
    3
    """
    top = peak(rows) if fits(rows) else max(abs(end.item()) for end in torch.aminmax(rows))
    if not math.isfinite(top):
        raise InputError(f"{name} must be finite, found NaN or infinity: lower the learning rate")
    # Clamped so that 2**k and its inverse are floats; squares are safe long before.
    return max(-1000, min(1000, math.frexp(top)[1])) if top > 0 else None


def norms(rows: Tensor) -> Tensor:
    """Return the Euclidean norm of each row in ``float64``, right to rounding at any scale."""
    k = 0
    if rows.dtype == torch.float64:
        k = exponent(rows) or 0
        rows = rows * 2.0**-k
    length: Tensor = torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64)
    return length * 2.0**k


def unit_rows(rows: Tensor) -> Tensor:
    """Return the rows at length one; zero rows stay zero.

    >>> unit_rows(torch.tensor([[3.0, 4.0], [0.0, 0.0]])).tolist()
    [[0.6000000238418579, 0.800000011920929], [0.0, 0.0]]
    """
    length = norms(rows)
    length[length == 0] = 1.0
    return (rows.double() / length.unsqueeze(1)).to(rows.dtype)
