"""Attacks that learn from many rows at once: from one view, or from an epoch of a tape."""

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


class Sorter(ABC):
    """What was learnt, ready to sort any row.

    Attributes:
        positive: the class that is taken for the positive one.
        named: whether classes have the numbers of the labels.
        late: whether time ran out before it was finished.
    """

    positive: int
    named: bool
    late: bool

    @abstractmethod
    def costs(self, rows: Rows) -> Tensor:
        """Return ``[n, classes]``, the lower the likelier."""

    @final
    def sort(self, rows: Rows) -> tuple[Tensor, Tensor]:
        """Return the score and the class of each row."""
        costs = self.costs(rows).double()
        own = costs[:, self.positive]
        others = costs.index_fill(1, torch.tensor(self.positive), torch.inf).amin(dim=1)
        return others - own, costs.argmin(dim=1)


class Learning(Attack, ABC):
    """An attack that learns from embeddings and gradients together.

    Over many views, the first 8,192 rows of an epoch are learnt from (fewer where they are very
    wide) and later ones are sorted as they come; each example has the class of the last epoch that
    showed it.
    """

    needs: ClassVar[frozenset[str]] = frozenset({"embeddings"})
    reads: ClassVar[frozenset[str]] = frozenset({"gradients", "embeddings"})
    audit_forms: ClassVar[tuple[AuditForm, ...]] = ()  # minutes of training
    raw: ClassVar[bool] = False
    """Whether gradients keep their lengths."""
    averages: ClassVar[bool] = False
    """Whether all releases of an example are averaged before anything is learnt."""

    @abstractmethod
    def learn(
        self, rows: Rows, known: Known, *, rng: torch.Generator, until: float | None
    ) -> Sorter:
        """Return what there is to learn from the rows, by ``until`` on the performance counter."""

    @final
    def score(self, sight: PreparedView, rng: torch.Generator, /) -> Tensor:
        """Return how much likelier the positive class is than the next one, by what was learnt."""
        return self._sort(sight, rng)[0]

    @final
    def clusters(self, view: View, rng: torch.Generator) -> Tensor:
        """Return each row's class as int64 ``[B]``; its number means nothing unless it is named."""
        with torch.no_grad():
            return self._sort(self.look(view), rng)[1]

    def pursue(self, rng: torch.Generator) -> StreamingAttack:
        """Return an attack that learns anew in every epoch, or from the averages so far."""
        seed = int(torch.randint(2**31 - 1, (1,), generator=rng, device=rng.device))
        return _Averages(self, seed=seed) if self.averages else _Epochs(self, seed=seed)

    def limit(self) -> float | None:
        """Return the seconds that one call may take, or None for any number."""
        return None

    def rows(self, sight: PreparedView) -> Rows:
        """Return embeddings and gradients in ``float32``; neither can overflow."""
        given = sight.view.embeddings
        assert given is not None  # noqa: S101 - checked, as `needs` says
        sent = as_rows(given.detach(), name="embeddings").double().cpu()
        if sent.shape[1] != sight.rows.shape[1]:
            raise InputError(
                f"{self} compares gradients at the embeddings: they must be {sight.rows.shape[1]} "
                f"wide like grads, got {sent.shape[1]}: record both at the same cut"
            )
        back = sight.rows.cpu()
        power = exponent(sent, name="embeddings") or 0
        # Only where float32 would not do: views of one tape keep their common unit.
        sent = shift(sent, -power) if abs(power) > _FAR else sent
        return Rows(sent.float(), (back if self.raw else unit_rows(back)).float())

    def _sort(self, sight: PreparedView, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        rows, device = self.rows(sight), sight.rows.device
        until = None if self.limit() is None else time.perf_counter() + (self.limit() or 0.0)
        scores, numbers = self.learn(rows, sight.view.known, rng=rng, until=until).sort(rows)
        return scores.to(device), numbers.to(device)


class _Limited(StreamingAttack, ABC):
    """A pursuit that keeps to a time; its examples are known by place."""

    def __init__(self, attack: Learning, *, seed: int) -> None:
        self._attack, self._seed = attack, seed
        self._places = IdIndex()
        self._known = Known()
        self._seconds = attack.limit()
        self._late = False
        self._width: int | None = None

    @property
    def late(self) -> bool:
        """Whether what was learnt last had to be learnt in too short a time."""
        return self._late

    def limit(self, seconds: float) -> None:
        """Learn in so many seconds at most from now on, or sooner if the attack says so."""
        own = self._attack.limit()
        self._seconds = seconds if own is None else min(seconds, own)

    def _learn(self, rows: Rows) -> Sorter:
        until = None if self._seconds is None else time.perf_counter() + self._seconds
        rng = torch.Generator().manual_seed(self._seed)
        with torch.no_grad():
            found = self._attack.learn(rows, self._known, rng=rng, until=until)
        self._late = found.late
        return found

    def _look(self, view: View) -> tuple[Tensor, PreparedView]:
        ids = ids_of(view, attack=self._attack)
        sight = self._attack.look(view)
        width = sight.rows.shape[1]
        if self._width not in (None, width):
            raise InputError(
                f"gradients must stay {self._width} wide, got {width}: pursue each cut by itself"
            )
        self._width, self._known = width, view.known
        return ids, sight


@final
class _Epochs(_Limited):
    """The rows of the epoch that is under way, and each example's latest score and class."""

    def __init__(self, attack: Learning, *, seed: int) -> None:
        super().__init__(attack, seed=seed)
        self._scores = torch.zeros(0, dtype=torch.float64)
        self._numbers = torch.zeros(0, dtype=torch.int64)
        self._judged = 0  # places below have a class from an earlier epoch
        self._epoch: int | None = None
        self._waiting: list[tuple[Tensor, Rows]] = []
        self._learnt: tuple[int, Sorter] | None = None  # from so many waiting rows
        self._sorter: Sorter | None = None

    def add(self, view: View) -> None:
        """Keep the rows until there are enough to learn from; sort those that come later."""
        ids, sight = self._look(view)
        rows = self._attack.rows(sight)
        if view.epoch != self._epoch:
            self._settle()
            self._sorter, self._learnt, self._epoch = None, None, view.epoch
            self._judged = len(self._places)
        places = self._places.take(ids)
        self._scores = grown(self._scores, len(self._places))
        self._numbers = grown(self._numbers, len(self._places))
        if self._sorter is not None:
            _write(self._sorter, [(places, rows)], self._scores, self._numbers)
            return
        self._waiting.append((places, rows))
        if self._count() >= max(_FEWEST, min(_SAMPLE, _VALUES // rows.embeddings.shape[1])):
            self._settle()

    def result(self) -> Scored:
        """Return the latest score and class of every example; an epoch may go on afterwards."""
        count = len(self._places)
        scores, numbers = self._scores[:count].clone(), self._numbers[:count].clone()
        if self._waiting:
            _write(self._found(), self._waiting, scores, numbers)
        return Scored(ids=self._places.ids(), scores=scores, clusters=numbers)

    def _count(self) -> int:
        return sum(len(places) for places, _ in self._waiting)

    def _settle(self) -> None:
        if self._waiting:
            self._sorter = self._found()
            _write(self._sorter, self._waiting, self._scores, self._numbers)
            self._waiting = []

    def _found(self) -> Sorter:
        """Return what the waiting rows teach, numbered like the last epoch; learnt only once."""
        if self._learnt is None or self._learnt[0] != self._count():
            rows = Rows.joined([rows for _, rows in self._waiting])
            sorter = self._learn(rows)
            if not sorter.named:
                places = torch.cat([places for places, _ in self._waiting])
                seen = places < self._judged
                if bool(seen.any()):
                    before = self._numbers[places[seen]]
                    sorter = _renumbered(sorter, rows[seen], before)
            self._learnt = (self._count(), sorter)
        return self._learnt[1]


@final
class _Averages(_Limited):
    """Sums of the embeddings and gradients of each example; noise of many releases averages out."""

    def __init__(self, attack: Learning, *, seed: int) -> None:
        super().__init__(attack, seed=seed)
        self._sent, self._back = torch.zeros(0, 1), torch.zeros(0, 1)
        self._times = torch.zeros(0)
        self._power: int | None = None

    def add(self, view: View) -> None:
        """Add the rows to their examples' sums."""
        ids, sight = self._look(view)
        rows, width = self._attack.rows(sight), sight.rows.shape[1]
        if self._power is None:
            self._power = sight.exponent
            self._sent, self._back = torch.zeros(0, width), torch.zeros(0, width)
        places = self._places.take(ids)
        self._times = grown(self._times, len(self._places))
        self._sent, self._back = (_taller(s, len(self._times)) for s in (self._sent, self._back))
        back = sight.rows.cpu() * 2.0 ** max(-100, min(100, sight.exponent - self._power))
        self._sent.index_add_(0, places, rows.embeddings)
        self._back.index_add_(0, places, back.float())
        self._times.index_add_(0, places, torch.ones(len(places)))

    def result(self) -> Scored:
        """Learn from the averages of all releases so far."""
        count = len(self._places)
        ids = self._places.ids()
        if not count:
            return Scored(ids=ids, scores=torch.zeros(0).double(), clusters=torch.zeros(0).long())
        times = self._times[:count].unsqueeze(1)
        back = self._back[:count] / times
        rows = Rows(self._sent[:count] / times, unit_rows(back.double()).float())
        some = torch.randperm(count, generator=torch.Generator().manual_seed(self._seed))
        scores, numbers = self._learn(rows[some[:_SAMPLE].sort().values]).sort(rows)
        return Scored(ids=ids, scores=scores, clusters=numbers)


@final
class _Renumbered(Sorter):
    """Another sorter with its classes in another order."""

    def __init__(self, sorter: Sorter, order: Tensor) -> None:
        self._sorter, self._order = sorter, order
        self.positive = int((order == sorter.positive).nonzero()[0, 0])
        self.named, self.late = sorter.named, sorter.late

    def costs(self, rows: Rows) -> Tensor:
        return self._sorter.costs(rows)[:, self._order]


def _renumbered(sorter: Sorter, rows: Rows, before: Tensor) -> Sorter:
    """Return the sorter with the numbers under which most of the rows keep theirs."""
    from scipy.optimize import linear_sum_assignment  # noqa: PLC0415 - half a second to load

    costs = sorter.costs(rows)
    count = costs.shape[1]
    cells = torch.bincount(before * count + costs.argmin(dim=1), minlength=count * count)
    order = linear_sum_assignment(cells.reshape(count, count).numpy(), maximize=True)[1]
    return _Renumbered(sorter, torch.from_numpy(np.asarray(order)))


def _write(
    sorter: Sorter, parts: list[tuple[Tensor, Rows]], scores: Tensor, numbers: Tensor
) -> None:
    """Put the rows' scores and classes at their places; of an id given twice, the last counts."""
    for places, rows in parts:
        found, number = sorter.sort(rows)
        scores.numpy()[places.numpy()] = found.numpy()
        numbers.numpy()[places.numpy()] = number.numpy()


def _taller(sums: Tensor, size: int) -> Tensor:
    return torch.cat([sums, sums.new_zeros(max(0, size - len(sums)), sums.shape[1])])
