"""What a feature party reaches that chooses its embeddings, against what certificates claim.

It sends a few prototypes instead of embeddings. All rows of a prototype have one of two clean
gradients, ``p w`` or ``(p - 1) w``, while the noise is made for the classes as a whole. Each
example is released once. The score knows no label: the mean release of a prototype points along
``w``, because the top model starts at ``p`` near 1/2 and positives are rarer than that; rows are
projected on it, weighted by the inverse of the covariance around the means (a linear discriminant).
The means are those of the whole epoch, or of each batch alone.

Prints the table of docs/threat-model.md. Labels are those of the Credit table (``TACIT_DATA``), the
top model is a perceptron; prototypes are drawn without looking at any feature.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import mean

import numpy as np
import torch
from torch import Tensor

from tacit import Guard, data, nets, objective
from tacit.measure import auc
from tacit.rng import Key
from tacit.training import Embedding, LabelParty, adam
from tacit.training.embedding_watch import EmbeddingWatch

BATCH, WIDTH, SEEDS = 1024, 128, (0, 1, 2)
FULL, TARGET = "marvell(s=4, covariance=full)", "marvell(sum_kl=0.0148, covariance=full)"
FLIPS = "rr(epsilon=0.575)"
JITTERS = (0.0, 0.01, 0.1, 0.2, 0.3, 0.5, 1.0, 2.0)


@dataclass(frozen=True, kw_only=True)
class Reached:
    """What one epoch gave: the score's AUC, the mean claim, the share of steps warned of."""

    score: float
    claim: float
    warned: float


def attack(
    protect: str,
    *,
    prototypes: int,
    jitter: float,
    seed: int,
    labels: str | None = None,
    alone: bool = False,
) -> Reached:
    """Return what chosen embeddings reach in one epoch, or with ``alone`` in single batches."""
    table = data.load("credit", data_dir=None, rows=None, seed=seed)
    truth = torch.from_numpy(np.array(table.labels))
    rng = torch.Generator().manual_seed(seed)
    guard = Guard(protect, seed=seed, labels=labels)
    party = _label_party(truth, guard, seed=seed)
    centres = torch.randn(prototypes, WIDTH, generator=rng)
    which = torch.randint(prototypes, (len(truth),), generator=rng)
    order = torch.randperm(len(truth), generator=rng)
    steps = len(order) // BATCH
    released, claims = [], []
    for step in range(steps):
        rows = order[step * BATCH : (step + 1) * BATCH]
        sent = centres[which[rows]] + jitter * torch.randn(BATCH, WIDTH, generator=rng)
        (gradient,) = party.step(rows, [Embedding(step=step, values=sent)])
        party.update()
        released.append(gradient.values.double() * BATCH)
        claims.append(_claim(guard))
    rows = order[: steps * BATCH]
    parts = released if alone else [torch.cat(released)]
    scored = zip(parts, torch.split(which[rows], len(parts[0])), strict=True)
    scores = torch.cat([_scores(part, kinds, prototypes) for part, kinds in scored])
    return Reached(
        score=auc(scores.numpy(), truth[rows].numpy()),
        claim=mean(claims),
        warned=party.watch.warnings["odd_embeddings"] / steps,
    )


def _label_party(truth: Tensor, guard: Guard, *, seed: int) -> LabelParty:
    labels = truth
    if guard.label_guard is not None:
        labels = guard.labels(torch.arange(len(truth)), truth)
    top = nets.get(f"mlp(hidden={WIDTH})").top(WIDTH, own=None, cut=None, classes=2, seed=seed)
    return LabelParty(
        top,
        labels,
        guard=guard,
        objective=objective.corrected(objective.get("bce"), guard.flips),
        optimizer=adam(top, 1e-4),
        early=False,
        width=WIDTH,
        watch=EmbeddingWatch(key=Key.from_seed(seed)),
    )


def _claim(guard: Guard) -> float:
    if guard.label_guard is not None:
        return guard.label_certificate().auc
    assert guard.last_certificate is not None
    bound = guard.last_certificate.auc_bound
    return 1.0 if bound is None else bound


def _scores(released: Tensor, which: Tensor, prototypes: int) -> Tensor:
    """Return a linear discriminant per prototype, from what was released alone."""
    rest, means = released.clone(), torch.zeros(prototypes, WIDTH, dtype=torch.float64)
    for number in range(prototypes):
        means[number] = released[which == number].mean(dim=0)
        rest[which == number] -= means[number]
    spread = rest.T @ rest / len(rest)
    floor = 1e-6 * torch.linalg.matrix_norm(spread, 2) * torch.eye(WIDTH, dtype=torch.float64)
    weights = torch.linalg.solve(spread + floor, means.T).T
    weights /= ((weights @ spread) * weights).sum(dim=1, keepdim=True).sqrt()
    scores: Tensor = -(rest * weights[which]).sum(dim=1)
    return scores


def _row(name: str, protect: str, **values: object) -> str:
    found = [attack(protect, seed=seed, **values) for seed in SEEDS]  # type: ignore[arg-type]
    low, high = min(f.score for f in found), max(f.score for f in found)
    claim, warned = mean(f.claim for f in found), mean(f.warned for f in found)
    return f"| {name} | {low:.3f} to {high:.3f} | {claim:.3f} | {warned:.0%} |"


def main() -> None:
    print("| protection, prototypes, jitter | score's AUC | claim | steps warned of |")
    print("|---|---|---|---|")
    for protect in (FULL, TARGET, "marvell(s=4)"):
        for jitter in JITTERS if protect != "marvell(s=4)" else JITTERS[:1]:
            name = f"`{protect}`, 8, {jitter:g}"
            print(_row(name, protect, prototypes=8, jitter=jitter), flush=True)
    for protect in (FULL, TARGET, "marvell(s=4)"):
        name = f"`{protect}`, 8, 0, each batch alone"
        print(_row(name, protect, prototypes=8, jitter=0.0, alone=True), flush=True)
    for number, jitter in ((2, 0.1), (32, 0.1), (128, 0.1), (512, 0.0), (512, 0.1)):
        name = f"`{FULL}`, {number}, {jitter:g}"
        print(_row(name, FULL, prototypes=number, jitter=jitter), flush=True)
    name = f"`none` with labels `{FLIPS}`, 8, 0"
    print(_row(name, "none", prototypes=8, jitter=0.0, labels=FLIPS), flush=True)


if __name__ == "__main__":
    main()
