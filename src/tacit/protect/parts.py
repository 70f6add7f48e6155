"""Noise as data: what each row gets, described by standard deviations and directions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from torch import Tensor

from tacit.machine import add_along, add_shaped, add_to_rows, fits, fits_matrices
from tacit.rows import on_host, piece

__all__ = ["Along", "Isotropic", "Part", "Shaped", "write_both"]


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Isotropic:
    """Noise with the same variance in every direction, for all rows or for some, in order."""

    std: float
    rows: Tensor | None = None

    def inside(self, block: slice, total: int) -> Tensor | None:
        """Return the noisy rows of a block by their place in it, or None for all of them."""
        return None if self.rows is None else _inside(self.rows, block, total)

    def count(self, rows: int, width: int, inside: Tensor | None) -> int:
        """Return how many normals a block of rows takes: rows without noise take none."""
        return width * (rows if inside is None else inside.shape[0])

    def write(
        self,
        base: Tensor,
        out: Tensor,
        block: slice,  # noqa: ARG002 - one signature for every kind of noise
        inside: Tensor | None,
        normals: Tensor,
    ) -> None:
        """Write a block of rows plus its noise to ``out``, which may be ``base`` itself."""
        std = min(self.std, torch.finfo(out.dtype).max)  # what overflows, the guard refuses
        if inside is None:
            torch.add(base, normals.view_as(out), alpha=std, out=out)
            return
        if base is not out:
            out.copy_(base)
        _add(out, inside, normals, std)

    def size(self, shape: torch.Size, unit: float) -> tuple[float, float, float]:
        """Return trace, Frobenius norm and largest value of the covariance of all rows together.

        In units of ``unit ** 2``.
        """
        count = shape[0] if self.rows is None else self.rows.shape[0]
        single = (self.std / unit) ** 2
        return count * shape[1] * single, single * math.sqrt(count * shape[1]), single

    def traces(self, shape: torch.Size, unit: float) -> Tensor:
        """Return the trace of each row's covariance, in units of ``unit ** 2``."""
        trace = torch.zeros(shape[0], dtype=torch.float64)
        trace[slice(None) if self.rows is None else self.rows.cpu()] = 1.0
        return trace * (shape[1] * (self.std / unit) ** 2)


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Along:
    """Noise along one direction of unit length, shared (``[d]``) or each row's own (``[B, d]``)."""

    std: Tensor
    direction: Tensor

    def inside(self, block: slice, total: int) -> None:
        """Return None: every row has its place here, if only with a standard deviation of zero."""

    def count(self, rows: int, width: int, inside: Tensor | None) -> int:  # noqa: ARG002
        """Return how many normals a block of rows takes: one each."""
        return rows

    def write(
        self,
        base: Tensor,
        out: Tensor,
        block: slice,
        inside: Tensor | None,  # noqa: ARG002 - one signature for every kind of noise
        normals: Tensor,
    ) -> None:
        """Write a block of rows plus its noise to ``out``, which may be ``base`` itself."""
        std = piece(self.std, block)
        if self.direction.dim() == 1 and _all_fit(self, base, out, normals):
            add_along(base, out, normals, std, self.direction)
            return
        steps = normals.mul_(std).unsqueeze(1)
        direction = self.direction if self.direction.dim() == 1 else piece(self.direction, block)
        torch.addcmul(base, steps, direction.to(out.dtype), out=out)

    def size(self, shape: torch.Size, unit: float) -> tuple[float, float, float]:  # noqa: ARG002
        """Return what :meth:`Isotropic.size` returns, for rank-one covariances."""
        trace = np.square(on_host(self.std) / unit)
        return float(trace.sum()), math.sqrt(float(np.square(trace).sum())), float(trace.max())

    def traces(self, shape: torch.Size, unit: float) -> Tensor:  # noqa: ARG002
        """Return the trace of each row's covariance, in units of ``unit ** 2``."""
        return (self.std.cpu() / unit).square()


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Shaped:
    """Noise with covariance ``scale^2 basis' core' core basis`` for some rows, in order.

    Each row gets ``scale * normals[r] @ core [r, r] @ basis [r, d]``. The rows of ``basis`` are
    orthonormal; None stands for the identity, then ``r = d``. Values of ``core`` are near one,
    whatever the size of the noise. Two things for whoever knows them: ``upper``, that it is zero
    below the diagonal, and ``known``, trace and Frobenius norm of ``core' core``.
    """

    scale: float
    core: Tensor
    basis: Tensor | None
    rows: Tensor
    upper: bool = False
    known: tuple[float, float] | None = None

    def inside(self, block: slice, total: int) -> Tensor:
        """Return the noisy rows of a block by their place in it."""
        return _inside(self.rows, block, total)

    def count(self, rows: int, width: int, inside: Tensor | None) -> int:  # noqa: ARG002
        """Return how many normals a block of rows takes: ``r`` for each noisy one."""
        return 0 if inside is None else inside.shape[0] * self.core.shape[0]

    def write(
        self,
        base: Tensor,
        out: Tensor,
        block: slice,  # noqa: ARG002 - one signature for every kind of noise
        inside: Tensor | None,
        normals: Tensor,
    ) -> None:
        """Write a block of rows plus its noise to ``out``, which may be ``base`` itself."""
        if base is not out:
            out.copy_(base)
        where = self.rows if inside is None else inside
        if self.simple(out, where, normals):
            self.write_rows(out, out, where, normals)
            return
        noise = normals.view(-1, self.core.shape[0]) @ self.core.to(out.dtype)
        noise = noise if self.basis is None else noise @ self.basis.to(out.dtype)
        _add(out, where, noise, self._scale(out))

    def simple(self, base: Tensor, where: Tensor, normals: Tensor) -> bool:
        """Return whether :meth:`write_rows` takes these."""
        easy = self.upper and self.basis is None and fits_matrices(base, self.core)
        return easy and fits(normals) and fits(where, dtype=torch.int64)

    def write_rows(self, base: Tensor, out: Tensor, where: Tensor, normals: Tensor) -> None:
        """Write the noisy rows of a block, and no others, to ``out``, which may be ``base``."""
        add_shaped(base, out, where, normals, self.core, self._scale(out))

    def _scale(self, out: Tensor) -> float:
        return min(self.scale, torch.finfo(out.dtype).max)  # what overflows, the guard refuses

    def size(self, shape: torch.Size, unit: float) -> tuple[float, float, float]:  # noqa: ARG002
        """Return what :meth:`Isotropic.size` returns, the largest value from above.

        The Frobenius norm of one row's covariance is never below its largest eigenvalue.
        """
        trace, spread = self._size
        square, count = (self.scale / unit) ** 2, self.rows.shape[0]
        return count * trace * square, math.sqrt(count) * spread * square, spread * square

    def traces(self, shape: torch.Size, unit: float) -> Tensor:
        """Return the trace of each row's covariance, in units of ``unit ** 2``."""
        trace = torch.zeros(shape[0], dtype=torch.float64)
        trace[self.rows.cpu()] = self._size[0] * (self.scale / unit) ** 2
        return trace

    @property
    def _size(self) -> tuple[float, float]:
        """Trace and Frobenius norm of ``core' core``."""
        if self.known is not None:
            return self.known
        length: float = torch.linalg.vector_norm(self.core, dtype=torch.float64).item()
        narrow = self.core.float()  # digits beyond these change no verdict on the length
        return length**2, torch.linalg.vector_norm(narrow @ narrow.T).item()


Part = Isotropic | Along | Shaped


def write_both(
    parts: tuple[Part, ...],
    base: Tensor,
    out: Tensor,
    block: slice,
    inside: Sequence[Tensor | None],
    normals: Sequence[Tensor],
) -> bool:
    """Write the first two parts in one pass, where they are Marvell's; return whether they were.

    The published method's, or those of two classes with a covariance each.
    """
    match parts:
        case (Along() as along, Isotropic() as noise, *_) if along.direction.dim() == 1:
            where, drawn = inside[1], normals[1]
            if where is None or not _all_fit(along, base, out, normals[0], drawn):
                return False
            std = min(noise.std, torch.finfo(out.dtype).max)
            also = (where, drawn, std)
            add_along(base, out, normals[0], piece(along.std, block), along.direction, also)
            return True
        case (Shaped() as one, Shaped() as other):
            sides = [
                (part, where, drawn)
                for part, where, drawn in zip((one, other), inside, normals, strict=True)
                if where is not None and part.simple(base, where, drawn)
            ]
            if len(sides) < 2 or not _cover(base.shape[0], *(where for _, where, _ in sides)):
                return False
            for part, where, drawn in sides:
                part.write_rows(base, out, where, drawn)
            return True
        case _:
            return False


def _cover(count: int, *places: Tensor) -> bool:
    """Return whether every row is at one of the places, and none at two."""
    found = np.zeros(count, dtype=np.bool_)
    for where in places:
        found[where.numpy()] = True
    return sum(where.shape[0] for where in places) == count and bool(found.all())


def _all_fit(along: Along, *rows: Tensor) -> bool:
    return fits(*rows) and fits(along.std, along.direction, dtype=torch.float64)


def _add(out: Tensor, places: Tensor, noise: Tensor, scale: float) -> None:
    """Add ``scale`` times the noise to some rows."""
    if fits(out, noise) and fits(places, dtype=torch.int64) and places.shape[0]:
        add_to_rows(out, places, noise, scale)
    else:
        out.index_add_(0, places, noise.view(-1, out.shape[1]), alpha=scale)


def _inside(rows: Tensor, block: slice, total: int) -> Tensor:
    """Return which of some rows, in order, lie in a block, by their place in it."""
    if block.start == 0 and block.stop == total:
        return rows
    ends = torch.searchsorted(rows, rows.new_tensor([block.start, block.stop]))
    inside: Tensor = rows[int(ends[0]) : int(ends[1])] - block.start
    return inside
