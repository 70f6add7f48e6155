"""Protections that ignore labels: none at all, and isotropic Gaussian noise."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, final

from tacit.protect.base import (
    BATCH,
    PROTECTIONS,
    RUNNING,
    Batch,
    Draft,
    Plan,
    Protection,
    noise_only,
)
from tacit.protect.noise_terms import Isotropic
from tacit.rng import Stream
from tacit.rows import norms
from tacit.spec import require

_KEEP = 0.9


def blend(old: float | None, new: float) -> float:
    """Return the running value after one more batch: an exponential average."""
    return new if old is None else _KEEP * old + (1 - _KEEP) * new


@final
@PROTECTIONS.register("none")
@dataclass(frozen=True)
class NoProtection(Protection[None]):
    """Release the gradients as they are.

    ``g' = g``

    Guarantee: none; the cosine attack recovers practically every label.

    >>> str(NoProtection())
    'none'
    """

    identity: ClassVar[bool] = True

    def plan(self, batch: Batch, memory: None) -> Plan[None]:  # noqa: ARG002
        """Return a plan without noise."""
        return Plan(noise=(), memory=None, how="no protection was asked for")

    def apply(self, batch: Batch, stream: Stream, memory: object) -> Draft:  # noqa: ARG002
        """Return the rows; nothing is drawn."""
        plan = self.plan(batch, None)
        return Draft(rows=batch.rows, plans=(plan,), given=(batch.rows,), memory=None)


@final
@PROTECTIONS.register("gaussian")
@dataclass(frozen=True)
class Gaussian(Protection[None]):
    """Add the same Gaussian noise to every gradient, in absolute units.

    ``g' = g + N(0, sigma^2 I)``, where ``g`` is the gradient of one example's own loss.

    Guarantee: empirical only.

    References:
        ExPLOit (Kariyappa and Qureshi), Eq. 10.

    >>> str(PROTECTIONS.get("gaussian(0.1)"))
    'gaussian(sigma=0.1)'
    """

    scale_free: ClassVar[bool] = False
    keeps_gaussian: ClassVar[bool] = True
    sigma: float

    def __post_init__(self) -> None:
        require(0 < self.sigma < math.inf, "gaussian: sigma must be positive", self.sigma)

    def plan(self, batch: Batch, memory: None) -> Plan[None]:  # noqa: ARG002
        """Return isotropic noise of the fixed standard deviation."""
        std = self.sigma * batch.weight
        return Plan(noise=(Isotropic(std=std),), memory=None, how="a fixed standard deviation")


@final
@PROTECTIONS.register("iso")
@dataclass(frozen=True)
class Iso(Protection[float]):
    """Add isotropic noise in proportion to the largest gradient of the batch.

    ``g' = g + N(0, (t / d) * max ||g||^2 I)``

    Guarantee: empirical only; the cosine attack stays strong even at large ``t``.

    References:
        Li et al., ICLR 2022, section 5.2. The 2021 version calls the same number ``s``.

    A batch of zeros has no scale of its own and takes the running one.

    >>> str(PROTECTIONS.get("iso(t=2)"))
    'iso(t=2)'
    """

    keeps_gaussian: ClassVar[bool] = True
    t: float

    def __post_init__(self) -> None:
        require(0 < self.t < math.inf, "iso: t must be positive", self.t)

    def plan(self, batch: Batch, memory: float | None) -> Plan[float]:
        """Return isotropic noise scaled to the longest row."""
        longest = float(norms(batch.rows).max())
        scale, how = (longest, BATCH) if longest > 0 else (memory, RUNNING)
        if scale is None:
            return noise_only(batch, None)
        std = scale * math.sqrt(self.t / batch.rows.shape[1])
        keep = blend(memory, longest) if longest > 0 else memory
        return Plan(noise=(Isotropic(std=std),), memory=keep, how=how)
