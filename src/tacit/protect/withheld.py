"""A release that keeps its gradients back, where they would cost more than was planned."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tacit.protect.base import Batch, Draft, Protection, draw, noise_only
from tacit.rng import Stream

__all__ = ["WITHHELD", "without_signal"]

WITHHELD = "noise without signal: the release would have cost more than was planned"


def without_signal(stage: Protection[Any], batch: Batch, draft: Draft, stream: Stream) -> Draft:
    """Return a draft of rows and noise that were made up, in place of the gradients and theirs.

    The noise too: what was planned for the true labels differs by class. Ending the run instead
    would tell the peer about the labels of this very batch. What the protection remembers is as
    if the draft had gone out.
    """
    last = draft.plans[-1]
    found = stage.stand_in(batch, stream) or noise_only(batch, None)
    plan = replace(found, how=WITHHELD, memory=last.memory)
    given = batch.rows if found.substitute is None else found.substitute
    return replace(
        draft,
        rows=draw(plan, given, stream),
        plans=(*draft.plans[:-1], plan),
        given=(*draft.given[:-1], given),
    )
