"""A later worker of a label party: it computes its share of every step and keeps nothing.

Noise key, label secret, guard, ledger, journal and measures are at worker 0.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from tacit import objective
from tacit.guard import Guard
from tacit.party.alignment_cache import matching_of
from tacit.party.build import objective_of, own_source, top_of
from tacit.party.config import PartyConfig
from tacit.party.feature import Log, checkpoints_of, encoding_of, table_of
from tacit.party.journaled_label import JournaledLabelEnd, Measured
from tacit.party.label import reception_of
from tacit.party.label_session import LabelSession
from tacit.party.run_state import BuiltParty, RunState, States
from tacit.party.workers.group import WorkerGroup, worker_group
from tacit.protect import get_labels
from tacit.state_dir import StateFolder
from tacit.training.embedding_watch import EmbeddingWatch
from tacit.training.loop import Step
from tacit.training.party import LabelParty, adam
from tacit.wire.protocol.plan import TrainingPlan
from tacit.wire.psi.align import Alignment, Matching
from tacit.wire.transport.grpc_server import Listener


@final
class LabelWorker:
    """A label party's worker with a number from 1 on: its table and a copy of the top model.

    Args:
        config: of this party.
        folder: of this worker, within the party's state folder.
        log: hears what happens, line by line.
    """

    def __init__(self, config: PartyConfig, folder: StateFolder, *, log: Log) -> None:
        self.config = config
        self.folder = folder
        self.table = table_of(config, folder)
        assert self.table.classes is not None  # noqa: S101 - a label party's table has labels
        self.classes: int = self.table.classes
        self.plan: TrainingPlan = config.plan(classes=self.classes)
        self._log = log
        self._common: Alignment | None = None
        encoding_of(folder, self.table)
        self.watch = EmbeddingWatch(on_odd=config.on_odd_embeddings, log=log)
        workers = worker_group(config, self.table, log)
        assert workers is not None  # noqa: S101 - it has a number above 0
        self.workers: WorkerGroup = workers
        kept = workers.checkpoints(checkpoints_of(config))
        self.place: RunState[JournaledLabelEnd] = RunState(kept, self.plan, self._build)

    def run(self, listener: Listener, done: Callable[[Step, int], None]) -> dict[str, Any]:
        """Serve the feature party's worker of the same number to the end."""
        accepting = self.workers.accepting(listener)
        ended = LabelSession(
            reception=reception_of(self.config, self.plan, accepting, self._log),
            plan=self.plan,
            matching=self._matching,
            place=self.place,
            aligned=self._aligned,
            log=self._log,
            done=done,
            evaluated=self._evaluated,
            journal=None,
            begin=partial(self.workers.begin, self.place),
        ).run()
        results = {
            "party": self.config.name,
            "role": self.config.role,
            "worker": self.config.worker,
            "ended": ended,
            "steps": self.place.stops()[-1],
            "common": None if self._common is None else len(self._common),
            "warnings": self.watch.warnings,
            "state": str(self.folder.path),
        }
        self.folder.write("results.json", {"format": 1, **results})
        return results

    def close(self) -> None:
        """Let the other workers go."""
        self.workers.close()

    def _matching(self) -> Matching:
        return self.workers.matching(
            lambda: matching_of(self.config, self.folder, self.table, None, self._log)
        )

    def _aligned(self, common: Alignment) -> None:
        self._common = common
        self.workers.aligned(common)

    def _build(self, states: States | None) -> BuiltParty[JournaledLabelEnd]:
        assert self._common is not None and self.table.labels is not None  # noqa: S101, PT018
        config, common = self.config, self._common
        labels = torch.from_numpy(np.asarray(self.table.labels)[common.order])
        loss, flips = objective_of(config, self.classes), None
        if config.labels is not None:
            labels = self.workers.targets(lambda: labels)
            flips = get_labels(config.labels).flips(self.classes)
        top = top_of(config, self.table, seed=0)  # worker 0's first weights take their place
        optimizer = adam(top, config.lr, weight_decay=config.weight_decay)
        self.workers.replicate(top, optimizer, new=states is None, mean=True)
        release, finish = self.workers.releasing(labels, None, scope=b"")
        assert config.protect is not None  # noqa: S101 - the configuration was checked
        party = LabelParty(
            top,
            labels,
            guard=Guard(config.protect),  # only says what it needs: worker 0's makes releases
            objective=objective.corrected(loss, flips),
            optimizer=optimizer,
            combined_by=config.combine,
            source=own_source(self.table, common),
            release=release,
            watch=self.watch,
        )
        return BuiltParty(
            party=finish(party), models={"top": top}, optimizers={"top": optimizer}, states=dict
        )

    def _evaluated(self, epoch: int, rows: Tensor, probs: Tensor) -> Measured:  # noqa: ARG002
        """Hand the predictions to worker 0, which measures; nothing is told from here."""
        self.workers.whole(rows, probs)
        return Measured(note=None, bits=0.0)
