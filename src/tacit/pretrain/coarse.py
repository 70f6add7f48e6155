"""What is done to embeddings before they are sent: noise on them, and fewer bits for each number.

Fewer bits save traffic and protect nothing. Noise blurs the inputs, and costs more accuracy than a
smaller width that shows as little.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias, final

import numpy as np
import torch
from torch import Tensor

from tacit.errors import InputError
from tacit.rng import Key

Bits: TypeAlias = Literal[8, 4]
_OUTSIDE = 0.001
_FINE = 10  # binary digits of the grid of a noisy number below the noise's own size


@final
@dataclass(frozen=True, eq=False)
class Grid:
    """``2**bits`` equally spaced levels for each column; what lies outside counts as the end.

    ``code = round((z - low) / step)``, ``value = low + step code``. A column of one value has the
    step 0 and gives that value back.

    >>> grid = Grid.of(torch.linspace(0, 15, 2001)[:, None], 4)
    >>> grid.values(grid.codes(torch.tensor([[-9.0], [7.6], [99.0]]))).flatten().round().tolist()
    [0.0, 8.0, 15.0]
    """

    low: Tensor
    step: Tensor
    bits: Bits

    def __post_init__(self) -> None:
        if self.bits not in (8, 4):
            raise InputError(f"a number is sent with 8 or 4 bits on a grid, got {self.bits}")
        if self.low.shape != self.step.shape or self.low.dim() != 1:
            raise InputError(
                f"a grid has one low and one step for each column, got {tuple(self.low.shape)} "
                f"and {tuple(self.step.shape)}"
            )
        if not (
            self.low.isfinite().all() and self.step.isfinite().all() and (self.step >= 0).all()
        ):
            raise InputError("a grid's low must be finite and its step finite and 0 or more")

    @classmethod
    def of(cls, embeddings: Tensor, bits: Bits) -> Grid:
        """Return the grid between the 0.1% and the 99.9% quantile of each column."""
        if not len(embeddings):
            raise InputError("a grid is taken from embeddings, got no row")
        ends = np.stack(  # column by column: a copy of one fits
            [np.quantile(column, (_OUTSIDE, 1 - _OUTSIDE)) for column in embeddings.numpy().T]
        )
        low, high = torch.from_numpy(ends).T
        return cls(low.float(), ((high - low) / (2**bits - 1)).float(), bits)

    def codes(self, z: Tensor) -> Tensor:
        """Return the level of each number, ``uint8`` ``[B, d]``."""
        step = torch.where(self.step > 0, self.step, 1.0)
        return ((z - self.low) / step).round().clamp(0, 2**self.bits - 1).to(torch.uint8)

    def values(self, codes: Tensor) -> Tensor:
        """Return the numbers that codes stand for, ``float32`` ``[B, d]``."""
        return self.low + self.step * codes


def packed(codes: Tensor, bits: Bits) -> Tensor:
    """Return codes as they are sent: of 4 bits two in a byte, the last of an odd row with a 0.

    >>> packed(torch.tensor([[1, 2, 3]], dtype=torch.uint8), 4).tolist()
    [[33, 3]]
    """
    if bits == 8:
        return codes
    even = torch.nn.functional.pad(codes, (0, codes.shape[1] % 2))
    return even[:, ::2] | even[:, 1::2] << 4


def unpacked(content: Tensor, bits: Bits, width: int) -> Tensor:
    """Return the codes ``[B, width]`` of what ``packed`` has made.

    >>> unpacked(torch.tensor([[33, 3]], dtype=torch.uint8), 4, 3).tolist()
    [[1, 2, 3]]
    """
    size = width if bits == 8 else (width + 1) // 2
    if content.dtype != torch.uint8 or content.dim() != 2 or content.shape[1] != size:
        raise InputError(
            f"{width} codes of {bits} bits are {size} bytes a row, got {content.dtype} "
            f"{tuple(content.shape)}"
        )
    if bits == 8:
        return content
    return torch.stack([content & 15, content >> 4], dim=2).flatten(1)[:, :width]


def noisy(
    z: Tensor, ids: Sequence[int | str | bytes], std: Tensor, key: Key, *, version: int = 0
) -> Tensor:
    """Return embeddings with Gaussian noise of so large a deviation in each column.

    ``z + std n(key, version, id)``. A row has the same noise whenever it is sent: fresh noise could
    be averaged away. Another bottom takes another ``version``: the difference of two embeddings
    with the same noise would show both. The sum is rounded to a grid far below the noise, since the
    last bits of a float would show how large ``z`` was.

    >>> z, key = torch.zeros(2, 3), Key.from_seed(0)
    >>> bool((noisy(z, [7, 7], torch.ones(3), key).diff(dim=0) == 0).all())
    True
    """
    if len(ids) != len(z) or std.shape != z.shape[1:]:
        raise InputError(
            f"noise needs an id for each row and a deviation for each column of {tuple(z.shape)}, "
            f"got {len(ids)} and {tuple(std.shape)}"
        )
    if not len(z):
        return z
    normals = torch.stack(
        [key.stream("embedding noise", version, one).normal(z.shape[1]) for one in ids]
    )
    wide = std.double()
    unit = torch.exp2(torch.floor(torch.log2(wide.clamp(min=1e-30))) - _FINE)
    rounded = ((z.double() + wide * normals) / unit).round() * unit
    return torch.where(wide > 0, rounded, z.double()).float()
