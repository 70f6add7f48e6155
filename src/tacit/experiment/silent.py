"""A run in one process that sends no gradient: bottoms learn without labels, then a head with them.

What crosses between the parties of such a run is one embedding for each row and feature party. The
label party sends nothing.
"""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, final

import numpy as np
import numpy.typing as npt
import torch
from safetensors.torch import save
from torch import Tensor

from tacit import data, heads, pretrain
from tacit.errors import UsageError
from tacit.experiment.config import TrainConfig
from tacit.experiment.head import TrainedHead, embedded, train_head
from tacit.experiment.trial import Observer, Progress, Trial
from tacit.heads import HeadSettings
from tacit.party.build import OwnColumns, fitting_objective
from tacit.party.settings import SILENT
from tacit.party.silent_results import silent_results
from tacit.pretrain import FrozenBottom, Grid, Pretrainer
from tacit.rng import Key
from tacit.training.features import TableReader

_DATA = ("dataset", "data_dir", "rows", "parties", "seed")
_SAME = (*_DATA, "pretrain", "width", "embed_bits", "embed_noise", "head")
"""What a silent run that is compared with has of the run that sends gradients."""

FORMAT = 1
"""Of the record that a saved bottom has beside its tensors."""


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class SilentParty:
    """A feature party whose bottom is frozen: what it sends of some rows."""

    method: Pretrainer
    own: OwnColumns
    bottom: FrozenBottom
    std: Tensor | None
    grid: Grid | None
    key: Key
    number: int

    def embed(self, rows: Tensor) -> Tensor:
        """Return what the label party gets of these rows."""
        z = self._noisy(self.bottom(*self.own.source(rows)), rows)
        return z if self.grid is None else self.grid.values(self.grid.codes(z))

    def _noisy(self, z: Tensor, rows: Tensor) -> Tensor:
        if self.std is None:
            return z
        return pretrain.noisy(z, rows.tolist(), self.std, self.key, version=self.number)

    def file(self) -> bytes:
        """Return the bottom, with all that another process needs to embed rows as this one does."""
        tensors = dict(self.bottom.state_dict())
        if self.grid is not None:
            tensors |= {"sent.low": self.grid.low, "sent.step": self.grid.step}
        if self.std is not None:
            tensors["sent.noise"] = self.std
        kept = {"format": FORMAT, "pretrain": str(self.method), "inputs": asdict(self.own.inputs)}
        return save(
            {name: tensor.contiguous() for name, tensor in tensors.items()},
            metadata={"tacit": json.dumps(kept)},
        )


@final
class SilentExperiment(Trial):
    """A run that sends no gradient: methods for the bottoms, and a head.

    Models trained end to end take numbers in bins, and rare values as one; these methods have
    their own ways, and take the columns as they are.
    """

    def __init__(self, config: TrainConfig) -> None:
        super().__init__(config)
        fitting_objective(config.objective, classes=self.table.classes, parties=1, combine="sum")
        self.head = heads.get(config.head or "net")
        self.head.check()
        reader = TableReader(self.table, rows=self.learning_rows)
        self._own = [
            OwnColumns(inputs=reader.inputs(part), source=reader.source(part))
            for part in self.columns
        ]
        self.methods = [self._method(*pair) for pair in zip(self._own, self.columns, strict=True)]
        self.parties: list[SilentParty] = []
        self.trained: TrainedHead | None = None
        self._record: Path | None = None

    def _method(self, own: OwnColumns, columns: data.Columns) -> Pretrainer:
        """Return how a party's bottom learns; refuse columns and rows that it cannot learn from."""
        method = pretrain.resolved(self.config.pretrain, own.inputs, width=self.config.width)
        width, rows = method.embedding_width(own.inputs), len(self.learning_rows)
        if rows < width:
            raise UsageError(
                f"{method}: an embedding of width {width} needs {width} rows or more to learn "
                f"from, {self.table.name} has {rows}: take a smaller --width, or load more rows"
            )
        if method.images and own.inputs.image is None:
            raise UsageError(
                f"--pretrain {method}: needs images, and the columns of {self.table.name} are not "
                "pixels: take masked, pca or svd"
            )
        if _constant(self.table, self.learning_rows, columns):
            raise UsageError(
                f"{self.table.name}: every column of a feature party is constant, so its bottom "
                "has nothing to learn from: give it other columns"
            )
        return method

    def record(self, folder: Path) -> None:
        """Write what the label party gets of each row into that folder, when it is known."""
        self._record = folder

    def train(self, observer: Observer | None = None) -> dict[str, Any]:
        """Let every bottom learn without labels, then train the head; return the results."""
        tell, start = observer or (lambda _: None), time.perf_counter()
        self.parties = [self._party(number, tell) for number in range(len(self._own))]
        each = [embedded([party.embed], len(self.truth)) for party in self.parties]
        if self._record is not None:
            _write_embeddings(self._record, each)
        self.trained = train_head(
            self,
            self.head,
            np.concatenate(each, axis=1),
            settings=head_settings(self.config),
            train=self.train_rows,
            held=self.held_rows,
            tell=tell,
        )
        return self._results(self.trained, seconds=time.perf_counter() - start)

    def _party(self, number: int, tell: Observer) -> SilentParty:
        """Return a feature party after it has learned, without labels, from its training rows."""
        config, own, method = self.config, self._own[number], self.methods[number]
        doing = f"feature party {number}: {method} learns without labels"
        key = Key.from_seed(config.seed)
        rows = torch.from_numpy(self.learning_rows)
        bottom = method.fit(
            own.inputs,
            *own.source(rows),
            seed=config.seed,
            progress=partial(_tell_pass, tell, doing),
        )
        clear = SilentParty(
            method=method, own=own, bottom=bottom, std=None, grid=None, key=key, number=number
        )
        return self._coarser(clear, rows) if config.embed_noise or config.embed_bits < 32 else clear

    def _coarser(self, clear: SilentParty, rows: Tensor) -> SilentParty:
        """Return the party with noise and a grid on what it sends, both from its training rows."""
        config = self.config
        z = torch.cat([clear.embed(part) for part in torch.split(rows, 8192)])
        std = config.embed_noise * z.std(0) if config.embed_noise else None
        noisy = replace(clear, std=std)
        if config.embed_bits == 32:
            return noisy
        sent = torch.cat([noisy.embed(part) for part in torch.split(rows, 8192)])
        return replace(noisy, grid=Grid.of(sent, config.embed_bits))

    def _results(self, trained: TrainedHead, *, seconds: float) -> dict[str, Any]:
        config, record = self.config, trained.record()
        found = silent_results(
            config,
            dataset=self.table.name,
            classes=self.table.classes,
            head=record,
            pretrain=[str(party.method) for party in self.parties],
            width=sum(party.bottom.width for party in self.parties),
            history=trained.history,
            test=trained.test,
        )
        fitted = trained.fitted.fitted
        return found | {
            "parties": len(self.columns),
            "depth": config.depth,
            "seed": config.seed,
            "train": {"loss": fitted.losses[-1]},
            "selected": self._selected(record),
            "layers": {},
            "components": None,
            "public_test": None,
            "silent": None,
            "interrupted": False,
            "stopped": None,
            "seconds": seconds,
            "steps_per_second": fitted.steps / trained.seconds if trained.seconds > 0 else 0.0,
        }

    def _selected(self, record: dict[str, Any]) -> dict[str, Any] | None:
        """Return which epoch's head is kept, and what it was chosen by."""
        if record["epoch"] is None:
            return None
        return {
            "epoch": record["epoch"],
            "step": record["epoch"] * (record["steps"] // record["epochs"]),
            "measure": record["measure"],
            "score": record["score"],
            "rows": len(self.held_rows),
            "judged_by": "true labels",
        }

    def files(self) -> dict[str, bytes]:
        """Return the bottoms and the head."""
        found = {
            f"feature_party_{party.number}.safetensors": party.file() for party in self.parties
        }
        return found if self.trained is None else found | self.trained.files()


def head_settings(config: TrainConfig) -> HeadSettings:
    """Return how a head is trained under these settings."""
    return HeadSettings(
        epochs=config.epochs,
        batch_size=config.batch_size,
        lr=config.lr,
        weight_decay=config.weight_decay,
        seed=config.seed,
    )


def compared(config: TrainConfig, test: dict[str, float], tell: Observer) -> dict[str, Any]:
    """Return what silence gives on the same split and seed, and what the gradients gain over it."""
    asked = {name: getattr(config, name) for name in _SAME} | {"protect": SILENT}
    silent = SilentExperiment(TrainConfig.of({n: v for n, v in asked.items() if v is not None}))
    tell(Progress(step=0, steps=0, part=0, loss=None, doing="silence is trained to compare with"))
    found = silent.train()["test"]
    auc, own = found.get("auc"), test.get("auc")
    gain = None if auc is None or own is None else own - auc
    return {"auc": auc, "gain": gain, "text": _gain_words(auc, gain)}


def _gain_words(auc: float | None, gain: float | None) -> str:
    """Return what gradients gained over silence, in words."""
    if auc is None or gain is None:
        return "Test rows of one class have no AUC, so there is nothing to compare with silence."
    if gain <= 0:
        return (
            f"With no gradient sent the test AUC is {auc:.4f}, and this run is {-gain:.4f} below "
            "it: its gradients are not worth sending."
        )
    return f"With no gradient sent the test AUC is {auc:.4f}: gradients gained {gain:.4f}."


def _tell_pass(tell: Observer, doing: str, done: int, most: int) -> None:
    tell(Progress(step=done, steps=most, part=0, loss=None, doing=doing))


def _write_embeddings(folder: Path, each: list[npt.NDArray[np.float32]]) -> None:
    for number, embeddings in enumerate(each):
        np.savez(
            folder / f"embeddings_{number}.npz",
            embeddings=embeddings,
            ids=np.arange(len(embeddings), dtype=np.int64),
        )


def _constant(table: data.Table, rows: npt.NDArray[np.int64], columns: data.Columns) -> bool:
    """Return whether a party's columns have one value each."""
    for values, chosen in (
        (table.numeric, columns.numeric),
        (table.categorical, columns.categorical),
    ):
        for column in chosen:
            found = np.asarray(values[:, column])[rows]
            if (found != found[0]).any():
                return False
    return True
