"""The technical report's two ways to align norms, Algorithms 5 and 6, which it calls similar."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tacit.experiment.sweep_store import TrialRecord
from tacit.papers.claims import bounded
from tacit.papers.records import (
    POOLED,
    READ_LEAKS,
    by_protection,
    grouped,
    mean_of,
    spread_of,
)
from tacit.papers.study import Cell, Finding, PaperClaim, Study, Tabulated

_PUBLISHED, _FIFTH, _SIXTH = "max_norm_positive_published", "max_norm_positive", "max_norm"
_SPECS = {"none": "none", _PUBLISHED: "5", _FIFTH: "5, no row bare", _SIXTH: "6"}
_ATTACKS = ("norm", "cosine")
_SIMILAR = 0.02
_WHERE = "Max Norm Alignment"
_SETS: dict[str, dict[str, Any]] = {
    "avazu": {"model": "wdl", "batch_size": 256, "rows": None},
    "credit": {"model": "mlp(hidden=64)", "batch_size": 256, "rows": 10_000},
    "spambase": {"model": "mlp(hidden=64)", "batch_size": 256, "rows": None},
    "imdb_random": {"model": "mlp(hidden=64)", "batch_size": 256, "rows": 10_000},
}


def _plan(full: bool) -> list[dict[str, Any]]:
    every = {"epochs": 10 if full else 3, "lr": 1e-3, "monitor_every": 1, "attacks": _ATTACKS}
    return [
        {**every, **values, "dataset": name, "protect": spec, "seed": seed}
        | ({"rows": None} if full else {})
        for name, values in _SETS.items()
        for spec in _SPECS
        for seed in range(10 if full else 3)
    ]


def _read(records: Sequence[TrialRecord]) -> Finding:
    rows: list[list[Cell]] = []
    claims = []
    for (dataset,), found in grouped(records, "dataset").items():
        protections = by_protection(found)
        rows += [[dataset, *_row(spec, same)] for spec, same in protections.items()]
        claims += _claims(str(dataset), protections)
    leaks = [name for attack in _ATTACKS for name in (attack, "sign-free", "noise")]
    table = Tabulated(
        title="Algorithms 5 and 6 of the technical report",
        header=[
            *("data set", "protection", "algorithm", "seeds", "test AUC", "test loss", *leaks),
            *("rows without noise", "most in a release"),
        ],
        rows=rows,
        note=f"{READ_LEAKS} Rows without noise are a share of all that were released; 'most' is "
        "of one release.",
    )
    return Finding(tables=[table], claims=claims)


def _row(spec: str, same: Sequence[TrialRecord]) -> list[Cell]:
    axes = ["test.auc", "test.loss"]
    axes += [f"leak.{attack}.{kind}" for attack in _ATTACKS for kind in POOLED.values()]
    axes += ["rows_without_noise.share", "rows_without_noise.most"]
    return [spec, _SPECS.get(spec), len(same), *(spread_of(same, axis) for axis in axes)]


def _claims(dataset: str, protections: dict[str, list[TrialRecord]]) -> list[PaperClaim]:
    def apart(axis: str) -> float | None:
        fifth, sixth = (mean_of(protections.get(s, ()), axis) for s in (_PUBLISHED, _SIXTH))
        return None if fifth is None or sixth is None else abs(fifth - sixth)

    return [
        bounded(
            f"{dataset}: Algorithm 6 achieves similar performance to Algorithm 5 ({what}, "
            "difference)",
            source=_WHERE,
            values=[apart(axis)],
            at_most=_SIMILAR,
        )
        for what, axis in (
            ("test AUC", "test.auc"),
            ("norm leak", f"leak.norm.{POOLED['leak AUC']}"),
        )
    ]


STUDIES = (
    Study(
        name="algorithms-5-6",
        paper="sumkl",
        title="noise along each gradient: by predictions (Algorithm 5) and by norms (Algorithm 6)",
        place="Max Norm Alignment, Algorithms 5 and 6 of the technical report",
        plan=_plan,
        read=_read,
        scaled=(
            "10,000 rows of Credit and of IMDB, 3 epochs and 3 seeds, in place of all rows, 10 "
            "epochs and 10 seeds",
        ),
        departs=(
            "the report compares them in words only; its data are not public",
            "a batch of whose rows Algorithm 5 gives none any noise is released as noise alone",
        ),
    ),
)
