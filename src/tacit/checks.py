"""What a release must pass before it is handed out, and what may be claimed of it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tacit.errors import ReleaseError
from tacit.machine import fits, row_squares, same
from tacit.protect import Chain
from tacit.protect.base import Batch, Draft, Plan
from tacit.protect.parts import Along, Isotropic, Part
from tacit.rows import blocks, detached, norms, on_host, piece, shaped, working

__all__ = ["check_release", "strongest"]

Vector = npt.NDArray[np.float64]

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
    batch: Batch, draft: Draft, grads: Tensor, unit: float, *, identity: bool
) -> tuple[float, float]:
    """Return planned and measured noise power per row in units of ``unit**2``, or refuse.

    Every stage is checked against the rows it was given; the last one by the released bytes.
    """
    released = shaped(detached(grads), batch.rows.shape)
    if identity:
        shown = working(released)
        unchanged = same if fits(shown, batch.rows) else torch.equal
        if not unchanged(shown, batch.rows):
            raise ReleaseError("the gradients were changed where nothing was asked for")
        return 0.0, 0.0
    planned, measured = 0.0, 0.0
    reach = 1.0  # no value is larger than one unit of gradient plus the noise of its row so far
    results = (*draft.given[1:], released)
    for plan, given, result in zip(draft.plans, draft.given, results, strict=True):
        power = _noise_powers(given if plan.signal else None, result, unit)
        total = float(power.sum())
        reach += math.sqrt(power.max())
        planned += _check_stage(plan, given, result, power, unit=unit, reach=reach, total=total)
        measured += total
    if planned == 0:
        raise ReleaseError("the protection asked for did not run: nothing was released")
    count = released.shape[0]
    return planned / count, measured / count


def _check_stage(
    plan: Plan[Any],
    given: Tensor,
    result: Tensor,
    power: Vector,
    *,
    unit: float,
    reach: float,
    total: float,
) -> float:
    """Return the planned noise power of one stage, or refuse what does not look like it."""
    if not math.isfinite(total):
        raise ReleaseError("the protected gradient is not finite: lower the loss or the noise")
    planned, spread, peak = _planned(plan, result.shape, unit)
    if planned == 0:
        if total > 0:
            raise ReleaseError("there is noise where none was planned: nothing was released")
        return 0.0
    rounding = 2 * torch.finfo(result.dtype).eps * math.sqrt(result.numel()) * reach
    _check_size(planned, spread, peak, math.sqrt(total), rounding)
    if not power.all():
        _check_resolved(plan, given if plan.signal else None, result, power, unit)
    return planned


def _everywhere(part: Part) -> bool:
    return isinstance(part, Isotropic) and part.rows is None


def _follows_rows(part: Part) -> bool:
    return isinstance(part, Along) and part.direction.dim() == 2


def _noise_powers(given: Tensor | None, result: Tensor, unit: float) -> Vector:
    """Return the squared length of each row's noise, in units of ``unit**2``."""
    # Squares of float32 values are safe near one; elsewhere the units must go first.
    early = 1.0 if 2.0**-40 < unit < 2.0**40 and given is not None else 1 / unit
    if given is not None and early == 1.0 and fits(result, given):
        return row_squares(result, given) / unit**2
    found = []
    for block in blocks(*result.shape):
        part = piece(result, block)
        noise = working(part if given is None else part - piece(given, block))
        noise = noise if early == 1.0 else noise * early
        found.append(on_host(torch.linalg.vector_norm(noise, dim=1)))
    return np.square(np.concatenate(found).astype(np.float64) / (early * unit))


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
    plan: Plan[Any], given: Tensor | None, result: Tensor, power: Vector, unit: float
) -> None:
    """Refuse rows whose noise is finer than the number format can show."""
    planned = torch.zeros(len(power), dtype=torch.float64)
    for part in plan.noise:
        planned += part.traces(result.shape, unit)
    silent = ((torch.from_numpy(power) == 0) & (planned > 0)).nonzero().squeeze(1)
    if len(silent) == 0:
        return
    form = torch.finfo(result.dtype)
    finest = form.smallest_normal * form.eps * math.sqrt(result.shape[1])
    own = 0.0 if given is None else norms(given[silent.to(given.device)]).cpu()
    least = (own * form.eps + finest) / unit
    lost = int((planned[silent].sqrt() < least).sum())
    if lost:
        raise ReleaseError(
            f"the noise of {lost} rows is lost in rounding: nothing was released; raise the noise, "
            "scale the loss down or use a wider floating-point type"
        )
