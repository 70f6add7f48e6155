"""A feature party's whole run: find the label party, agree where to begin, train, come back."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, closing
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any, final

from safetensors.torch import save

from tacit.party.alignment_cache import keep_matching, matching_of, rounds_of
from tacit.party.backoff import Backoff
from tacit.party.build import OwnColumns, build_feature
from tacit.party.calling import Caller, dialler
from tacit.party.config import PartyConfig
from tacit.party.embeddings import UPLOADED, UploadForm
from tacit.party.greeting import greet
from tacit.party.proxies import RemoteLabel
from tacit.party.record_exchange import RecordCopy, hand_back
from tacit.party.run_state import BuiltParty, CheckpointSource, RunState, States
from tacit.party.schedule import Part, Schedule, follow
from tacit.party.state_files import (
    Log,
    check_rows,
    checkpoints_of,
    encoding_of,
    run_name,
    table_of,
    waiting_for,
)
from tacit.party.upload import send_embeddings
from tacit.party.workers.group import worker_group
from tacit.state_dir import StateFolder
from tacit.tape.tape import TapeWriter
from tacit.training.loop import Step, predict
from tacit.training.party import FeatureEnd
from tacit.training.recorder import RecordedFeatureParty
from tacit.wire.protocol.connection import Connection
from tacit.wire.protocol.messages import Bye, CheckpointMessage
from tacit.wire.protocol.plan import TrainingPlan
from tacit.wire.psi.align import Alignment, join_common

RECORDS = "records"


@final
class FeatureSession:
    """A feature party: its table, its bottom model, its state folder, and its run.

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
        self._tape: TapeWriter | None = None
        encoding_of(folder, self.table)
        self._records, self._rounds = None, None
        with ExitStack() as opened:
            if not config.worker:  # worker 0 of the label party has the journal
                records = RecordCopy.open(folder.path / RECORDS, run=run_name(config))
                self._records = opened.enter_context(closing(records))
                self._rounds = opened.enter_context(rounds_of(folder, self.table))
            self._workers = worker_group(config, self.table, log)
            kept: CheckpointSource = checkpoints_of(config)
            if self._workers is not None:
                opened.callback(self._workers.close)
                kept = self._workers.checkpoints(checkpoints_of(config))
            self.state: RunState[FeatureEnd] = RunState(kept, self.plan, self._build)
            self._open = opened.pop_all()

    def close(self) -> None:
        """Let the other workers go, and close the records of what was matched and released."""
        self._open.close()

    def run(self, done: Callable[[int, int], None]) -> dict[str, Any]:
        """Train to the end; return what a feature party knows of it.

        ``done`` hears of every finished step, with the number of all.
        """
        config = self.config
        ended = self._reach_the_end(waiting_for(config, self._log), done)
        if self._tape is not None:
            self._tape.close()
        results = {
            "party": config.name,
            "role": config.role,
            **({} if config.worker is None else {"worker": config.worker}),
            "ended": ended,
            "steps": self.state.position or self.state.stops()[-1],
            "common": None if self._common is None else len(self._common),
            **({} if self._rounds is None else {"matching_rounds": self._rounds.number}),
            "state": str(self.folder.path),
        }
        self.folder.write("results.json", {"format": 1, **results})
        return results

    def _reach_the_end(self, waiting: Backoff, done: Callable[[int, int], None]) -> str:
        """Go on through lost connections and restarts; return how it ended."""
        connect = dialler(self.config)
        if self._workers is not None:
            connect = self._workers.dialling(connect)
        offer: int | None = None

        def converse(connection: Connection) -> bool:
            nonlocal offer
            offer = self._converse(connection, offer, waiting, done)
            return offer is None

        def begin() -> None:
            if self._workers is not None:
                self._workers.begin(self.state)

        caller = Caller(plan=self.plan, connect=connect, waiting=waiting, log=self._log)
        return caller.talk(
            converse,
            position=lambda: self.state.position,
            finished=self._finished,
            begin=begin,
            ended=self.state.save,
        )

    def _converse(
        self,
        connection: Connection,
        offer: int | None,
        waiting: Backoff,
        done: Callable[[int, int], None],
    ) -> int | None:
        """Talk to the end of the run; return a smaller offer where the answer does not serve."""
        config, stops = self.config, self.state.stops()
        offer = stops[-1] if offer is None else offer
        start = greet(
            connection, name=config.name, number=config.number, plan=self.plan, offer=offer
        )
        if start not in stops:
            connection.send(Bye())
            return max(stop for stop in stops if stop < start)
        common = self._align(connection)
        if self._records is not None:
            hand_back(connection, self._records)
        self.state.go(start)
        self._train(connection, common, start, waiting, done)
        connection.send(Bye())
        return None

    def _align(self, connection: Connection) -> Alignment:
        make = partial(matching_of, self.config, self.folder, self.table, self._rounds, self._log)
        matching = make() if self._workers is None else self._workers.matching(make)
        common = join_common(connection, matching)
        self.state.settle_on(common.digest, len(common))
        self._common = common
        keep_matching(self.folder, self.table, common)
        if self._workers is not None:
            self._workers.aligned(common)
        return common

    def _build(self, states: States | None) -> BuiltParty[FeatureEnd]:
        assert self._common is not None  # noqa: S101 - the run aligns before it builds
        config = self.config
        columns = OwnColumns.of(self.table, self._common)
        built = build_feature(config, columns, classes=config.classes, number=config.number)
        if self._workers is not None:
            self._workers.replicate(
                built.models["bottom"], built.optimizers["bottom"], new=states is None, mean=False
            )
        party: FeatureEnd = built.party
        if config.record:
            party = RecordedFeatureParty(party, self._next_tape())
        return BuiltParty(
            party=party, models=built.models, optimizers=built.optimizers, states=dict
        )

    def _train(
        self,
        connection: Connection,
        common: Alignment,
        start: int,
        waiting: Backoff,
        done: Callable[[int, int], None],
    ) -> None:
        schedule = Schedule.of(self.plan, len(common))
        features = [self.state.party]
        keep = None if self._records is None else self._records.keep
        self._log(f"{len(common)} examples in common, {schedule.steps - start} steps to go")

        def reached(step: Step, part: Part) -> None:
            waiting.over()  # only now: a label party that never answers is not there
            self.state.reach(step.step + 1, last=step.step + 1 == part.stop)
            done(step.step + 1, schedule.steps)

        def evaluate(part: Part) -> None:
            assert part.test is not None  # noqa: S101 - else there is nothing to evaluate
            label = RemoteLabel(connection, keep=keep)
            predict(part.test, features=features, label=label, batch_size=schedule.piece)
            if label.note is not None:
                self._log(f"epoch {part.number + 1}: {label.note}")

        def save(part: Part) -> None:
            connection.send(CheckpointMessage(step=part.stop - 1))
            connection.receive(CheckpointMessage)
            self.state.save()

        label = RemoteLabel(connection, keep=keep)
        follow(
            schedule,
            first=start,
            features=features,
            label=label,
            done=reached,
            evaluate=evaluate,
            save=save,
            depth=self.plan.depth,
        )
        if self.config.private_head:
            self._upload(connection, common, schedule.steps)
        # Answered when every feature party has its last state: until then any may have to go back.
        connection.send(CheckpointMessage(step=schedule.steps - 1))
        connection.receive(CheckpointMessage)

    def _finished(self) -> bool:
        """Whether nothing but a goodbye is left."""
        done = self.state.finished()
        if not done or not self.config.private_head:
            return done
        return bool(self.folder.read(UPLOADED) == {"format": 1, "steps": self.state.stops()[-1]})

    def _upload(self, connection: Connection, common: Alignment, steps: int) -> None:
        """Send embeddings of all common rows by the trained bottom, for the label party's head."""
        party, bottom = self.state.party, self.state.built
        assert bottom is not None  # noqa: S101 - the run has gone to its last step
        weights = save({n: w.contiguous() for n, w in bottom.models["bottom"].state_dict().items()})
        send_embeddings(
            connection,
            lambda rows: party.embed(rows).flatten(1),
            form=UploadForm.of(self.plan, len(common)),
            bottom=sha256(weights).hexdigest(),
            grid=None,
        )
        self.folder.write(UPLOADED, {"format": 1, "steps": steps})

    def _next_tape(self) -> TapeWriter:
        """Begin another tape; steps that are taken again after a return are on the next one."""
        if self._tape is not None:
            self._tape.close()
        self._tape = TapeWriter(_unused(self.folder.path, "seen-{}.tape"))
        return self._tape


def _unused(folder: Path, pattern: str) -> Path:
    number = 0
    while (path := folder / pattern.format(number)).exists():
        number += 1
    return path
