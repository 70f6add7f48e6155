"""A party's columns of a table: their sizes for the model, and how their rows are read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import accumulate, count
from typing import Any, ClassVar, Self, TypeVar, final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn.functional import pad

from tacit import data, nets
from tacit._config import BINS
from tacit.data.draws import uniforms
from tacit.errors import UsageError


@final
@dataclass(frozen=True, eq=False, kw_only=True)
class FrequentValues:
    """The values of categorical columns that enough rows have; all others of a column are value 0.

    A value that few training rows have gets an embedding of its own out of the labels of those few,
    which is learned by heart. Values without any training row are among the others, so that the
    embedding of unseen values is trained wherever a column has rare ones.

    >>> common = FrequentValues.of([np.array([0, 1, 1, 3, 3])], (4,), 2)
    >>> common(torch.tensor([[0], [1], [2], [3]])).flatten().tolist(), common.cardinalities
    ([0, 1, 0, 2], (3,))
    """

    offsets: Tensor
    codes: Tensor
    cardinalities: tuple[int, ...]

    @classmethod
    def of(cls, columns: Iterable[npt.NDArray[Any]], sizes: Sequence[int], least: int) -> Self:
        """Return the values that at least ``least`` rows of each column have."""
        kept = [
            np.bincount(column, minlength=size) >= least
            for column, size in zip(columns, sizes, strict=True)
        ]
        codes = [np.where(keep, np.cumsum(keep), 0) for keep in kept]
        return cls(
            offsets=torch.tensor([0, *accumulate(sizes)][:-1], dtype=torch.int64),
            codes=torch.from_numpy(np.concatenate(codes)),
            cardinalities=tuple(int(keep.sum()) + 1 for keep in kept),
        )

    def __call__(self, categorical: Tensor) -> Tensor:
        """Return the new codes ``[B, c]`` of categories ``[B, c]``."""
        return self.codes[categorical + self.offsets]


@final
@dataclass(frozen=True, eq=False, kw_only=True)
class Bins:
    """Piecewise-linear encoding: how far a number lies into each bin of its column.

    ``e_j(x) = 2 clip((x - k_j) / (k_(j+1) - k_j), 0, 1) - 1``, with the knots ``k`` at equally
    spaced quantiles of the column. Equal knots are one: a column of few values has fewer bins. A
    constant column keeps one, which is -1 for all its rows.

    A linear function of the encoding is any function of the number that bends at the knots only,
    so that little has to be learned from labels, of which randomised ones teach little each; and
    outliers end at the outer knots.

    References:
        Gorishniy et al., "On Embeddings for Numerical Features in Tabular Deep Learning"
        (NeurIPS 2022), Eq. 1, with quantiles for knots (section 3.2.1).

    Departures: the outer bins are clipped too, and values go from -1 to 1.

    >>> bins = Bins.of(np.array([[0.0], [1.0], [2.0], [6.0], [10.0]]), 2)
    >>> bins(torch.tensor([[-5.0], [1.0], [6.0], [99.0]])).tolist()
    [[-1.0, -1.0], [0.0, -1.0], [1.0, 0.0], [1.0, 1.0]]
    """

    SAMPLE: ClassVar[int] = 100_000
    """How many rows are enough to take the quantiles of hundreds of bins from."""

    columns: Tensor
    starts: Tensor
    widths: Tensor

    @classmethod
    def of(cls, numeric: npt.NDArray[Any], count: int) -> Self:
        """Return the bins of the columns of ``numeric``, at most ``count`` each."""
        found = [_knots(column, count) for column in np.asarray(numeric).T]
        place = [number for number, knots in enumerate(found) for _ in knots[1:]]
        starts = [knot for knots in found for knot in knots[:-1]]
        widths = [width for knots in found for width in np.diff(knots)]
        return cls(
            columns=torch.tensor(place, dtype=torch.int64),
            starts=torch.tensor(starts, dtype=torch.float32),
            widths=torch.tensor(widths, dtype=torch.float32),
        )

    @property
    def width(self) -> int:
        """How many numbers the encoding has."""
        return len(self.columns)

    def __call__(self, numeric: Tensor) -> Tensor:
        """Return ``[B, width]`` for numbers ``[B, n]``."""
        into = (numeric[:, self.columns] - self.starts) / self.widths
        return into.clamp_(0, 1).mul_(2).sub_(1)


def _knots(column: npt.NDArray[Any], count: int) -> npt.NDArray[np.float32]:
    """Return the quantiles of a column, each once; of a constant one its value and the next."""
    found = np.unique(np.quantile(column, np.linspace(0, 1, count + 1)).astype(np.float32))
    return found if len(found) > 1 else np.array([found[0], found[0] + 1], dtype=np.float32)


_Batch = TypeVar("_Batch")
_Read = TypeVar("_Read")
_SHIFT = 4


def prefetch(
    batches: Iterable[_Batch], read: Callable[[_Batch], _Read]
) -> Iterator[tuple[_Batch, _Read]]:
    """Yield every batch with what was read of it, one batch ahead in a thread of its own.

    >>> list(prefetch([1, 2, 3], lambda batch: batch * 10))
    [(1, 10), (2, 20), (3, 30)]
    """
    with ThreadPoolExecutor(1, thread_name_prefix="read-ahead") as pool:
        waiting: tuple[_Batch, Future[_Read]] | None = None
        for batch in batches:
            task = pool.submit(read, batch)
            if waiting is not None:
                yield waiting[0], waiting[1].result()
            waiting = batch, task
        if waiting is not None:
            yield waiting[0], waiting[1].result()


def augmented(pixels: Tensor, image: tuple[int, int, int], *key: int) -> Tensor:
    """Return images ``[B, n]``, each shifted by up to 4 pixels and, every other one, mirrored.

    What enters from outside is 0, the mean of scaled pixels. ``key`` decides about the draws.

    >>> augmented(torch.ones(2, 25), (1, 5, 5), 0, 7).shape
    torch.Size([2, 25])
    """
    rows, (_, height, width) = len(pixels), image
    drawn = torch.from_numpy(uniforms(3 * rows, "augment", *key)).reshape(3, rows, 1)
    down, right = (drawn[:2] * (2 * _SHIFT + 1)).long()
    ys = down + torch.arange(height)
    xs = torch.arange(width).expand(rows, -1)
    xs = right + torch.where(drawn[2] < 0.5, xs.flip(1), xs)
    padded = pad(pixels.reshape(-1, *image), [_SHIFT] * 4)
    # Indexed together, rows come first and channels last.
    chosen = padded[torch.arange(rows)[:, None, None], :, ys[:, :, None], xs[:, None, :]]
    return chosen.permute(0, 3, 1, 2).reshape(rows, -1)


Source = Callable[[Tensor], tuple[Tensor, Tensor]]


@final
class TableReader:
    """Reads parties' columns of a table; with ``bins``, numbers come encoded by their quantiles.

    With ``rare``, values of a category that fewer rows have are one. Quantiles and counts are those
    of ``rows``. The default number of bins is ignored for images and tables without numbers, any
    other is refused. Parties that hold the same columns read them once. Images
    to train on are read one batch ahead, and with ``augment``, a seed, shifted and mirrored.
    """

    def __init__(
        self,
        table: data.Table,
        *,
        bins: int | None = None,
        rare: int | None = None,
        rows: npt.NDArray[np.int64],
        augment: int | None = None,
    ) -> None:
        if bins == BINS and (table.image is not None or not table.numeric_names):
            bins = None
        if bins is not None and not table.numeric_names:
            raise UsageError(f"--bins {bins}: {table.name} has no numbers to encode: leave it out")
        if bins is not None and table.image is not None:
            raise UsageError(f"--bins {bins}: {table.name} has images, not numbers: leave it out")
        if augment is not None and table.image is None:
            raise UsageError(f"--augment: {table.name} has no images to change: leave it out")
        self._augment, self._steps = augment, count()
        self._table, self._bins, self._rare, self._rows = table, bins, rare, rows
        self._encodings: dict[data.Columns, Bins] = {}
        self._values: dict[data.Columns, FrequentValues] = {}
        self._used: set[data.Columns] = set()
        self._last: dict[data.Columns, tuple[Tensor, tuple[Tensor, Tensor]]] = {}

    def inputs(self, columns: data.Columns) -> nets.Inputs:
        """Return how many numbers and which categories the columns hold."""
        encoding, common = self._encoding(columns), self._common(columns)
        sizes, form = self._sizes(columns), self._table.image
        return nets.Inputs(
            numeric=len(columns.numeric) if encoding is None else encoding.width,
            cardinalities=sizes if common is None else common.cardinalities,
            image=None if form is None or form.pixels != len(columns) else form.shape,
        )

    def source(self, columns: data.Columns) -> Source:
        """Return a function from row numbers to the columns."""
        last = self._last
        self._used.add(columns)

        def take(rows: Tensor) -> tuple[Tensor, Tensor]:
            found = last.get(columns)
            if found is None or found[0] is not rows:
                found = last[columns] = (rows, self._read(rows, columns))
            return found[1]

        return take

    def batches(self, batches: Iterable[Tensor]) -> Iterator[Tensor]:
        """Yield batches to train on; images are ready by then."""
        if self._table.image is None:
            yield from batches
            return
        for rows, found in prefetch(batches, self._prepare):
            self._last.update({columns: (rows, read) for columns, read in found.items()})
            yield rows

    def _prepare(self, rows: Tensor) -> dict[data.Columns, tuple[Tensor, Tensor]]:
        step, form = next(self._steps), self._table.image
        found = {columns: self._read(rows, columns) for columns in self._used}
        if self._augment is None or form is None:
            return found
        if any(len(columns) != form.pixels for columns in found):
            raise UsageError("--augment: every party needs whole images: use it with --parties 1")
        return {
            columns: (augmented(pixels, form.shape, self._augment, step), codes)
            for columns, (pixels, codes) in found.items()
        }

    def _read(self, rows: Tensor, columns: data.Columns) -> tuple[Tensor, Tensor]:
        encoding, common = self._encoding(columns), self._common(columns)
        found = data.take(self._table, rows.numpy(), columns)
        return (
            found.numeric if encoding is None else encoding(found.numeric),
            found.categorical if common is None else common(found.categorical),
        )

    def _sizes(self, columns: data.Columns) -> tuple[int, ...]:
        return tuple(self._table.cardinalities[i] for i in columns.categorical)

    def _common(self, columns: data.Columns) -> FrequentValues | None:
        if self._rare is None or not columns.categorical:
            return None
        if columns not in self._values:
            rows, codes = np.sort(self._rows), np.asarray(self._table.categorical)
            one_by_one = (codes[rows, place] for place in columns.categorical)  # a column fits
            self._values[columns] = FrequentValues.of(one_by_one, self._sizes(columns), self._rare)
        return self._values[columns]

    def _encoding(self, columns: data.Columns) -> Bins | None:
        if self._bins is None or not columns.numeric:
            return None
        if columns not in self._encodings:
            sample = np.sort(self._rows[: Bins.SAMPLE])
            numeric = np.asarray(self._table.numeric)[sample][:, list(columns.numeric)]
            self._encodings[columns] = Bins.of(numeric, self._bins)
        return self._encodings[columns]
