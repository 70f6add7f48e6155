"""Gradients on which attacks are tried: low-rank ones, and ones with noise on one class."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from tacit import attack as attacks
from tacit.attack import ATTACKS, Attack
from tacit.evaluate import reveal
from tacit.testing.attack_contract import pooled_auc
from tacit.types import View

# What holds for every attack holds after a few steps of those that learn for long.
QUICK = {
    "exploit": "exploit(trials=1, prior=uniform, epochs=4)",
    "unsplit": "unsplit(epochs=4)",
    "completion": "completion(labelled=2, epochs=4)",
}
VARIANTS = [
    *(QUICK.get(name, name) for name in ATTACKS.names()),
    *("hint(by=cosine)", "hint(by=distance)", "hint(k=1)", "hint(k=2)"),
    *("mean(hard=true)", "median(hard=true)", "energy(share=0.9)"),
    *("memory(of=norm)", "memory(of=median)", "memory(of=lowbits)"),
    *("kmeans(by=direction)", "kmeans(by=both)"),
    "exploit(trials=1, prior=uniform, epochs=4, loss=published)",
    "unsplit(epochs=4, decode=gradient)",
]


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@dataclass(frozen=True)
class Example:
    """Gradients as they were, as they were released, and the truth."""

    clean: Tensor
    released: Tensor
    labels: Tensor


def low_rank(rows: int = 1024, width: int = 128, *, share: float = 0.25, seed: int = 1) -> Example:
    """``g = (p - y) w`` with a little curvature in ``w``; positives are less well predicted."""
    rng = seeded(seed)
    labels = (torch.rand(rows, generator=rng) < share).long()
    probs = torch.sigmoid(-1.5 + 0.8 * torch.randn(rows, generator=rng) + 0.5 * labels)
    bend = torch.randn(rows, 3, generator=rng) @ torch.randn(3, width, generator=rng)
    grads = (probs - labels).unsqueeze(1) * (torch.randn(width, generator=rng) + 0.1 * bend)
    return Example(grads, grads, labels)


def one_noisy_class(
    rows: int, width: int, *, noisy: int = 0, share: float = 0.25, seed: int = 1
) -> Example:
    """The low-rank batch with isotropic noise of the gradients' own length on one class only."""
    example = low_rank(rows, width, share=share, seed=seed)
    std = example.clean.norm(dim=1).mean() / math.sqrt(width)
    noise = std * torch.randn(rows, width, generator=seeded(seed + 100))
    hit = (example.labels == noisy).unsqueeze(1)
    return Example(example.clean, example.clean + noise * hit, example.labels)


def summed_in_float32(rows: int = 1024, width: int = 256, *, seed: int = 1) -> Example:
    """Gaussian noise that hides both classes, added in float32 and left as it came out."""
    rng = seeded(seed)
    labels = (torch.rand(rows, generator=rng) < 0.25).long()
    size = torch.where(labels == 1, 0.5, 2.0**-7).unsqueeze(1)
    grads = size * torch.randn(rows, width, generator=rng)
    return Example(grads, grads + torch.randn(rows, width, generator=rng), labels)


def run(attack: Attack | str, example: Example, *, seed: int = 0) -> Tensor:
    """The scores of an attack that was given what it declares; gradients pass for embeddings."""
    attack, rng = attacks.get(attack), seeded(seed)
    known = reveal(
        attack, clean=example.clean, released=example.released, labels=example.labels, rng=rng
    )
    embeddings = example.released if "embeddings" in attack.needs else None
    return attack(View(grads=example.released, embeddings=embeddings, known=known), rng)


def leak(attack: Attack | str, example: Example) -> float:
    found = pooled_auc(run(attack, example), example.labels)
    return max(found, 1 - found)
