"""The matching of ids, kept in a party's state folder: a run that goes on does not match again.

``matching.rounds`` is the record of who was answered about which ids, ``matching.key`` what hides
the own ids, ``matching.npy`` and ``matching.json`` the common rows that came out of it.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt

from tacit import data
from tacit.atomic import write_whole
from tacit.errors import UsageError
from tacit.party.config import PartyConfig
from tacit.state_dir import StateFolder, kept_secret, remove_own
from tacit.wire.psi.align import Alignment, Matching
from tacit.wire.psi.rounds import KEY, ONCE, Rounds, open_rounds

ROWS, FACTS = "matching.npy", "matching.json"
ROUNDS, PREDICT_ROUNDS = "matching.rounds", "predict.rounds"


@contextmanager
def rounds_of(folder: StateFolder, table: data.PartyTable) -> Iterator[Rounds]:
    """Open a party's rounds of matching; a table with other ids than the round has is refused."""
    with _opened(folder, ROUNDS) as rounds:
        rounds.begin(table.ids)
        _held(folder, table)  # what cannot be used is said now, not when a peer is there
        yield rounds


@contextmanager
def predict_rounds(folder: StateFolder, table: data.PartyTable) -> Iterator[Rounds]:
    """Open the rounds of predictions; each command allows one more."""
    with _opened(folder, PREDICT_ROUNDS) as rounds:
        rounds.remedy = ONCE
        rounds.again()
        rounds.begin(table.ids)
        yield rounds


def allow_matching(folder: StateFolder, *, begun: bool) -> int:
    """Let ids be matched once more, as the operator decides; return the number of the round."""
    if begun:
        raise UsageError(
            f"--match-again: {folder.path} holds a run that has begun, and goes on with its own "
            "matching only: name another state folder for a new run"
        )
    with _opened(folder, ROUNDS) as rounds:
        if not rounds.number:
            raise UsageError(f"--match-again: nothing was matched in {folder.path} yet")
        for name in (FACTS, ROWS):
            remove_own(folder.path / name)
        return rounds.again()


def matching_of(
    config: PartyConfig,
    folder: StateFolder,
    table: data.PartyTable,
    rounds: Rounds | None,
    log: Callable[[str], None],
) -> Matching:
    """Return this party's side of the matching, with what was found before if it still holds."""
    return Matching(
        ids=table.ids,
        private=config.matching == "private",
        peers=config.peers,
        held=_held(folder, table),
        rounds=rounds,
        log=log,
    )


def keep_matching(folder: StateFolder, table: data.PartyTable, common: Alignment) -> None:
    """Store which rows are common; the facts come last, so that half of it counts as nothing."""
    held = _held(folder, table)
    if held is not None and held.digest == common.digest:
        return
    content = io.BytesIO()
    np.save(content, common.order, allow_pickle=False)
    write_whole(folder.path / ROWS, content.getvalue())
    facts = _facts(content.getvalue(), table)
    folder.write(FACTS, {"format": 1, "digest": common.digest, **facts})


@contextmanager
def _opened(folder: StateFolder, name: str) -> Iterator[Rounds]:
    path = folder.path / name
    if (folder.read_bytes(name) or b"") and folder.read_bytes(KEY) is None:
        raise UsageError(
            f"{folder.path / KEY}: the key of {path} is gone, and with another one the same ids "
            "look like others: restore it, or name another state folder for a new run"
        )
    with open_rounds(path, key=kept_secret(folder.path / KEY)) as rounds:
        yield rounds


def _held(folder: StateFolder, table: data.PartyTable) -> Alignment | None:
    facts, rows = folder.read(FACTS), folder.read_bytes(ROWS)
    if facts is None or rows is None or {**facts, **_facts(rows, table)} != facts:
        return None
    order = _order(rows)
    return Alignment(ids=table.ids[order], order=order, digest=facts["digest"])


def _order(rows: bytes) -> npt.NDArray[np.int64]:
    """Return the array in a file that ``np.save`` wrote here, which its digest has shown.

    ``np.load`` reads the header as Python, and CPython 3.11 fails now and then where two threads do
    that at once: parties in one process would.
    """
    header = int.from_bytes(rows[8:10], "little")
    return np.frombuffer(rows, dtype="<i8", offset=10 + header)


def _facts(rows: bytes, table: data.PartyTable) -> dict[str, str]:
    """Return digests of the stored rows and of the table that they are rows of."""
    ids = np.ascontiguousarray(table.ids)
    return {
        "rows": hashlib.sha256(rows).hexdigest(),
        "table": hashlib.sha256(str(ids.dtype).encode() + ids.tobytes()).hexdigest(),
    }
