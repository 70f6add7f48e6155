"""The process of the label party that holds its secrets: it releases, counts and measures."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from tacit import objective
from tacit.accounting import Ledger
from tacit.accounting.ledger import SavedState
from tacit.atomic import write_whole
from tacit.errors import UsageError
from tacit.guard import Guard
from tacit.party.alignment_cache import keep_matching, rounds_of
from tacit.party.budget_plan import plan_party
from tacit.party.build import OwnColumns, build_label, guard_of
from tacit.party.config import PartyConfig
from tacit.party.embeddings import StoredEmbeddings, UploadForm
from tacit.party.journal import Journal
from tacit.party.journaled_label import JournaledLabelEnd, JournaledLabelParty, Measured
from tacit.party.label_head import head_of, keep_head, train_head
from tacit.party.label_secrets import journal_of, kept_label_secret, noise_secret
from tacit.party.label_session import LabelSession
from tacit.party.metrics import LabelMeasures, results_of, told_of
from tacit.party.run_state import BuiltParty, States
from tacit.party.schedule import Schedule
from tacit.party.state_files import Log, checkpoints_of, run_name
from tacit.party.upload import receive_embeddings
from tacit.party.workers.group import Finish, ReleaseCut
from tacit.rng import Key
from tacit.state_dir import StateFolder
from tacit.training.embedding_watch import EmbeddingWatch
from tacit.wire.protocol.connection import Connection
from tacit.wire.psi.align import Alignment
from tacit.wire.psi.rounds import Rounds

_BY_RELEASES = (
    "leak",
    "memory_leak",
    "objective_record",
    "sum_kl_per_release",
    "certificate",
    "label_certificate",
)
"""What only a process that has made releases knows; one that finds the run ended keeps it."""


@final
class LabelPartySession(LabelSession):
    """The label party, or worker 0 of it: its guard, its journal, its secrets and measures."""

    journal: Journal
    rounds: Rounds

    def __init__(self, config: PartyConfig, folder: StateFolder, *, log: Log) -> None:
        super().__init__(config, folder, log=log)
        self._head = head_of(config)
        self.measures = LabelMeasures(config, folder, classes=self.classes)
        self._key = noise_secret(folder.path)
        self._label_secret = kept_label_secret(config, folder, classes=self.classes)
        self.watch = EmbeddingWatch(on_odd=config.on_odd_embeddings, key=Key(self._key), log=log)
        with ExitStack() as opened:
            self.rounds = opened.enter_context(rounds_of(folder, self.table))
            self.journal = opened.enter_context(journal_of(config, self._key))
            repeats = self.journal.allowed.total()
            self.planned = plan_party(config, classes=self.classes, repeats=repeats)
            self._join_workers(opened)
            self._check_journal()
            self._open = opened.pop_all()

    def _check_journal(self) -> None:
        """Refuse to go on from a checkpoint whose releases are not on record."""
        latest, last = self.state.stops()[-1], self.journal.last
        if latest > (0 if last is None else last.step + 1):
            raise UsageError(
                f"{self.journal.path}: ends before the checkpoint of step {latest}, so what was "
                "released is not known: restore the journal, or start a new run"
            )
        if self.journal.behind is not None:
            self._log(self.journal.behind)
        if self.journal.cut:
            self._log(
                f"{self.journal.path}: {self.journal.cut} bytes of a last record that was "
                "never finished were cut off; nothing was sent for it"
            )

    def _aligned(self, common: Alignment) -> None:
        keep_matching(self.folder, self.table, common)
        super()._aligned(common)

    def _build(self, states: States | None) -> BuiltParty[JournaledLabelEnd]:
        assert self._common is not None  # noqa: S101 - the run aligns before it builds
        config, common = self.config, self._common
        assert self.table.labels is not None  # noqa: S101 - a label party's table has labels
        truth = torch.from_numpy(np.asarray(self.table.labels)[common.order])
        watch = self.measures.watcher(truth, None if states is None else states.get("memory"))
        guard = guard_of(
            config,
            run=run_name(config),
            classes=self.classes,
            examples=len(common),
            planned=self.planned,
            watch=watch,
            always_count=True,
            key=self._key,
            label_secret=self._label_secret,
        )
        if states is not None:
            self._load(guard, states)
        self.watch.begin(states)
        labels = truth
        if config.labels is not None:
            randomize = partial(self._randomized, guard, truth)
            labels = randomize() if self._workers is None else self._workers.targets(randomize)
        journal, scope = self.journal, bytes.fromhex(common.digest)
        release: ReleaseCut | None = None
        finish: Finish = partial(JournaledLabelParty, journal=journal, scope=scope)
        if self._workers is not None:
            release, finish = self._workers.releasing(labels, journal, scope=scope)
        built = build_label(
            config,
            OwnColumns.of(self.table, common),
            labels,
            guard=guard,
            loss=objective.corrected(self.objective, guard.flips),
            classes=self.classes,
            parties=len(config.peers),
            key=Key(self._key),
            first_steps=Schedule.of(self.plan, len(common)).per_epoch,
            embedded=self.measures.embedded,
            release=release,
            watch=self.watch,
        )
        if self._workers is not None:
            self._workers.replicate(
                built.models["top"], built.optimizers["top"], new=states is None, mean=True
            )
        self.measures.learner = built.party.learner
        return BuiltParty(
            party=finish(built.party),
            models=built.models,
            optimizers=built.optimizers,
            states=lambda: _states(guard) | self.measures.states() | self.watch.states(),
        )

    def _randomized(self, guard: Guard, truth: Tensor) -> Tensor:
        assert self._common is not None  # noqa: S101 - the run aligns before it builds
        labels = guard.labels(self._common.ids, truth)
        self.measures.number(labels.numbers)
        return labels

    def _load(self, guard: Guard, states: States) -> None:
        guard.load_state(*states["guard"])
        arrays, values = states["ledger"]
        guard.ledger = Ledger.from_state(
            arrays,
            values,
            run=run_name(self.config),
            budget=self.config.budget,
            per_release=None if self.planned is None else self.planned.sum_kl,
            measured=self.config.budget is not None,
        )
        if guard.label_guard is not None:
            guard.label_guard.load_state(*states["label_guard"])

    def _evaluated(self, epoch: int, rows: Tensor, probs: Tensor) -> Measured:
        """Keep the measures of an epoch; return what the feature party is told of them."""
        assert self._common is not None and self.table.labels is not None  # noqa: S101, PT018
        if self._workers is not None:
            rows, probs = self._workers.whole(rows, probs) or (rows, probs)
        truth = np.asarray(self.table.labels)[self._common.order[rows.numpy()]]
        test = self.measures.score(probs, truth)
        self.measures.keep(epoch, test, epoch=epoch)
        line = ", ".join(f"test {name} {value:.4f}" for name, value in test.items())
        self._log(f"epoch {epoch + 1}: {line}")
        return told_of(test, shared=self.config.share_metrics)

    def _finished(self) -> bool:
        if not super()._finished() or not self.config.private_head:
            return super()._finished()
        common = self._matching().held
        steps = self.state.stops()[-1]
        return common is not None and all(s.complete for s in self._stored(common, steps))

    def _stored(self, common: Alignment, steps: int) -> list[StoredEmbeddings]:
        """Return what there is of embeddings by the bottoms as they are after so many steps."""
        form = UploadForm.of(self.plan, len(common))
        name = f"{common.digest} after {steps} steps"
        return [
            StoredEmbeddings(self.folder, peer, common=name, form=form)
            for peer in self.config.peers
        ]

    def _trained(self, connections: list[Connection], steps: int) -> None:
        if not self.config.private_head:
            return
        assert self._common is not None  # noqa: S101 - the run has aligned
        self._log("embeddings of all common rows by the trained bottom models are taken")
        receive_embeddings(connections, self._stored(self._common, steps), anew=True)

    def _private_head(self, test: dict[str, float] | None) -> dict[str, Any]:
        """Train the head that predicts, on true labels; nothing of it is ever sent."""
        common = self._common or self._matching().held
        if not self.config.private_head or common is None:
            return {}
        steps = self.state.stops()[-1]
        stored = self._stored(common, steps)
        trained = train_head(
            self.config, self._head, table=self.table, common=common, stored=stored, log=self._log
        )
        width = sum(held.form.width for held in stored)
        keep_head(self.folder, trained, width=width, classes=self.classes, steps=steps)
        return {"head": trained.record(), "test": trained.test, "public_test": test}

    def _write_truth(self) -> None:
        """Write the labels by position in the common order, for an audit of what was recorded."""
        if self._common is None or self.table.labels is None:
            return
        labels = np.asarray(self.table.labels)[self._common.order].tolist()
        rows = sorted(Schedule.of(self.plan, len(labels)).train.tolist())
        text = "id,label\n" + "".join(f"{row},{labels[row]}\n" for row in rows)
        write_whole(self.folder.path / "labels.csv", text.encode())

    def _ledger(self) -> Ledger | None:
        """Return the ledger as it was stored, for a run that had ended before this process.

        The counts of odd embeddings are taken from there too.
        """
        held = checkpoints_of(self.config).latest()
        if held is None:
            return None
        self.watch.begin(held.states)
        arrays, values = held.states["ledger"]
        name, budget = run_name(self.config), self.config.budget
        return Ledger.from_state(arrays, values, run=name, budget=budget)

    def _results(self, ended: str) -> dict[str, Any]:
        config, built = self.config, self.state.built
        guard = None if built is None else built.party.party.guard
        found = {
            "party": config.name,
            "role": config.role,
            "ended": ended,
            **results_of(
                config,
                self.measures,
                dataset=self.table.name,
                objective=self.objective,
                steps=self.state.stops()[-1],
                planned=self.planned,
                guard=guard,
                ledger=self._ledger() if guard is None else guard.ledger,
                watch=self.watch,
            ),
            "releases": self.state.stops()[-1] * len(config.peers),  # a message to each of them
            "common": None if self._common is None else len(self._common),
            "matching_rounds": self.rounds.number,
            "allowed_again": dict(self.journal.allowed),
            "state": str(self.folder.path),
        }
        kept = self.folder.read("results.json") or {}
        missing = [name for name in _BY_RELEASES if not found[name] and kept.get(name)]
        results = found | {name: kept[name] for name in missing}
        self._log(results["verdict"]["text"])
        results |= self._private_head(results["test"])
        if config.write_truth:
            self._write_truth()
        return results


def _states(guard: Guard) -> dict[str, SavedState]:
    assert guard.ledger is not None  # noqa: S101 - a label party always counts
    states: dict[str, SavedState] = {"guard": guard.to_state(), "ledger": guard.ledger.to_state()}
    if guard.label_guard is not None:
        states["label_guard"] = guard.label_guard.to_state()
    return states
