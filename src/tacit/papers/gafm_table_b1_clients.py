"""GAFM, table B.1: the same with three passive parties."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tacit.experiment.sweep_store import TrialRecord
from tacit.papers._gafm import METHODS, SCALED, of_set, sets
from tacit.papers._study import Finding, Study
from tacit.papers.gafm_table1 import read_methods

_PARTIES = {"parties": 3, "combine": "mean"}


def _plan(full: bool) -> list[dict[str, Any]]:
    trials = []
    for values in sets(full, seeds=(2, 1, 10)):
        trials.append(of_set({**values, **_PARTIES}))
        others = [spec for spec in METHODS.values() if spec != "gafm"]
        trials += [{**values, **_PARTIES, "protect": spec} for spec in others]
    return trials


def _read(records: Sequence[TrialRecord]) -> Finding:
    return read_methods(records, paper={})


STUDY = Study(
    name="tableB1-clients",
    paper="gafm",
    title="AUC, leak AUC and TVD with three feature parties",
    place="table B.1, appendix B.2",
    plan=_plan,
    read=_read,
    scaled=(SCALED[0], "2 repetitions on Spambase and 1 on the others, in place of 10"),
    departs=(
        "the numbers of table B.1 are not in the text at hand: only claims are compared",
        "columns are dealt to the parties in equal parts; the paper has 200, 200 and 100 for IMDB",
    ),
    task="tacit.papers._gafm:measured",
)
