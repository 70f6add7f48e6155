"""Checks each batch of embeddings that the label party receives, before it is used.

It takes no labels: the result depends on the embeddings and on the secret sample of rows.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal, final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tacit.accounting.ledger import SavedState
from tacit.errors import PeerError
from tacit.rng import Key
from tacit.training.cut import Embedding

Floats = npt.NDArray[np.float64]
Places = npt.NDArray[np.int64]
Rows = npt.NDArray[np.float32]
KINDS = ("repeats", "rank", "drift")

SAMPLE = 64
FEWEST = 32  # rows; fewer say too little
NARROW = 4  # numbers in a row; fewer repeat when they are rounded
NO_RANK = 16  # fewer have no rank to lose

# Limits that no training by the protocol in benchmarks/odd_embeddings.py reached.
MOST_EQUAL = 0.25
FLATTEST = 1e-6
RANK_FALL = 1e-3
FARTHEST = 50.0**2
LARGEST_CHANGE = math.log(1e4)
LEAST_OVERLAP = 1.5
_PIVOTS = 4


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class SampleStatistics:
    """Statistics of the sample of one batch; None where it is too small or too narrow for one.

    Attributes:
        equal: share of the batch's rows that repeat another one; the most frequent vector does
            not count, because dead units and default values make one.
        gap: how tightly rows group, 1 at the limit. Squared distances of pairs in ascending order
            grow ``1.5^2``-fold over half as many pairs again if rows lie evenly on a line, and
            less in more directions; from within tight groups to between them they jump. This is
            the largest such growth over ``6 + 18 / directions``, with the participation ratio of
            the spectrum for ``directions``.
        flat: share of the variance outside the directions of two rows.
        fall: share of it outside the directions of four rows, over the share before, both at
            least ``FLATTEST``.
        shift: squared distance to the mean before, over the variance.
        change: logarithm of the variance over the one before, without sign.
        overlap: ``d tr(C C') / (tr C tr C')`` of the covariances of this sample and the one
            before: 1 for unrelated directions; only if there are few, or it is 1 for any.
    """

    equal: float
    gap: float | None = None
    flat: float | None = None
    fall: float | None = None
    shift: float | None = None
    change: float | None = None
    overlap: float | None = None


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Sample:
    """The sampled rows of one batch, centred, with their variance."""

    mean: Floats
    rows: Floats
    variance: float
    directions: float  # participation ratio of their spectrum
    thin: float | None  # share of the variance outside the directions of four rows


def repeated(projected: Rows) -> float:
    """Return ``SampleStatistics.equal`` of a batch, from its rows on one random direction.

    Equal rows fall on the same number, and others as good as never.

    >>> repeated(np.array([1, 2, 3, 3, 3, 4, 4, 5], dtype=np.float32))
    0.125
    """
    count, inorder = len(projected), np.sort(projected)
    ends = np.flatnonzero(inorder[1:] != inorder[:-1]) + 1
    if len(ends) == count - 1:
        return 0.0
    most = int(np.diff(np.concatenate([[0], ends, [count]])).max())
    return (count - (len(ends) + 1) - (most - 1)) / count


def statistics_of(
    rows: Rows, before: Sample | None = None, *, equal: float = 0.0
) -> tuple[SampleStatistics, Sample]:
    """Return the statistics of a sample of rows, also against the one before, and what to keep.

    >>> rng = np.random.default_rng(0)
    >>> few = rng.standard_normal((8, 16))[rng.integers(8, size=64)]
    >>> tight = few + rng.standard_normal((64, 16)) / 100
    >>> unusual(statistics_of(tight.astype(np.float32))[0]).keys()
    dict_keys(['repeats'])
    """
    width = rows.shape[1]
    wide = rows.astype(np.float64)
    mean = wide.sum(axis=0) / len(wide)
    around = wide - mean
    gram = _product(around, around)
    variance = float(np.trace(gram))
    directions = variance**2 / _squares(gram) if variance > 0 else 0.0
    gap = flat = thin = None
    if variance > 0:
        if width >= NARROW and len(rows) >= FEWEST:
            gap = _gap(rows, gram, directions=directions)
        if width >= NO_RANK:
            flat, thin = _outside(gram, variance)
    sample = Sample(mean=mean, rows=around, variance=variance, directions=directions, thin=thin)
    since = {} if before is None else _since(sample, before)
    return SampleStatistics(equal=equal, gap=gap, flat=flat, **since), sample


def unusual(found: SampleStatistics) -> dict[str, str]:
    """Return, by kind, the statistics that exceed what bottom models were measured to show."""
    reasons: dict[str, list[str]] = {kind: [] for kind in KINDS}
    if found.equal > MOST_EQUAL:
        reasons["repeats"].append(f"{found.equal:.0%} of the rows repeat others")
    if found.gap is not None and found.gap > 1:
        reasons["repeats"].append(f"rows lie in tight groups, {found.gap:.1f} times the limit")
    if found.flat is not None and found.flat < FLATTEST:
        reasons["rank"].append("rows vary in two directions only")
    if found.fall is not None and found.fall < RANK_FALL:
        reasons["rank"].append(f"variance outside four directions fell {1 / found.fall:.0f}-fold")
    if found.shift is not None and found.shift > FARTHEST:
        reasons["drift"].append(
            f"the mean moved by {math.sqrt(found.shift):.0f} standard deviations"
        )
    if found.change is not None and found.change > LARGEST_CHANGE:
        reasons["drift"].append(f"the variance changed {math.exp(found.change):.0f}-fold")
    if found.overlap is not None and found.overlap < LEAST_OVERLAP:
        reasons["drift"].append("rows vary in other directions than before")
    return {kind: " and ".join(said) for kind, said in reasons.items() if said}


def _distinct(rows: Rows) -> list[int]:
    """Return the index of the first occurrence of each distinct row."""
    solid = np.ascontiguousarray(rows)
    each = solid.view(np.dtype((np.void, solid.shape[1] * solid.itemsize))).ravel().tolist()
    return sorted({content: at for at, content in reversed(list(enumerate(each)))}.values())


def _product(one: Floats, other: Floats) -> Floats:
    """Return ``one @ other.T``, by torch: numpy's threads would wait for those of the model."""
    product: Floats = (torch.from_numpy(one) @ torch.from_numpy(other).T).numpy()
    return product


def _squares(matrix: Floats) -> float:
    """Return the squared Frobenius norm."""
    return float(np.vdot(matrix, matrix))


def _gap(rows: Rows, gram: Floats, *, directions: float) -> float:
    """Return ``SampleStatistics.gap``; equal rows count once, and the largest group is left out."""
    sizes = np.diagonal(gram)
    squares = sizes[:, None] + sizes[None] - 2 * gram
    limit = 6 + 18 / directions
    growth, _ = _growth(squares)
    if growth <= limit / 3:
        return growth / limit
    distinct = _distinct(rows)
    if len(distinct) < FEWEST:
        return 0.0
    squares = squares[np.ix_(distinct, distinct)]
    _, within = _growth(squares)
    near = squares <= within
    rest = np.flatnonzero(~near[near.sum(axis=1).argmax()])
    return _growth(squares[np.ix_(rest, rest)])[0] / limit if len(rest) >= FEWEST else 0.0


def _growth(squares: Floats) -> tuple[float, float]:
    """Return the largest growth of squared distances, and the distance that it begins at."""
    pairs, at, later = _order(len(squares))
    inorder = squares.ravel()[pairs]
    inorder.sort()
    inorder = np.maximum(inorder, 0.0) + 1e-12 * inorder[-1]  # so that rounding makes no gap
    growths = inorder[later] / inorder[at]
    place = int(growths.argmax())
    return float(growths[place]), float(inorder[at[place]])


@lru_cache(maxsize=256)
def _order(count: int) -> tuple[Places, Places, Places]:
    """Return where a matrix of distances has its pairs, and which of them in order to compare."""
    one, other = np.triu_indices(count, 1)
    at = np.arange(count // 4, len(one) // 2)  # honest tables have a few near repeats
    return one * count + other, at, at + at // 2


def _outside(gram: Floats, variance: float) -> tuple[float, float]:
    """Return the shares of the variance outside two rows' directions and four rows'.

    A pivoted Cholesky decomposition: each row is the one that is farthest from those before.
    """
    rest = np.diagonal(gram).copy()
    columns = np.zeros((_PIVOTS, len(gram)))
    shares = []
    for number in range(_PIVOTS):
        place = int(rest.argmax())
        if rest[place] <= 0:
            shares += [0.0] * (_PIVOTS - number)
            break
        known = columns[:number]
        columns[number] = (gram[place] - known[:, place] @ known) / math.sqrt(rest[place])
        rest = np.maximum(rest - columns[number] ** 2, 0.0)
        shares.append(float(rest.sum()) / variance)
    return shares[1], shares[-1]


def _since(sample: Sample, before: Sample) -> dict[str, float | None]:
    """Return what changed since the sample before, by the names in ``SampleStatistics``."""
    if not (sample.variance > 0 and before.variance > 0 and sample.mean.shape == before.mean.shape):
        return {}
    spread = (sample.variance / len(sample.rows) + before.variance / len(before.rows)) / 2
    moved = sample.mean - before.mean
    width = len(moved)
    fall = overlap = None
    if sample.thin is not None and before.thin is not None:
        fall = max(sample.thin, FLATTEST) / max(before.thin, FLATTEST)
    if math.sqrt(sample.directions * before.directions) <= width / 8:
        cross = _squares(_product(sample.rows, before.rows))
        overlap = width * cross / (sample.variance * before.variance)
    return {
        "fall": fall,
        "shift": float(moved @ moved) / spread,
        "change": abs(math.log(sample.variance / before.variance)),
        "overlap": overlap,
    }


OnOdd = Literal["warn", "refuse"]


@final
@dataclass(kw_only=True)
class EmbeddingWatch:
    """Checks every batch of each feature party, counts unusual ones, and warns or refuses.

    Args:
        on_odd: ``refuse`` ends the step with a PeerError before anything is computed from it.
        key: of the sample of rows; a peer that knew it could send unusual rows beside the sample.
        log: called with a line about the first unusual batch of each kind.

    Attributes:
        counts: unusual steps, in all and by kind.
        last: the statistics of the last step, by the number of the feature party.
    """

    on_odd: OnOdd = "warn"
    key: Key = field(default_factory=Key.fresh, repr=False)
    log: Callable[[str], None] = lambda _: None
    counts: Counter[str] = field(default_factory=Counter)
    last: dict[int, SampleStatistics] = field(default_factory=dict, repr=False)
    _before: dict[int, Sample] = field(default_factory=dict, repr=False)
    _directions: dict[int, Tensor] = field(default_factory=dict, repr=False)

    def __call__(self, embeddings: Sequence[Embedding]) -> None:
        """Check the embeddings of one step, one batch per feature party."""
        found: dict[str, str] = {}
        samples: dict[int, Sample] = {}
        self.last.clear()
        for number, embedding in enumerate(embeddings):
            if len(embedding.values) < FEWEST:
                continue
            batch = embedding.values.detach().reshape(len(embedding.values), -1)
            rows = self._sample(batch, step=embedding.step, party=number)
            if rows is None:
                continue
            equal = repeated((batch @ self._direction(batch)).float().cpu().numpy())
            self.last[number], samples[number] = statistics_of(
                rows, self._before.get(number), equal=equal if batch.shape[1] >= NARROW else 0.0
            )
            found |= unusual(self.last[number])
        if found:
            self._report(embeddings[0].step, found)
        self._before |= (
            samples  # not reached after a refusal: the next step is compared with the same batch
        )

    @property
    def warnings(self) -> dict[str, int]:
        """The number of unusual steps, in all and by kind."""
        kinds = {f"odd_embeddings_{kind}": self.counts[kind] for kind in KINDS if self.counts[kind]}
        return {"odd_embeddings": self.counts["steps"], **kinds}

    def states(self) -> dict[str, SavedState]:
        """Return what a checkpoint stores: the counts."""
        return {"embedding_watch": ({}, {"counts": dict(self.counts)})}

    def begin(self, states: Mapping[str, SavedState] | None) -> None:
        """Forget the batch before, and take the counts of a checkpoint where they are higher."""
        _, values = (states or {}).get("embedding_watch", ({}, {"counts": {}}))
        self.counts |= Counter({str(kind): int(n) for kind, n in values["counts"].items()})
        self._before.clear()

    def _sample(self, batch: Tensor, *, step: int, party: int) -> Rows | None:
        """Return the sampled rows; None where a value is not finite."""
        count = len(batch)
        if count > SAMPLE:
            drawn = self.key.stream("rows to check", step, party).normal(count)
            batch = batch[drawn.topk(SAMPLE, sorted=False).indices]
        rows: Rows = batch.float().cpu().numpy()
        return rows if np.isfinite(rows).all() else None

    def _direction(self, batch: Tensor) -> Tensor:
        """Return a secret direction, always the same for a width."""
        width = batch.shape[1]
        if width not in self._directions:
            drawn = self.key.stream("direction to check along", width).normal(width)
            self._directions[width] = drawn.to(batch)
        return self._directions[width]

    def _report(self, step: int, found: dict[str, str]) -> None:
        new = any(not self.counts[kind] for kind in found)
        self.counts.update(["steps", *found])
        said = "; ".join(f"{kind}: {text}" for kind, text in found.items())
        line = (
            f"the embeddings of step {step} are unlike those of any bottom model trained by the "
            f"protocol ({said}): bounds about gradients do not hold for such batches"
        )
        if self.on_odd == "refuse":
            raise PeerError(line)
        if new:
            self.log(
                f"warning: {line}; randomised labels do not depend on it, and "
                'on_odd_embeddings = "refuse" stops such steps; more of the kind are only counted'
            )
