"""The journal: the label party's record of every answer, written before the answer is sent.

Noise is spent once: a step that was released with one embedding must never be released with
another, also after a crash. The same holds for evaluations, whose measures come from labels. So
both are written down first: a header of 256 bytes with the name of the run, then records of 112
bytes each (``_journal_record``).
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self, final

import torch
from torch import Tensor

from tacit.errors import (
    InputError,
    ParameterError,
    PeerError,
    ReleaseError,
    ReplayError,
    UsageError,
)
from tacit.party.journal_records import (
    JOURNAL,
    NOTHING,
    Codes,
    JournalRecord,
    RecordFile,
    RecordKind,
    code_of,
    header_of,
    kind_and_step,
)
from tacit.party.witness import Witness
from tacit.rng import whole
from tacit.training.cut import RECORD_BYTES

Sync = Literal["os", "always"]


@final
@dataclass(frozen=True, kw_only=True)
class JournalEntry:
    """What was last answered for a step: marks of what came in and of what went out.

    ``record`` is the entry as it stands in the journal.
    """

    step: int
    embedding: bytes
    release: bytes
    record: bytes = b""


@final
class Journal:
    """Records releases in ascending order of steps; open one with :meth:`Journal.open`.

    Guarantee: when :meth:`record` returns, the release is on record and may be sent; when it
    raises, it must not be. With ``sync="os"`` the record survives the end of this process at any
    moment, SIGKILL included, but not the end of the machine: after a power cut the last seconds
    may be missing. With ``sync="always"`` it survives a power cut too, as far as the disk keeps
    what it confirmed.

    A last record that is not whole is cut off on opening: it was never acknowledged, so nothing
    was sent for it. Damage anywhere is refused. One process at a time holds a journal, and one
    thread at a time uses it. Memory does not grow with the number of steps, only with evaluations
    and with steps that were allowed again: old steps are looked up in the file.

    Records are for the peers to keep, and :meth:`take_back` takes those that this journal has lost.
    Where a witness has seen more records than there are, nothing is recorded until it has them.

    Attributes:
        allowed: how often each step was allowed again, for those that were.
    """

    def __init__(self, file: RecordFile, codes: Codes, witness: Witness | None) -> None:
        self.allowed: Counter[int] = Counter()
        self._file = file
        self._codes = codes
        self._witness = witness
        self._code = codes.first  # of the last record
        self._high, self._newest = -1, -1  # the highest step, and where it was first released
        self._positions: dict[int, int] = {}  # the last release of steps with more than one
        self._asked: dict[int, list[int]] = {}  # the evaluations after a step
        self._open: set[int] = set()  # steps with a permission that was not used yet
        self._open_asked: set[int] = set()  # the same for evaluations

    @classmethod
    def open(
        cls,
        path: Path | str,
        *,
        run: str,
        secret: bytes,
        sync: Sync = "os",
        witness: Path | None = None,
    ) -> Self:
        """Open the journal of a run, or begin one where there is none.

        ``secret`` is the label party's own, from which the keys of all codes are derived.
        """
        if sync not in ("os", "always"):
            raise ParameterError(f'sync must be "os" or "always", got {sync!r}')
        always = sync == "always"
        codes = Codes(secret, header_of(run))
        file = RecordFile.open(Path(path), run=run, magic=JOURNAL, always=always)
        journal = cls(file, codes, None)
        try:
            file.read_in(journal._accept)
            if witness is not None:
                journal._witness = Witness.open(witness, codes, always=always)
                journal._tell_witness()
        except BaseException:
            journal.close()
            raise
        return journal

    @property
    def path(self) -> Path:
        """Where it is."""
        return self._file.path

    @property
    def cut(self) -> int:
        """How many bytes of a torn last record were cut off on opening."""
        return self._file.cut

    @property
    def count(self) -> int:
        """How many records there are."""
        return self._file.count

    @property
    def behind(self) -> str | None:
        """Why nothing may be released yet: a witness has seen more than there is here."""
        if self._witness is None or self._witness.count <= self.count:
            return None
        return (
            f"witness {self._witness.path}: {self._witness.count} answers were recorded, and "
            f"{self.path} has {self.count} of them: the state is behind, as after restoring a "
            "copy: nothing is sent until a feature party hands back the rest, or the state folder "
            "of that time is restored"
        )

    def mark(self, content: bytes) -> bytes:
        """Return a keyed digest of a content for a record, 32 bytes."""
        return self._codes.mark(content)

    def check(self, step: int, embedding_digest: bytes) -> None:
        """Raise ``ReplayError`` if a step must not be released for this embedding.

        It needs no release: a step that was released for another embedding is not even computed.
        """
        step = _number(step)
        held = self.find(step)
        seen = held is not None and held.embedding == embedding_digest
        if step <= self._high and not seen and step not in self._open:
            raise ReplayError(self._refusal(step, held, embedding_digest))

    def record(self, step: int, embedding_digest: bytes, release_digest: bytes) -> bool:
        """Record a release that is about to be sent; return whether it was not on record yet.

        The same step with the same digests is a resend and always allowed. Anything else for a
        step on record raises ``ReplayError``, unless :meth:`allow_again` was called for it.
        """
        step = _number(step)
        digests = _checked(embedding_digest, release_digest)
        if step <= self._high:
            held = self.find(step)
            if held is not None and digests == (held.embedding, held.release):
                return False
            if step not in self._open:
                raise ReplayError(self._refusal(step, held, digests[0]))
        self._append(RecordKind.RELEASE, step, *digests)
        return True

    def check_evaluation(self, step: int, embedding_digest: bytes) -> None:
        """Raise ``ReplayError`` if the evaluation after a step must not be made for this."""
        step = _number(step)
        held = self.evaluation(step)
        if held is None and step != self._high:
            raise ReplayError(
                f"the evaluation after step {step} is not due: the last step that was released is "
                f"{self._high}; nothing may be answered"
            )
        other = held is not None and held.embedding != embedding_digest
        if other and step not in self._open_asked:
            raise ReplayError(
                f"the evaluation after step {step} was answered before for other embeddings, and "
                "answers to chosen embeddings give labels away: return to the state of that "
                f"evaluation, or let the operator decide on allow_again({step})"
            )

    def record_evaluation(self, step: int, embedding_digest: bytes, answer_digest: bytes) -> bool:
        """Record the answer to an evaluation; return whether it was not on record yet."""
        self.check_evaluation(step, embedding_digest)
        digests, held = _checked(embedding_digest, answer_digest), self.evaluation(step)
        if held is not None and digests == (held.embedding, held.release):
            return False
        if held is not None and step not in self._open_asked:
            raise ReplayError(
                f"the evaluation after step {step} came out differently from the one that was "
                "answered: return to the state of that evaluation, or let the operator decide on "
                f"allow_again({step}); nothing may be answered"
            )
        self._append(RecordKind.EVALUATION, step, *digests)
        return True

    def evaluations(self, step: int) -> int:
        """Return how many answers to the evaluation after a step are on record."""
        return len(self._asked.get(_number(step), ()))

    def evaluation(self, step: int) -> JournalEntry | None:
        """Return what was last answered to the evaluation after a step, or None."""
        positions = self._asked.get(_number(step))
        return None if positions is None else self._entry(positions[-1])

    def allow_again(self, step: int) -> None:
        """Let a step be released once more with other content, an operator's decision.

        It covers the evaluation after that step, where there was one. A peer with two releases
        of a step can cancel noise, so the permission is kept on record and counted in
        :attr:`allowed`. One that was not used yet is not doubled.
        """
        step = _number(step)
        if self.find(step) is None:
            raise UsageError(f"step {step} was never released: there is nothing to allow again")
        if step not in self._open:
            self._append(RecordKind.PERMISSION, step, NOTHING, NOTHING)

    def repeats(self, step: int) -> int:
        """Return how many releases of a step are on record beside its first one."""
        return self.allowed[step] - (step in self._open)

    def find(self, step: int) -> JournalEntry | None:
        """Return what was last released for a step, or None."""
        step = _number(step)
        if step > self._high:
            return None
        position = self._positions.get(step, self._newest if step == self._high else None)
        found = self._entry(self._first(step) if position is None else position)
        return found if found.step == step else None

    @property
    def last(self) -> JournalEntry | None:
        """What was released for the highest step; None where nothing was."""
        return None if self._high < 0 else self.find(self._high)

    def read(self, first: int, most: int) -> bytes:
        """Return the bytes of up to ``most`` records from a number on."""
        return self._file.read(first, most)

    def take_back(self, data: bytes) -> None:
        """Add records that were lost here and that a peer has kept.

        Only records that this label party made, and that come right after the last one here, are
        taken: all of them or none, and then ``PeerError``.
        """
        pieces = [data[at : at + RECORD_BYTES] for at in range(0, len(data), RECORD_BYTES)]
        code = self._code
        for number, piece in enumerate(pieces, start=self.count):
            if len(piece) != RECORD_BYTES or not self._codes.genuine(piece, code):
                raise PeerError(
                    f"record {number} that was handed back does not continue the label party's "
                    "journal: it is changed, or of another run: use the state folders of one run "
                    "on both sides, or name new ones on both"
                )
            code = code_of(piece)
        if not pieces:
            raise PeerError(f"record {self.count} was due and none was handed back")
        self._file.append(data, what=f"{len(pieces)} records that were handed back")
        for number, piece in enumerate(pieces, start=self.count - len(pieces)):
            self._note(*kind_and_step(piece), number)
        self._code = code
        self._tell_witness()

    def sync(self) -> None:
        """Bring all records to disk, whatever ``sync`` was chosen for each of them."""
        self._file.sync()

    def close(self) -> None:
        """Close the file and let another process have it."""
        self._file.close()
        if self._witness is not None:
            self._witness.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _accept(self, data: bytes) -> bool:
        """Check a record of the file and note what later lookups need."""
        if not self._codes.genuine(data, self._code):
            return False
        self._code = code_of(data)
        self._note(*kind_and_step(data), self.count)
        return True

    def _note(self, kind: int, step: int, position: int) -> None:
        """Learn of a record; only one that does not raise the highest step takes memory."""
        if kind == RecordKind.PERMISSION:
            self.allowed[step] += 1
            self._open.add(step)
            if step in self._asked:
                self._open_asked.add(step)
        elif kind == RecordKind.EVALUATION:
            self._asked.setdefault(step, []).append(position)
            self._open_asked.discard(step)
        elif step <= self._high:
            self._positions[step] = position
            self._open.discard(step)
        else:
            self._high, self._newest = step, position

    def _append(self, kind: RecordKind, step: int, seen: bytes, sent: bytes) -> None:
        if self.behind is not None:
            raise ReleaseError(self.behind)
        record = JournalRecord(
            number=self.count,
            kind=kind,
            step=step,
            high=max(step, self._high),
            seen=seen,
            sent=sent,
        )
        sealed = self._codes.sealed(record, self._code)
        self._file.append(sealed, what=f"step {step}")
        self._code = code_of(sealed)
        self._note(kind, step, record.number)
        self._tell_witness()

    def _tell_witness(self) -> None:
        if self._witness is not None and self._witness.count < self.count:
            self._witness.note(self.count, None if self._high < 0 else self._high)

    def _entry(self, position: int) -> JournalEntry:
        data = self._file.read(position)
        found = JournalRecord.read(data)
        return JournalEntry(step=found.step, embedding=found.seen, release=found.sent, record=data)

    def _first(self, step: int) -> int:
        """Return the first release of a step; the highest step never falls along the file."""
        return bisect_left(
            range(self.count),
            step,
            key=lambda position: JournalRecord.read(self._file.read(position)).high,
        )

    def _refusal(self, step: int, held: JournalEntry | None, embedding: bytes) -> str:
        if held is None:
            return f"steps are released in ascending order, got {step} after {self._high}"
        what = "with another embedding" if held.embedding != embedding else "as other bytes"
        return (
            f"step {step} was released before {what}, and two releases of a step let noise be "
            f"cancelled: return to the state of that release, or let the operator decide on "
            f"allow_again({step}); nothing may be sent"
        )


def digest(tensor: Tensor) -> bytes:
    """Return the SHA-256 of a tensor's type, shape and bytes; -0.0 and 0.0 differ.

    >>> digest(torch.zeros(2, 3)) == digest(torch.zeros(3, 2))
    False
    """
    plain = tensor.detach().cpu().contiguous()
    state = hashlib.sha256(f"{plain.dtype}{list(plain.shape)}".encode())
    state.update(plain.view(-1).view(torch.uint8).numpy().data)
    return state.digest()


def _checked(*digests: bytes) -> tuple[bytes, ...]:
    if any(not isinstance(value, bytes) or len(value) != 32 for value in digests):
        raise InputError(f"a digest is 32 bytes, as of digest(tensor), got {digests!r:.60}")
    return digests


def _number(step: object) -> int:
    number = whole(step)
    if not 0 <= number < 2**63:
        raise InputError(f"a step is a whole number from 0 to 2^63 - 1, got {number}")
    return number
