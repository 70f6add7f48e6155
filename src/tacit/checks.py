"""What a release must pass before it is handed out, and what may be claimed of it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tacit.errors import ReleaseError
from tacit.protect import Chain
from tacit.protect.base import MET, Batch, Plan
from tacit.rows import blocks, norms, on_host, working

__all__ = ["check_release", "strongest"]

Vector = npt.NDArray[np.float64]

# A correct draw fails the check of its size with probability below exp(-_SURE) each side.
_SURE = 50.0


def strongest(protection: Chain, plans: tuple[Plan[Any], ...]) -> Plan[Any] | None:
    """Return the plan with the strongest claim that still holds after the last stage.

    Processing that looks at the release only cannot undo a bound; a later stage that looks at the
    labels can, so what earlier stages claimed is void from there on.
    """
    best: Plan[Any] | None = None
    for stage, plan in zip(protection.stages, plans, strict=True):
        best = None if "labels" in stage.needs else best
        if plan.sum_kl is not None and (best is None or plan.sum_kl < (best.sum_kl or 0.0)):
            best = plan
    return best


def check_release(
    batch: Batch, plans: tuple[Plan[Any], ...], grads: Tensor, unit: float, *, identity: bool
) -> tuple[float, float]:
    """Return planned and measured noise power per row in units of ``unit**2``, or refuse."""
    if identity:
        if not torch.equal(grads.reshape(batch.rows.shape).to(batch.rows.dtype), batch.rows):
            raise ReleaseError("the gradients were changed where nothing was asked for")
        return 0.0, 0.0
    signal = all(plan.signal for plan in plans)
    length = _noise_lengths(batch.rows if signal else None, grads, unit)
    total = float(np.square(length).sum())
    if not math.isfinite(total):
        raise ReleaseError(
            "the protected gradient is not finite: lower the loss scale or the noise"
        )
    planned, spread, peak = _planned(plans, batch.rows.shape, unit)
    if planned == 0:
        if total > 0 or not any(plan.how == MET for plan in plans):
            raise ReleaseError("the protection asked for did not run: nothing was released")
        return 0.0, 0.0
    # Every value of the release is at most one unit of gradient plus its row's noise.
    rounding = 2 * batch.resolution * math.sqrt(grads.numel()) * (1 + float(length.max()))
    _check_size(planned, spread, peak, math.sqrt(total), rounding)
    if length.min() == 0:
        _check_resolved(batch, plans, length, unit)
    return planned / len(grads), total / len(grads)


def _noise_lengths(clean: Tensor | None, grads: Tensor, unit: float) -> Vector:
    """Return the length of each row's noise in the released bytes, in units of ``unit``."""
    flat = grads.detach().reshape(grads.shape[0], -1)
    # Squares of float32 values are safe near one; elsewhere the units must go first.
    early = 1.0 if 2.0**-40 < unit < 2.0**40 and clean is not None else 1 / unit
    found = []
    for block in blocks(*flat.shape):
        noise = working(flat[block] if clean is None else flat[block] - clean[block])
        noise = noise if early == 1.0 else noise * early
        found.append(on_host(torch.linalg.vector_norm(noise, dim=1)))
    return np.concatenate(found).astype(np.float64) / (early * unit)


def _planned(
    plans: tuple[Plan[Any], ...], shape: torch.Size, unit: float
) -> tuple[float, float, float]:
    """Return trace, Frobenius norm and largest variance of the noise that counts.

    Parts are independent, so traces add up; the other two add up at most.
    """
    trace, spread, peak = 0.0, 0.0, 0.0
    for plan in plans:
        sizes = [part.size(shape, unit) for part in plan.noise]
        _check_budget(plan, sum(size[0] for size in sizes) / shape[0], unit)
        if not plan.signal:
            trace, spread, peak = 0.0, 0.0, 0.0
        trace += sum(size[0] for size in sizes)
        spread += sum(size[1] for size in sizes)
        peak += sum(size[2] for size in sizes)
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
    batch: Batch, plans: tuple[Plan[Any], ...], length: Vector, unit: float
) -> None:
    """Refuse rows whose noise is finer than the number format can show."""
    shape = batch.rows.shape
    planned = torch.zeros(shape[0], dtype=torch.float64)
    for part in (part for plan in plans for part in plan.noise):
        planned += part.traces(shape, unit)
    silent = ((torch.from_numpy(length) == 0) & (planned > 0)).nonzero().squeeze(1)
    if len(silent) == 0:
        return
    own = norms(batch.rows[silent.to(batch.rows.device)]).cpu()
    lost = planned[silent].sqrt() < batch.resolution * own / unit
    if bool(lost.any()):
        raise ReleaseError(
            f"the noise of {int(lost.sum())} rows is lost in rounding: nothing was released; raise "
            "the noise, scale the loss down or use a wider floating-point type"
        )


def _check_budget(plan: Plan[Any], power: float, unit: float) -> None:
    if plan.limit is not None and math.sqrt(power) * unit > plan.limit * (1 + 1e-9):
        raise ReleaseError(
            f"noise of root mean square length {math.sqrt(power) * unit:.6g} exceeds its budget "
            f"{plan.limit:.6g}: nothing was released"
        )
