"""Marvell, ICLR 2022, figures 3, 5 and 6: leak AUC throughout training, over the strength."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from tacit.experiment.sweep_store import TrialRecord
from tacit.papers._course import PLACES, by_protection, course_plot, course_table, mean_leak
from tacit.papers._reading import grouped, known
from tacit.papers._study import Finding, PaperClaim, Study

_ATTACKS = ("norm", "cosine")
_STRENGTHS = ("none", "marvell(s=0.1)", "marvell(s=0.25)", "marvell(s=1)", "marvell(s=4)")
_PLAIN, _STRONG = "none", "marvell(s=4)"
_SLACK = 0.02


def _plan(full: bool) -> list[dict[str, Any]]:
    every: dict[str, Any] = {"layers": True, "monitor_every": 1, "attacks": _ATTACKS, "lr": 1e-4}
    criteo = {**every, "dataset": "criteo", "model": "wdl", "epochs": 5}
    avazu = {**criteo, "dataset": "avazu", "batch_size": 32768}
    if full:
        isic = {
            **every,
            "dataset": "isic",
            "model": "isic_conv",
            "epochs": 1000,
            "lr": 1e-5,
            "batch_size": 128,
        }
        settings = [isic, avazu, {**criteo, "rows": 4_584_061}]
    else:
        ham = {
            **every,
            "dataset": "ham10000",
            "model": "isic_conv",
            "epochs": 1,
            "lr": 1e-3,
            "batch_size": 128,
            "rows": 2000,
        }
        settings = [ham, {**avazu, "batch_size": 1024, "lr": 3e-4}, {**criteo, "epochs": 3}]
    return [{**values, "protect": spec} for values in settings for spec in _STRENGTHS]


def _read(records: Sequence[TrialRecord]) -> Finding:
    tables, claims, figures = [], [], []
    for (dataset,), found in grouped(records, "dataset").items():
        ways = by_protection(found)
        tables.append(course_table(f"{dataset}: leak AUC over training", ways, PLACES, _ATTACKS))
        figures += [
            course_plot(
                [(way, record, place) for way, record in ways.items()],
                attack=attack,
                title=f"{dataset}: {attack} leak at the {name}",
            )
            for name, place in PLACES.items()
            for attack in _ATTACKS
        ]
        claims += _claims(dataset, ways)
    return Finding(tables=tables, claims=claims, figures=figures)


def _claims(dataset: str, ways: dict[str, TrialRecord]) -> list[PaperClaim]:
    def leaks(way: str, place: str) -> list[float]:
        if way not in ways:
            return []
        return known(mean_leak(ways[way], place, attack) for attack in _ATTACKS)

    plain = leaks(_PLAIN, "cut")
    strong = [leak for place in PLACES.values() for leak in leaks(_STRONG, place)]
    order = [leaks(way, "cut") for way in _STRENGTHS if way in ways]
    falling = [
        all(b <= a + _SLACK for a, b in zip(before, after, strict=True))
        for before, after in itertools.pairwise(order)
    ]
    return [
        PaperClaim(
            text=f"{dataset}: without protection labels leak completely (mean leak AUC of norm and "
            "cosine at the cut above 0.9)",
            source="section 5.1",
            holds=all(leak > 0.9 for leak in plain) if plain else None,
            found=_shown(plain),
        ),
        PaperClaim(
            text=f"{dataset}: Marvell at s = 4 protects strongly, at the cut and at the first "
            "layer (below 0.7; the paper says about 0.5 in 5.1, around 0.6 in A.7.3)",
            source="section 5.1, A.7.3",
            holds=all(leak < 0.7 for leak in strong) if strong else None,
            found=_shown(strong),
        ),
        PaperClaim(
            text=f"{dataset}: the degree of protection follows s (each step of s leaks no more)",
            source="section 5.1",
            holds=all(falling) if falling else None,
            found=f"{sum(falling)} of {len(falling)} steps",
        ),
    ]


def _shown(values: Sequence[float]) -> str:
    return ", ".join(f"{value:.3f}" for value in values) or "no trial"


STUDY = Study(
    name="fig3-progression",
    paper="marvell",
    title="norm and cosine leak over training, at the cut and at the first layer, over s",
    place="figures 3, 5 and 6, section 5.1 and A.7.1",
    plan=_plan,
    read=_read,
    scaled=(
        "HAM10000 (2,000 images of 32 x 32, enlarged to 84 x 84, one epoch at 1e-3) stands in for "
        "ISIC (5,840 of 84 x 84, 1000 epochs, six convolutions)",
        "the samples of Avazu and Criteo that are here; Avazu in batches of 1,024 at a rate of "
        "3e-4, in place of 32,768 at 1e-4; Criteo for 3 epochs in place of 5",
    ),
    departs=("the paper does not list its values of s but for 4",),
    task="tacit.papers._traced:traced",
)
