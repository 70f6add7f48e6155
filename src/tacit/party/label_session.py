"""The label party's whole run: wait for the feature party, serve it, outlive its absences."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import final

from torch import Tensor

from tacit.errors import LostError, PeerError, SilenceError, UsageError
from tacit.party.acceptor import Acceptor, PeerSession
from tacit.party.feature_session import stop_of
from tacit.party.journal import Journal
from tacit.party.journaled_label import JournaledLabelEnd, Measured
from tacit.party.proxies import RemoteFeature
from tacit.party.record_exchange import take_back
from tacit.party.run_state import RunState
from tacit.party.schedule import Part, Schedule, follow
from tacit.party.workers.collectives import WorkersLostError
from tacit.training.loop import Step, predict
from tacit.wire.protocol.connection import Connection
from tacit.wire.protocol.messages import Bye, CheckpointMessage
from tacit.wire.protocol.plan import TrainingPlan
from tacit.wire.psi.align import Alignment, Matching, find_common


@final
@dataclass(frozen=True, kw_only=True)
class LabelSession:
    """Everything that the label party needs for its run; :meth:`run` carries it out.

    Args:
        reception: where the feature parties come in.
        plan: what all sides must agree on.
        matching: of this party's ids with those of the feature parties.
        place: where this party is; ``build`` of it sees the common examples through ``aligned``.
        aligned: told which examples are common, before the first step.
        log: hears a line about what happens.
        done: hears of every finished step with its loss, and of the number of all.
        evaluated: told an epoch, its held-out examples and their predictions; returns what the
            feature party is told of it.
        journal: of the run, which feature parties may know more of; later workers have none.
        begin: called before every wait for the feature parties.
    """

    reception: Acceptor
    plan: TrainingPlan
    matching: Callable[[], Matching]
    place: RunState[JournaledLabelEnd]
    aligned: Callable[[Alignment], None]
    log: Callable[[str], None]
    done: Callable[[Step, int], None]
    evaluated: Callable[[int, Tensor, Tensor], Measured]
    journal: Journal | None
    begin: Callable[[], None] = lambda: None

    def run(self) -> str:
        """Serve the feature parties to the end of the plan; return how it ended.

        A peer that breaks the rules is refused and the run waits for one that does not.
        """
        while True:
            try:
                self.begin()
                guests = self.reception.gather(finished=self.place.finished())
            except SilenceError:
                return "finished; not every feature party said goodbye"
            except WorkersLostError as error:
                self.log(str(error))
                continue
            try:
                with ExitStack() as stack:
                    for guest in guests:
                        stack.enter_context(guest.connection)
                    self._serve(guests)
                return "finished"
            except PeerError as error:
                self.log(f"refused: {error}")
            except LostError as error:
                self.log(f"connection lost: {error}")

    def _serve(self, guests: list[PeerSession]) -> None:
        connections = [guest.connection for guest in guests]
        start = self._stop(min(stop_of(guest.hello) for guest in guests))
        for guest in guests:
            guest.connection.send(self.reception.answer(guest.connection, guest.hello, start))
        schedule = self._align(connections)
        self._catch_up(connections)
        self.reception.waiting.over()
        if not self._repeats(start):
            self.place.go(start)
        self.log(
            f"{', '.join(guest.hello.party for guest in guests)} here, {len(schedule.train)} "
            f"examples to train on, {schedule.steps - start} steps to go"
        )
        self._train(connections, schedule, start)
        for connection in connections:
            connection.receive(Bye)

    def _stop(self, offer: int) -> int:
        """Return from where to go on with a peer that has finished so many steps."""
        if self._repeats(offer):
            return offer
        return max(stop for stop in self.place.stops() if stop <= offer)

    def _repeats(self, step: int) -> bool:
        """Whether a step was just taken here and only its release did not arrive."""
        works = self.place.works
        return (
            works is not None and self.place.position == step + 1 and (works.party.can_repeat(step))
        )

    def _align(self, connections: list[Connection]) -> Schedule:
        def settle(common: Alignment) -> None:
            Schedule.of(self.plan, len(common))  # there may be too few of them
            self.place.settle_on(common.digest, len(common))

        matching = self.matching()  # an error in it is this party's own
        try:
            common = find_common(connections, matching, settle)
        except UsageError as error:  # the peers brought other examples: no reason to end here
            raise PeerError(str(error)) from error
        self.aligned(common)
        return Schedule.of(self.plan, len(common))

    def _catch_up(self, connections: list[Connection]) -> None:
        """Take back records that were lost here, before anything is released."""
        if self.journal is None:
            return
        lost = take_back(connections, self.journal)
        if lost:
            self.log(
                f"{lost} records of answers were missing here and were handed back: these "
                "steps are released only as they were"
            )

    def _train(self, connections: list[Connection], schedule: Schedule, start: int) -> None:
        label = self.place.party

        def remotes() -> list[RemoteFeature]:
            return [RemoteFeature(connection, cut=self.plan.cut) for connection in connections]

        def done(step: Step, part: Part) -> None:
            self.place.reach(step.step + 1, last=step.step + 1 == part.stop)
            self.done(step, schedule.steps)

        def evaluate(part: Part) -> None:
            assert part.test is not None  # noqa: S101 - else there is nothing to evaluate
            features, rows = remotes(), part.test
            probs = predict(rows, features=features, label=label, batch_size=schedule.piece)
            asked = [feature.shown for feature in features]
            answer = label.evaluate(
                part.stop - 1, asked, lambda: self.evaluated(part.number, rows, probs)
            )
            for feature in features:
                feature.settle(answer)

        def save(part: Part) -> None:
            for connection in connections:
                connection.receive(CheckpointMessage)
            label.sync()
            self.place.save()
            for connection in connections:
                connection.send(CheckpointMessage(step=part.stop - 1))

        follow(
            schedule,
            first=start,
            features=remotes(),
            label=label,
            done=done,
            evaluate=evaluate,
            save=save,
        )
        for connection in connections:
            connection.receive(CheckpointMessage)
        for connection in connections:
            connection.send(CheckpointMessage(step=schedule.steps - 1))
