"""The audit of inputs over a tape: one snapshot of the embeddings, and all epochs' together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tacit.audit.feature_table import FeatureTable
from tacit.audit.input_leak import InputAudit, InputRow, Progress, audit_inputs
from tacit.audit.sent_rows import SentRows
from tacit.tape.tape import Recording

_MUCH = 0.5


def inputs_record(
    tape: Recording, features: FeatureTable, *, seed: int, progress: Progress
) -> dict[str, Any]:
    """Return what the embeddings on a tape show of the features, as plain values.

    ``inputs`` is of the last whole epoch, ``inputs_all_epochs`` of all epochs' embeddings of an
    example together (None of a single epoch), ``inputs_about`` says how it was measured.
    """
    rows = SentRows.of(tape, features, seed=seed)
    latest = audit_inputs(rows.latest, rows.features, seed=seed, progress=progress)
    every = None
    if rows.every is not None:
        every = audit_inputs(rows.every, rows.features, seed=seed, progress=progress)
    return {
        "inputs": latest.table(),
        "inputs_all_epochs": None if every is None else every.table(),
        "inputs_about": {
            "source": features.source,
            "verdict": verdict(latest),
            "known": latest.known,
            "judged": latest.judged,
            "examples": rows.sent,
            "matched": rows.matched,
            "width": rows.width,
            "epochs": rows.epochs,
            "note": latest.note,
            "seed": seed,
        },
    }


def inputs_only(tape: Recording, record: dict[str, Any]) -> dict[str, Any]:
    """Return the whole record of an audit that looks at inputs alone."""
    about = record["inputs_about"]
    return {
        "verdict": about["verdict"],
        "state": "leaks" if _shown(record["inputs"]) else "nothing found",
        "tape": {
            "source": tape.source,
            "examples": about["examples"],
            "epochs": about["epochs"],
            "width": about["width"],
            "embeddings": True,
            "damaged": tape.damaged,
        },
        "table": [],
        "worst": None,
        **record,
    }


def verdict(found: InputAudit) -> str:
    """Return in one sentence what embeddings show of the inputs.

    >>> import numpy as np
    >>> x = np.random.default_rng(0).normal(size=600)
    >>> verdict(audit_inputs(x, FeatureTable(numeric={"a": -x})))
    'Embeddings show inputs: 1 of 1 column rebuilt, 1 by half or more; the worst is a, R2 1.00.'
    """
    shown = _shown(found.table())
    columns = f"{len(found.rows)} column{'s' * (len(found.rows) > 1)}"
    if not shown:
        return f"Of {columns} none was rebuilt from embeddings by these decoders."
    much = sum(row["gain"] >= _MUCH for row in shown)
    return (
        f"Embeddings show inputs: {len(shown)} of {columns} rebuilt, {much} by half or more; "
        f"the worst is {_named(found.worst())}."
    )


def _shown(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the columns whose interval lies above what is reached without embeddings."""
    return [row for row in rows if row["gain"] is not None and row["low"] > row["baseline"]]


def _named(row: InputRow) -> str:
    if row.r2 is not None:
        return f"{row.column}, R2 {row.r2:.2f}"
    return f"{row.column}, accuracy {row.accuracy:.2f} over a baseline of {row.baseline:.2f}"
