"""Who may say what, and when: a table, without any input or output.

Both ends of a connection hold a :class:`Protocol` and tell it what they send and receive. The
parties take turns: the feature party asks, the label party answers. Where the plan lets steps
overlap, it may ask for a few steps more before the first of them is answered. A step out of turn
is an error at once, before anything is computed or released. A caller that asks for one has a bug
(UsageError); a peer that takes one has broken the rules (PeerError).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import final

from torch import Tensor

from tacit.errors import PeerError, UsageError
from tacit.training.cut import Embedding, Gradient
from tacit.wire.protocol.forms import Kind, kind_of
from tacit.wire.protocol.messages import (
    CheckpointMessage,
    Evaluate,
    Heartbeat,
    Hello,
    Message,
    Predict,
    Upload,
)


@final
class Role(StrEnum):
    """The two ends of a connection."""

    FEATURE = "feature"
    LABEL = "label"


@final
class State(StrEnum):
    """Where a conversation is."""

    START = "start"
    GREETED = "greeted"  # the feature party has said hello
    OPEN = "open"  # both have, and they agree
    ALIGNING = "aligning"
    READY = "ready"
    TRAINING = "training"  # a new step is at the label party, or several where they overlap
    RESENDING = "resending"  # the last step is there again: the same bytes go back
    EVALUATING = "evaluating"
    PREDICTING = "predicting"
    SAVING = "saving"
    COMPARING = "comparing"  # records of the journal
    STORING = "storing"  # embeddings that the label party keeps
    BROKEN = "broken"  # the peer broke the rules: all that is left is to refuse
    CLOSED = "closed"


Key = tuple[Role, State, Kind]

_DIALOGUE: dict[Key, State] = {
    (Role.FEATURE, State.START, Kind.HELLO): State.GREETED,
    (Role.LABEL, State.GREETED, Kind.HELLO): State.OPEN,
    (Role.FEATURE, State.OPEN, Kind.ALIGN): State.ALIGNING,
    (Role.LABEL, State.ALIGNING, Kind.ALIGN): State.READY,
    (Role.FEATURE, State.READY, Kind.ALIGN): State.ALIGNING,
    (Role.FEATURE, State.READY, Kind.TRAIN): State.TRAINING,
    (Role.LABEL, State.TRAINING, Kind.RELEASE): State.READY,
    (Role.LABEL, State.RESENDING, Kind.RELEASE): State.READY,
    (Role.FEATURE, State.READY, Kind.EVALUATE): State.EVALUATING,
    (Role.LABEL, State.EVALUATING, Kind.EVALUATE): State.READY,
    (Role.FEATURE, State.READY, Kind.PREDICT): State.PREDICTING,
    (Role.LABEL, State.PREDICTING, Kind.PREDICT): State.READY,
    (Role.FEATURE, State.READY, Kind.CHECKPOINT): State.SAVING,
    (Role.LABEL, State.SAVING, Kind.CHECKPOINT): State.READY,
    (Role.FEATURE, State.READY, Kind.RECORDS): State.COMPARING,
    (Role.LABEL, State.COMPARING, Kind.RECORDS): State.READY,
    (Role.FEATURE, State.READY, Kind.UPLOAD): State.STORING,
    (Role.LABEL, State.STORING, Kind.UPLOAD): State.READY,
}
_ASKING = (State.OPEN, State.READY)
_ANSWERING = (
    State.ALIGNING,
    State.TRAINING,
    State.RESENDING,
    State.EVALUATING,
    State.PREDICTING,
    State.SAVING,
    State.COMPARING,
    State.STORING,
)
_SIGNALS: dict[Key, State] = {
    **{(role, state, Kind.HEARTBEAT): state for role in Role for state in _ASKING + _ANSWERING},
    # The label party may still be waiting for other feature parties.
    (Role.LABEL, State.GREETED, Kind.HEARTBEAT): State.GREETED,
    **{(Role.FEATURE, state, Kind.BYE): State.CLOSED for state in _ASKING},
    **{(Role.LABEL, state, Kind.BYE): State.CLOSED for state in _ANSWERING},
    **{
        (role, state, Kind.REFUSE): State.CLOSED
        for role in Role
        for state in State
        if state is not State.CLOSED
    },
}

TABLE: dict[Key, State] = {**_DIALOGUE, **_SIGNALS}
"""(who speaks, state, kind of message) -> the state after it. What is not here is refused."""
REPEATS: dict[Key, State] = {(Role.FEATURE, State.READY, Kind.TRAIN): State.RESENDING}
"""The same for a message that repeats the last step instead of taking the next one."""
AHEAD: dict[Key, State] = {
    (Role.FEATURE, State.TRAINING, Kind.TRAIN): State.TRAINING,
    (Role.LABEL, State.TRAINING, Kind.RELEASE): State.TRAINING,
}
"""The same where steps overlap: one more step, and a release that is not the last one due."""


def table_as_markdown() -> str:
    """Return the table for people to read: one line per state, speaker and kind of message."""
    lines = ["| state | speaker | message | state after |", "|---|---|---|---|"]
    for state in State:
        for role in Role:
            for kind in Kind:
                name = kind.name.capitalize()
                for table, remark in (
                    (TABLE, ""),
                    (REPEATS, ", the last step again"),
                    (AHEAD, ", others under way"),
                ):
                    if (after := table.get((role, state, kind))) is not None:
                        lines.append(f"| {state} | {role} | {name}{remark} | {after} |")
    return "\n".join(lines) + "\n"


def disagreement(first: Hello, second: Hello) -> str | None:
    """Return why two parties cannot work together, as a reason to refuse, or None."""
    if not set(first.versions) & set(second.versions):
        return (
            f"{first.party} speaks versions {first.versions}, {second.party} {second.versions}: "
            "run the same release on both sides"
        )
    if first.party == second.party:
        return f"both parties are called {first.party!r}: give them different names"
    if first.plan_digest != second.plan_digest:
        return (
            f"the plans differ: digest {first.plan_digest[:12]} at {first.party}, "
            f"{second.plan_digest[:12]} at {second.party}: use the same plan on both sides"
        )
    return None


@final
@dataclass(frozen=True, kw_only=True)
class _Progress:
    """What the rules beyond the table need to know of what was said."""

    hello: Hello | None = None
    version: int | None = None
    next_step: int = 0
    repeatable: frozenset[int] = frozenset()  # the last step taken on this connection, if any
    pending: Message | None = None
    under_way: tuple[Embedding, ...] = ()  # steps without their release, oldest first


@final
class Protocol:
    """One end of a connection: says whether a message may be sent or was rightly received.

    A refused :meth:`send` changes nothing. A refused :meth:`receive` leaves the state ``BROKEN``,
    in which only a Refuse can follow. At most ``depth`` steps may be without their release.

    >>> protocol = Protocol("feature")
    >>> protocol.send(Hello(versions=(1,), party="clinic", plan_digest="0" * 64))
    >>> protocol.state
    <State.GREETED: 'greeted'>
    """

    def __init__(self, role: Role | str, *, depth: int = 1) -> None:
        if role not in list(Role):
            raise UsageError(f"a role is one of {', '.join(Role)}, got {role!r}")
        self.role = Role(role)
        self.state = State.START
        self._depth = depth
        self._progress = _Progress()

    @property
    def version(self) -> int | None:
        """The highest version that both speak, once both have said hello."""
        return self._progress.version

    @property
    def next_step(self) -> int:
        """The step that comes next: the first that not both had finished, then one by one."""
        return self._progress.next_step

    def send(self, message: Message) -> None:
        """Note that a message is about to be sent, or raise UsageError and change nothing."""
        problem = self._advance(self.role, message)
        if problem is not None:
            raise UsageError(f"the {self.role} party must not send this: {problem}")

    def receive(self, message: Message) -> None:
        """Note that a message has come, or raise PeerError and break off."""
        speaker = Role.LABEL if self.role is Role.FEATURE else Role.FEATURE
        problem = self._advance(speaker, message)
        if problem is not None:
            self.state = State.CLOSED if self.state is State.CLOSED else State.BROKEN
            raise PeerError(f"the {speaker} party broke the rules: {problem}")

    def _advance(self, speaker: Role, message: Message) -> str | None:
        kind = kind_of(type(message))
        key = (speaker, self.state, kind)
        ahead = self._depth > 1 and key in AHEAD
        if key not in TABLE and not ahead:
            return f"{kind.word} is not allowed in state {self.state}"
        repeat = _is_repeat(self._progress, message) and key in REPEATS
        if not repeat:
            problem = _problem(self._progress, speaker, message) or self._too_many(message)
            if problem is not None:
                return problem
        self._progress = _progressed(self._progress, speaker, message)
        if repeat:
            self.state = REPEATS[key]
        else:
            more = ahead and bool(self._progress.under_way)
            self.state = AHEAD[key] if more else TABLE[key]
        return None

    def _too_many(self, message: Message) -> str | None:
        waiting = self._progress.under_way
        if not isinstance(message, Embedding) or len(waiting) < self._depth:
            return None
        return (
            f"the plan lets {self._depth} steps be under way and step {message.step} is one more: "
            f"step {waiting[0].step} must have its release first"
        )


def _is_repeat(progress: _Progress, message: Message) -> bool:
    return isinstance(message, Embedding) and message.step in progress.repeatable


def _problem(progress: _Progress, speaker: Role, message: Message) -> str | None:
    """Return what is wrong with a message that the table allows, or None."""
    match message:
        case Hello() if progress.hello is not None:
            return disagreement(progress.hello, message)
        case Embedding():
            return _step_problem(message.step, progress.next_step)
        case Gradient():
            return _release_problem(progress.under_way, message)
        case Evaluate() | Predict():
            return _part_problem(progress.pending, speaker, message)
        case Upload() if message.answers != (speaker is Role.LABEL):
            return "upload carries something from the feature party and nothing back"
        case CheckpointMessage():
            wanted = progress.next_step - 1
            wrong = f"a checkpoint is of the last step, {wanted}, got {message.step}"
            return None if message.step == wanted else wrong
        case _:
            return None


def _step_problem(step: int, wanted: int) -> str | None:
    if step == wanted:
        return None
    kind = "skips" if step > wanted else "goes back behind"
    return f"steps go up by one and step {step} {kind} step {wanted}: start again from there"


def _release_problem(under_way: tuple[Embedding, ...], message: Gradient) -> str | None:
    asked = under_way[0]  # there is one: the table lets a release follow nothing else
    if message.step != asked.step:
        return f"the gradient must be of step {asked.step}, got step {message.step}"
    given, wanted = message.values, asked.values
    if (given.shape, given.dtype) != (wanted.shape, wanted.dtype):
        return (
            f"the gradient must be {_described(wanted)} like its embedding, got {_described(given)}"
        )
    return None


def _described(values: Tensor) -> str:
    return f"{values.dtype} {tuple(values.shape)}"


def _part_problem(asked: Message | None, speaker: Role, message: Evaluate | Predict) -> str | None:
    name = kind_of(type(message)).word
    if (message.values is None) != (speaker is Role.LABEL):
        return f"{name} carries embeddings from the feature party and nothing back"
    if speaker is Role.LABEL:
        assert isinstance(asked, Evaluate | Predict)  # noqa: S101 - so says the table
        if message.part != asked.part:
            return f"the receipt must be for part {asked.part}, got part {message.part}"
    return None


def _progressed(progress: _Progress, speaker: Role, message: Message) -> _Progress:
    match message:
        case Hello() if progress.hello is None:
            return replace(progress, hello=message)
        case Hello():
            assert progress.hello is not None  # noqa: S101 - the case above
            return _agreed(progress.hello, message)
        case Embedding() if message.step == progress.next_step:
            step, waiting = message.step, (*progress.under_way, message)
            return replace(
                progress, next_step=step + 1, repeatable=frozenset({step}), under_way=waiting
            )
        case Embedding():
            return replace(progress, under_way=(message,))
        case Gradient():
            return replace(progress, under_way=progress.under_way[1:])
        case Heartbeat():
            return progress
        case _:
            return replace(progress, pending=message if speaker is Role.FEATURE else None)


def _agreed(first: Hello, second: Hello) -> _Progress:
    """Return the state of things when both have said hello: go on after what both have finished."""
    points = [-1 if h.resume_point is None else h.resume_point for h in (first, second)]
    version = max(set(first.versions) & set(second.versions))
    return _Progress(hello=first, version=version, next_step=min(points) + 1)
