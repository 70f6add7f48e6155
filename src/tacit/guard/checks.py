"""The checks that every release must pass, and what may be claimed of it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tacit.errors import ReleaseError
from tacit.kernels import compare
from tacit.protect import Chain
from tacit.protect.base import Batch, Draft, Plan
from tacit.protect.noise_terms import Along, Isotropic, Part
from tacit.rows import GRID, largest

# A correct draw fails the check of its size with probability below exp(-_SURE) each side.
_SURE = 50.0


def strongest(protection: Chain, plans: tuple[Plan[Any], ...]) -> Plan[Any] | None:
    """Return the plan with the strongest claim that still holds after the last stage.

    Processing that looks at the release only cannot undo a bound; a later stage that looks at the
    labels can, so what earlier stages claimed is void from there on. And a stage's own claim
    assumes Gaussian classes, which earlier noise that follows each row has made untrue; one for
    isotropic classes is void after noise of any other shape.
    """
    best: Plan[Any] | None = None
    shaped, bent = False, False
    for stage, plan in zip(protection.stages, plans, strict=True):
        best = None if "labels" in stage.needs else best
        holds = not bent and (plan.any_covariance or not shaped)
        claims = plan.sum_kl is not None and (holds or not plan.signal)
        if claims and (best is None or (plan.sum_kl or 0.0) < (best.sum_kl or 0.0)):
            best = plan
        shaped = shaped or any(not _everywhere(part) for part in plan.noise)
        bent = bent or any(_follows_rows(part) for part in plan.noise)
    return best


def check_release(
    batch: Batch, draft: Draft, grads: Tensor, *, unit: float, grid: float
) -> tuple[float, float]:
    """Return planned and measured noise power per row in units of ``unit**2``, or refuse.

    Every stage is checked against the rows it was given; the last one by the released bytes, which
    are multiples of ``grid``.
    """
    exact = torch.float32 if grads.dtype == torch.float32 else torch.float64
    released = grads.detach().to("cpu", exact).reshape(batch.rows.shape)
    planned, measured = 0.0, 0.0
    reach = 1.0  # no value is larger than one unit of gradient plus the noise of its row so far
    results = (*draft.given[1:], released)
    stages = list(zip(draft.plans, draft.given, results, strict=True))
    # Rows that take the gradients' place begin anew: nothing of the stages before is released.
    begin = max(place for place, plan in enumerate(draft.plans) if place == 0 or not plan.signal)
    for plan, given, result in stages[begin:]:
        last = result is released
        total, longest = _noise(result, given, unit=unit, grid=grid if last else 0.0)
        reach += longest + (0.0 if plan.signal else largest(given) / unit)
        finest = batch.resolution if last else torch.finfo(torch.float64).eps
        planned += _check_stage(plan, result, total, unit=unit, finest=finest * reach)
        measured += total
    if planned == 0:
        raise ReleaseError("the protection asked for did not run: nothing was released")
    step = grid * batch.resolution / GRID  # a narrow type has coarser steps at its largest values
    _check_resolved(draft.plans[begin:], released.shape, unit=unit, grid=step)
    count = released.shape[0]
    return planned / count, measured / count


def check_untouched(grads: Tensor, cut: Tensor) -> None:
    """Refuse gradients that were changed although nothing was asked for."""
    if not torch.equal(grads.detach(), cut.detach()):
        raise ReleaseError("the gradients were changed where nothing was asked for")


def _noise(result: Tensor, given: Tensor, *, unit: float, grid: float) -> tuple[float, float]:
    """Return the squared length of all noise and the longest row's, in units of ``unit``.

    Refuses values that are no finite multiples of ``grid``, if it is positive: their last bits
    would show the size of the gradient.
    """
    squares, off = np.empty(len(result)), np.zeros(1, dtype=np.int64)
    compare(result.numpy(), given.numpy(), unit, grid or 1.0, squares, off)
    total = float(squares.sum())
    if not math.isfinite(total):
        raise ReleaseError("the protected gradient is not finite: lower the loss or the noise")
    if grid > 0 and off[0]:
        raise ReleaseError(
            f"{off[0]} values are no multiples of the step {grid:g}: nothing was released"
        )
    return total, math.sqrt(float(squares.max()))


def _check_stage(
    plan: Plan[Any], result: Tensor, total: float, *, unit: float, finest: float
) -> float:
    """Return the planned noise power of one stage, or refuse what does not look like it."""
    planned, spread, peak = _planned(plan, result.shape, unit)
    rounding = 2 * finest * math.sqrt(result.numel())
    if planned > 0:
        _check_size(planned, spread, peak, math.sqrt(total), rounding)
    elif math.sqrt(total) > rounding:
        raise ReleaseError("there is noise where none was planned: nothing was released")
    return planned


def _everywhere(part: Part) -> bool:
    return isinstance(part, Isotropic) and isinstance(part.std, float)


def _follows_rows(part: Part) -> bool:
    return isinstance(part, Along) and part.direction.dim() == 2


def _planned(plan: Plan[Any], shape: torch.Size, unit: float) -> tuple[float, float, float]:
    """Return trace, Frobenius norm and largest variance of a plan's noise; refuse an overspent one.

    Parts are independent, so traces add up; the other two add up at most.
    """
    sizes = [part.size(shape, unit) for part in plan.noise]
    trace, spread, peak = (sum(size[i] for size in sizes) for i in range(3))
    rms = math.sqrt(trace / shape[0]) * unit
    if plan.limit is not None and rms > plan.limit * (1 + 1e-9):
        raise ReleaseError(
            f"noise of root mean square length {rms:.6g} exceeds its budget {plan.limit:.6g}: "
            "nothing was released"
        )
    return trace, spread, peak


def _check_size(planned: float, spread: float, peak: float, found: float, rounding: float) -> None:
    """Refuse noise whose length no correct draw would have (Laurent and Massart 2000, Lemma 1)."""
    low = math.sqrt(max(0.0, planned - 2 * spread * math.sqrt(_SURE))) * 0.999 - rounding
    high = math.sqrt(planned + 2 * spread * math.sqrt(_SURE) + 2 * peak * _SURE) * 1.001 + rounding
    if found == 0 or not low <= found <= high:
        raise ReleaseError(
            f"the noise in the release has length {found:.3g} instead of {math.sqrt(planned):.3g}, "
            "relative to the largest gradient: nothing was released; raise the noise or use a "
            "wider floating-point type"
        )


def _check_resolved(
    plans: tuple[Plan[Any], ...], shape: torch.Size, *, unit: float, grid: float
) -> None:
    """Refuse noise that is finer than the steps of the release in every row."""
    planned = torch.zeros(shape[0], dtype=torch.float64)
    for part in (part for plan in plans for part in plan.noise):
        planned += part.traces(shape, unit)
    length = math.sqrt(planned.max()) * unit
    if length < 0.5 * grid:
        raise ReleaseError(
            f"noise of length {length:.3g} a row is lost in rounding to steps of {grid:.3g}: "
            "nothing was released; raise the noise, scale the loss down or use a wider "
            "floating-point type"
        )
