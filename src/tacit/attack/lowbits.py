"""An attack on how numbers are stored: the last bits of a sum show the size of its summands."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final, final

import torch
from torch import Tensor

from tacit.attack.base import ATTACKS, Attack, AuditForm, Cause, PreparedView

_FRACTION: Final = 52  # bits of a float64 behind the point


@final
@ATTACKS.register("lowbits")
@dataclass(frozen=True)
class LowBits(Attack):
    """Count the zero bits at the end of each value: in ``float32(g + noise)`` they depend on ``g``.

    ``r(g_i) = sum_j t(g_ij)``, where ``t`` counts the zero bits at the end of the mantissa. A sum
    of floating-point numbers keeps the last bits of the larger one, so a class whose gradients are
    larger than the noise ends in other bits than one whose gradients are smaller. Where all values
    are multiples of one step, ``t`` depends on the size of a value only. A zero counts as
    half of the smallest such step.

    Needs: nothing besides the gradients.

    References:
        Ours; Mironov, "On significance of the least significant bits for differential privacy",
        CCS 2012, has the attack on the Laplace mechanism.

    >>> from tacit.types import View
    >>> LowBits()(View(grads=torch.tensor([[1.0], [1.5], [0.1]])), torch.Generator()).tolist()
    [52.0, 51.0, 29.0]
    """

    audit_forms: ClassVar[tuple[AuditForm, ...]] = (
        AuditForm("lowbits", 90),
        AuditForm("memory(of=lowbits)", 101),
    )
    causes: ClassVar[tuple[Cause, ...]] = (
        Cause(
            "the last bits or the size of the numbers tell: release them on one grid, as tacit's "
            "guard does"
        ),
    )

    def score(self, prepared: PreparedView, _rng: torch.Generator, /) -> Tensor:
        """Return the sum of trailing zero bits of each row, as in ``float64``."""
        fraction = prepared.rows.contiguous().view(torch.int64) & ((1 << _FRACTION) - 1)
        whole = fraction | (1 << _FRACTION)
        zeros = (whole & -whole).double().log2()
        return torch.where(prepared.rows == 0, _FRACTION + 1.0, zeros).sum(dim=1)
