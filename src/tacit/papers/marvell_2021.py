"""Marvell, 2021 version: error bounds and calibration, hints, and a stream of days."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

from tacit.experiment.sweep_store import TrialRecord
from tacit.papers.records import (
    LAYERS,
    by_protection,
    days_plot,
    first_by_protection,
    grouped,
    layer_leak,
    mean_of,
    mean_over_days,
    number,
    present,
    share_below,
    spread_of,
    steps_plot,
    steps_table,
)
from tacit.papers.study import (
    Cell,
    Finding,
    PaperClaim,
    Published,
    Study,
    Tabulated,
    published_table,
)
from tacit.report import bars
from tacit.report.tradeoff import family_of

_BOUNDED = ("none", *(f"marvell(error={bound})" for bound in (0.1, 0.2, 0.3, 0.4)))
_OTHERS = ("max_norm", "iso(t=1)", "iso(t=2)")
_NORM = "norm"
_SIMILAR = 0.02
_NORM_LEAK, _HINT_LEAK = "leak.norm.mean", "leak.hint.mean"
_UTILITIES = {"test AUC": ("test.auc", 1), "test loss": ("test.loss", -1)}
_LEVELS = (0.04, 0.16, 0.36, 0.64, 1.44, 2.56)
_MANY_LEVELS = (0.01, 0.04, 0.1, 0.16, 0.25, 0.36, 0.49, 0.64, 1.0, 1.44, 2.56, 3.6)
_ByProtection = Mapping[tuple[Any, ...], Sequence[TrialRecord]]
# One pass over ten days, each day tested before it is trained on.
STREAM: dict[str, Any] = {
    "dataset": "avazu",
    "model": "wdl",
    "stream": True,
    "epochs": 1,
    "monitor_every": 1,
}
_LOW, _HIGH = "marvell(sum_kl=0.1)", "marvell(sum_kl=0.25)"
_SPECS = ("none", _LOW, _HIGH, "iso(t=1)", "iso(t=2)", "max_norm")
_DROPS = {
    row["protection"]: float(row["drop of AUC in percent"])
    for row in published_table("marvell_2021_figure4")
}
_STREAM_SOURCE = "section 5.4"
_Means = dict[str, dict[str, float | None]]


# --- figure 2: a lower bound of the detection error, and calibration ---


def _plan_bounds(full: bool) -> list[dict[str, Any]]:
    values: dict[str, Any] = {
        "dataset": "criteo",
        "model": "wdl",
        "cut": 4,
        "lr": 1e-4,
        "layers": True,
        "attacks": (_NORM,),
        "monitor_every": 1 if full else 2,
        "epochs": 5 if full else 4,
    }
    return [{**values, "protect": spec} for spec in (*_BOUNDED, *_OTHERS)]


def _read_bounds(records: Sequence[TrialRecord]) -> Finding:
    protections = first_by_protection(records)
    drawn = {
        protection: protections[protection] for protection in _BOUNDED if protection in protections
    }
    ace = {protection: number(record, "test.ace") for protection, record in protections.items()}
    rows = [
        [
            protection,
            ace[protection],
            number(record, "test.auc"),
            number(record, "test.loss"),
            layer_leak(record, "cut", _NORM),
            layer_leak(record, "layer1", _NORM),
        ]
        for protection, record in protections.items()
    ]
    tables = [
        steps_table("Leak AUC of the norm attack over training", drawn, LAYERS, (_NORM,)),
        Tabulated(
            title="Adaptive calibration error on test rows",
            header=["protection", "ACE", "test AUC", "test loss", "norm, cut", "norm, first layer"],
            rows=rows,
        ),
    ]
    figures = [
        steps_plot(
            [(protection, record, layer) for protection, record in drawn.items()],
            attack=_NORM,
            title=f"Norm leak at the {name}",
        )
        for name, layer in LAYERS.items()
    ]
    figures.append(bars({"ACE": ace}, title="Adaptive calibration error", y="ACE"))
    return Finding(tables=tables, claims=_bound_claims(drawn, ace), figures=figures)


def _bound_claims(
    protections: dict[str, TrialRecord], ace: dict[str, float | None]
) -> list[PaperClaim]:
    at = {
        layer: [layer_leak(record, layer, _NORM) for record in protections.values()]
        for layer in LAYERS.values()
    }
    cut, first = (present(values) for values in at.values())
    falling = [b <= a for a, b in itertools.pairwise(cut)]
    plain = ace.get("none")
    apart = [
        abs(value - plain)
        for protection, value in ace.items()
        if value is not None
        and plain is not None
        and protection.startswith(("marvell", "max_norm"))
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


# --- figure 3: norm and hint attack against test loss and test AUC ---


def _plan_tradeoff(full: bool) -> list[dict[str, Any]]:
    base: dict[str, Any] = {
        "model": "wdl",
        "cut": 4,
        "epochs": 5 if full else 3,
        "lr": 1e-4,
        "attacks": ("norm", "hint"),
        "monitor_every": 1 if full else 4,
    }
    marvell = [f"marvell(sum_kl={level:g})" for level in (_MANY_LEVELS if full else _LEVELS)]
    iso = [
        f"iso(t={t:g})"
        for t in (
            (0.1, 0.25, 0.5, 1, 2, 3, 4, 6, 8, 12, 16, 24) if full else (0.25, 0.5, 1, 2, 4, 8)
        )
    ]
    sets = ({"dataset": "criteo"}, {"dataset": "avazu", "lr": 1e-4 if full else 3e-4})
    specs = ["none", "max_norm", *marvell, *iso]
    return [{**base, **values, "protect": spec} for values in sets for spec in specs]


def _points(
    trials: _ByProtection, family: str, leak: str, utility: str
) -> list[tuple[float, float]]:
    axis, sign = _UTILITIES[utility]
    found = [
        (mean_of(same, axis), mean_of(same, leak))
        for (spec,), same in trials.items()
        if family_of(spec)[0] in (family, "none")
    ]
    return [(sign * w, at) for w, at in found if w is not None and at is not None]


def _read_tradeoff(records: Sequence[TrialRecord]) -> Finding:
    tables, claims = [], []
    for (dataset,), found in grouped(records, "dataset").items():
        trials = grouped(found, "protect")
        axes = ("test.auc", "test.loss", _NORM_LEAK, _HINT_LEAK)
        rows = [
            [spec, *(spread_of(same, axis) for axis in axes)] for (spec,), same in trials.items()
        ]
        tables.append(
            Tabulated(
                title=f"{dataset}: mean leak AUC over batches, and utility",
                header=["protection", "test AUC", "test loss", "norm", "hint"],
                rows=rows,
            )
        )
        claims += _tradeoff_claims(dataset, trials)
    return Finding(
        tables=tables,
        claims=claims,
        tradeoffs=[(_NORM_LEAK, "test.auc"), (_HINT_LEAK, "test.loss"), (_HINT_LEAK, "test.auc")],
    )


def _tradeoff_claims(dataset: str, trials: _ByProtection) -> list[PaperClaim]:
    plain = mean_of(trials.get(("none",), ()), _HINT_LEAK)
    claims = [
        PaperClaim(
            text=f"{dataset}: five hints make the leak AUC close to 1 without protection (above "
            "0.95)",
            source="section 5.3",
            holds=None if plain is None else plain > 0.95,
            found="no trial" if plain is None else f"{plain:.3f}",
        )
    ]
    for leak, utility, where in (
        (_NORM_LEAK, "test AUC", "figure 3(a, d)"),
        (_HINT_LEAK, "test loss", "figure 3(b, e)"),
        (_HINT_LEAK, "test AUC", "figure 3(c, f)"),
    ):
        curves = [
            _points(trials, family, leak, utility) for family in ("marvell(sum_kl)", "iso(t)")
        ]
        share = share_below(*curves)
        attack = leak.split(".")[1]
        claims.append(
            PaperClaim(
                text=f"{dataset}: Marvell trades {attack} leak against {utility} better than iso",
                source=where,
                holds=None if share is None else share > 0.5,
                found="no common range" if share is None else f"in {share:.0%} of the curve",
            )
        )
    return [*claims, _max_norm(dataset, trials)]


def _max_norm(dataset: str, trials: _ByProtection) -> PaperClaim:
    heuristic = mean_of(trials.get(("max_norm",), ()), _HINT_LEAK)
    loss = mean_of(trials.get(("max_norm",), ()), "test.loss")
    points = _points(trials, "marvell(sum_kl)", _HINT_LEAK, "test loss")
    better = [] if loss is None else [at for utility, at in points if utility >= -loss]
    least = min(better, default=None)
    known = heuristic is not None and least is not None
    return PaperClaim(
        text=f"{dataset}: max_norm is less effective than Marvell against hints (some sumKL has no "
        "more test loss and less leak)",
        source="section 5.3",
        holds=least < heuristic if heuristic is not None and least is not None else None,
        found=f"{heuristic:.3f} against {least:.3f}" if known else "no sumKL with as little loss",
    )


# --- figure 4: day by day on a stream ---


def _plan_stream(full: bool) -> list[dict[str, Any]]:
    size = {"batch_size": 1024, "lr": 1e-4} if full else {"batch_size": 256, "lr": 1e-3}
    seeds = range(3) if full else range(2)
    values = {**STREAM, "cut": 4, "attacks": ("norm", "hint"), **size}
    return [{**values, "protect": spec, "seed": seed} for spec in _SPECS for seed in seeds]


def _read_stream(records: Sequence[TrialRecord]) -> Finding:
    protections = by_protection(records)
    means = {
        protection: {what: mean_over_days(same, what) for what in ("auc", "norm", "hint")}
        for protection, same in protections.items()
    }
    plain = means.get("none", {}).get("auc")
    rows: list[list[Cell]] = [
        [
            protection,
            found["auc"],
            _drop(plain, found["auc"]),
            _DROPS.get(protection),
            found["norm"],
            found["hint"],
        ]
        for protection, found in means.items()
    ]
    table = Tabulated(
        title="Means over days",
        header=["protection", "AUC", "drop, %", "paper: drop, %", "norm leak", "hint leak"],
        rows=rows,
        note="AUC of a day's rows before they are trained on; drop is relative to no protection.",
    )
    figures = [
        days_plot(protections, "norm", title="Norm leak by day", y="leak AUC of norm"),
        days_plot(protections, "hint", title="Hint leak by day", y="leak AUC of hint"),
        days_plot(protections, "auc", title="AUC by day", y="AUC"),
    ]
    return Finding(tables=[table], claims=_stream_claims(means), figures=figures)


def _drop(plain: float | None, value: float | None) -> float | None:
    return None if plain is None or value is None else 100 * (plain - value) / plain


def _stream_claims(means: _Means) -> list[PaperClaim]:
    def get(protection: str, what: str) -> float:
        value = means.get(protection, {}).get(what)
        return float("nan") if value is None else value

    def claim(text: str, pairs: Sequence[tuple[float, float]]) -> PaperClaim:
        """Check that the first of each pair is the larger."""
        there = [pair for pair in pairs if not any(map(math.isnan, pair))]
        return PaperClaim(
            text=text,
            source=_STREAM_SOURCE,
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


STUDIES = (
    Study(
        name="fig2-error-bound",
        paper="hint",
        title="leak under a lower bound of the detection error (L = 0.1 to 0.4), and calibration",
        place="figure 2, section 5.2 of the 2021 version",
        plan=_plan_bounds,
        read=_read_bounds,
        scaled=(
            "the sample of Criteo that is here (137,139 rows in place of 45 million), 4 epochs",
            "every second batch is attacked, in place of every one",
        ),
        departs=("the paper does not say how long it trained: --full takes 5 epochs, as in 2022",),
        task="tacit.papers.tasks:trace_leaks",
    ),
    Study(
        name="fig3-hint",
        paper="hint",
        title="norm and hint attack (5 hints, inner product) against test loss and test AUC",
        place="figure 3, section 5.3 of the 2021 version",
        plan=_plan_tradeoff,
        read=_read_tradeoff,
        scaled=(
            "the samples that are here: 137,139 rows of Criteo, 43,256 of Avazu, in place of 45 "
            "and 40 million; 3 epochs, and for Avazu a rate of 3e-4",
            "6 strengths of each family in place of 12; every fourth batch is attacked",
        ),
        departs=("the paper gives no list of strengths, epochs or rates",),
    ),
    Study(
        name="fig4-stream",
        paper="hint",
        title="day by day: sumKL 0.1 and 0.25, iso 1 and 2, max_norm",
        place="figure 4, section 5.4 of the 2021 version",
        plan=_plan_stream,
        read=_read_stream,
        scaled=(
            "the 43,256 rows of Avazu that are here, in batches of 256 at a rate of 1e-3, with 2 "
            "seeds, in place of all 40 million in batches of 1,024 at 1e-4 with 3",
        ),
        departs=(
            "the paper's data (42.56 million conversions of a company) are not public: the ten "
            "days of Avazu stand in, at either scale",
        ),
        published=[
            Published(what=f"{protection}: drop of AUC, %", value=value, source=_STREAM_SOURCE)
            for protection, value in _DROPS.items()
        ],
    ),
)
