"""A feature party's whole run: find the label party, agree where to begin, train, come back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

from tacit.errors import LostError, UsageError
from tacit.party.backoff import Backoff
from tacit.party.proxies import RemoteLabel
from tacit.party.record_exchange import RecordCopy, hand_back
from tacit.party.run_state import RunState
from tacit.party.schedule import Schedule, follow
from tacit.training.loop import Step, predict
from tacit.training.party import FeatureEnd
from tacit.wire.protocol.connection import Connection, EndedError, RefusedError, Timings
from tacit.wire.protocol.header import VERSION
from tacit.wire.protocol.messages import Bye, CheckpointMessage, Hello
from tacit.wire.protocol.plan import TrainingPlan
from tacit.wire.protocol.state_machine import Role, disagreement
from tacit.wire.psi.align import Alignment, Matching, join_common
from tacit.wire.transport.base import Transport

MOST_REFUSALS = 3
"""How often in a row a refusal may be answered with a new connection: what a bad line garbled
may pass the next time, what the label party means it says again."""


def point(step: int) -> int | None:
    """Return a number of finished steps as a resume point: the last finished one."""
    return None if step == 0 else step - 1


def stop_of(hello: Hello) -> int:
    """Return how many steps a party that says hello has finished."""
    return 0 if hello.resume_point is None else hello.resume_point + 1


def greet(
    connection: Connection, *, name: str, number: int = 0, plan: TrainingPlan, offer: int
) -> int:
    """Say hello to the label party; return the step that it is ready to go on from."""
    hello = Hello(
        versions=(VERSION,),
        party=name,
        plan_digest=plan.digest(),
        resume_point=point(offer),
        number=number,
    )
    connection.send(hello)
    try:
        answer = connection.receive(Hello)
    except RefusedError as error:
        raise UsageError(f"{error}; the plan here is {plan.described()}") from error
    problem = disagreement(hello, answer)
    if problem is not None:
        raise connection.wrong(problem)
    certified = connection.transport.peer
    if certified not in (None, answer.party):
        raise connection.wrong(
            f"{certified} calls itself {answer.party}: names are bound to certificates"
        )
    if stop_of(answer) > offer:
        raise connection.wrong(
            f"{answer.party} wants to go on from step {stop_of(answer)}, but "
            f"only {offer} were offered"
        )
    return stop_of(answer)


@final
@dataclass(frozen=True, kw_only=True)
class FeatureSession:
    """Everything that a feature party needs for its run; :meth:`run` carries it out.

    Args:
        name: of this party.
        number: of this party among several feature parties.
        plan: what both sides must agree on.
        matching: of this party's ids with those of the label party.
        place: where this party is; ``build`` of it sees the common examples through ``aligned``.
        aligned: told which examples are common before the first step.
        dial: opens a line to the label party, or raises ``LostError``.
        timings: how long to wait within a conversation.
        waiting: for a label party that is not there.
        log: hears a line about what happens.
        done: hears of every finished step, with the number of all.
        records: what is kept of the label party's journal; later workers have none.
        begin: called before every attempt to connect.
    """

    name: str
    number: int = 0
    plan: TrainingPlan
    matching: Callable[[], Matching]
    place: RunState[FeatureEnd]
    aligned: Callable[[Alignment], None]
    dial: Callable[[], Transport]
    timings: Timings
    waiting: Backoff
    log: Callable[[str], None]
    done: Callable[[int, int], None]
    records: RecordCopy | None
    begin: Callable[[], None] = lambda: None

    def run(self) -> str:
        """Train to the end, through lost connections and restarts; return how it ended."""
        offer, refusals = None, 0
        while True:
            stop = self.place.position
            self.begin()
            try:
                line = self.dial()
                with Connection(
                    line,
                    Role.FEATURE,
                    timings=self.timings,
                    narrow=self.plan.wire_bits == 16,
                    depth=self.plan.depth,
                ) as connection:
                    offer = self._converse(connection, offer)
                if offer is None:
                    return "finished"
            except EndedError:
                self.place.save()
                return "ended by the label party"
            except RefusedError as error:
                refusals = refusals + 1 if self.place.position == stop else 1
                if refusals > MOST_REFUSALS:
                    raise
                self.log(str(error))
            except LostError as error:
                if self.place.finished():  # the goodbye was all that was left
                    return "finished"
                self.waiting.pause(str(error))

    def _converse(self, connection: Connection, offer: int | None) -> int | None:
        """Talk to the end of the run; return a smaller offer where the answer does not serve."""
        stops = self.place.stops()
        offer = stops[-1] if offer is None else offer
        start = greet(connection, name=self.name, number=self.number, plan=self.plan, offer=offer)
        if start not in stops:
            connection.send(Bye())
            return max(stop for stop in stops if stop < start)
        common = self._align(connection)
        if self.records is not None:
            hand_back(connection, self.records)
        self.place.go(start)
        self._train(connection, common, start)
        connection.send(Bye())
        return None

    def _align(self, connection: Connection) -> Alignment:
        common = join_common(connection, self.matching())
        self.place.settle_on(common.digest, len(common))
        self.aligned(common)
        return common

    def _train(self, connection: Connection, common: Alignment, start: int) -> None:
        schedule = Schedule.of(self.plan, len(common))
        features = [self.place.party]
        keep = None if self.records is None else self.records.keep
        self.log(f"{len(common)} examples in common, {schedule.steps - start} steps to go")

        def done(step: Step, last: bool) -> None:
            self.waiting.over()  # only now: a label party that never answers is not there
            self.place.reach(step.step + 1, last=last)
            self.done(step.step + 1, schedule.steps)

        def evaluate(epoch: int) -> None:
            label = RemoteLabel(connection, keep=keep)
            predict(schedule.test_rows, features=features, label=label, batch_size=schedule.piece)
            if label.note is not None:
                self.log(f"epoch {epoch + 1}: {label.note}")

        def save(stop: int) -> None:
            connection.send(CheckpointMessage(step=stop - 1))
            connection.receive(CheckpointMessage)
            self.place.save()

        label = RemoteLabel(connection, keep=keep)
        follow(
            schedule,
            first=start,
            features=features,
            label=label,
            done=done,
            evaluate=evaluate,
            save=save,
            depth=self.plan.depth,
        )
        # Answered when every feature party has its last state: until then any may have to go back.
        connection.send(CheckpointMessage(step=schedule.steps - 1))
        connection.receive(CheckpointMessage)
