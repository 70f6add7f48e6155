"""Marvell, 2021 version, figure 2: leak AUC under a lower bound of the detection error, and ACE."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from tacit.experiment.sweep_store import TrialRecord
from tacit.papers._course import PLACES, by_protection, course_plot, course_table, mean_leak
from tacit.papers._reading import known, number
from tacit.papers._study import Finding, PaperClaim, Study, Tabulated
from tacit.report import bars

_BOUNDS = (0.1, 0.2, 0.3, 0.4)
_COURSES = ("none", *(f"marvell(error={bound})" for bound in _BOUNDS))
_OTHERS = ("max_norm", "iso(t=1)", "iso(t=2)")
_ATTACK = "norm"
_SIMILAR = 0.02


def _plan(full: bool) -> list[dict[str, Any]]:
    values: dict[str, Any] = {
        "dataset": "criteo",
        "model": "wdl",
        "cut": 4,
        "lr": 1e-4,
        "layers": True,
        "attacks": (_ATTACK,),
        "monitor_every": 1 if full else 2,
        "epochs": 5 if full else 4,
    }
    return [{**values, "protect": spec} for spec in (*_COURSES, *_OTHERS)]


def _read(records: Sequence[TrialRecord]) -> Finding:
    ways = by_protection(records)
    drawn = {way: ways[way] for way in _COURSES if way in ways}
    ace = {way: number(record, "test.ace") for way, record in ways.items()}
    rows = [
        [
            way,
            ace[way],
            number(record, "test.auc"),
            number(record, "test.loss"),
            mean_leak(record, "cut", _ATTACK),
            mean_leak(record, "layer1", _ATTACK),
        ]
        for way, record in ways.items()
    ]
    tables = [
        course_table("Leak AUC of the norm attack over training", drawn, PLACES, (_ATTACK,)),
        Tabulated(
            title="Adaptive calibration error on test rows",
            header=["protection", "ACE", "test AUC", "test loss", "norm, cut", "norm, first layer"],
            rows=rows,
        ),
    ]
    figures = [
        course_plot(
            [(way, record, place) for way, record in drawn.items()],
            attack=_ATTACK,
            title=f"Norm leak at the {name}",
        )
        for name, place in PLACES.items()
    ]
    figures.append(bars({"ACE": ace}, title="Adaptive calibration error", y="ACE"))
    return Finding(tables=tables, claims=_claims(drawn, ace), figures=figures)


def _claims(ways: dict[str, TrialRecord], ace: dict[str, float | None]) -> list[PaperClaim]:
    at = {
        place: [mean_leak(record, place, _ATTACK) for record in ways.values()]
        for place in PLACES.values()
    }
    cut, first = (known(values) for values in at.values())
    falling = [b <= a for a, b in itertools.pairwise(cut)]
    plain = ace.get("none")
    apart = [
        abs(value - plain)
        for way, value in ace.items()
        if value is not None and plain is not None and way.startswith(("marvell", "max_norm"))
    ]
    return [
        PaperClaim(
            text="without perturbation the leak AUC is consistently around 0.9 (above 0.85)",
            source="section 5.2, figure 2(a)",
            holds=cut[0] > 0.85 if cut else None,
            found=f"{cut[0]:.3f}" if cut else "no trial",
        ),
        PaperClaim(
            text="a higher lower bound L leaks less",
            source="section 5.2, figure 2(a)",
            holds=all(falling) if falling else None,
            found=", ".join(f"{leak:.3f}" for leak in cut[1:]),
        ),
        PaperClaim(
            text="the first layer leaks at the same high level without protection (within 0.05)",
            source="section 5.2, figure 2(b)",
            holds=abs(cut[0] - first[0]) < 0.05 if cut and first else None,
            found=f"{first[0]:.3f}" if first else "no layers",
        ),
        PaperClaim(
            text="Marvell reduces the leak at the first layer too, for every L",
            source="section 5.2, figure 2(b)",
            holds=all(leak < first[0] for leak in first[1:]) if len(first) > 1 else None,
            found=", ".join(f"{leak:.3f}" for leak in first[1:]),
        ),
        PaperClaim(
            text=f"Marvell and max_norm have an ACE similar to no noise (within {_SIMILAR})",
            source="section 5.2, figure 2(c)",
            holds=max(apart) <= _SIMILAR if apart else None,
            found=f"at most {max(apart, default=float('nan')):.3f} apart",
        ),
    ]


STUDY = Study(
    name="fig2-error-bound",
    paper="hint",
    title="leak under a lower bound of the detection error (L = 0.1 to 0.4), and calibration",
    place="figure 2, section 5.2 of the 2021 version",
    plan=_plan,
    read=_read,
    scaled=(
        "the sample of Criteo that is here (137,139 rows in place of 45 million), 4 epochs",
        "every second batch is attacked, in place of every one",
    ),
    departs=("the paper does not say how long it trained: --full takes 5 epochs, as in 2022",),
    task="tacit.papers._traced:traced",
)
