"""Decoders: what an attacker learns from known pairs of an embedding and the features behind it.

Each decoder takes embeddings at mean 0 and spread 1 and targets: numbers at mean 0 and spread 1,
categories as codes. It returns predictions for other embeddings: numbers, and codes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

_STRENGTHS = np.logspace(-4, 6, 21)
_TREES, _RATE, _LEAF, _BINS = 100, 0.1, 10, 63
_MOST_FITS = 32  # boosted models at most, one for a number or for each class of a category
_UNITS, _BATCH, _EPOCHS, _CHECKS = 128, 100, 150, 10
_HELD = 5  # of so many known rows one tells the network when to stop


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Targets:
    """The features of some rows: ``numbers`` [B, n] and ``codes`` [B, c] below ``sizes``."""

    numbers: Floats
    codes: Ints
    sizes: tuple[int, ...]

    def take(self, rows: Ints) -> Targets:
        """Return some rows."""
        return Targets(numbers=self.numbers[rows], codes=self.codes[rows], sizes=self.sizes)


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Found:
    """What was predicted; ``done`` says which columns, numbers first, a decoder has taken on."""

    numbers: Floats
    codes: Ints
    done: npt.NDArray[np.bool_]


Decoder = Callable[[Floats, Targets, Floats, int, Sequence[int]], Found]
"""Known embeddings, their targets, other embeddings, the seed, the columns by how much they show"""


def guess(
    known: Floats, targets: Targets, unseen: Floats, seed: int, order: Sequence[int]
) -> Found:
    """Return the mean and the most frequent value of the known rows: no use of embeddings."""
    del known, seed, order
    numbers = np.repeat(targets.numbers.mean(0, keepdims=True), len(unseen), axis=0)
    commonest = [
        int(np.bincount(codes, minlength=size).argmax())
        for codes, size in zip(targets.codes.T, targets.sizes, strict=True)
    ]
    codes = np.repeat(np.array([commonest], dtype=np.int64).reshape(1, -1), len(unseen), axis=0)
    return _all_of(numbers, codes)


def ridge(
    known: Floats, targets: Targets, unseen: Floats, seed: int, order: Sequence[int]
) -> Found:
    """Return ridge regressions, of categories on one-hot values.

    Each strength is that of the least squared error in leave-one-out, over the known rows.
    """
    del seed, order
    from sklearn.linear_model import RidgeCV  # noqa: PLC0415 - slow to import

    values = [
        np.eye(size)[codes] for codes, size in zip(targets.codes.T, targets.sizes, strict=True)
    ]
    wanted = np.column_stack([targets.numbers, *values])
    model = RidgeCV(alphas=_STRENGTHS, alpha_per_target=wanted.shape[1] > 1)
    found = model.fit(known, wanted).predict(unseen).reshape(len(unseen), -1)
    count = targets.numbers.shape[1]
    ends = count + np.cumsum([0, *targets.sizes])
    codes = [found[:, a:b].argmax(1) for a, b in pairwise(ends)]
    return _all_of(found[:, :count], _columns(codes, len(unseen)))


def boosting(
    known: Floats, targets: Targets, unseen: Floats, seed: int, order: Sequence[int]
) -> Found:
    """Return boosted trees for the columns that show most, up to a fixed number of fits."""
    count = targets.numbers.shape[1]
    numbers = np.zeros((len(unseen), count))
    codes = np.zeros((len(unseen), len(targets.sizes)), dtype=np.int64)
    done, left = np.zeros(count + len(targets.sizes), dtype=bool), _MOST_FITS
    for column in order:
        size = targets.sizes[column - count] if column >= count else 1
        left -= 1 if size == 2 else size
        if left < 0:
            break
        wanted = targets.numbers[:, column] if column < count else targets.codes[:, column - count]
        done[column] = True
        if wanted.min() == wanted.max():
            found = np.full(len(unseen), wanted[0])
        else:
            found = _trees(category=column >= count, seed=seed).fit(known, wanted).predict(unseen)
        if column < count:
            numbers[:, column] = found
        else:
            codes[:, column - count] = found
    return Found(numbers=numbers, codes=codes, done=done)


def _trees(*, category: bool, seed: int) -> Any:  # noqa: ANN401 - scikit-learn has no types
    from sklearn.ensemble import (  # noqa: PLC0415 - slow to import
        HistGradientBoostingClassifier,
        HistGradientBoostingRegressor,
    )

    kind = HistGradientBoostingClassifier if category else HistGradientBoostingRegressor
    return kind(
        max_iter=_TREES,
        learning_rate=_RATE,
        min_samples_leaf=_LEAF,
        max_bins=_BINS,
        early_stopping=False,
        random_state=seed,
    )


def network(
    known: Floats, targets: Targets, unseen: Floats, seed: int, order: Sequence[int]
) -> Found:
    """Return what one small network predicts of all columns at once.

    It stops where a fifth of the known rows, which it does not learn from, are predicted best.
    """
    del order
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = _trained(torch.from_numpy(known).float(), targets)
        with torch.no_grad():
            found = model(torch.from_numpy(unseen).float())
    numbers, parts = _parted(found, targets)
    codes = [part.argmax(1).numpy() for part in parts]
    return _all_of(numbers.double().numpy(), _columns(codes, len(unseen)))


def _trained(rows: Tensor, targets: Targets) -> nn.Module:
    numbers = torch.from_numpy(targets.numbers).float()
    codes = torch.from_numpy(targets.codes)
    width = numbers.shape[1] + sum(targets.sizes)
    model = nn.Sequential(
        nn.Linear(rows.shape[1], _UNITS),
        nn.ReLU(),
        nn.Linear(_UNITS, _UNITS),
        nn.ReLU(),
        nn.Linear(_UNITS, width),
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.01)
    order = torch.randperm(len(rows))
    held, fit = order[: len(rows) // _HELD], order[len(rows) // _HELD :]
    best, kept, since = float("inf"), model.state_dict(), 0
    for _ in range(_EPOCHS):
        for batch in torch.split(fit[torch.randperm(len(fit))], _BATCH):
            loss = _loss(model(rows[batch]), targets, numbers[batch], codes[batch])
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        with torch.no_grad():
            now = float(_loss(model(rows[held]), targets, numbers[held], codes[held]))
        if now < best:
            best, since = now, 0
            kept = {name: value.clone() for name, value in model.state_dict().items()}
        else:
            since += 1
        if since == _CHECKS:
            break
    model.load_state_dict(kept)
    return model


def _parted(found: Tensor, targets: Targets) -> tuple[Tensor, list[Tensor]]:
    """Return the numbers and the logits of each category out of a network's outputs."""
    numbers, *parts = torch.split(found, [targets.numbers.shape[1], *targets.sizes], dim=1)
    return numbers, list(parts)


def _loss(found: Tensor, targets: Targets, numbers: Tensor, codes: Tensor) -> Tensor:
    """Return the sum over columns of squared error or cross-entropy."""
    predicted, parts = _parted(found, targets)
    loss = (predicted - numbers).square().mean(0).sum()
    for place, part in enumerate(parts):
        loss = loss + cross_entropy(part, codes[:, place])
    return loss


def _columns(found: list[Ints], rows: int) -> Ints:
    return np.column_stack(found) if found else np.zeros((rows, 0), dtype=np.int64)


def _all_of(numbers: Floats, codes: Ints) -> Found:
    return Found(
        numbers=numbers, codes=codes, done=np.ones(numbers.shape[1] + codes.shape[1], dtype=bool)
    )


DECODERS: Final[dict[str, Decoder]] = {
    "guess": guess,
    "ridge": ridge,
    "network": network,
    "boosting": boosting,
}
"""Boosting is last: it takes the columns in which the others found most."""
