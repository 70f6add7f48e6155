"""Clustering: the attack groups the examples and takes the smallest group for the positives."""

from __future__ import annotations

import dataclasses
import warnings
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Final, Literal, final, get_args

import torch
from torch import Tensor

from tacit.attack.base import (
    ATTACKS,
    Attack,
    AuditForm,
    PreparedView,
    Scored,
    StreamingAttack,
    shift,
)
from tacit.attack.memory import IdIndex, grown, ids_of
from tacit.errors import InputError
from tacit.rows import as_rows, exponent, unit_rows
from tacit.spec import require
from tacit.types import View

_STARTS: Final = 10  # k-means keeps the best of so many starts
_SAMPLE: Final = 8192  # rows of an epoch that decide where its groups lie
_REACH: Final = 800  # the largest power of two by which scores are scaled back
_FLAT: Final = 1e-12  # a column that spreads by less, relative to its values, is constant

_EXACT: Final = "donot_use_mm_for_euclid_dist"  # differences first, squares later

By = Literal["embedding", "direction", "both"]
_Rows = tuple[Tensor, Tensor]  # directions and embeddings, before they are points
_Part = tuple[Tensor, _Rows]  # with the positions of their ids


@final
@ATTACKS.register("kmeans")
@dataclass(frozen=True)
class KMeans(Attack):
    """Group the examples into as many clusters as there are classes, by k-means.

    ``r(x_i) = min over the other groups c of ||x_i - m_c|| - ||x_i - m_s||`` with ``m`` the centres
    and ``s`` the smallest group, taken for the positives. By ``embedding``, ``x`` is the embedding
    as it is; by ``direction``, the gradient at length one: those of two classes are two opposite
    bundles; by ``both``, the gradient at length one beside the embedding, its columns at mean zero
    and spread one and then the row at length one, so that either half weighs the same.

    Over many views, the first 8,192 rows of an epoch decide where its groups lie. Groups keep their
    numbers from epoch to epoch, and each example has the group of the last epoch that showed it.

    Needs: embeddings (not by direction), and the number of classes: ``known.classes``, or else 2.

    References:
        Kariyappa and Qureshi, "ExPLOit: Extracting Private Labels in Split Learning", section 5.2,
        "K-Means Attack", which is by embedding.

    Departures: the paper has groups only; the score ranks the rows within them. Later epochs start
    from the last centres and from new ones, and the better outcome counts.

    >>> z = torch.tensor([[0.0, 1.0], [0.0, 1.1], [5.0, 5.0], [0.1, 1.0], [5.0, 5.1]])
    >>> view = View(grads=torch.ones(5, 1), embeddings=z)
    >>> KMeans().clusters(view, torch.Generator()).tolist()
    [0, 0, 1, 0, 1]
    >>> (KMeans()(view, torch.Generator()) > 0).tolist()
    [False, False, True, False, True]
    """

    by: By = "embedding"

    # The class declares what its default does; each object what its own parameter asks for.
    needs: ClassVar[frozenset[str]] = frozenset({"embeddings"})
    reads: ClassVar[frozenset[str]] = frozenset({"embeddings"})
    audit_forms: ClassVar[tuple[AuditForm, ...]] = (
        AuditForm("kmeans(by=direction)", 110),
        AuditForm("kmeans", 111),
        AuditForm("kmeans(by=both)", 112),
    )

    def __post_init__(self) -> None:
        require(self.by in get_args(By), f"kmeans: by must be one of {get_args(By)}", self.by)
        if self.by == "direction":
            object.__setattr__(self, "needs", frozenset())
            object.__setattr__(self, "reads", frozenset({"gradients"}))
        elif self.by == "both":
            object.__setattr__(self, "reads", frozenset({"gradients", "embeddings"}))

    def score(self, prepared: PreparedView, rng: torch.Generator, /) -> Tensor:
        """Return how much nearer each row lies to the smallest group than to the next one."""
        return self._cluster(prepared, rng)[0]

    def clusters(self, view: View, rng: torch.Generator) -> Tensor:
        """Return each row's group as int64 ``[B]``, 0 for the largest group and so on."""
        return self._cluster(self.prepare(view), rng)[1]

    def streaming(self, rng: torch.Generator) -> StreamingAttack:
        """Return an attack that clusters the examples of each epoch."""
        return _KMeansStream(self, seed=_seed(rng))

    def rows(self, prepared: PreparedView) -> _Rows:
        """Return directions ``[B, d]`` and embeddings ``[B, e]``; what is not compared is empty."""
        grads, given = prepared.rows.cpu(), prepared.view.embeddings
        directions = grads[:, :0] if self.by == "embedding" else unit_rows(grads)
        if self.by == "direction" or given is None:
            return directions, grads[:, :0]
        return directions, as_rows(given.detach()).double().cpu()

    def _cluster(self, prepared: PreparedView, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        rows = self.rows(prepared)
        groups = _Clusters.of(rows, by=self.by, count=_classes(prepared.view), seed=_seed(rng))
        scores, numbers = groups.assign(rows)
        return scores.to(prepared.rows.device), numbers.to(prepared.rows.device)


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class _PointScaling:
    """Turns rows into points that k-means compares; the same for all rows of an epoch."""

    power: int  # embeddings are divided by 2**power, so that no square overflows
    mean: Tensor | None = None
    spread: Tensor | None = None

    @classmethod
    def fit(cls, embeddings: Tensor, *, by: By, last: _PointScaling | None) -> _PointScaling:
        """Return the scaling for these rows; the last one's power keeps centres in their units."""
        power = 0 if by == "direction" else exponent(embeddings, name="embeddings") or 0
        power = power if last is None else last.power
        if by != "both":
            return cls(power=power)
        near = shift(embeddings, -power)
        spread = near.std(dim=0, correction=0)
        spread[spread <= _FLAT * near.abs().amax(dim=0)] = 1.0
        return cls(power=power, mean=near.mean(dim=0), spread=spread)

    def points(self, rows: _Rows) -> Tensor:
        near = shift(rows[1], -self.power)
        if self.mean is not None and self.spread is not None:
            near = unit_rows((near - self.mean) / self.spread)
        return torch.cat([rows[0], near], dim=1)

    def restore(self, scores: Tensor) -> Tensor:
        """Return scores in the embeddings' units, unless those were standardised."""
        power = self.power if self.mean is None else 0
        return shift(scores, max(-_REACH, min(_REACH, power)))


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class _Clusters:
    """Fitted clusters, to which any row can be assigned; ``smallest`` has the fewest rows."""

    scaling: _PointScaling
    centres: Tensor
    smallest: int

    @classmethod
    def of(
        cls, rows: _Rows, *, by: By, count: int, seed: int, last: _Clusters | None = None
    ) -> _Clusters:
        """Return the groups of these rows, numbered like the last ones if there are any."""
        scaling = _PointScaling.fit(rows[1], by=by, last=None if last is None else last.scaling)
        # In sorted order, nothing depends on the order of the rows; equal rows become weights.
        points, weight = torch.unique(scaling.points(rows), dim=0, return_counts=True)
        count = min(count, len(points))
        found = _k_means(points, weight, count, seed=seed).by_size()
        if last is not None and len(last.centres) == count:
            # Centres of an untrained model alone would be a bad start for those of a trained one.
            warm = _k_means(points, weight, count, start=last.centres)
            found = found.like(warm) if found.inertia < warm.inertia else warm
        smallest = min(reversed(range(count)), key=found.sizes.tolist().__getitem__)
        return cls(scaling=scaling, centres=found.centres, smallest=smallest)

    def assign(self, rows: _Rows) -> tuple[Tensor, Tensor]:
        """Return the score and the group of each row."""
        far = torch.cdist(self.scaling.points(rows), self.centres, compute_mode=_EXACT)
        own, number = far[:, self.smallest], far.argmin(dim=1)
        if far.shape[1] == 1:
            return torch.zeros_like(own), number
        others = far.index_fill(1, torch.tensor(self.smallest), torch.inf).amin(dim=1)
        return self.scaling.restore(others - own), number


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class _Fit:
    """One outcome of k-means on weighted points."""

    centres: Tensor
    sizes: Tensor
    inertia: float

    def by_size(self) -> _Fit:
        """Return the groups from the largest to the smallest; of two as large, shorter first."""
        keys = torch.stack([-self.sizes, self.centres.norm(dim=1)], dim=1).tolist()
        return self._numbered(sorted(range(len(keys)), key=keys.__getitem__))

    def like(self, other: _Fit) -> _Fit:
        """Return the groups numbered like those of the other outcome that lie nearest."""
        from scipy.optimize import linear_sum_assignment  # noqa: PLC0415 - half a second to load

        far = torch.cdist(other.centres, self.centres)
        return self._numbered(linear_sum_assignment(far.numpy())[1].tolist())

    def _numbered(self, order: list[int]) -> _Fit:
        """Return the same groups with group ``order[j]`` as number ``j``."""
        return dataclasses.replace(self, centres=self.centres[order], sizes=self.sizes[order])


@final
class _KMeansStream(StreamingAttack):
    """The clusters of the current epoch, and each example's latest score and group."""

    def __init__(self, attack: KMeans, *, seed: int) -> None:
        self._attack = attack
        self._find = partial(_Clusters.of, by=attack.by, seed=seed)
        self._index = IdIndex()
        self._scores = torch.zeros(0, dtype=torch.float64)
        self._numbers = torch.zeros(0, dtype=torch.int64)
        self._epoch: int | None = None
        self._shape: tuple[int, ...] = ()
        self._collected: list[_Part] = []
        self._groups: _Clusters | None = None
        self._last: _Clusters | None = None

    def add(self, view: View) -> None:
        """Assign one view's examples to groups, once the epoch has enough rows to find them."""
        ids = ids_of(view, attack=self._attack)
        rows = self._attack.rows(self._attack.prepare(view))
        self._check(_classes(view), *(part.shape[1] for part in rows))
        if view.epoch != self._epoch:
            self._find_groups()
            self._last, self._groups = self._groups or self._last, None
            self._epoch = view.epoch
        part = self._index.positions(ids), rows
        self._scores = grown(self._scores, len(self._index))
        self._numbers = grown(self._numbers, len(self._index))
        if self._groups is not None:
            _store(self._groups, [part], self._scores, self._numbers)
            return
        self._collected.append(part)
        if sum(len(positions) for positions, _ in self._collected) >= _SAMPLE:
            self._find_groups()

    def result(self) -> Scored:
        """Return the latest score and group of every example; an epoch may go on afterwards."""
        count = len(self._index)
        scores, numbers = self._scores[:count].clone(), self._numbers[:count].clone()
        if self._collected:
            _store(self._found(), self._collected, scores, numbers)
        return Scored(ids=self._index.ids(), scores=scores, clusters=numbers)

    def _find_groups(self) -> None:
        """Find the groups of the rows collected so far, and drop these rows."""
        if self._collected:
            self._groups = self._found()
            _store(self._groups, self._collected, self._scores, self._numbers)
            self._collected = []

    def _found(self) -> _Clusters:
        directions, embeddings = zip(*(rows for _, rows in self._collected), strict=True)
        rows = torch.cat(directions), torch.cat(embeddings)
        return self._find(rows, count=self._shape[0], last=self._last)

    def _check(self, *shape: int) -> None:
        if self._shape not in ((), shape):
            raise InputError(
                f"classes, width of gradients and width of embeddings must stay {self._shape} "
                f"(0: not compared), got {shape}: attack each cut by itself"
            )
        self._shape = shape


def _store(groups: _Clusters, parts: list[_Part], scores: Tensor, numbers: Tensor) -> None:
    """Store the rows' scores and groups at their positions; of a repeated id, the last counts."""
    for positions, rows in parts:
        found, number = groups.assign(rows)
        scores.numpy()[positions.numpy()] = found.numpy()
        numbers.numpy()[positions.numpy()] = number.numpy()


def _k_means(
    points: Tensor, weight: Tensor, count: int, *, seed: int = 0, start: Tensor | None = None
) -> _Fit:
    """Return k-means from some centres, or the best of several random starts.

    It runs on one thread: with several, the order of sums varies from run to run.
    """
    from sklearn import cluster, exceptions  # noqa: PLC0415 - a second to load
    from threadpoolctl import threadpool_limits  # noqa: PLC0415

    init, starts = ("k-means++", _STARTS) if start is None else (start.numpy(), 1)
    means = cluster.KMeans(count, init=init, n_init=starts, random_state=seed)
    with threadpool_limits(1), warnings.catch_warnings():
        # Rows that differ by rounding alone may give fewer groups than asked for; that is fine.
        warnings.simplefilter("ignore", exceptions.ConvergenceWarning)
        means.fit(points.numpy(), sample_weight=weight.numpy())
    centres, labels = torch.from_numpy(means.cluster_centers_), torch.from_numpy(means.labels_)
    sizes = torch.bincount(labels, weights=weight.double(), minlength=count)
    return _Fit(centres=centres, sizes=sizes, inertia=float(means.inertia_))


def _classes(view: View) -> int:
    count = 2 if view.known.classes is None else view.known.classes
    if count < 2:
        raise InputError(f"known.classes must be 2 or more, got {count}: leave it out for two")
    return count


def _seed(rng: torch.Generator) -> int:
    return int(torch.randint(2**31 - 1, (1,), generator=rng, device=rng.device))
