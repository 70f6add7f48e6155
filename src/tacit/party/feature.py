"""A party made from its configuration, and its run over the network."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, closing
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any, final

import numpy as np
from torch import nn

from tacit import data, nets
from tacit.errors import UsageError
from tacit.party.alignment_cache import keep_matching, matching_of, rounds_of
from tacit.party.backoff import Backoff
from tacit.party.checkpoint import CheckpointStore
from tacit.party.config import PartyConfig, identity_of
from tacit.party.feature_session import FeatureSession
from tacit.party.record_exchange import RecordCopy
from tacit.party.run_state import BuiltParty, CheckpointSource, RunState, States
from tacit.party.workers.group import worker_group
from tacit.state_dir import StateFolder
from tacit.tape.tape import TapeWriter
from tacit.training.party import FeatureEnd, FeatureParty, adam
from tacit.training.recorder import RecordedFeatureParty
from tacit.wire.protocol.connection import Timings
from tacit.wire.protocol.header import Limits
from tacit.wire.protocol.plan import TrainingPlan
from tacit.wire.psi.align import Alignment, Matching
from tacit.wire.transport.base import Transport
from tacit.wire.transport.grpc_client import dial

Log = Callable[[str], None]
ENCODING = "encoding.json"
LABELS = "labels.json"
RECORDS = "records"
TABLES = "tables"
CONNECTING = 5.0


def dialler(config: PartyConfig) -> Callable[[], Transport]:
    """Return what opens a line to the label party."""
    return partial(
        dial,
        config.endpoint,
        identity=identity_of(config),
        peer=config.peers[0],
        limits=Limits(),
        timeout=CONNECTING,
    )


def waiting_for(config: PartyConfig, log: Log) -> Backoff:
    """Return the wait for the other party, as long as the configuration allows."""
    where = f" at {config.endpoint}" if config.role == "feature" else ""
    return Backoff(f"{' and '.join(config.peers)}{where}", limit=config.wait, log=log)


def run_name(config: PartyConfig) -> str:
    """Return what names the run in this party's own files."""
    return f"{config.name} with {', '.join(config.peers)}"


def table_of(config: PartyConfig, folder: StateFolder) -> data.PartyTable:
    """Return the party's table; what was read of it is kept in its state folder, nowhere else."""
    return data.load_party(config.data, role=config.role, own_cache=folder.folder(TABLES))


def encoding_of(folder: StateFolder, table: data.PartyTable) -> None:
    """Keep how the table was coded and what stands for its labels, or refuse another table."""
    marks = {ENCODING: table.encoding.to_json()}
    if table.labels is not None:
        inorder = np.asarray(table.labels)[np.argsort(table.ids)]
        marks[LABELS] = sha256(inorder.tobytes()).hexdigest()
    held = {name: folder.read(name) for name in marks}
    for name, mark in marks.items():
        if held[name] not in (None, mark):
            raise UsageError(
                f"{folder.path / name}: this run began with another table than {table.name} is "
                "today: bring that one back, or name another state folder for a new run"
            )
    for name, mark in marks.items():
        if held[name] is None:
            folder.write(name, mark)


def checkpoints_of(config: PartyConfig) -> CheckpointStore:
    """Return where a party keeps its states."""
    return CheckpointStore(config.state / "checkpoints", run=run_name(config), keep=3)


def check_rows(config: PartyConfig, rows: int) -> None:
    """Refuse a table that cannot fill one batch, however many of its rows are common."""
    left = rows - round(rows * config.test_percent / 100)
    if left < config.batch_size:
        raise UsageError(
            f"data {config.data}: its {rows} rows leave at most {left} to train on, fewer than one "
            f"batch of {config.batch_size}, so there would be no step: take a smaller batch_size "
            "on both sides, or more rows"
        )


def bottom_of(config: PartyConfig, table: data.PartyTable) -> nn.Module:
    """Return the feature party's part of the model as it is before the first step.

    The seed is that of the plan, which both parties know: these weights are no secret.
    """
    numeric, cardinalities = table.inputs
    return nets.get(config.model).bottom(
        nets.Inputs(numeric, cardinalities),
        cut=config.cut,
        classes=config.classes,
        seed=config.seed,
        party=config.number,
    )


@final
class FeatureSetup:
    """A feature party: its table, its bottom model, its state folder.

    Args:
        config: of this party.
        folder: its state folder, held by this process.
        log: hears what happens, line by line.
    """

    def __init__(self, config: PartyConfig, folder: StateFolder, *, log: Log) -> None:
        self.config = config
        self.folder = folder
        self.table = table_of(config, folder)
        check_rows(config, len(self.table))
        self.plan: TrainingPlan = config.plan(classes=config.classes)
        self._log = log
        self._common: Alignment | None = None
        self.tape: TapeWriter | None = None
        encoding_of(folder, self.table)
        self.records, self.rounds = None, None
        with ExitStack() as opened:
            if not config.worker:  # worker 0 of the label party has the journal
                records = RecordCopy.open(folder.path / RECORDS, run=run_name(config))
                self.records = opened.enter_context(closing(records))
                self.rounds = opened.enter_context(rounds_of(folder, self.table))
            self.workers = worker_group(config, self.table, log)
            kept: CheckpointSource = checkpoints_of(config)
            if self.workers is not None:
                opened.callback(self.workers.close)
                kept = self.workers.checkpoints(checkpoints_of(config))
            self.place: RunState[FeatureEnd] = RunState(kept, self.plan, self._build)
            self._open = opened.pop_all()

    def close(self) -> None:
        """Let the other workers go, and close the records of what was matched and released."""
        self._open.close()

    def run(self, done: Callable[[int, int], None]) -> dict[str, Any]:
        """Train to the end; return what a feature party knows of it."""
        config, workers = self.config, self.workers
        dialled = dialler(config)
        ended = FeatureSession(
            name=config.name,
            number=config.number,
            plan=self.plan,
            matching=self._matching,
            place=self.place,
            aligned=self._aligned,
            dial=dialled if workers is None else workers.dialling(dialled),
            timings=Timings(),
            waiting=waiting_for(config, self._log),
            log=self._log,
            done=done,
            records=self.records,
            begin=partial(workers.begin, self.place) if workers else lambda: None,
        ).run()
        if self.tape is not None:
            self.tape.close()
        results = {
            "party": config.name,
            "role": config.role,
            **({} if config.worker is None else {"worker": config.worker}),
            "ended": ended,
            "steps": self.place.position or self.place.stops()[-1],
            "common": None if self._common is None else len(self._common),
            **({} if self.rounds is None else {"matching_rounds": self.rounds.number}),
            "state": str(self.folder.path),
        }
        self.folder.write("results.json", {"format": 1, **results})
        return results

    def _matching(self) -> Matching:
        make = partial(matching_of, self.config, self.folder, self.table, self.rounds, self._log)
        return make() if self.workers is None else self.workers.matching(make)

    def _aligned(self, common: Alignment) -> None:
        self._common = common
        keep_matching(self.folder, self.table, common)
        if self.workers is not None:
            self.workers.aligned(common)

    def _build(self, states: States | None) -> BuiltParty[FeatureEnd]:
        assert self._common is not None  # noqa: S101 - the run aligns before it builds
        config = self.config
        bottom = bottom_of(config, self.table)
        optimizer = adam(bottom, config.lr, weight_decay=config.weight_decay)
        if self.workers is not None:
            self.workers.replicate(bottom, optimizer, new=states is None, mean=False)
        source = self.table.source(self._common.order)
        party: FeatureEnd = FeatureParty(bottom, source, optimizer=optimizer, depth=config.depth)
        if config.record:
            party = RecordedFeatureParty(party, self._next_tape())
        return BuiltParty(
            party=party, models={"bottom": bottom}, optimizers={"bottom": optimizer}, states=dict
        )

    def _next_tape(self) -> TapeWriter:
        """Begin another tape; steps that are taken again after a return are on the next one."""
        if self.tape is not None:
            self.tape.close()
        self.tape = TapeWriter(_unused(self.folder.path, "seen-{}.tape"))
        return self.tape


def _unused(folder: Path, pattern: str) -> Path:
    number = 0
    while (place := folder / pattern.format(number)).exists():
        number += 1
    return place
