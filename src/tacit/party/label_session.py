"""The label party's side of a run: wait for the feature parties and serve them to the end."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any

from torch import Tensor

from tacit.errors import PeerError, UsageError
from tacit.party.acceptor import Acceptor, Accepts, PeerSession
from tacit.party.alignment_cache import matching_of
from tacit.party.build import objective_of
from tacit.party.config import PartyConfig, identity_of
from tacit.party.greeting import stop_of
from tacit.party.journal import Journal
from tacit.party.journaled_label import JournaledLabelEnd, Measured
from tacit.party.proxies import RemoteFeature
from tacit.party.record_exchange import take_back
from tacit.party.run_state import BuiltParty, CheckpointSource, RunState, States
from tacit.party.schedule import Part, Schedule, follow
from tacit.party.state_files import (
    Log,
    check_rows,
    checkpoints_of,
    encoding_of,
    table_of,
    waiting_for,
)
from tacit.party.workers.group import WorkerGroup, worker_group
from tacit.state_dir import StateFolder
from tacit.training.loop import Step, predict
from tacit.wire.protocol.connection import Connection, Timings
from tacit.wire.protocol.header import Limits
from tacit.wire.protocol.messages import Bye, CheckpointMessage
from tacit.wire.protocol.plan import TrainingPlan
from tacit.wire.psi.align import Alignment, Matching, find_common
from tacit.wire.psi.rounds import Rounds
from tacit.wire.transport.grpc_server import Listener


def listen(config: PartyConfig, log: Log) -> Listener:
    """Open the address that feature parties connect to."""
    return Listener(
        config.endpoint, identity=identity_of(config), peers=config.peers, limits=Limits(), log=log
    )


def acceptor_of(config: PartyConfig, plan: TrainingPlan, listener: Accepts, log: Log) -> Acceptor:
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


class LabelSession(ABC):
    """One process of the label party: its table, its part of the model, and its run.

    A subclass says what it keeps beside that, builds its party and measures evaluations. Worker 0,
    or the only process, has the ``journal`` and the ``rounds`` of matching.

    Args:
        config: of this party.
        folder: the state folder of this process.
        log: called with each line of the log.
    """

    journal: Journal | None = None
    rounds: Rounds | None = None
    _open: ExitStack

    def __init__(self, config: PartyConfig, folder: StateFolder, *, log: Log) -> None:
        self.config = config
        self.folder = folder
        self.table = table_of(config, folder)
        check_rows(config, len(self.table))
        assert self.table.classes is not None  # noqa: S101 - a label party's table has labels
        self.classes: int = self.table.classes
        self.plan: TrainingPlan = config.plan(classes=self.classes)
        self.objective = objective_of(config, self.classes)
        self._log = log
        self._common: Alignment | None = None
        encoding_of(folder, self.table)

    def _join_workers(self, opened: ExitStack) -> None:
        """Join the other workers of this party, if it has any, and take up the state of the run."""
        self._workers: WorkerGroup | None = worker_group(self.config, self.table, self._log)
        kept: CheckpointSource = checkpoints_of(self.config)
        if self._workers is not None:
            opened.callback(self._workers.close)
            kept = self._workers.checkpoints(checkpoints_of(self.config))
        self.state: RunState[JournaledLabelEnd] = RunState(kept, self.plan, self._build)

    @property
    def awaits_peers(self) -> bool:
        """Whether a feature party has something to do here: at least its goodbye."""
        return True

    def close(self) -> None:
        """Let another process have the journal, and the other workers go."""
        self._open.close()

    def run(self, listener: Accepts, done: Callable[[Step, int], None]) -> dict[str, Any]:
        """Serve the feature parties to the end; return what is known of it.

        ``done`` is called after every step with its loss and how many steps there are.
        """
        return self.finish(self.receive(listener, done))

    def receive(self, listener: Accepts, done: Callable[[Step, int], None]) -> str:
        """Do all that feature parties have a part in; return how it ended."""
        accepting = listener if self._workers is None else self._workers.accepting(listener)
        return self.serve(acceptor_of(self.config, self.plan, accepting, self._log), done)

    def finish(self, ended: str) -> dict[str, Any]:
        """Do what is left when no feature party is there any more; return what is known."""
        results = self._results(ended)
        self.folder.write("results.json", {"format": 1, **results})
        return results

    @abstractmethod
    def _build(self, states: States | None) -> BuiltParty[JournaledLabelEnd]:
        """Return the label party as it is before the first step, or from a checkpoint's states."""

    @abstractmethod
    def _evaluated(self, epoch: int, rows: Tensor, probs: Tensor) -> Measured:
        """Take the predictions after an epoch; return what the feature parties are told of it."""

    @abstractmethod
    def _results(self, ended: str) -> dict[str, Any]:
        """Return the results of this process."""

    def _finished(self) -> bool:
        """Whether nothing but the goodbyes of feature parties is left."""
        return self.state.finished()

    def _trained(  # noqa: B027 - most need nothing
        self, connections: list[Connection], steps: int
    ) -> None:
        """Take what feature parties send after the last step, if they send anything."""

    def _begin(self) -> None:
        """Get ready to wait for the feature parties."""
        if self._workers is not None:
            self._workers.begin(self.state)

    def _matching(self) -> Matching:
        make = partial(matching_of, self.config, self.folder, self.table, self.rounds, self._log)
        return make() if self._workers is None else self._workers.matching(make)

    def _aligned(self, common: Alignment) -> None:
        """Take the examples that are common."""
        self._common = common
        if self._workers is not None:
            self._workers.aligned(common)

    def serve(self, acceptor: Acceptor, done: Callable[[Step, int], None]) -> str:
        """Serve the feature parties to the end of the plan; return how it ended.

        A peer that breaks the rules is refused and the run waits for one that does not.
        """
        return acceptor.serve(
            lambda peers: self._converse(acceptor, peers, done),
            finished=self._finished,
            begin=self._begin,
        )

    def _converse(
        self, acceptor: Acceptor, peers: list[PeerSession], done: Callable[[Step, int], None]
    ) -> None:
        connections = [peer.connection for peer in peers]
        start = self._stop(min(stop_of(peer.hello) for peer in peers))
        for peer in peers:
            peer.connection.send(acceptor.answer(peer.connection, peer.hello, start))
        schedule = self._align(connections)
        self._catch_up(connections)
        acceptor.waiting.over()
        if not self._repeats(start):
            self.state.go(start)
        self._log(
            f"{', '.join(peer.hello.party for peer in peers)} here, {len(schedule.train)} "
            f"examples to train on, {schedule.steps - start} steps to go"
        )
        self._train(connections, schedule, start, done)
        for connection in connections:
            connection.receive(Bye)

    def _stop(self, offer: int) -> int:
        """Return from where to go on with a peer that has finished so many steps."""
        if self._repeats(offer):
            return offer
        return max(stop for stop in self.state.stops() if stop <= offer)

    def _repeats(self, step: int) -> bool:
        """Whether a step was just taken here and only its release did not arrive."""
        built = self.state.built
        return (
            built is not None and self.state.position == step + 1 and built.party.can_repeat(step)
        )

    def _align(self, connections: list[Connection]) -> Schedule:
        def settle(common: Alignment) -> None:
            Schedule.of(self.plan, len(common))  # there may be too few of them
            self.state.settle_on(common.digest, len(common))

        matching = self._matching()  # an error in it is this party's own
        try:
            common = find_common(connections, matching, settle)
        except UsageError as error:  # the peers brought other examples: no reason to end here
            raise PeerError(str(error)) from error
        self._aligned(common)
        return Schedule.of(self.plan, len(common))

    def _catch_up(self, connections: list[Connection]) -> None:
        """Take back records that were lost here, before anything is released."""
        if self.journal is None:
            return
        lost = take_back(connections, self.journal)
        if lost:
            self._log(
                f"{lost} records of answers were missing here and were handed back: these "
                "steps are released only as they were"
            )

    def _train(
        self,
        connections: list[Connection],
        schedule: Schedule,
        start: int,
        done: Callable[[Step, int], None],
    ) -> None:
        label = self.state.party

        def remotes() -> list[RemoteFeature]:
            return [RemoteFeature(connection, cut=self.plan.cut) for connection in connections]

        def reached(step: Step, part: Part) -> None:
            self.state.reach(step.step + 1, last=step.step + 1 == part.stop)
            done(step, schedule.steps)

        def evaluate(part: Part) -> None:
            assert part.test is not None  # noqa: S101 - else there is nothing to evaluate
            features, rows = remotes(), part.test
            probs = predict(rows, features=features, label=label, batch_size=schedule.piece)
            asked = [feature.shown for feature in features]
            answer = label.evaluate(
                part.stop - 1, asked, lambda: self._evaluated(part.number, rows, probs)
            )
            for feature in features:
                feature.settle(answer)

        def save(part: Part) -> None:
            for connection in connections:
                connection.receive(CheckpointMessage)
            label.sync()
            self.state.save()
            for connection in connections:
                connection.send(CheckpointMessage(step=part.stop - 1))

        follow(
            schedule,
            first=start,
            features=remotes(),
            label=label,
            done=reached,
            evaluate=evaluate,
            save=save,
        )
        self._trained(connections, schedule.steps)
        for connection in connections:
            connection.receive(CheckpointMessage)
        for connection in connections:
            connection.send(CheckpointMessage(step=schedule.steps - 1))
