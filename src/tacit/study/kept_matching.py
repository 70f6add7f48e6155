"""The matching of ids, kept in a party's state folder: a run that goes on does not match again."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable

import numpy as np

from tacit import data
from tacit.runtime.matching import Common, Matching
from tacit.runtime.state_folder import StateFolder, write_whole
from tacit.study.party_config import PartyConfig

__all__ = ["keep_matching", "matching_of"]

ROWS, FACTS = "matching.npy", "matching.json"


def matching_of(
    config: PartyConfig, folder: StateFolder, table: data.PartyTable, log: Callable[[str], None]
) -> Matching:
    """Return this party's side of the matching, with what was found before if it still holds."""
    return Matching(
        ids=table.ids,
        private=config.matching == "private",
        held=_held(folder, table),
        log=log,
    )


def keep_matching(folder: StateFolder, table: data.PartyTable, common: Common) -> None:
    """Store which rows are common; the facts come last, so that half of it counts as nothing."""
    facts = folder.read(FACTS)
    if facts is not None and facts["digest"] == common.digest:
        return
    content = io.BytesIO()
    np.save(content, common.order, allow_pickle=False)
    write_whole(folder.path / ROWS, content.getvalue())
    folder.write(FACTS, {"format": 1, "digest": common.digest, **_facts(folder, table)})


def _held(folder: StateFolder, table: data.PartyTable) -> Common | None:
    facts = folder.read(FACTS)
    if facts is None or {**facts, **_facts(folder, table)} != facts:
        return None
    order = np.load(folder.path / ROWS, allow_pickle=False)
    return Common(ids=table.ids[order], order=order, digest=facts["digest"])


def _facts(folder: StateFolder, table: data.PartyTable) -> dict[str, str]:
    """Return what stands for the stored rows, and for the table that they are rows of."""
    place = folder.path / ROWS
    rows = place.read_bytes() if place.exists() else b""
    ids = np.ascontiguousarray(table.ids)
    return {
        "rows": hashlib.sha256(rows).hexdigest(),
        "table": hashlib.sha256(str(ids.dtype).encode() + ids.tobytes()).hexdigest(),
    }
