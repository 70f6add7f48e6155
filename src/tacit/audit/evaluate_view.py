"""One attack on one view, judged fairly: side information comes from other rows than it is used on.

Whoever knows a class's centre from the very rows that are scored finds "labels" in pure noise.
So half of the batch informs the attack on the other half, and rows that were given away as hints
are not counted.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from tacit.attack import Attack
from tacit.errors import KnowledgeError
from tacit.evaluate import reveal
from tacit.types import Known, View

_FROM_OTHERS = {"positive", "centres"}


def exposed(
    attack: Attack, view: View, labels: Tensor, rng: torch.Generator
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield scores with their labels; nothing where the batch cannot inform the attack."""
    wanted = attack.needs - {"embeddings"}
    if wanted & _FROM_OTHERS:
        yield from _halves(attack, view, labels, rng)
        return
    try:
        known = _informed(attack, view, labels, rng) if wanted else Known()
    except KnowledgeError:
        return
    scores = attack(replace(view, known=known), rng)
    if known.hints is None:
        yield scores, labels
        return
    kept = torch.ones(len(labels), dtype=torch.bool)
    kept[known.hints] = False
    if bool(kept.any()):
        yield scores[kept], labels[kept]


def part_of(view: View, rows: Tensor) -> View:
    """Return some rows of a view."""
    sent, ids = view.embeddings, view.ids
    return replace(
        view,
        grads=view.grads[rows],
        embeddings=None if sent is None else sent[rows],
        ids=None if ids is None else ids[rows],
    )


def _halves(
    attack: Attack, view: View, labels: Tensor, rng: torch.Generator
) -> Iterator[tuple[Tensor, Tensor]]:
    order = torch.randperm(len(labels), generator=rng)
    one, two = order[: len(order) // 2], order[len(order) // 2 :]
    for seen, rows in ((one, two), (two, one)):
        if len(seen) == 0 or len(rows) == 0:
            continue
        try:
            known = _informed(attack, part_of(view, seen), labels[seen], rng)
        except KnowledgeError:
            continue
        yield attack(replace(part_of(view, rows), known=known), rng), labels[rows]


def _informed(attack: Attack, view: View, labels: Tensor, rng: torch.Generator) -> Known:
    """Return the side information; a tape has releases only, so these stand for clean gradients."""
    return reveal(attack, clean=view.grads, released=view.grads, labels=labels, rng=rng)
