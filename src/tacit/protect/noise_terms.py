"""Noise as data: what each row gets, described by standard deviations and directions.

Every part draws the same number of normals for every row, also for rows whose standard deviation
is zero: what a release costs in time does not depend on the labels.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from torch import Tensor

from tacit.kernels import add_along, add_rows
from tacit.protect.class_blocks import ClassBlocks
from tacit.rows import piece


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Isotropic:
    """Noise with the same variance in every direction: one ``std`` for all rows, or ``[B]``."""

    std: float | Tensor

    def count(self, rows: int, width: int) -> int:
        """Return how many normals a block of rows takes."""
        return rows * width

    def write(self, base: Tensor, out: Tensor, block: slice, normals: Tensor) -> None:
        """Write a block of rows plus its noise to ``out``, which may be ``base`` itself."""
        std = np.full(len(out), self.std) if isinstance(self.std, float) else self._own(block)
        add_rows(base.numpy(), normals.view(out.shape).numpy(), std, out.numpy())

    def size(self, shape: torch.Size, unit: float) -> tuple[float, float, float]:
        """Return trace, Frobenius norm and largest value of the covariance of all rows together.

        In units of ``unit ** 2``.
        """
        single = self.traces(shape, unit).numpy() / shape[1]
        spread = math.sqrt(shape[1] * float(np.square(single).sum()))
        return shape[1] * float(single.sum()), spread, float(single.max())

    def traces(self, shape: torch.Size, unit: float) -> Tensor:
        """Return the trace of each row's covariance, in units of ``unit ** 2``."""
        std = torch.as_tensor(self.std, dtype=torch.float64)
        return ((std / unit).square() * shape[1]).expand(shape[0])

    def _own(self, block: slice) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        assert isinstance(self.std, Tensor)  # noqa: S101 - a float was taken care of
        return piece(self.std, block).numpy()


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Along:
    """Noise along one direction of unit length, shared (``[d]``) or each row's own (``[B, d]``)."""

    std: Tensor
    direction: Tensor

    def count(self, rows: int, width: int) -> int:  # noqa: ARG002
        """Return how many normals a block of rows takes: one each."""
        return rows

    def write(self, base: Tensor, out: Tensor, block: slice, normals: Tensor) -> None:
        """Write a block of rows plus its noise to ``out``, which may be ``base`` itself."""
        own = self.direction.dim() == 2
        lines = piece(self.direction, block) if own else self.direction.unsqueeze(0)
        steps = normals * piece(self.std, block)
        add_along(base.numpy(), steps.numpy(), lines.contiguous().numpy(), out.numpy())

    def size(self, shape: torch.Size, unit: float) -> tuple[float, float, float]:
        """Return what :meth:`Isotropic.size` returns, for rank-one covariances."""
        trace = self.traces(shape, unit).numpy()
        return float(trace.sum()), math.sqrt(float(np.square(trace).sum())), float(trace.max())

    def traces(self, shape: torch.Size, unit: float) -> Tensor:  # noqa: ARG002
        """Return the trace of each row's covariance, in units of ``unit ** 2``."""
        return (self.std / unit).square()


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Shaped:
    """Noise with covariance ``scale^2 basis' core' core basis``, one ``core`` for each class.

    Row i gets ``scale * normals[i] @ cores[owner[i]] @ basis``.

    Attributes:
        scale: what the values of ``cores``, which are near one, are multiplied by.
        cores: ``[m, r, r]``.
        owner: ``[B]``, which of them each row takes.
        basis: ``[r, d]``, orthonormal rows; None stands for the identity, then ``r = d``.
        sizes: ``[m, 2]``, trace and Frobenius norm of each ``core' core``, where they are known.
    """

    scale: float
    cores: Tensor
    owner: Tensor
    basis: Tensor | None = None
    sizes: Tensor | None = None

    def count(self, rows: int, width: int) -> int:  # noqa: ARG002
        """Return how many normals a block of rows takes: ``r`` each."""
        return rows * self.cores.shape[1]

    def write(self, base: Tensor, out: Tensor, block: slice, normals: Tensor) -> None:
        """Write a block of rows plus its noise to ``out``, which may be ``base`` itself."""
        drawn, owner = normals.view(len(out), -1), piece(self.owner, block).numpy()
        noise = ClassBlocks.of(owner, classes=len(self.cores)).times(drawn, self.cores)
        noise = noise if self.basis is None else noise @ self.basis
        torch.add(base, noise, alpha=self.scale, out=out)

    def size(self, shape: torch.Size, unit: float) -> tuple[float, float, float]:  # noqa: ARG002
        """Return what :meth:`Isotropic.size` returns, the largest value from above.

        The Frobenius norm of one row's covariance is never below its largest eigenvalue.
        """
        each = self._sizes()[self.owner] * (self.scale / unit) ** 2
        spread = each[:, 1]
        return float(each[:, 0].sum()), float(spread.square().sum().sqrt()), float(spread.max())

    def traces(self, shape: torch.Size, unit: float) -> Tensor:  # noqa: ARG002
        """Return the trace of each row's covariance, in units of ``unit ** 2``."""
        return self._sizes()[self.owner, 0] * (self.scale / unit) ** 2

    def _sizes(self) -> Tensor:
        if self.sizes is not None:
            return self.sizes
        covariances = self.cores.mT @ self.cores
        traces = covariances.diagonal(dim1=1, dim2=2).sum(dim=1)
        return torch.stack([traces, torch.linalg.vector_norm(covariances, dim=(1, 2))], dim=1)


Part = Isotropic | Along | Shaped
