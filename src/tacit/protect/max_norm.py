"""Norm alignment: noise along each gradient so that all have the same expected length."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor

from tacit.protect.base import BATCH, PROTECTIONS, RUNNING, Batch, Plan, Protection, noise_only
from tacit.protect.gaussian import blend
from tacit.protect.noise_terms import Along, Isotropic
from tacit.rows import norms, unit_rows


@final
@PROTECTIONS.register("max_norm")
@dataclass(frozen=True)
class MaxNorm(Protection[float]):
    """Stretch every gradient at random to the expected length of the longest one.

    ``g_i' = g_i (1 + N(0, m^2 / ||g_i||^2 - 1))`` with ``m = max ||g||``, so that
    ``E||g_i'||^2 = m^2`` for every row.

    Guarantee: empirical only; the longest row is released as it is, and all rows keep their
    direction up to the sign, so attacks on directions still work.

    References:
        Technical report, Algorithm 6; Li et al., ICLR 2022, section 4.1. The report's line 32
        takes the maximum of squared norms and line 33 squares it again; its Eq. 29 is meant.

    Departures: a zero row has no direction and borrows the longest row's. Where the published rule
    would release more than the longest row untouched (one row, rows of one length, several as long
    as the longest), the running length of earlier batches sets the noise:
    ``E||g_i'||^2 = ||g_i||^2 + m_running^2``.
    """

    raw_rows: ClassVar[int] = 1

    def plan(self, batch: Batch, memory: float | None) -> Plan[float]:
        """Return noise along each row that lifts its expected length to the longest."""
        length = norms(batch.rows)
        longest = float(length.max())
        ratio = length / longest if longest > 0 else torch.ones_like(length)
        std = longest * ((1 - ratio) * (1 + ratio)).clamp_min(0).sqrt()
        std[1 - ratio < batch.resolution**2] = 0.0
        keep = blend(memory, longest) if longest > 0 else memory
        if _has_noise(std, longest):
            return Plan(noise=(_own_lines(batch, length, std),), memory=keep, how=BATCH)
        if memory is None:
            return noise_only(batch, keep)
        return Plan(noise=_remembered(batch, length, memory), memory=keep, how=RUNNING)


@final
@PROTECTIONS.register("max_norm_positive")
@dataclass(frozen=True)
class MaxNormPositive(Protection[float]):
    """Align every gradient's expected length with the longest positive one, by predictions.

    ``g_i' = g_i (1 + N(0, max(c^2 / c_i^2 - 1, 0)))`` with the confidence gap
    ``c_i = |p_i - y_i|`` and ``c = 1 - min p_i`` over the positives.

    Guarantee: empirical only; the least confident positive is released as it is.

    References:
        Technical report, Algorithm 5 and Eq. 28; ``max_norm_positive_published`` is without the
        last departure.

    Departures: a row without a direction (or without a confidence gap) borrows the longest
    positive's length. In a batch of one class, with fewer than two positives, or where no row
    would get noise, the running length ``m`` of the longest positive sets it:
    ``E||g_i'||^2 = ||g_i||^2 + m^2``.
    """

    needs: ClassVar[frozenset[str]] = frozenset({"labels", "binary", "probs"})
    raw_rows: ClassVar[int] = 1

    def plan(self, batch: Batch, memory: float | None) -> Plan[float]:
        """Return noise along each row that lifts its expected length to the reference."""
        found = int(batch.positive.sum())
        return _by_confidence(batch, memory, usable=2 <= found < len(batch.positive), bare=1)


AS_PUBLISHED = "from this batch, as published: rows without noise are in it"


@final
@PROTECTIONS.register("max_norm_positive_published")
@dataclass(frozen=True)
class PublishedMaxNormPositive(Protection[float]):
    """``max_norm_positive`` as published: rows that its rule gives no noise go out as they are.

    ``g_i' = g_i (1 + N(0, max(c^2 / c_i^2 - 1, 0)))`` with the confidence gap
    ``c_i = |p_i - y_i|`` and ``c = 1 - min p_i`` over the positives.

    Guarantee: none for the rows that are released as they are, all negatives with ``p_i >= c``.

    It is here to be measured. How many rows they are is in ``rows_without_noise`` of a run's
    results, and how many releases held several in the guard's ``counts``.

    References:
        Technical report, Algorithm 5 and Eq. 28.

    Departures: as for ``max_norm_positive`` where the rule says nothing: a row without a direction,
    a batch without positives, and one in which no row would get noise.
    """

    needs: ClassVar[frozenset[str]] = frozenset({"labels", "binary", "probs"})
    raw_rows: ClassVar[int] = 1 << 62  # any number

    def plan(self, batch: Batch, memory: float | None) -> Plan[float]:
        """Return noise along each row that is shorter than the reference."""
        found = int(batch.positive.sum())
        return _by_confidence(batch, memory, usable=found > 0, bare=len(batch.positive) - 1)


def _by_confidence(batch: Batch, memory: float | None, *, usable: bool, bare: int) -> Plan[float]:
    """Return the plan of Algorithm 5, or of its stand-in where more than ``bare`` rows get none."""
    assert batch.probs is not None  # noqa: S101 - Batch.of checked it, as `needs` says
    length, positive = norms(batch.rows), torch.from_numpy(batch.positive)
    if usable:
        gap = (batch.probs - positive.double()).abs()
        std = _aligned(length, gap, positive, batch.resolution)
        if _has_noise(std, float(length.max()), bare=bare):
            keep = blend(memory, _longest(length, positive))
            how = BATCH if _has_noise(std, float(length.max())) else AS_PUBLISHED
            return Plan(noise=(_own_lines(batch, length, std),), memory=keep, how=how)
    if memory is None:
        return noise_only(batch, None)
    return Plan(noise=_remembered(batch, length, memory), memory=memory, how=RUNNING)


def _aligned(length: Tensor, gap: Tensor, positive: Tensor, resolution: float) -> Tensor:
    """Return ``||g_i|| * sqrt(max(c^2 / c_i^2 - 1, 0))``, finite where ``c_i`` is zero."""
    reference = int(torch.where(positive, gap, -1.0).argmax())
    worst = gap[reference]
    ratio = torch.where(gap > 0, gap / worst.clamp_min(1e-300), 1.0)
    std = length / ratio.clamp_min(1e-300) * ((1 - ratio) * (1 + ratio)).clamp_min(0).sqrt()
    std[1 - ratio < resolution**2] = 0.0
    lent = _longest(length, positive) or float(length.max())
    return torch.where((length == 0) | (gap == 0), lent, std)


def _longest(length: Tensor, positive: Tensor) -> float:
    """Return the length of the longest positive, by the same work for any number of them."""
    return float(torch.where(positive, length, 0.0).max())


def _has_noise(std: Tensor, longest: float, *, bare: int = 1) -> bool:
    """Whether the rule perturbs all rows but ``bare``, and some by a real part of its length.

    Rows of one length, or several as long as the longest, would otherwise go out as they are.
    """
    return int((std == 0).sum()) <= bare and float(std.max()) > 0.1 * longest


def _own_lines(batch: Batch, length: Tensor, std: Tensor) -> Along:
    direction = unit_rows(batch.rows)
    direction[length == 0] = direction[length.argmax()].clone()
    return Along(std=std, direction=direction)


def _remembered(batch: Batch, length: Tensor, scale: float) -> tuple[Isotropic | Along, ...]:
    if float(length.max()) == 0:
        return (Isotropic(std=scale / math.sqrt(batch.rows.shape[1])),)
    return (_own_lines(batch, length, torch.full_like(length, scale)),)
