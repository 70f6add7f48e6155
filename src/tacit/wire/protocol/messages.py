"""What two parties say to each other, from the first word to the last.

Embeddings and gradients are the payload; everything else keeps both sides in step. Every message
checks its own fields, so one that exists is one that may be sent, and declares its own form on the
wire. A new message is a class here, and its turns in the state machine's table.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from reprlib import repr as shown
from typing import TypeAlias, final

from torch import Tensor, int64, uint8

from tacit.errors import InputError
from tacit.training.cut import RECORD_BYTES, Embedding, Gradient, check_record
from tacit.wire.protocol.forms import (
    Kind,
    TensorBody,
    TextBody,
    as_bytes,
    as_it_is,
    as_items,
    as_text,
    travels_as,
)

LARGEST = 2**63 - 1
MOST_VERSIONS = 16
LONGEST_NAME = 64
MOST_PARTIES = 8
LONGEST_ID = 256
LONGEST_REASON = 500
MOST_RECORDS = 4096  # in one message


def check_whole(name: str, value: object, *, low: int = 0, high: int = LARGEST) -> None:
    """Refuse anything but a whole number in a range; True and False are not numbers here."""
    if type(value) is not int or not low <= value <= high:
        raise InputError(f"{name} must be a whole number from {low} to {high}, got {shown(value)}")


def _check_text(name: str, value: object, *, longest: int) -> None:
    """Refuse text that is empty, long, or could steer the terminal it is shown on."""
    if not isinstance(value, str) or not 1 <= len(value) <= longest or not value.isprintable():
        raise InputError(f"{name} must be 1 to {longest} printable characters, got {shown(value)}")


def check_digest(name: str, value: object) -> None:
    """Refuse anything but a SHA-256 in hexadecimal."""
    if not isinstance(value, str) or not re.fullmatch("[0-9a-f]{64}", value):
        raise InputError(f"{name} must be 64 hexadecimal digits, got {shown(value)}")


@travels_as(
    Kind.HELLO,
    TextBody(
        required={
            "versions": as_items,
            "party": as_it_is,
            "plan_digest": as_it_is,
            "resume_point": as_it_is,
        },
        optional={"number": as_it_is},
    ),
)
@final
@dataclass(frozen=True, kw_only=True)
class Hello:
    """Who speaks, in which versions, with which plan, and the last step that it has finished.

    The digest shows that two plans are the same without sending either. ``resume_point`` is None
    for a party that has finished no step yet. ``number`` is a feature party's own among several:
    its first weights follow from it. On the wire 0 is left out.
    """

    versions: tuple[int, ...]
    party: str
    plan_digest: str
    resume_point: int | None = None
    number: int = 0

    def __post_init__(self) -> None:
        _check_text("a party's name", self.party, longest=LONGEST_NAME)
        check_whole("a party's number", self.number, high=MOST_PARTIES - 1)
        if not isinstance(self.versions, tuple) or not 1 <= len(self.versions) <= MOST_VERSIONS:
            raise InputError(
                f"versions must be 1 to {MOST_VERSIONS} numbers, got {shown(self.versions)}"
            )
        for version in self.versions:
            check_whole("a version", version, low=1, high=65535)
        if any(a >= b for a, b in zip(self.versions, self.versions[1:], strict=False)):
            raise InputError(f"versions must go up, got {shown(self.versions)}")
        check_digest("a plan digest", self.plan_digest)
        if self.resume_point is not None:
            check_whole("resume_point", self.resume_point)


@travels_as(
    Kind.ALIGN,
    TensorBody(field="ids", dims=range(1, 2), dtypes=(int64,)),
    TensorBody(field="sealed", dims=range(1, 2), dtypes=(uint8,)),
    TextBody(required={"ids": as_items}),
    TextBody(required={"held": as_it_is}),
    TextBody(required={"count": as_it_is}),
)
@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Align:
    """Which examples all sides hold: one message of the matching.

    In the clear it carries ids, numbers (int64) or texts; in private the bytes of one round
    (``sealed``). ``count`` says how many ids there are, and travels only alone. ``held`` is the
    digest of a matching that was done before and need not be done again.
    """

    count: int = 0
    ids: Tensor | tuple[str, ...] | None = None
    sealed: Tensor | None = None
    held: str | None = None

    def __post_init__(self) -> None:
        check_whole("count", self.count)
        if sum(part is not None for part in (self.ids, self.sealed, self.held)) > 1:
            raise InputError("a message of the matching carries ids, bytes or a digest, not two")
        if self.held is not None:
            check_digest("a digest of a matching", self.held)
        if self.sealed is not None and (self.sealed.dtype != uint8 or self.sealed.dim() != 1):
            raise InputError(f"sealed must be uint8 in one dimension, got {self.sealed.dtype}")
        if self.ids is not None:
            object.__setattr__(self, "count", self.count or len(self.ids))
            self._check_ids(self.ids)

    def _check_ids(self, ids: Tensor | tuple[str, ...]) -> None:
        if isinstance(ids, Tensor):
            if ids.dtype != int64 or ids.dim() != 1:
                raise InputError(
                    f"ids must be int64 in one dimension, got {ids.dtype} "
                    f"with {ids.dim()} dimensions"
                )
        else:
            for name in ids:
                _check_text("an id", name, longest=LONGEST_ID)
        if not len(ids) == self.count >= 1:
            raise InputError(f"there must be {self.count} ids, at least one, got {len(ids)}")


travels_as(Kind.TRAIN, TensorBody(field="values"), number="step")(Embedding)
travels_as(Kind.RELEASE, TensorBody(field="values", record="record"), number="step")(Gradient)


@travels_as(
    Kind.EVALUATE,
    TensorBody(field="values"),
    TextBody(optional={"note": as_text, "record": as_bytes}),
    number="part",
    empty=True,
)
@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Evaluate:
    """Embeddings of held-out examples, one part of several; without values, the receipt.

    A receipt carries no measure: what the label party learns from its labels stays there, unless
    its operator chose to tell the peer in ``note``, one line. The receipt of the last part carries
    the evaluation's ``record`` in the label party's journal.
    """

    part: int
    values: Tensor | None = None
    note: str | None = None
    record: bytes | None = None

    def __post_init__(self) -> None:
        check_whole("a part", self.part)
        check_record(self.record)
        if self.note is not None:
            _check_text("a note", self.note, longest=LONGEST_REASON)
        if self.values is not None and (self.note, self.record) != (None, None):
            raise InputError("a note and a record are part of a receipt: send it without values")


@travels_as(Kind.PREDICT, TensorBody(field="values"), number="part", empty=True)
@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Predict:
    """Embeddings of examples to predict, one part of several; without values, the receipt.

    The predictions stay with the label party.
    """

    part: int
    values: Tensor | None = None

    def __post_init__(self) -> None:
        check_whole("a part", self.part)


@travels_as(
    Kind.UPLOAD,
    TensorBody(field="values", dims=range(2, 3)),
    TensorBody(field="codes", dims=range(2, 3), dtypes=(uint8,)),
    TextBody(required={"bottom": as_it_is}),
    number="part",
    empty=True,
)
@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Upload:
    """Embeddings of common rows that the label party keeps: one part of several.

    The feature party first says by which ``bottom`` they are made, the digest of a frozen model,
    and from then on sends ``values``, or ``codes`` of so many bits as the plan says. The label
    party answers without any of them: ``part`` is the one that it needs next.
    """

    part: int
    values: Tensor | None = None
    codes: Tensor | None = None
    bottom: str | None = None

    def __post_init__(self) -> None:
        check_whole("a part", self.part)
        if sum(part is not None for part in (self.values, self.codes, self.bottom)) > 1:
            raise InputError("an upload carries values, codes or the name of a bottom, not two")
        if self.bottom is not None:
            check_digest("a digest of a bottom", self.bottom)
        if self.codes is not None and (self.codes.dtype != uint8 or self.codes.dim() != 2):
            raise InputError(f"codes must be uint8 in two dimensions, got {self.codes.dtype}")

    @property
    def answers(self) -> bool:
        """Whether this is the label party's: it carries nothing but a number."""
        return self.values is None and self.codes is None and self.bottom is None


@travels_as(Kind.CHECKPOINT, number="step", empty=True)
@final
@dataclass(frozen=True, kw_only=True)
class CheckpointMessage:
    """From the feature party: save your state after this step. Sent back: it is saved."""

    step: int

    def __post_init__(self) -> None:
        check_whole("a step", self.step)


@travels_as(
    Kind.RECORDS,
    TensorBody(field="values", dims=range(1, 2), dtypes=(uint8,)),
    number="count",
    empty=True,
)
@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Records:
    """Records of the label party's journal, for the side that lacks them.

    ``count`` says how many the sender has. ``values`` are whole records one after the other.
    """

    count: int
    values: Tensor | None = None

    def __post_init__(self) -> None:
        check_whole("count", self.count)
        if self.values is None:
            return
        if self.values.dtype != uint8 or self.values.dim() != 1:
            raise InputError(f"records must be uint8 in one dimension, got {self.values.dtype}")
        many, rest = divmod(len(self.values), RECORD_BYTES)
        if rest or not 1 <= many <= MOST_RECORDS:
            raise InputError(
                f"a message has 1 to {MOST_RECORDS} records of {RECORD_BYTES} bytes, "
                f"got {len(self.values)} bytes"
            )

    @property
    def content(self) -> bytes:
        """The records as bytes; none where the message carries none."""
        return b"" if self.values is None else self.values.numpy().tobytes()


@travels_as(Kind.HEARTBEAT, empty=True)
@final
@dataclass(frozen=True)
class Heartbeat:
    """The sender is alive and still busy."""


@travels_as(Kind.REFUSE, TextBody(required={"reason": as_it_is}))
@final
@dataclass(frozen=True, kw_only=True)
class Refuse:
    """The sender will not go on; the reason is one line for the other side's user.

    It crosses to the other party, so a label party's reason must not speak of labels or losses.
    """

    reason: str

    def __post_init__(self) -> None:
        _check_text("a reason", self.reason, longest=LONGEST_REASON)


@travels_as(Kind.BYE, empty=True)
@final
@dataclass(frozen=True)
class Bye:
    """The sender is done, and all is well."""


Message: TypeAlias = (
    Hello
    | Align
    | Embedding
    | Gradient
    | Evaluate
    | Predict
    | Upload
    | CheckpointMessage
    | Records
    | Heartbeat
    | Refuse
    | Bye
)
