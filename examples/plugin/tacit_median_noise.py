"""A protection of one's own: ``tacit train --plugin FILE --protect "median_noise(t=1)"``."""

import math
from dataclasses import dataclass
from typing import final

from tacit.protect import PROTECTIONS, Batch, Isotropic, Plan, Protection, noise_only
from tacit.spec import require


@final
@PROTECTIONS.register("median_noise")
@dataclass(frozen=True)
class MedianNoise(Protection[float]):
    """Add isotropic noise in proportion to the median gradient of the batch.

    ``g' = g + N(0, (t / d) * median(||g||)^2 I)``

    Guarantee: empirical only.
    """

    t: float = 1.0

    def __post_init__(self) -> None:
        require(0 < self.t < math.inf, "median_noise: t must be positive", self.t)

    def plan(self, batch: Batch, memory: float | None) -> Plan[float]:
        """Return noise by this batch's median length, or by the last one that was not zero."""
        length = float(batch.rows.norm(dim=1).median()) or memory
        if length is None:
            return noise_only(batch, None)
        std = length * math.sqrt(self.t / batch.rows.shape[1])
        return Plan(noise=(Isotropic(std=std),), memory=length, how="by the median gradient")
