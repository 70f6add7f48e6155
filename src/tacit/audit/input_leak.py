"""What embeddings show of the inputs: each column, rebuilt by one who knows some of the rows.

The attacker is at the label party. It holds the embeddings of all examples and knows the features
of some of them. It learns decoders on those and applies them to the others.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Literal, final

import numpy as np
import numpy.typing as npt
import torch
from threadpoolctl import threadpool_limits
from torch import Tensor

from tacit.audit.decoders import DECODERS, Floats, Found, Ints, Targets
from tacit.audit.feature_table import FeatureTable
from tacit.errors import UsageError

KNOWN, JUDGED = 1_000, 5_000
LEAST = 100  # rows in all
_ENOUGH = 200  # rows to judge, where the full number is known
_VALUES = 64  # values of a category that are told apart; rarer ones are one
_WIDE = 256  # embeddings that are wider are reduced to so many principal components
_CHECK = 0.3  # of the known rows, to choose each column's decoder by
_RESAMPLES = 200

Progress = Callable[[str, int, int], None]


@final
@dataclass(frozen=True, kw_only=True)
class InputRow:
    """How well one column was rebuilt.

    Attributes:
        column: its name.
        kind: what its values are.
        r2: of numbers, ``1 - sum (y - p)^2 / sum (y - mean)^2`` over the judged rows, the mean that
            of the known rows; None where all judged rows have one value.
        accuracy: of categories, the share of judged rows whose value was named.
        baseline: what is reached without embeddings: 0 for numbers, for categories the share of
            the most frequent value; 1 for a column of a single value.
        gain: ``r2``, or ``(accuracy - baseline) / (1 - baseline)``: what rows are ordered by.
        method: the decoder that did best on a part of the known rows.
        low: the lower end of a 95% bootstrap interval of ``r2`` or ``accuracy``.
        high: its upper end.
        judged: rows that were judged; those where a number is missing are not.
    """

    column: str
    kind: Literal["numeric", "categorical"]
    r2: float | None
    accuracy: float | None
    baseline: float
    gain: float | None
    method: str
    low: float | None
    high: float | None
    judged: int


@final
@dataclass(frozen=True, kw_only=True)
class InputAudit:
    """What embeddings show of every column, the worst first.

    ``known`` rows were known to the attacker and ``judged`` others counted; ``width`` is that of
    the embeddings, ``note`` what was done otherwise than usual.
    """

    rows: tuple[InputRow, ...]
    known: int
    judged: int
    width: int
    note: str = ""

    def worst(self) -> InputRow:
        """Return the column that was rebuilt best."""
        return self.rows[0]

    def table(self) -> list[dict[str, Any]]:
        """Return the rows as plain values."""
        return [asdict(row) for row in self.rows]


def audit_inputs(
    embeddings: Tensor | npt.NDArray[Any],
    features: FeatureTable,
    *,
    seed: int = 0,
    known: int = KNOWN,
    judged: int = JUDGED,
    progress: Progress | None = None,
) -> InputAudit:
    """Return how well each column is rebuilt from embeddings ``[N, ...]`` of the same rows.

    The attacker knows the features of ``known`` rows, drawn by ``seed``. It learns ridge
    regressions, boosted trees and a small network on them, and takes for each column the one that
    does best on 30% of these rows, which it was not fitted to, or the mean or most frequent value
    if none does better. Up to ``judged`` other rows are judged.

    Guarantee: empirical only. A better attacker, or one who knows more rows, rebuilds more.

    >>> x = np.random.default_rng(0).normal(size=(600, 2))
    >>> found = audit_inputs(x @ [[1, 1], [1, -2]], FeatureTable(numeric={"a": x[:, 0]}))
    >>> found.worst().column, round(found.worst().r2, 3), found.known, found.judged
    ('a', 1.0, 300, 300)
    """
    sent = _matrix(embeddings, features)
    if known < LEAST // 2 or judged < LEAST // 2 or seed < 0:
        raise UsageError(
            f"known {known}, judged {judged}, seed {seed}: at least {LEAST // 2} rows of each kind "
            "and a seed from 0"
        )
    told, note = known_count(len(sent), known=known)
    rng = np.random.default_rng(seed)
    chosen = rng.permutation(len(sent))[: told + judged]
    task = _Task.of(_reduced(sent[chosen], seed), features.take(chosen), told)
    with threadpool_limits(1):
        found, methods = _attack(task, seed, progress or (lambda _what, _done, _of: None))
    rows = _judge(task, found, methods, rng)
    return InputAudit(
        rows=tuple(sorted(rows, key=lambda row: np.inf if row.gain is None else -row.gain)),
        known=told,
        judged=len(chosen) - told,
        width=sent.shape[1],
        note=note,
    )


def known_count(rows: int, *, known: int) -> tuple[int, str]:
    """Return how many rows the attacker knows, with a note where that is fewer than it should be.

    >>> known_count(6000, known=1000)
    (1000, '')
    >>> known_count(800, known=1000)[0]
    400
    """
    if rows < LEAST:
        raise UsageError(
            f"{rows} rows have both embeddings and features: an audit of inputs needs at least "
            f"{LEAST}; give the features of the tape's examples"
        )
    if rows >= known + _ENOUGH:
        return known, ""
    return rows // 2, (
        f"Only {rows} rows have both embeddings and features: the attacker knows {rows // 2} of "
        f"them instead of {known}, with more it would rebuild more."
    )


def _matrix(embeddings: Tensor | npt.NDArray[Any], features: FeatureTable) -> Floats:
    given = torch.as_tensor(embeddings).detach().cpu()
    if len(given) != len(features) or given.dim() == 0 or not given.numel():
        raise UsageError(
            f"embeddings of shape {tuple(given.shape)} for {len(features)} rows of "
            f"{features.source}: give one for each row"
        )
    sent = given.double().reshape(len(given), -1)
    odd = ~sent.isfinite().all(1)
    if odd.any():
        row = int(odd.nonzero()[0])
        raise UsageError(f"the embedding of row {row} is not finite: leave that row out")
    return sent.numpy()


def _reduced(sent: Floats, seed: int) -> Floats:
    """Return embeddings at mean 0 and spread 1; of wide ones the principal components."""
    spread = sent.std(0)
    flat = spread <= 1e-12 * np.abs(sent).max(0)
    rows: Floats = (sent - sent.mean(0)) / np.where(flat, 1.0, spread)
    rows[:, flat] = 0.0
    if rows.shape[1] <= _WIDE:
        return rows
    from sklearn.decomposition import PCA  # noqa: PLC0415 - slow to import

    most = min(_WIDE, len(rows) - 1)
    parts: Floats = PCA(most, svd_solver="randomized", random_state=seed).fit_transform(rows)
    return parts / max(float(np.sqrt(np.square(parts).mean())), 1e-12)


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class _Task:
    """Embeddings and targets of the rows, of which the first ``told`` are known."""

    sent: Floats
    told: int
    numeric: tuple[str, ...]
    categorical: tuple[str, ...]
    raw: Floats
    present: npt.NDArray[np.bool_]
    codes: Ints
    shares: tuple[float, ...]
    targets: Targets
    centre: Floats
    spread: Floats

    @classmethod
    def of(cls, sent: Floats, features: FeatureTable, told: int) -> _Task:
        raw = _stacked(list(features.numeric.values()), len(sent), np.float64)
        present = ~np.isnan(raw)
        filled = np.where(present, raw, _medians(raw[:told]))
        centre, spread = filled[:told].mean(0), filled[:told].std(0)
        spread = np.where(spread > 0, spread, 1.0)
        coded = [_coded(values, told) for values in features.categorical.values()]
        codes = _stacked([codes for codes, _ in coded], len(sent), np.int64)
        sizes = tuple(size for _, size in coded)
        # A value that is not told apart is the last code to learn from, and never right.
        known = np.where(codes[:told] < 0, np.array(sizes, dtype=np.int64) - 1, codes[:told])
        numbers = (filled[:told] - centre) / spread
        return cls(
            sent=sent,
            told=told,
            numeric=tuple(features.numeric),
            categorical=tuple(features.categorical),
            raw=filled,
            present=present,
            codes=codes,
            shares=tuple(_top_share(v[told:]) for v in features.categorical.values()),
            targets=Targets(numbers=numbers, codes=known, sizes=sizes),
            centre=centre,
            spread=spread,
        )

    def predictions(self, found: Found) -> Floats:
        """Return predicted numbers on their own scale, not far outside what is known of them."""
        known = self.raw[: self.told]
        low, high = known.min(0, initial=np.inf), known.max(0, initial=-np.inf)
        numbers = found.numbers * self.spread + self.centre
        return np.clip(numbers, 2 * low - high, 2 * high - low)

    def errors(self, found: Found, rows: Ints) -> tuple[Floats, Floats, Floats]:
        """Return squared errors, squared distances to the mean, and which codes are right."""
        shown = self.present[rows]
        off = np.square(self.raw[rows] - self.predictions(found)) * shown
        apart = np.square(self.raw[rows] - self.centre) * shown
        return off, apart, (found.codes == self.codes[rows]).astype(np.float64)


def _stacked(columns: list[Any], rows: int, dtype: type) -> npt.NDArray[Any]:
    return np.column_stack(columns).astype(dtype) if columns else np.zeros((rows, 0), dtype=dtype)


def _medians(known: Floats) -> Floats:
    """Return each column's median; 0 where all known numbers are missing."""
    empty = np.isnan(known).all(0)
    return np.asarray(np.nanmedian(np.where(empty, 0.0, known), axis=0), dtype=np.float64)


def _coded(values: npt.NDArray[Any], told: int) -> tuple[Ints, int]:
    """Return codes of the values that are frequent among known rows, -1 for all others."""
    names, counts = np.unique(values[:told], return_counts=True)
    kept = np.sort(names[np.argsort(-counts, kind="stable")[:_VALUES]])
    place = np.minimum(np.searchsorted(kept, values), len(kept) - 1)
    codes = np.where(kept[place] == values, place, -1).astype(np.int64)
    return codes, len(kept) + (len(names) > len(kept))


def _top_share(values: npt.NDArray[Any]) -> float:
    return float(np.unique(values, return_counts=True)[1].max() / len(values))


def _attack(task: _Task, seed: int, progress: Progress) -> tuple[Found, list[str]]:
    """Return the predictions of the judged rows, and the decoder of each column."""
    fit, check = np.split(np.arange(task.told), [round(task.told * (1 - _CHECK))])
    columns = len(task.numeric) + len(task.categorical)
    best, methods = np.full(columns, -np.inf), ["guess"] * columns
    stages = 2 * len(DECODERS)
    for stage, (name, decoder) in enumerate(DECODERS.items()):
        progress(f"inputs: {name}", stage, stages)
        order = np.argsort(-best, kind="stable").tolist()
        found = decoder(task.sent[fit], task.targets.take(fit), task.sent[check], seed, order)
        scores = np.where(found.done, _scores(task, found, check), -np.inf)
        for column in np.flatnonzero(scores > best).tolist():
            methods[column] = name
        best = np.maximum(best, scores)
    numbers = np.zeros((len(task.sent) - task.told, len(task.numeric)))
    codes = np.zeros((len(numbers), len(task.categorical)), dtype=np.int64)
    for stage, (name, decoder) in enumerate(DECODERS.items()):
        progress(f"inputs: {name}", len(DECODERS) + stage, stages)
        mine = [column for column, method in enumerate(methods) if method == name]
        if not mine:
            continue
        known, unseen = task.sent[: task.told], task.sent[task.told :]
        found = decoder(known, task.targets, unseen, seed, mine)
        for column in mine:
            if column < len(task.numeric):
                numbers[:, column] = found.numbers[:, column]
            else:
                at = column - len(task.numeric)
                codes[:, at] = found.codes[:, at]
    return Found(numbers=numbers, codes=codes, done=np.ones(columns, dtype=bool)), methods


def _scores(task: _Task, found: Found, rows: Ints) -> Floats:
    """Return R2 of numbers and accuracy of categories, beyond that of the commonest value."""
    off, apart, right = task.errors(found, rows)
    numbers = 1 - off.sum(0) / np.where(apart.sum(0) > 0, apart.sum(0), np.inf)
    shares = np.array(
        [
            np.bincount(codes[codes >= 0], minlength=1).max() / len(rows)
            for codes in task.codes[rows].T
        ]
    ).reshape(-1)
    gains = (right.mean(0) - shares) / np.where(shares < 1, 1 - shares, 1.0)
    return np.concatenate([numbers, gains])


def _judge(
    task: _Task, found: Found, methods: list[str], rng: np.random.Generator
) -> list[InputRow]:
    rows = np.arange(task.told, len(task.sent))
    off, apart, right = task.errors(found, rows)
    weights = rng.multinomial(len(rows), np.full(len(rows), 1 / len(rows)), size=_RESAMPLES)
    with np.errstate(divide="ignore", invalid="ignore"):
        r2s = 1 - (weights @ off) / (weights @ apart)
    judged = []
    for at, name in enumerate(task.numeric):
        shown = task.raw[rows, at][task.present[rows, at]]
        constant = len(shown) == 0 or shown.min() == shown.max()
        r2 = None if constant else float(1 - off[:, at].sum() / apart[:, at].sum())
        judged.append(
            InputRow(
                column=name,
                kind="numeric",
                r2=r2,
                accuracy=None,
                baseline=1.0 if constant else 0.0,
                gain=r2,
                method="guess" if constant else methods[at],
                **_interval(None if constant else r2s[:, at]),
                judged=len(shown),
            )
        )
    shares = weights @ right / len(rows)
    for at, name in enumerate(task.categorical):
        share, accuracy = task.shares[at], float(right[:, at].mean())
        judged.append(
            InputRow(
                column=name,
                kind="categorical",
                r2=None,
                accuracy=accuracy,
                baseline=share,
                gain=None if share == 1 else (accuracy - share) / (1 - share),
                method=methods[len(task.numeric) + at],
                **_interval(shares[:, at]),
                judged=len(rows),
            )
        )
    return judged


def _interval(draws: Floats | None) -> dict[str, float | None]:
    if draws is None:
        return {"low": None, "high": None}
    low, high = np.nanquantile(draws, (0.025, 0.975))
    return {"low": float(low), "high": float(high)}
