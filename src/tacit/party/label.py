"""The label party made from its configuration, and its run over the network."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, Final, final

import numpy as np
import torch
from torch import Tensor

from tacit import objective
from tacit.accounting import Ledger
from tacit.accounting.ledger import SavedState
from tacit.atomic import write_whole
from tacit.errors import UsageError
from tacit.guard import Guard
from tacit.party.acceptor import Acceptor, Accepts
from tacit.party.alignment_cache import keep_matching, matching_of, rounds_of
from tacit.party.budget_plan import plan_party
from tacit.party.build import combined_cut, objective_of, own_source, top_of
from tacit.party.config import PartyConfig, identity_of
from tacit.party.feature import (
    Log,
    check_rows,
    checkpoints_of,
    encoding_of,
    run_name,
    table_of,
    waiting_for,
)
from tacit.party.journal import Journal, Sync
from tacit.party.journal_records import START
from tacit.party.journaled_label import JournaledLabelEnd, JournaledLabelParty, Measured
from tacit.party.label_session import LabelSession
from tacit.party.metrics import LabelMeasures
from tacit.party.run_state import BuiltParty, CheckpointSource, RunState, States
from tacit.party.schedule import Schedule
from tacit.party.workers.group import Finish, ReleaseCut, worker_group
from tacit.rng import Key
from tacit.state_dir import StateFolder, kept_secret
from tacit.training.embedding_watch import EmbeddingWatch
from tacit.training.loop import Step
from tacit.training.party import LabelParty, adam
from tacit.types import Cut, Release
from tacit.wire.protocol.connection import Timings
from tacit.wire.protocol.header import Limits
from tacit.wire.protocol.plan import TrainingPlan
from tacit.wire.psi.align import Alignment, Matching
from tacit.wire.transport.grpc_server import Listener


def listen(config: PartyConfig, log: Log) -> Listener:
    """Open the address that feature parties connect to."""
    return Listener(
        config.endpoint, identity=identity_of(config), peers=config.peers, limits=Limits(), log=log
    )


def reception_of(config: PartyConfig, plan: TrainingPlan, listener: Accepts, log: Log) -> Acceptor:
    """Return where the feature parties come in."""
    return Acceptor(
        name=config.name,
        plan=plan,
        peers=config.peers,
        listener=listener,
        timings=Timings(),
        waiting=waiting_for(config, log),
        log=log,
    )


NOISE_KEY = "noise.key"
JOURNAL = "journal"


def noise_secret(folder: Path) -> bytes:
    """Return the noise key of a run; one is made only before anything was released."""
    place = folder / NOISE_KEY
    if (folder / JOURNAL).exists() and not place.exists():
        raise UsageError(
            f"{place}: the key of this run is gone, and with another one every step would be "
            "released anew: restore it, or name another state folder for a new run"
        )
    return kept_secret(place)


def journal_of(config: PartyConfig, secret: bytes, *, sync: Sync | None = None) -> Journal:
    """Open the journal of a run, with its witness if there is one."""
    return Journal.open(
        config.state / JOURNAL,
        run=run_name(config),
        secret=secret,
        sync=sync or config.journal_sync,
        witness=config.witness,
    )


def has_released(state: Path) -> bool:
    """Whether the journal in a state folder has a release on record."""
    place = state / JOURNAL
    return place.exists() and place.stat().st_size > START


RANDOMISATION: Final = "randomisation.json"
_FORMAT: Final = 1
_WAY_OUT: Final = "or name another state folder for a new run"


def kept_label_secret(config: PartyConfig, folder: StateFolder, *, classes: int) -> bytes | None:
    """Return the label secret of a run, None where it randomises nothing.

    The first call keeps what stands for the secret, and the mechanism with its privacy parameters.
    A later one refuses any other: it would be a second release of the same labels, which no
    checkpoint need know of. Post-processing such as ``correction`` may change. Where there were
    releases before and nothing was kept, an earlier version began the run.
    """
    now: dict[str, Any] = {"format": _FORMAT, "randomisation": None}
    held, secret = folder.read(RANDOMISATION), None
    if config.labels is not None:
        beside = config.data.with_name(f"{config.data.name}.secret")
        place = config.label_secret or beside
        if isinstance(held, dict) and "secret" in held and not place.exists():
            raise UsageError(
                f"{place}: the label secret of this run is gone, and with another one labels would "
                f"be randomised anew: restore it, {_WAY_OUT}"
            )
        secret = kept_secret(place)
        made = Guard("none", labels=config.labels, label_secret=secret, classes=classes)
        assert made.label_guard is not None  # noqa: S101 - it was asked for
        now |= {
            "randomisation": made.label_guard.mechanism.randomisation,
            "classes": classes,
            "secret": made.label_guard.secret_tag,
        }
    if held is None and (secret is None or not has_released(folder.path)):
        folder.write(RANDOMISATION, now)
    elif held != now:
        raise UsageError(f"{folder.path / RANDOMISATION}: {_complaint(held, now, config.labels)}")
    return secret


def _complaint(held: Any, now: dict[str, Any], spec: str | None) -> str:  # noqa: ANN401
    """Return why a run does not go on with another randomisation than it began with."""
    if not isinstance(held, dict) or held.get("format") != _FORMAT:
        return (
            f"labels {spec}: this run was begun by another version, whose coins are not these, and "
            f"going on would release labels a second time: end it with that version, {_WAY_OUT}"
        )
    began, asked = held.get("randomisation"), now["randomisation"]
    if began != asked or held.get("classes") != now.get("classes"):
        return (
            f"this run began with labels {began or 'as they are'}, and {asked or 'true labels'} "
            f"would be a second release of them: set it back, {_WAY_OUT}; what was released under "
            "the first counts as well"
        )
    return (
        "this run began with another label secret, and labels would be randomised anew: bring that "
        f"one back, {_WAY_OUT}; its epsilon adds to the first"
    )


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
class LabelSetup:
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
        self.plan: TrainingPlan = config.plan(classes=self.classes)
        self._log = log
        self._common: Alignment | None = None
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
            self.workers = worker_group(config, self.table, log)
            kept: CheckpointSource = checkpoints_of(config)
            if self.workers is not None:
                opened.callback(self.workers.close)
                kept = self.workers.checkpoints(checkpoints_of(config))
            self.place: RunState[JournaledLabelEnd] = RunState(kept, self.plan, self._build)
            self._check_journal()
            self._open = opened.pop_all()

    def run(self, listener: Listener, done: Callable[[Step, int], None]) -> dict[str, Any]:
        """Serve the feature party to the end; return what was measured."""
        config, workers = self.config, self.workers
        accepting = listener if workers is None else workers.accepting(listener)
        ended = LabelSession(
            reception=reception_of(config, self.plan, accepting, self._log),
            plan=self.plan,
            matching=self._matching,
            place=self.place,
            aligned=self._aligned,
            log=self._log,
            done=done,
            evaluated=self._evaluated,
            journal=self.journal,
            begin=partial(workers.begin, self.place) if workers else lambda: None,
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
            self._log(
                f"{self.journal.path}: {self.journal.cut} bytes of a last record that was "
                "never finished were cut off; nothing was sent for it"
            )

    def _matching(self) -> Matching:
        make = partial(matching_of, self.config, self.folder, self.table, self.rounds, self._log)
        return make() if self.workers is None else self.workers.matching(make)

    def _aligned(self, common: Alignment) -> None:
        self._common = common
        keep_matching(self.folder, self.table, common)
        if self.workers is not None:
            self.workers.aligned(common)

    def _build(self, states: States | None) -> BuiltParty[JournaledLabelEnd]:
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
            randomize = partial(self._randomized, guard, truth)
            labels = randomize() if self.workers is None else self.workers.targets(randomize)
        top = top_of(config, self.table, seed=Key(self._key))
        optimizer = adam(top, config.lr, weight_decay=config.weight_decay)
        journal, scope = self.journal, bytes.fromhex(common.digest)
        release: ReleaseCut | None = None
        finish: Finish = partial(JournaledLabelParty, journal=journal, scope=scope)
        if self.workers is not None:
            self.workers.replicate(top, optimizer, new=states is None, mean=True)
            release, finish = self.workers.releasing(labels, journal, scope=scope)
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
        return BuiltParty(
            party=finish(party),
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
        if self.workers is not None:
            rows, probs = self.workers.whole(rows, probs) or (rows, probs)
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


def _states(guard: Guard) -> dict[str, SavedState]:
    assert guard.ledger is not None  # noqa: S101 - a label party always counts
    states: dict[str, SavedState] = {"guard": guard.to_state(), "ledger": guard.ledger.to_state()}
    if guard.label_guard is not None:
        states["label_guard"] = guard.label_guard.to_state()
    return states
