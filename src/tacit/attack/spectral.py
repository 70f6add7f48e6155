"""Attacks along the principal directions of a batch, without side information."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor

from tacit.attack.base import ATTACKS, GAUSSIAN_FAILS, Attack, AuditForm, Cause, PreparedView
from tacit.spec import require


@final
@ATTACKS.register("energy")
@dataclass(frozen=True)
class Energy(Attack):
    """Score by the energy in the weak directions of the batch, which hold only noise.

    ``r(g_i) = sum over the weaker share of directions v_j of ((g_i - mean) . v_j)^2``, with ``v_j``
    the principal directions of the centred batch. Cut gradients lie near a few directions; a
    protection that gives isotropic noise to one class alone leaves the other with nothing here.

    Needs: nothing besides the gradients.

    References:
        Ours. It aims at the optimum of Li et al., ICLR 2022, Theorem 2, where ``lambda_2`` of one
        class is zero.

    Directions in which no row differs are left out, so the share (at least one direction) is that
    of the non-zero spectrum, also with fewer rows than dimensions. Cost:
    ``O(min(B, d)^2 max(B, d))``. With ``n`` noisy rows, fewer than dimensions, noise fills ``n`` of
    the stronger directions: near ``n = (1 - share) min(B, d)`` the sign changes and the attack
    loses force. A batch of 128 at 50% positives needs another share, such as 0.9.

    >>> from tacit.types import View
    >>> noisy = torch.tensor([[8.0, 1.0], [8.0, -1.0], [-8.0, 1.0], [-8.0, -1.0]])
    >>> grads = torch.cat([noisy, torch.tensor([[9.0, 0.0], [-9.0, 0.0]])])
    >>> Energy()(View(grads=grads), torch.Generator()).round(decimals=6).tolist()
    [1.0, 1.0, 1.0, 1.0, 0.0, 0.0]
    """

    share: float = 0.5

    audit_forms: ClassVar[tuple[AuditForm, ...]] = (
        AuditForm("energy", 80),
        AuditForm("energy(share=0.9)", 81),
    )
    live: ClassVar[bool] = True
    causes: ClassVar[tuple[Cause, ...]] = (GAUSSIAN_FAILS,)

    def __post_init__(self) -> None:
        require(0 < self.share < 1, "energy: share must lie between 0 and 1", self.share)

    def score(self, prepared: PreparedView, _rng: torch.Generator, /) -> Tensor:
        """Return each row's energy in the weaker directions."""
        along = prepared.cached("coordinates", principal_coordinates)
        weak = along[:, : max(1, int(self.share * along.shape[1]))]
        return prepared.restore(weak.square().sum(dim=1), degree=2)


@final
@ATTACKS.register("principal")
@dataclass(frozen=True)
class Principal(Attack):
    """Score along the direction in which the batch varies most: that is where the classes differ.

    ``r(g_i) = s * (g_i - mean) . v`` with ``v`` the top principal direction and the sign ``s``
    that makes ``sum r^3 >= 0``: the fewer class, taken for the positives, is the longer tail.

    Needs: nothing besides the gradients and the guess that positives are the fewer.

    References:
        Ours; the direction in which the 2022 paper's attack 2 finds the two classes opposed,
        without the known gradient.

    >>> from tacit.types import View
    >>> view = View(grads=torch.tensor([[1.0, 1.0], [1.0, 1.0], [1.0, 1.0], [-3.0, -3.0]]))
    >>> Principal()(view, torch.Generator()).argmax().item()
    3
    """

    audit_forms: ClassVar[tuple[AuditForm, ...]] = (AuditForm("principal", 70),)
    live: ClassVar[bool] = True

    def score(self, prepared: PreparedView, _rng: torch.Generator, /) -> Tensor:
        """Return each row's coordinate along the top direction."""
        along = prepared.cached("coordinates", principal_coordinates)
        top = along[:, -1:].sum(dim=1)  # zeros when no direction is left
        return prepared.restore(-top if top.pow(3).sum() < 0 else top, degree=1)


def principal_coordinates(rows: Tensor) -> Tensor:
    """Return the centred rows along their principal directions ``[B, r]``, weakest first.

    The smaller of the covariance and the Gram matrix is decomposed. Lengths are taken from the
    rows and not from the eigenvalues: those resolve a direction only down to the root of the
    rounding error. Rows that are all alike have no direction, ``r = 0``.
    """
    centred = rows - rows.mean(dim=0)
    along: Tensor
    if len(rows) < rows.shape[1]:
        basis = torch.linalg.eigh(centred @ centred.T).eigenvectors
        along = basis * torch.linalg.vector_norm(centred.T @ basis, dim=0)
    else:
        along = centred @ torch.linalg.eigh(centred.T @ centred).eigenvectors
    # Centring leaves a rounding error of the rows as they were, so that is the measure of zero.
    zero = torch.finfo(rows.dtype).eps * max(rows.shape) * torch.linalg.vector_norm(rows)
    return along[:, torch.linalg.vector_norm(along, dim=0) > zero]


def principal_direction(rows: Tensor) -> Tensor:
    """Return the unit vector ``[d]`` along which the rows vary most; its sign means nothing."""
    centred = rows - rows.mean(dim=0)
    if len(rows) < rows.shape[1]:
        long = centred.T @ torch.linalg.eigh(centred @ centred.T).eigenvectors[:, -1]
        unit: Tensor = long / torch.linalg.vector_norm(long).clamp(min=torch.finfo(long.dtype).tiny)
        return unit
    basis: Tensor = torch.linalg.eigh(centred.T @ centred).eigenvectors
    return basis[:, -1]
