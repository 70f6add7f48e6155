"""Marvell, 2021 version, figure 4: protections day by day on a stream."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tacit.experiment.sweep_store import TrialRecord
from tacit.papers._stream import BASE, daily_plot, over_days, ways_of
from tacit.papers._study import Cell, Finding, PaperClaim, Published, Study, Tabulated

_LOW, _HIGH = "marvell(sum_kl=0.1)", "marvell(sum_kl=0.25)"
_SPECS = ("none", _LOW, _HIGH, "iso(t=1)", "iso(t=2)", "max_norm")
_DROPS = {_HIGH: 1.53, _LOW: 1.80, "max_norm": 1.02}
_WHERE = "section 5.4"
Means = dict[str, dict[str, float | None]]


def _plan(full: bool) -> list[dict[str, Any]]:
    size = {"batch_size": 1024, "lr": 1e-4} if full else {"batch_size": 256, "lr": 1e-3}
    seeds = range(3) if full else range(2)
    values = {**BASE, "cut": 4, "attacks": ("norm", "hint"), **size}
    return [{**values, "protect": spec, "seed": seed} for spec in _SPECS for seed in seeds]


def _read(records: Sequence[TrialRecord]) -> Finding:
    ways = ways_of(records)
    means = {
        way: {what: over_days(same, what) for what in ("auc", "norm", "hint")}
        for way, same in ways.items()
    }
    plain = means.get("none", {}).get("auc")
    rows: list[list[Cell]] = [
        [
            way,
            found["auc"],
            _drop(plain, found["auc"]),
            _DROPS.get(way),
            found["norm"],
            found["hint"],
        ]
        for way, found in means.items()
    ]
    table = Tabulated(
        title="Means over days",
        header=["protection", "AUC", "drop, %", "paper: drop, %", "norm leak", "hint leak"],
        rows=rows,
        note="AUC of a day's rows before they are trained on; drop is relative to no protection.",
    )
    figures = [
        daily_plot(ways, "norm", title="Norm leak by day", y="leak AUC of norm"),
        daily_plot(ways, "hint", title="Hint leak by day", y="leak AUC of hint"),
        daily_plot(ways, "auc", title="AUC by day", y="AUC"),
    ]
    return Finding(tables=[table], claims=_claims(means), figures=figures)


def _drop(plain: float | None, value: float | None) -> float | None:
    return None if plain is None or value is None else 100 * (plain - value) / plain


def _claims(means: Means) -> list[PaperClaim]:
    def get(way: str, what: str) -> float:
        value = means.get(way, {}).get(what)
        return float("nan") if value is None else value

    def claim(text: str, pairs: Sequence[tuple[float, float]]) -> PaperClaim:
        """Check that the first of each pair is the larger."""
        there = [pair for pair in pairs if not any(map(math.isnan, pair))]
        return PaperClaim(
            text=text,
            source=_WHERE,
            holds=all(a > b for a, b in there) if there else None,
            found="; ".join(f"{a:.3f} > {b:.3f}" for a, b in there) or "not measured",
        )

    others = [spec for spec in _SPECS if spec not in ("none", "iso(t=1)")]
    return [
        claim(
            "iso_1.0 has the worst leak of all protections, by norm and by hint",
            [(get("iso(t=1)", a), max(get(o, a) for o in others)) for a in ("norm", "hint")],
        ),
        claim(
            "iso_2.0 protects better than iso_1.0",
            [(get("iso(t=1)", a), get("iso(t=2)", a)) for a in ("norm", "hint")],
        ),
        claim(
            "iso_2.0 protects better against hints than max_norm",
            [(get("max_norm", "hint"), get("iso(t=2)", "hint"))],
        ),
        claim(
            "iso_2.0 has the worst utility of all",
            [(min(get(s, "auc") for s in _SPECS if s != "iso(t=2)"), get("iso(t=2)", "auc"))],
        ),
        claim(
            "Marvell leaks less than iso_2.0, at both levels and by both attacks",
            [(get("iso(t=2)", a), get(m, a)) for m in (_LOW, _HIGH) for a in ("norm", "hint")],
        ),
        claim(
            "max_norm is less effective than sumKL_0.25 against hints",
            [(get("max_norm", "hint"), get(_HIGH, "hint"))],
        ),
    ]


STUDY = Study(
    name="fig4-stream",
    paper="hint",
    title="day by day: sumKL 0.1 and 0.25, iso 1 and 2, max_norm",
    place="figure 4, section 5.4 of the 2021 version",
    plan=_plan,
    read=_read,
    scaled=(
        "the 43,256 rows of Avazu that are here, in batches of 256 at a rate of 1e-3, with 2 "
        "seeds, in place of all 40 million in batches of 1,024 at 1e-4 with 3",
    ),
    departs=(
        "the paper's data (42.56 million conversions of a company) are not public: the ten "
        "days of Avazu stand in, at either scale",
    ),
    published=[
        Published(what=f"{way}: drop of AUC, %", value=value, source=_WHERE)
        for way, value in _DROPS.items()
    ],
)
