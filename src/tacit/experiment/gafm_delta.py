"""GAFM's delta, chosen by trial runs on a small part of the data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, final

import numpy as np

from tacit import data, objective
from tacit.errors import UsageError
from tacit.experiment.config import TrainConfig
from tacit.experiment.run import Experiment

DELTAS = (0.05, 0.1, 0.2, 0.3, 0.5)
ATTACKS = ("norm", "mean(hard=true)", "median(hard=true)")
_LOOKS = 30


@final
@dataclass(frozen=True, kw_only=True)
class DeltaRow:
    """What one delta came to, averaged over repetitions.

    ``ratio`` is the mean over attacks of leak AUC / training AUC, ``ratios`` has each attack's.
    """

    delta: float
    ratio: float
    ratios: dict[str, float]
    train_auc: float


@final
@dataclass(frozen=True, kw_only=True)
class DeltaChoice:
    """The delta that was chosen, and what it was chosen from."""

    delta: float
    tau: float
    share: float
    repeats: int
    rows: tuple[DeltaRow, ...]


def least_ratio(rows: Sequence[DeltaRow], *, tau: float) -> float:
    """Return the delta of least ratio among those whose training AUC is at least ``tau``.

    >>> worse = DeltaRow(delta=0.1, ratio=0.9, ratios={}, train_auc=0.95)
    >>> weak = DeltaRow(delta=0.05, ratio=0.8, ratios={}, train_auc=0.55)
    >>> least_ratio([worse, weak], tau=0.6)
    0.1
    """
    able = [row for row in rows if row.train_auc >= tau]
    if not able:
        best = max(row.train_auc for row in rows)
        raise UsageError(
            f"gafm(delta=auto): no delta reaches a training AUC of {tau:g} on the subset, the best "
            f"has {best:.3f}: give more --epochs, or a delta by hand"
        )
    return min(able, key=lambda row: row.ratio).delta


def choose_delta(
    config: TrainConfig,
    *,
    deltas: Sequence[float] = DELTAS,
    share: float = 0.1,
    repeats: int = 5,
    tau: float = 0.6,
    tell: Callable[[str], None] = lambda _: None,
) -> DeltaChoice:
    """Train on a share of the rows with every delta and return the one of least average ratio.

    ``min over delta of mean(leak AUC / training AUC)`` over attacks and repetitions, subject to a
    training AUC (without its sign) of at least ``tau``. Leak AUCs are means over the batches that
    were looked at. Every repetition has a seed and rows of its own; the label party must be willing
    to share the labels of those rows, as the paper says of its 10%.

    References:
        Han and Guan (2023), appendix C.2 and Eq. C.1, with its grid, its 10%, its five repetitions
        and its threshold of 0.6.
    """
    if config.labels is not None or config.budget is not None:
        raise UsageError(
            "gafm(delta=auto) looks at true labels, which --labels and --budget do not count: "
            "give delta as a number"
        )
    given = objective.get(config.objective or "bce")
    assert isinstance(given, objective.Gafm)  # noqa: S101 - the caller has seen that it is
    table = data.load(config.dataset, data_dir=config.data_dir, rows=config.rows, seed=config.seed)
    count = max(10, round(share * len(table)))
    rows = []
    for delta in deltas:
        spec = str(replace(given, delta=delta))
        found = [
            _tried(config, {"objective": spec, "rows": count, "seed": config.seed + number})
            for number in range(repeats)
        ]
        rows.append(_row(delta, found))
        tell(f"delta {delta:g}: ratio {rows[-1].ratio:.3f}, training AUC {rows[-1].train_auc:.3f}")
    chosen = least_ratio(rows, tau=tau)
    return DeltaChoice(delta=chosen, tau=tau, share=share, repeats=repeats, rows=tuple(rows))


def settled(
    config: TrainConfig, *, tell: Callable[[str], None]
) -> tuple[TrainConfig, dict[str, Any] | None]:
    """Return a configuration without ``delta=auto``, and how the delta was found if it was."""
    given = None if config.objective is None else objective.get(config.objective)
    if not isinstance(given, objective.Gafm) or given.delta != "auto":
        return config, None
    choice = choose_delta(config, tell=tell)
    spec = str(replace(given, delta=choice.delta))
    return config.model_copy(update={"objective": spec}), asdict(choice)


def _tried(config: TrainConfig, changed: dict[str, Any]) -> tuple[dict[str, float], float]:
    """Return the leak AUC of each attack and the training AUC of one run."""
    drawn = data.load(
        config.dataset, data_dir=config.data_dir, rows=changed["rows"], seed=changed["seed"]
    )
    train_rows, _ = data.split(drawn, seed=changed["seed"])
    size = min(config.batch_size, len(train_rows))
    steps = len(train_rows) // size * config.epochs
    small = config.model_copy(
        update={
            **changed,
            "batch_size": size,
            "attacks": ATTACKS,
            "monitor_every": max(1, steps // _LOOKS),
            "hold_out": None,
        }
    )
    trial = Experiment(small)
    found = trial.train()
    leaks = {name: leak["mean"] for name, leak in found["leak"].items()}
    return leaks, trial.score(trial.train_rows)["sign_free_auc"]


def _row(delta: float, found: Sequence[tuple[dict[str, float], float]]) -> DeltaRow:
    ratios = {
        name: float(np.mean([leaks[name] / auc for leaks, auc in found if name in leaks]))
        for name in ATTACKS
    }
    return DeltaRow(
        delta=delta,
        ratio=float(np.mean(list(ratios.values()))),
        ratios=ratios,
        train_auc=float(np.mean([auc for _, auc in found])),
    )
