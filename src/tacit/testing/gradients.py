"""Synthetic cuts that look like a trained model's: few directions, two classes or more."""

from __future__ import annotations

import torch

from tacit.types import Cut


def low_rank_cut(
    batch: int = 1024,
    width: int = 128,
    *,
    positive: float = 0.25,
    directions: int = 4,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
) -> Cut:
    """Return gradients ``(p - y) * (w + a few small directions)``, as cross-entropy makes them.

    ``p`` is spread around the base rate, so positives have the larger confidence gap; the
    derivative of the top model is nearly the same for all examples, so the gradients of the two
    classes point opposite ways along one line.

    >>> cut = low_rank_cut(8, 3)
    >>> cut.grads.shape, int(cut.labels.sum())
    (torch.Size([8, 3]), 2)
    """
    rng = torch.Generator().manual_seed(seed)
    count = max(1, round(positive * batch))
    labels = torch.zeros(batch, dtype=torch.int64)
    labels[torch.randperm(batch, generator=rng)[:count]] = 1
    logits = 0.8 * torch.randn(batch, generator=rng) + torch.logit(
        torch.tensor(count / (batch + 1))
    )
    probs = torch.sigmoid(logits + 0.5 * labels)
    basis = torch.randn(directions, width, generator=rng) / width**0.5
    mix = torch.randn(batch, directions, generator=rng) * 0.15
    mix[:, 0] += 1.0
    grads = (probs - labels).unsqueeze(1) * (mix @ basis)
    return Cut(grads=grads.to(dtype), labels=labels, probs=probs)


def many_class_cut(
    batch: int = 1024,
    width: int = 128,
    *,
    classes: int = 10,
    directions: int = 4,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
) -> Cut:
    """Return gradients ``(p - e_y) W`` with a few small directions besides, for many classes.

    Classes are as frequent as the batch allows; ``p`` leans towards the true class.

    >>> cut = many_class_cut(9, 5, classes=3)
    >>> cut.grads.shape, torch.bincount(cut.labels).tolist()
    (torch.Size([9, 5]), [3, 3, 3])
    """
    rng = torch.Generator().manual_seed(seed)
    labels = (torch.arange(batch) % classes)[torch.randperm(batch, generator=rng)]
    truth = torch.nn.functional.one_hot(labels, classes).float()
    probs = torch.softmax(torch.randn(batch, classes, generator=rng) + truth, dim=1)
    top = torch.randn(classes, width, generator=rng) / width**0.5
    basis = torch.randn(directions, width, generator=rng) / width**0.5
    mix = torch.randn(batch, directions, generator=rng) * 0.1
    grads = (probs - truth) @ top + mix @ basis
    return Cut(grads=grads.to(dtype), labels=labels)
