"""A later worker of a label party: it computes its share of every step and keeps nothing.

Noise key, label secret, guard, ledger, journal and measures are at worker 0.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from tacit import objective
from tacit.guard import Guard
from tacit.party.build import OwnColumns, build_label
from tacit.party.config import PartyConfig
from tacit.party.journaled_label import JournaledLabelEnd, Measured
from tacit.party.label_session import LabelSession
from tacit.party.run_state import BuiltParty, States
from tacit.party.state_files import Log
from tacit.party.workers.group import WorkerGroup
from tacit.protect import get_labels
from tacit.rng import Key
from tacit.state_dir import StateFolder
from tacit.training.embedding_watch import EmbeddingWatch


@final
class LabelWorker(LabelSession):
    """A label party's worker with a number from 1 on: its table and a copy of the top model."""

    def __init__(self, config: PartyConfig, folder: StateFolder, *, log: Log) -> None:
        super().__init__(config, folder, log=log)
        self.watch = EmbeddingWatch(on_odd=config.on_odd_embeddings, log=log)
        with ExitStack() as opened:
            self._join_workers(opened)
            self._open = opened.pop_all()

    @property
    def _group(self) -> WorkerGroup:
        assert self._workers is not None  # noqa: S101 - it has a number above 0
        return self._workers

    def _results(self, ended: str) -> dict[str, Any]:
        return {
            "party": self.config.name,
            "role": self.config.role,
            "worker": self.config.worker,
            "ended": ended,
            "steps": self.state.stops()[-1],
            "common": None if self._common is None else len(self._common),
            "warnings": self.watch.warnings,
            "state": str(self.folder.path),
        }

    def _build(self, states: States | None) -> BuiltParty[JournaledLabelEnd]:
        assert self._common is not None and self.table.labels is not None  # noqa: S101, PT018
        config, common = self.config, self._common
        labels = torch.from_numpy(np.asarray(self.table.labels)[common.order])
        flips = None
        if config.labels is not None:
            labels = self._group.targets(lambda: labels)
            flips = get_labels(config.labels).flips(self.classes)
        release, finish = self._group.releasing(labels, None, scope=b"")
        assert config.protect is not None  # noqa: S101 - the configuration was checked
        built = build_label(
            config,
            OwnColumns.of(self.table, common),
            labels,
            guard=Guard(config.protect),  # only says what it needs: worker 0's makes releases
            loss=objective.corrected(self.objective, flips),
            classes=self.classes,
            parties=len(config.peers),
            key=Key.from_seed(0),  # worker 0's first weights take the place of these
            first_steps=0,
            release=release,
            watch=self.watch,
        )
        self._group.replicate(
            built.models["top"], built.optimizers["top"], new=states is None, mean=True
        )
        return BuiltParty(
            party=finish(built.party),
            models=built.models,
            optimizers=built.optimizers,
            states=dict,
        )

    def _evaluated(self, epoch: int, rows: Tensor, probs: Tensor) -> Measured:  # noqa: ARG002
        """Hand the predictions to worker 0, which measures; the peer gets no measures from here."""
        self._group.whole(rows, probs)
        return Measured(note=None, bits=0.0)
