"""The files of a party's run: its table, the encoding, checkpoints; and how long it waits."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256

import numpy as np

from tacit import data
from tacit.errors import UsageError
from tacit.party.backoff import Backoff
from tacit.party.checkpoint import CheckpointStore
from tacit.party.config import PartyConfig
from tacit.state_dir import StateFolder

Log = Callable[[str], None]
ENCODING = "encoding.json"
LABELS = "labels.json"
TABLES = "tables"


def waiting_for(config: PartyConfig, log: Log) -> Backoff:
    """Return the wait for the other party, as long as the configuration allows."""
    where = f" at {config.endpoint}" if config.role == "feature" else ""
    return Backoff(f"{' and '.join(config.peers)}{where}", limit=config.wait, log=log)


def run_name(config: PartyConfig) -> str:
    """Return what names the run in this party's own files."""
    return f"{config.name} with {', '.join(config.peers)}"


def table_of(config: PartyConfig, folder: StateFolder) -> data.PartyTable:
    """Return the party's table; what was read of it is kept in its state folder, nowhere else."""
    return data.load_party(config.data, role=config.role, own_cache=folder.folder(TABLES))


def encoding_of(folder: StateFolder, table: data.PartyTable) -> None:
    """Keep how the table was coded and what stands for its labels, or refuse another table."""
    marks = {ENCODING: table.encoding.to_json()}
    if table.labels is not None:
        inorder = np.asarray(table.labels)[np.argsort(table.ids)]
        marks[LABELS] = sha256(inorder.tobytes()).hexdigest()
    held = {name: folder.read(name) for name in marks}
    for name, mark in marks.items():
        if held[name] not in (None, mark):
            raise UsageError(
                f"{folder.path / name}: this run began with another table than {table.name} is "
                "today: bring that one back, or name another state folder for a new run"
            )
    for name, mark in marks.items():
        if held[name] is None:
            folder.write(name, mark)


def checkpoints_of(config: PartyConfig) -> CheckpointStore:
    """Return where a party keeps its states."""
    return CheckpointStore(config.state / "checkpoints", run=run_name(config), keep=3)


def check_rows(config: PartyConfig, rows: int) -> None:
    """Refuse a table that cannot fill one batch, however many of its rows are common."""
    if config.silent:
        _check_width(config, rows)
        return
    left = rows - round(rows * config.test_percent / 100)
    if left < config.batch_size:
        raise UsageError(
            f"data {config.data}: its {rows} rows leave at most {left} to train on, fewer than one "
            f"batch of {config.batch_size}, so there would be no step: take a smaller batch_size "
            "on both sides, or more rows"
        )


def _check_width(config: PartyConfig, rows: int) -> None:
    assert config.width is not None  # noqa: S101 - the configuration was checked
    if rows < config.width:
        raise UsageError(
            f"data {config.data}: {rows} rows are fewer than width = {config.width}: an embedding "
            "of each has more numbers than there are rows; take a smaller width on both sides, or "
            "more rows"
        )
