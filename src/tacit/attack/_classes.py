"""How many classes an attacker counts on, and how frequent they are."""

from __future__ import annotations

import torch

from tacit.errors import InputError
from tacit.types import Known

__all__ = ["classes_of"]


def classes_of(known: Known) -> int:
    """Return how many classes there are: as known, as the prior has, or else two."""
    count = known.classes
    if count is not None and count < 2:
        raise InputError(f"known.classes must be 2 or more, got {count}: leave it out for two")
    if known.prior is None:
        return 2 if count is None else count
    shares = known.prior
    if shares.dim() != 1 or (count is not None and len(shares) != count) or len(shares) < 2:
        raise InputError(
            f"known.prior must have one share for each of {count or '2 or more'} classes, "
            f"got shape {tuple(shares.shape)}: give the shares of the same classes"
        )
    if not bool(torch.isfinite(shares).all()) or bool((shares <= 0).any()):
        raise InputError(
            f"known.prior must be positive shares of the classes, got {shares.tolist()}: "
            "leave out classes that never occur"
        )
    return len(shares)
