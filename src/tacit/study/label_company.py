"""The label party made from its configuration, and its run over the network."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict
from functools import partial
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from tacit import objective
from tacit.errors import UsageError
from tacit.guard import Guard
from tacit.measure import Ledger
from tacit.rng import Key
from tacit.runtime.checkpoint import State
from tacit.runtime.embedding_watch import EmbeddingWatch
from tacit.runtime.grpc_listener import Listener
from tacit.runtime.journalled import KeptLabel, Measured
from tacit.runtime.label_run import LabelRun
from tacit.runtime.matching import Common, Matching
from tacit.runtime.party import LabelParty, adam
from tacit.runtime.place import Place, States, Works
from tacit.runtime.plan import Plan
from tacit.runtime.schedule import Schedule
from tacit.runtime.session import Step
from tacit.runtime.state_folder import StateFolder, write_whole
from tacit.study.budget_plan import plan_party
from tacit.study.company import Log, check_rows, checkpoints_of, encoding_of, run_name, table_of
from tacit.study.kept_labels import kept_label_secret
from tacit.study.kept_matching import keep_matching, matching_of, rounds_of
from tacit.study.label_journal import journal_of, noise_secret
from tacit.study.label_measures import LabelMeasures
from tacit.study.label_model import combined_cut, objective_of, own_source, top_of
from tacit.study.label_parts import reception_of
from tacit.study.party_config import PartyConfig
from tacit.study.together import team_of
from tacit.types import Cut, Release

__all__ = ["LabelCompany"]

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
class LabelCompany:
    """The label party: its table, its top model, its guard, its journal.

    The first weights of the top model, and whatever its objective draws, come out of all 256 bits
    of the noise key: a feature party that could search them would tell more from the gradients.
    """

    def __init__(self, config: PartyConfig, folder: StateFolder, *, log: Log) -> None:
        self.config = config
        self.folder = folder
        self.table = table_of(config, folder)
        check_rows(config, len(self.table))
        assert self.table.classes is not None  # noqa: S101 - a label party's table has labels
        self.classes: int = self.table.classes
        self.plan: Plan = config.plan(classes=self.classes)
        self._log = log
        self._common: Common | None = None
        encoding_of(folder, self.table)
        self.measures = LabelMeasures(config, folder, classes=self.classes)
        self.objective = objective_of(config, self.classes)
        self._key = noise_secret(folder.path)
        self._label_secret = kept_label_secret(config, folder, classes=self.classes)
        self.watch = EmbeddingWatch(on_odd=config.on_odd_embeddings, key=Key(self._key), log=log)
        with ExitStack() as opened:
            self.rounds = opened.enter_context(rounds_of(folder, self.table))
            self.journal = opened.enter_context(journal_of(config, self._key))
            repeats = self.journal.allowed.total()
            self.planned = plan_party(config, classes=self.classes, repeats=repeats)
            self.team = team_of(config, self.table, log)
            opened.callback(self.team.close)
            kept = self.team.checkpoints(checkpoints_of(config))
            self.place: Place[KeptLabel] = Place(kept, self.plan, self._build)
            self._check_journal()
            self._open = opened.pop_all()

    def run(self, listener: Listener, done: Callable[[Step, int], None]) -> dict[str, Any]:
        """Serve the feature party to the end; return what was measured."""
        config = self.config
        ended = LabelRun(
            reception=reception_of(config, self.plan, self.team.accepting(listener), self._log),
            plan=self.plan,
            matching=self._matching,
            place=self.place,
            aligned=self._aligned,
            log=self._log,
            done=done,
            evaluated=self._evaluated,
            journal=self.journal,
            begin=partial(self.team.begin, self.place),
        ).run()
        results = self._results(ended)
        self._log(results["verdict"]["text"])
        if config.write_truth:
            self._write_truth()
        self.folder.write("results.json", {"format": 1, **results})
        return results

    def close(self) -> None:
        """Let another process have the journal, and the other workers go."""
        self._open.close()

    def _check_journal(self) -> None:
        """Refuse to go on from a checkpoint whose releases are not on record."""
        latest, last = self.place.stops()[-1], self.journal.last
        if latest > (0 if last is None else last.step + 1):
            raise UsageError(
                f"{self.journal.path}: ends before the checkpoint of step {latest}, so what was "
                "released is not known: restore the journal, or start a new run"
            )
        if self.journal.behind is not None:
            self._log(self.journal.behind)
        if self.journal.cut:
            self._log(f"{self.journal.path}: {self.journal.cut} bytes of a last record that was "
                      "never finished were cut off; nothing was sent for it")  # fmt: skip

    def _matching(self) -> Matching:
        return self.team.matching(
            lambda: matching_of(self.config, self.folder, self.table, self.rounds, self._log)
        )

    def _aligned(self, common: Common) -> None:
        self._common = common
        keep_matching(self.folder, self.table, common)
        self.team.aligned(common)

    def _build(self, states: States | None) -> Works[KeptLabel]:
        assert self._common is not None  # noqa: S101 - the run aligns before it builds
        config, common = self.config, self._common
        assert self.table.labels is not None  # noqa: S101 - a label party's table has labels
        truth = torch.from_numpy(np.asarray(self.table.labels)[common.order])
        watch = self.measures.watcher(truth, None if states is None else states.get("memory"))
        guard = self._guard(watch)
        if states is not None:
            self._load(guard, states)
        self.watch.begin(states)
        labels = truth
        if config.labels is not None:
            labels = self.team.targets(lambda: self._randomized(guard, truth))
        top = top_of(config, self.table, seed=Key(self._key))
        optimizer = adam(top, config.lr, weight_decay=config.weight_decay)
        self.team.tie(top, optimizer, new=states is None, mean=True)
        release, end = self.team.releasing(labels, self.journal, scope=bytes.fromhex(common.digest))
        party = LabelParty(
            top,
            labels,
            guard=guard,
            objective=objective.corrected(self.objective, guard.flips),
            optimizer=optimizer,
            combined_by=config.combine,
            source=own_source(self.table, common),
            width=combined_cut(config, self.classes),
            key=Key(self._key),
            first_steps=Schedule.of(self.plan, len(common)).per_epoch,
            embedded=self.measures.embedded,
            release=release,
            watch=self.watch,
        )
        self.measures.learner = party.learner
        return Works(
            party=end(party),
            models={"top": top, **party.learner.models},
            optimizers={"top": optimizer, **party.learner.optimizers},
            states=lambda: _states(guard) | self.measures.states() | self.watch.states(),
        )

    def _randomized(self, guard: Guard, truth: Tensor) -> Tensor:
        assert self._common is not None  # noqa: S101 - the run aligns before it builds
        labels = guard.labels(self._common.ids, truth)
        self.measures.number(labels.numbers)
        return labels

    def _guard(self, watch: Callable[[Cut, Release], None]) -> Guard:
        config = self.config
        assert config.protect is not None and self._common is not None  # noqa: S101, PT018
        ledger = Ledger(
            run=run_name(config),
            budget=config.budget,
            per_release=self._per_release,
            examples=len(self._common),
            measured=config.budget is not None,
        )
        return Guard(
            config.protect,
            key=self._key,
            watch=watch,
            labels=config.labels,
            label_secret=self._label_secret,
            classes=self.classes,
            ledger=ledger,
        )

    @property
    def _per_release(self) -> float | None:
        return None if self.planned is None else self.planned.sum_kl

    def _load(self, guard: Guard, states: States) -> None:
        guard.load_state(*states["guard"])
        arrays, values = states["ledger"]
        guard.ledger = Ledger.from_state(
            arrays,
            values,
            run=run_name(self.config),
            budget=self.config.budget,
            per_release=self._per_release,
            measured=self.config.budget is not None,
        )
        if guard.label_guard is not None:
            guard.label_guard.load_state(*states["label_guard"])

    def _evaluated(self, epoch: int, rows: Tensor, probs: Tensor) -> Measured:
        """Keep the measures of an epoch; return what the feature party is told of them."""
        assert self._common is not None and self.table.labels is not None  # noqa: S101, PT018
        rows, probs = self.team.whole(rows, probs) or (rows, probs)
        truth = np.asarray(self.table.labels)[self._common.order[rows.numpy()]]
        line = self.measures.evaluated(epoch, probs, truth)
        self._log(f"epoch {epoch + 1}: {line}")
        return self.measures.told(epoch)

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
        config, works = self.config, self.place.works
        guard = None if works is None else works.party.party.guard
        certificate = None if guard is None else guard.last_certificate
        ledger = self._ledger() if guard is None else guard.ledger
        found = {
            "party": config.name,
            "role": config.role,
            "ended": ended,
            "dataset": self.table.name,
            "model": config.model,
            "epochs": config.epochs,
            "protection": config.protect,
            "objective": str(self.objective),
            "labels": config.labels,
            "budget": config.budget,
            "planned": None if self.planned is None else self.planned.record(),
            "steps": self.place.stops()[-1],
            "common": None if self._common is None else len(self._common),
            "matching_rounds": self.rounds.number,
            **self.measures.record(),
            "warnings": self.watch.warnings,
            "certificate": None if certificate is None else vars(certificate),
            "label_certificate": None
            if guard is None or guard.label_guard is None
            else asdict(guard.label_certificate()),
            "ledger": None if ledger is None else asdict(ledger.summary()),
            "allowed_again": dict(self.journal.allowed),
            "state": str(self.folder.path),
        }
        kept = self.folder.read("results.json") or {}
        missing = [name for name in _BY_RELEASES if not found[name] and kept.get(name)]
        return found | {name: kept[name] for name in missing}


def _states(guard: Guard) -> dict[str, State]:
    assert guard.ledger is not None  # noqa: S101 - a label party always counts
    states: dict[str, State] = {"guard": guard.to_state(), "ledger": guard.ledger.to_state()}
    if guard.label_guard is not None:
        states["label_guard"] = guard.label_guard.to_state()
    return states
