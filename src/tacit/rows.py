"""Helpers for gradients as rows: one example each, whatever the shape behind the batch."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tacit.errors import InputError, ReleaseError
from tacit.kernels import largest_bits, round_to

FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
GRID = 2.0**-16  # the steps of a release, relative to the power of two above its largest value
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


def on_host(tensor: Tensor) -> npt.NDArray[Any]:
    """Return a small tensor as a numpy array; types that numpy lacks become ``float32``."""
    plain = tensor.detach().cpu()
    array: npt.NDArray[Any] = (plain.float() if plain.dtype == torch.bfloat16 else plain).numpy()
    return array


def exponent(rows: Tensor, *, name: str = "grads") -> int | None:
    """Return ``k`` with every value below ``2**k``, or None when all are zero; refuse NaN and inf.

    Dividing by ``2**k`` is exact, so statistics taken after it do not depend on the scale.

    >>> exponent(torch.tensor([[3.0, -5.0]]))
    3
    """
    top = largest(rows)
    if not math.isfinite(top):
        raise InputError(f"{name} must be finite, found NaN or infinity: lower the learning rate")
    # Clamped so that 2**k and its inverse are floats; squares are safe long before.
    return max(-1000, min(1000, math.frexp(top)[1])) if top > 0 else None


def largest(rows: Tensor) -> float:
    """Return the largest magnitude; infinite or NaN if any value is."""
    if rows.dtype != torch.float64 or rows.dim() != 2 or not rows.is_contiguous() or rows.is_cuda:
        return max(abs(end.item()) for end in torch.aminmax(rows))
    found = np.zeros(1, dtype=np.int64)
    largest_bits(rows.numpy().view(np.int64), found)
    return float(found.view(np.float64)[0])


def to_grid(rows: Tensor, *, dtype: torch.dtype) -> tuple[Tensor, float]:
    """Return rows in ``float64`` as multiples of one power of two, in a type, and that power.

    It lies 16 bits below the power of two above the largest value. The last bits of a sum of a
    gradient and noise show how large the gradient was (Mironov 2012); multiples of one step for all
    rows show their own size and nothing else. A narrower type leaves out further bits of these.

    >>> to_grid(torch.tensor([[1.0, 0.123456789]]).double(), dtype=torch.float32)
    (tensor([[1.0000, 0.1234]]), 3.0517578125e-05)
    """
    top = largest(rows)
    if not math.isfinite(top):
        raise ReleaseError("the protected gradient is not finite: lower the loss or the noise")
    form = torch.finfo(dtype)
    least = max(math.frexp(form.smallest_normal * form.eps)[1] - 1, -1000)
    grid = 2.0 ** max(math.frexp(top)[1] + math.frexp(GRID)[1] - 1, least)
    rounded = np.empty(rows.shape, dtype=np.float32 if dtype == torch.float32 else np.float64)
    round_to(rows.numpy(), grid, rounded)
    return torch.from_numpy(rounded).to(dtype), grid


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
