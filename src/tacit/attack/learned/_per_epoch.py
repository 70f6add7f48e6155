"""Attacks that fit a model to many rows at once: to one view, or to each epoch of a tape."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from typing import ClassVar, Final, final

import numpy as np
import torch
from torch import Tensor

from tacit.attack.base import Attack, AuditForm, PreparedView, Scored, StreamingAttack, shift
from tacit.attack.learned._surrogate import Rows
from tacit.attack.memory import IdIndex, grown, ids_of
from tacit.errors import InputError
from tacit.rows import as_rows, exponent, unit_rows
from tacit.types import Known, View

_SAMPLE: Final = 8192  # rows of an epoch that are learnt from
_VALUES: Final = 1 << 27  # and values of embeddings: half a gigabyte, and as much of gradients
_FEWEST: Final = 4096
_FAR: Final = 40  # embeddings beyond this power of two, either way, are brought back


class RowClassifier(ABC):
    """A fitted model that classifies any row.

    Attributes:
        positive: the class that is taken for the positive one.
        named: whether its class numbers are those of the labels; otherwise they are arbitrary.
        late: whether time ran out before the fit was finished.
    """

    positive: int
    named: bool
    late: bool

    @abstractmethod
    def costs(self, rows: Rows) -> Tensor:
        """Return ``[n, classes]``, lower for a more likely class."""

    @final
    def classify(self, rows: Rows) -> tuple[Tensor, Tensor]:
        """Return the score and the class of each row."""
        costs = self.costs(rows).double()
        own = costs[:, self.positive]
        others = costs.index_fill(1, torch.tensor(self.positive), torch.inf).amin(dim=1)
        return others - own, costs.argmin(dim=1)


class SurrogateAttack(Attack, ABC):
    """An attack that fits a surrogate of the top model to embeddings and gradients together.

    Over many views, it is fitted to the first 8,192 rows of each epoch (fewer where they are very
    wide), and later rows are classified as they come; each example has the class of the last epoch
    that it was in. An attack on whole epochs is fitted to all rows of each.
    """

    needs: ClassVar[frozenset[str]] = frozenset({"embeddings"})
    reads: ClassVar[frozenset[str]] = frozenset({"gradients", "embeddings"})
    audit_forms: ClassVar[tuple[AuditForm, ...]] = ()  # minutes of training
    raw: ClassVar[bool] = False
    """Whether gradients are as they are: of one example's loss, the view being a batch over which
    the loss was averaged. Otherwise they are brought to length one."""
    whole: ClassVar[bool] = False
    """Whether all rows of an epoch are learnt from."""
    averages: ClassVar[bool] = False
    """Whether all releases of an example are averaged before the fit."""

    @abstractmethod
    def learn(
        self, rows: Rows, known: Known, *, rng: torch.Generator, until: float | None
    ) -> RowClassifier:
        """Return a classifier fitted to the rows, by ``until`` on ``time.perf_counter``."""

    @final
    def score(self, prepared: PreparedView, rng: torch.Generator, /) -> Tensor:
        """Return how much lower the cost of the positive class is than that of the next one."""
        return self._classify(prepared, rng)[0]

    @final
    def clusters(self, view: View, rng: torch.Generator) -> Tensor:
        """Return each row's class as int64 ``[B]``; its number means nothing unless it is named."""
        with torch.no_grad():
            return self._classify(self.prepare(view), rng)[1]

    def streaming(self, rng: torch.Generator) -> StreamingAttack:
        """Return an attack that fits anew in every epoch, or to the averages so far."""
        seed = int(torch.randint(2**31 - 1, (1,), generator=rng, device=rng.device))
        return _AverageStream(self, seed=seed) if self.averages else _EpochStream(self, seed=seed)

    def limit(self) -> float | None:
        """Return the seconds that one call may take, or None for any number."""
        return None

    def rows(self, prepared: PreparedView) -> Rows:
        """Return embeddings and gradients in ``float32``; neither can overflow."""
        given = prepared.view.embeddings
        assert given is not None  # noqa: S101 - checked, as `needs` says
        sent = as_rows(given.detach(), name="embeddings").double().cpu()
        if sent.shape[1] != prepared.rows.shape[1]:
            raise InputError(
                f"{self} compares gradients at the embeddings: they must be "
                f"{prepared.rows.shape[1]} wide like grads, got {sent.shape[1]}: "
                "record both at the same cut"
            )
        back = prepared.rows.cpu()
        power = exponent(sent, name="embeddings") or 0
        # Only where float32 does not reach: views of one tape keep their common unit.
        sent = shift(sent, -power) if abs(power) > _FAR else sent
        back = _of_one_example(back, prepared.exponent) if self.raw else unit_rows(back)
        return Rows(sent.float(), back.float())

    def _classify(self, prepared: PreparedView, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        rows, device = self.rows(prepared), prepared.rows.device
        until = None if self.limit() is None else time.perf_counter() + (self.limit() or 0.0)
        scores, numbers = self.learn(rows, prepared.view.known, rng=rng, until=until).classify(rows)
        return scores.to(device), numbers.to(device)


def _of_one_example(rows: Tensor, power: int) -> Tensor:
    """Return gradients in their own units, times the rows that the loss was averaged over."""
    return shift(rows, max(-_FAR, min(_FAR, power))) * len(rows)


class _TimedStream(StreamingAttack, ABC):
    """A streaming attack with a time limit for each fit."""

    def __init__(self, attack: SurrogateAttack, *, seed: int) -> None:
        self._attack, self._seed = attack, seed
        self._index = IdIndex()
        self._known = Known()
        self._seconds = attack.limit()
        self._late = False
        self._width: int | None = None

    @property
    def late(self) -> bool:
        """Whether the last fit ran out of time."""
        return self._late

    def limit(self, seconds: float) -> None:
        """Limit the seconds of each fit from now on; the attack's own limit may be lower."""
        own = self._attack.limit()
        self._seconds = seconds if own is None else min(seconds, own)

    def _learn(self, rows: Rows) -> RowClassifier:
        until = None if self._seconds is None else time.perf_counter() + self._seconds
        rng = torch.Generator().manual_seed(self._seed)
        with torch.no_grad():
            found = self._attack.learn(rows, self._known, rng=rng, until=until)
        self._late = found.late
        return found

    def _prepare(self, view: View) -> tuple[Tensor, PreparedView]:
        ids = ids_of(view, attack=self._attack)
        prepared = self._attack.prepare(view)
        width = prepared.rows.shape[1]
        if self._width not in (None, width):
            raise InputError(
                f"gradients must stay {self._width} wide, got {width}: attack each cut by itself"
            )
        self._width, self._known = width, view.known
        return ids, prepared


@final
class _EpochStream(_TimedStream):
    """The rows of the current epoch, and each example's latest score and class."""

    def __init__(self, attack: SurrogateAttack, *, seed: int) -> None:
        super().__init__(attack, seed=seed)
        self._scores = torch.zeros(0, dtype=torch.float64)
        self._numbers = torch.zeros(0, dtype=torch.int64)
        self._classified = 0  # positions below have a class from an earlier epoch
        self._epoch: int | None = None
        self._collected: list[tuple[Tensor, Rows]] = []
        self._fitted: tuple[int, RowClassifier] | None = None  # to so many collected rows
        self._classifier: RowClassifier | None = None

    def add(self, view: View) -> None:
        """Collect rows until there are enough to fit; classify those that come later."""
        ids, prepared = self._prepare(view)
        rows = self._attack.rows(prepared)
        if view.epoch != self._epoch:
            self._fit_epoch()
            self._classifier, self._fitted, self._epoch = None, None, view.epoch
            self._classified = len(self._index)
        positions = self._index.positions(ids)
        self._scores = grown(self._scores, len(self._index))
        self._numbers = grown(self._numbers, len(self._index))
        if self._classifier is not None:
            _store(self._classifier, [(positions, rows)], self._scores, self._numbers)
            return
        self._collected.append((positions, rows))
        enough = max(_FEWEST, min(_SAMPLE, _VALUES // rows.embeddings.shape[1]))
        if self._count() >= enough and not self._attack.whole:
            self._fit_epoch()

    def result(self) -> Scored:
        """Return the latest score and class of every example; an epoch may go on afterwards."""
        count = len(self._index)
        scores, numbers = self._scores[:count].clone(), self._numbers[:count].clone()
        if self._collected:
            _store(self._found(), self._collected, scores, numbers)
        return Scored(ids=self._index.ids(), scores=scores, clusters=numbers)

    def _count(self) -> int:
        return sum(len(positions) for positions, _ in self._collected)

    def _fit_epoch(self) -> None:
        if self._collected:
            self._classifier = self._found()
            _store(self._classifier, self._collected, self._scores, self._numbers)
            self._collected = []

    def _found(self) -> RowClassifier:
        """Return a classifier fitted to the collected rows, its classes numbered as before."""
        if self._fitted is None or self._fitted[0] != self._count():
            rows = Rows.joined([rows for _, rows in self._collected])
            classifier = self._learn(rows)
            if not classifier.named:
                positions = torch.cat([positions for positions, _ in self._collected])
                seen = positions < self._classified
                if bool(seen.any()):
                    before = self._numbers[positions[seen]]
                    classifier = _with_numbers_of(classifier, rows[seen], before)
            self._fitted = (self._count(), classifier)
        return self._fitted[1]


@final
class _AverageStream(_TimedStream):
    """Sums of each example's embeddings and gradients: over many releases, noise averages out."""

    def __init__(self, attack: SurrogateAttack, *, seed: int) -> None:
        super().__init__(attack, seed=seed)
        self._sent, self._back = torch.zeros(0, 1), torch.zeros(0, 1)
        self._times = torch.zeros(0)
        self._power: int | None = None

    def add(self, view: View) -> None:
        """Add the rows to their examples' sums."""
        ids, prepared = self._prepare(view)
        rows, width = self._attack.rows(prepared), prepared.rows.shape[1]
        if self._power is None:
            self._power = prepared.exponent
            self._sent, self._back = torch.zeros(0, width), torch.zeros(0, width)
        positions = self._index.positions(ids)
        self._times = grown(self._times, len(self._index))
        self._sent, self._back = (_with_rows(s, len(self._times)) for s in (self._sent, self._back))
        power = max(-100, min(100, prepared.exponent - self._power))
        back = rows.gradients if self._attack.raw else (prepared.rows.cpu() * 2.0**power).float()
        self._sent.index_add_(0, positions, rows.embeddings)
        self._back.index_add_(0, positions, back)
        self._times.index_add_(0, positions, torch.ones(len(positions)))

    def result(self) -> Scored:
        """Fit to the averages of all releases so far, and classify them."""
        count = len(self._index)
        ids = self._index.ids()
        if not count:
            return Scored(ids=ids, scores=torch.zeros(0).double(), clusters=torch.zeros(0).long())
        times = self._times[:count].unsqueeze(1)
        back = self._back[:count] / times
        back = back if self._attack.raw else unit_rows(back.double()).float()
        rows = Rows(self._sent[:count] / times, back)
        some = torch.randperm(count, generator=torch.Generator().manual_seed(self._seed))
        mine = some[: count if self._attack.whole else _SAMPLE].sort().values
        scores, numbers = self._learn(rows[mine]).classify(rows)
        return Scored(ids=ids, scores=scores, clusters=numbers)


@final
class _ReorderedClasses(RowClassifier):
    """A classifier with its classes in another order."""

    def __init__(self, classifier: RowClassifier, order: Tensor) -> None:
        self._classifier, self._order = classifier, order
        self.positive = int((order == classifier.positive).nonzero()[0, 0])
        self.named, self.late = classifier.named, classifier.late

    def costs(self, rows: Rows) -> Tensor:
        return self._classifier.costs(rows)[:, self._order]


def _with_numbers_of(classifier: RowClassifier, rows: Rows, before: Tensor) -> RowClassifier:
    """Return the classifier with its classes renumbered so that most rows keep their number."""
    from scipy.optimize import linear_sum_assignment  # noqa: PLC0415 - half a second to load

    costs = classifier.costs(rows)
    count = costs.shape[1]
    cells = torch.bincount(before * count + costs.argmin(dim=1), minlength=count * count)
    order = linear_sum_assignment(cells.reshape(count, count).numpy(), maximize=True)[1]
    return _ReorderedClasses(classifier, torch.from_numpy(np.asarray(order)))


def _store(
    classifier: RowClassifier, parts: list[tuple[Tensor, Rows]], scores: Tensor, numbers: Tensor
) -> None:
    """Store the rows' scores and classes at their positions; of a repeated id, the last counts."""
    for positions, rows in parts:
        found, number = classifier.classify(rows)
        scores.numpy()[positions.numpy()] = found.numpy()
        numbers.numpy()[positions.numpy()] = number.numpy()


def _with_rows(sums: Tensor, size: int) -> Tensor:
    return torch.cat([sums, sums.new_zeros(max(0, size - len(sums)), sums.shape[1])])
