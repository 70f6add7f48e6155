"""The table of who may say what, and when."""

from __future__ import annotations

from enum import StrEnum
from typing import final

from tacit.runtime.dialogue import Kind

__all__ = ["AHEAD", "REPEATS", "TABLE", "Role", "State", "table_as_markdown"]


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
)
_SIGNALS: dict[Key, State] = {
    **{(role, state, Kind.HEARTBEAT): state for role in Role for state in _ASKING + _ANSWERING},
    # The label party may still be waiting for other feature parties.
    (Role.LABEL, State.GREETED, Kind.HEARTBEAT): State.GREETED,
    **{(Role.FEATURE, state, Kind.BYE): State.CLOSED for state in _ASKING},
    **{(Role.LABEL, state, Kind.BYE): State.CLOSED for state in _ANSWERING},
    **{(role, state, Kind.REFUSE): State.CLOSED for role in Role for state in State
       if state is not State.CLOSED},
}  # fmt: skip

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
