"""The label party's whole run: wait for the feature party, serve it, outlive its absences."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, final

import numpy.typing as npt
from torch import Tensor

from tacit.errors import BudgetError, LostError, PeerError, SilenceError, UsageError
from tacit.runtime.align import Common, match_ids
from tacit.runtime.connection import Connection, Timings
from tacit.runtime.dialogue import Bye, Checkpoint, Hello
from tacit.runtime.feature_run import point, stop_of
from tacit.runtime.frames import VERSION
from tacit.runtime.journalled import Journalled
from tacit.runtime.line import Line
from tacit.runtime.place import Place
from tacit.runtime.plan import Plan
from tacit.runtime.protocol import Role, disagreement
from tacit.runtime.remote import RemoteFeature
from tacit.runtime.schedule import Schedule, follow
from tacit.runtime.session import Step, predict
from tacit.runtime.waiting import Waiting

__all__ = ["Accepts", "LabelRun", "answer_hello"]

GOODBYE = 20.0
"""How long a finished label party waits for a feature party that may not have all of it yet."""


class Accepts(Protocol):
    """Hands out connections of feature parties as they come."""

    def accept(self, *, timeout: float) -> Line:
        """Return the next one, or raise ``SilenceError`` after so many seconds."""
        ...


def answer_hello(
    connection: Connection, *, name: str, plan: Plan, stop: Callable[[int], int]
) -> int:
    """Hear a feature party's hello and answer it; return the step that both go on from.

    ``stop`` says for the number of steps that the peer has finished from where this side can go
    on, not further than that.
    """
    theirs = connection.receive(Hello)
    if connection.line.peer not in (None, theirs.party):
        raise PeerError(f"{connection.line.peer} calls itself {theirs.party}: names are bound to "
                        "certificates")  # fmt: skip
    start = stop(stop_of(theirs))
    ours = Hello(
        versions=(VERSION,), party=name, plan_digest=plan.digest(), resume_point=point(start)
    )
    problem = disagreement(theirs, ours)
    if problem is not None:
        raise PeerError(f"{problem}; the plan of {name} is {plan.to_json()}")
    connection.send(ours)
    return start


@final
@dataclass(frozen=True, kw_only=True)
class LabelRun:
    """Everything that the label party needs for its run; :meth:`run` carries it out.

    Args:
        name: of this party.
        plan: what both sides must agree on.
        ids: of this party's examples, each once.
        place: where this party is; ``build`` of it sees the common examples through ``aligned``.
        aligned: told which examples are common, before the first step.
        listener: where feature parties come in.
        timings: how long to wait within a conversation.
        waiting: for a feature party that is not there.
        log: hears a line about what happens.
        done: hears of every finished step with its loss, and of the number of all.
        evaluated: told an epoch, its held-out examples and their predictions; returns what the
            feature party may know of it, or None.
    """

    name: str
    plan: Plan
    ids: npt.NDArray[Any]
    place: Place[Journalled]
    aligned: Callable[[Common], None]
    listener: Accepts
    timings: Timings
    waiting: Waiting
    log: Callable[[str], None]
    done: Callable[[Step, int], None]
    evaluated: Callable[[int, Tensor, Tensor], str | None]

    def run(self) -> str:
        """Serve the feature party to the end of the plan; return how it ended.

        A peer that breaks the rules is refused and the run waits for one that does not.
        """
        while True:
            try:
                connection = self._connect()
            except SilenceError:
                return "finished; the feature party did not say goodbye"
            try:
                with connection:
                    self._serve(connection)
                return "finished"
            except BudgetError as error:
                if self.place.works is not None:  # the labels alone may be too much to begin with
                    self.place.party.sync()
                    self.place.save()
                return str(error)
            except PeerError as error:
                self.log(f"refused: {error}")
            except LostError as error:
                self.log(f"connection lost: {error}")

    def _connect(self) -> Connection:
        """Wait for a connection; ``SilenceError`` only if none came and all work is done."""
        finished = self.place.finished()
        while True:
            try:
                line = self.listener.accept(timeout=GOODBYE if finished else self.waiting.left())
            except SilenceError as error:
                if finished:
                    raise
                self.waiting.note(str(error))
            else:
                narrow = self.plan.wire_bits == 16
                return Connection(line, Role.LABEL, timings=self.timings, narrow=narrow)

    def _serve(self, connection: Connection) -> None:
        start = answer_hello(connection, name=self.name, plan=self.plan, stop=self._stop)
        schedule = self._align(connection)
        self.waiting.over()
        if not self._repeats(start):
            self.place.go(start)
        self.log(f"{connection.line.peer or 'the feature party'} is here, {len(schedule.train)} "
                 f"examples to train on, {schedule.steps - start} steps to go")  # fmt: skip
        try:
            self._train(connection, schedule, start)
        except BudgetError:
            connection.send(Bye())
            raise
        connection.receive(Bye)

    def _stop(self, offer: int) -> int:
        """Return from where to go on with a peer that has finished so many steps."""
        if self._repeats(offer):
            return offer
        return max(stop for stop in self.place.stops() if stop <= offer)

    def _repeats(self, step: int) -> bool:
        """Whether a step was just taken here and only its release did not arrive."""
        works = self.place.works
        return works is not None and self.place.position == step + 1 and (
            works.party.can_repeat(step)
        )  # fmt: skip

    def _align(self, connection: Connection) -> Schedule:
        try:
            common = match_ids(connection, self.ids)
            schedule = Schedule.of(self.plan, len(common))
            self.place.settle_on(common.digest(), len(common))
        except UsageError as error:  # the peer brought other examples: no reason to end here
            raise PeerError(str(error)) from error
        self.aligned(common)
        return schedule

    def _train(self, connection: Connection, schedule: Schedule, start: int) -> None:
        label, feature = self.place.party, RemoteFeature(connection, cut=self.plan.cut)

        def done(step: Step, last: bool) -> None:
            self.place.reach(step.step + 1, last=last)
            self.done(step, schedule.steps)

        def evaluate(epoch: int) -> None:
            remote = RemoteFeature(connection, cut=self.plan.cut)
            rows = schedule.test_rows
            probs = predict(rows, features=[remote], label=label, batch_size=schedule.piece)
            remote.settle(self.evaluated(epoch, rows, probs))

        def save(stop: int) -> None:
            connection.receive(Checkpoint)
            label.sync()
            self.place.save()
            connection.send(Checkpoint(step=stop - 1))

        follow(schedule, first=start, features=[feature], label=label,
               done=done, evaluate=evaluate, save=save)  # fmt: skip
