"""A head on the embeddings of a run's rows: trained, measured and kept where the labels are."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tacit import _config as defaults
from tacit import heads
from tacit.experiment.batches import held_out
from tacit.experiment.trial import Observer, Progress, Trial
from tacit.heads import EmbeddedRows, FittedHead, Head, HeadEpoch, HeadSettings
from tacit.party.schedule import Indices
from tacit.training.metrics import utility

_CHUNK = 8192
Embed = Callable[[Tensor], Tensor]


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class TrainedHead:
    """A head after its training: what it is, what it predicts on test rows, and how it went."""

    head: Head
    fitted: FittedHead
    history: list[dict[str, Any]]
    test: dict[str, float]
    seconds: float

    def record(self) -> dict[str, Any]:
        """Return what results say of it."""
        found = asdict(self.fitted.fitted)
        return {**self.head.describe(), **{k: v for k, v in found.items() if k != "losses"}}

    def files(self) -> dict[str, bytes]:
        """Return the trained head by the name of its file."""
        return {f"head.{self.head.suffix}": self.fitted.to_bytes()}


def embedded(parts: Sequence[Embed], count: int) -> npt.NDArray[np.float32]:
    """Return the embeddings of all rows ``[count, width]``, of several parties side by side."""
    blocks = [
        torch.cat([embed(rows).flatten(1) for embed in parts], dim=1).numpy()
        for rows in torch.split(torch.arange(count), _CHUNK)
    ]
    return np.concatenate(blocks).astype(np.float32, copy=False)


def train_head(
    trial: Trial,
    head: Head,
    embeddings: npt.NDArray[np.float32],
    *,
    settings: HeadSettings,
    train: Indices,
    held: Indices,
    tell: Observer,
) -> TrainedHead:
    """Train a head on true labels of some rows, and judge it on the test rows after each epoch.

    Only ``held`` rows choose and stop; those numbers of the test rows are for the eye.
    """
    rows, test = EmbeddedRows(embeddings=embeddings), torch.from_numpy(trial.test_rows)
    truth = trial.truth[test].numpy()
    history: list[dict[str, Any]] = []
    per_epoch = -(-len(train) // settings.batch_size)

    def done(end: HeadEpoch) -> None:
        found = utility(end.head.predict(rows, test).numpy(), truth)
        history.append(_part(end, found))
        number = end.number - 1
        at, steps = end.number * per_epoch, end.most * per_epoch
        seen = Progress(step=at, steps=steps, part=number, loss=end.loss)
        tell(seen)
        tell(replace(seen, test=found, leak={}))

    start = time.perf_counter()
    fitted = head.fit(
        rows,
        trial.truth,
        train=torch.from_numpy(train),
        held=torch.from_numpy(held),
        classes=trial.table.classes,
        settings=settings,
        done=done,
    )
    seconds = time.perf_counter() - start
    final_test = utility(fitted.predict(rows, test).numpy(), truth)
    return TrainedHead(head=head, fitted=fitted, history=history, test=final_test, seconds=seconds)


def _part(end: HeadEpoch, test: dict[str, float]) -> dict[str, Any]:
    """Return what the history keeps of an epoch, in the form of any other run."""
    return {
        "part": end.number - 1,
        "loss": end.loss,
        "test": test,
        "leak": {},
        "memory_leak": None,
        "embedding_leak": None,
    }


def train_private_head(trial: Trial, parts: Sequence[Embed], tell: Observer) -> TrainedHead:
    """Train the head that predicts on what trained bottoms give, when nothing more is sent.

    It is trained as a silent run's is, whatever the settings of the training before it, and stops
    by rows that are held out of it.
    """
    config = trial.config
    train, held = trial.train_rows, trial.held_rows
    if not len(held):
        train, held = held_out(train, defaults.SILENT["hold_out"], groups=trial.table.groups)
    settings = HeadSettings(
        seed=config.seed,
        **{name: defaults.SILENT[name] for name in ("epochs", "batch_size", "lr", "weight_decay")},
    )
    tell(Progress(step=0, steps=0, part=0, loss=None, doing="the private head is trained"))
    return train_head(
        trial,
        heads.get(config.head or "net"),
        embedded(parts, len(trial.truth)),
        settings=settings,
        train=train,
        held=held,
        tell=lambda _: None,
    )
