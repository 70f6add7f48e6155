"""Marvell, 2021 version: error bounds and calibration, hints, and a stream of days."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tacit.experiment.sweep_store import TrialRecord
from tacit.papers.claims import below, bounded, falling
from tacit.papers.records import (
    LAYERS,
    POOLED,
    READ_LEAKS,
    by_protection,
    days_plot,
    grouped,
    layer_leak,
    mean,
    mean_of,
    mean_over_days,
    share_below,
    spread,
    spread_of,
    spread_over_days,
    steps_plot,
    steps_table,
)
from tacit.papers.released import HINT, L2, RATIO, of_2021
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
_NORM_LEAK = f"leak.norm.{POOLED['leak AUC']}"
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
_ISO = ("iso(t=1)", "iso(t=2)")
_SPECS = ("none", _LOW, _HIGH, *_ISO, "max_norm")
_DROPS = {
    row["protection"]: float(row["drop of AUC in percent"])
    for row in published_table("marvell_2021_figure4")
}
_STREAM_SOURCE = "section 5.4"
_LEAK_COLUMNS = ["norm", "sign-free", "noise", "hint", "sign-free", "noise"]
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
    return [
        {**values, "protect": spec, "seed": seed}
        for spec in (*_BOUNDED, *_OTHERS)
        for seed in range(1 if full else 3)
    ]


def _read_bounds(records: Sequence[TrialRecord]) -> Finding:
    protections = by_protection(records)
    drawn = {
        protection: protections[protection] for protection in _BOUNDED if protection in protections
    }
    ace = {protection: mean_of(same, "test.ace") for protection, same in protections.items()}
    measures = ("test.ace", "test.auc", "test.loss")
    rows = [
        [
            protection,
            len(same),
            *(spread_of(same, axis) for axis in measures),
            *(
                spread(layer_leak(record, layer, _NORM) for record in same)
                for layer in LAYERS.values()
            ),
        ]
        for protection, same in protections.items()
    ]
    names = ["protection", "seeds", "ACE", "test AUC", "test loss", "norm, cut"]
    tables = [
        steps_table("Leak AUC of the norm attack over training", drawn, LAYERS, (_NORM,)),
        Tabulated(
            title="Adaptive calibration error on test rows",
            header=[*names, "norm, first layer"],
            rows=rows,
        ),
    ]
    figures = [
        steps_plot(
            [(protection, same[0], layer) for protection, same in drawn.items()],
            attack=_NORM,
            title=f"Norm leak at the {name}",
        )
        for name, layer in LAYERS.items()
    ]
    figures.append(bars({"ACE": ace}, title="Adaptive calibration error", y="ACE"))
    return Finding(tables=tables, claims=_bound_claims(drawn, ace), figures=figures)


def _bound_claims(
    protections: dict[str, list[TrialRecord]], ace: dict[str, float | None]
) -> list[PaperClaim]:
    cut, first = (
        [mean(layer_leak(r, layer, _NORM) for r in same) for same in protections.values()]
        for layer in LAYERS.values()
    )
    plain = ace.get("none")
    apart = [
        abs(value - plain)
        for protection, value in ace.items()
        if value is not None
        and plain is not None
        and protection.startswith(("marvell", "max_norm"))
    ]
    return [
        bounded(
            "without perturbation the leak AUC is consistently around 0.9",
            source="section 5.2, figure 2(a)",
            values=cut[:1],
            above=0.85,
        ),
        falling(
            "a higher lower bound L leaks less",
            source="section 5.2, figure 2(a)",
            values=cut,
        ),
        bounded(
            "the first layer leaks at the same high level without protection (difference)",
            source="section 5.2, figure 2(b)",
            values=[abs(a - b) for a, b in zip(cut[:1], first[:1], strict=True) if a and b],
            below=0.05,
        ),
        below(
            "Marvell reduces the leak at the first layer too, for every L",
            source="section 5.2, figure 2(b)",
            pairs=[(leak, first[0]) for leak in first[1:]],
        ),
        bounded(
            "Marvell and max_norm have an ACE similar to no noise (largest difference)",
            source="section 5.2, figure 2(c)",
            values=[max(apart, default=None)],
            at_most=_SIMILAR,
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
    return [
        {**base, **values, "protect": spec, "seed": seed}
        for values in sets
        for spec in specs
        for seed in range(1 if full else 3)
    ]


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


def _hint(records: Sequence[TrialRecord]) -> str:
    """Return the hint attack of the trials, as they spell it."""
    return next(str(a) for a in records[0].config["attacks"] if str(a).startswith("hint"))


def _read_tradeoff(records: Sequence[TrialRecord]) -> Finding:
    tables, claims = [], []
    hint = _hint(records)
    leak = f"leak.{hint}.{POOLED['leak AUC']}"
    for (dataset,), found in grouped(records, "dataset").items():
        trials = grouped(found, "protect")
        forms = [f"leak.{a}.{kind}" for a in ("norm", hint) for kind in POOLED.values()]
        axes = ("test.auc", "test.loss", *forms)
        rows: list[list[Cell]] = [
            [spec, len(same), *(spread_of(same, axis) for axis in axes)]
            for (spec,), same in trials.items()
        ]
        tables.append(
            Tabulated(
                title=f"{dataset}: leak AUC, and utility",
                header=["protection", "seeds", "test AUC", "test loss", *_LEAK_COLUMNS],
                rows=rows,
                note=READ_LEAKS,
            )
        )
        claims += _tradeoff_claims(dataset, trials, leak)
    return Finding(
        tables=tables,
        claims=claims,
        tradeoffs=[(_NORM_LEAK, "test.auc"), (leak, "test.loss"), (leak, "test.auc")],
    )


def _tradeoff_claims(dataset: str, trials: _ByProtection, hint: str) -> list[PaperClaim]:
    """Check what section 5.3 says; ``hint`` is the axis of the hint attack."""
    plain = mean_of(trials.get(("none",), ()), hint)
    claims = [
        bounded(
            f"{dataset}: five hints make the leak AUC close to 1 without protection",
            source="section 5.3",
            values=[plain],
            above=0.95,
        )
    ]
    for leak, utility, where in (
        (_NORM_LEAK, "test AUC", "figure 3(a, d)"),
        (hint, "test loss", "figure 3(b, e)"),
        (hint, "test AUC", "figure 3(c, f)"),
    ):
        curves = [
            _points(trials, family, leak, utility) for family in ("marvell(sum_kl)", "iso(t)")
        ]
        share = share_below(*curves)
        attack = leak.split(".")[1]
        claims.append(
            bounded(
                f"{dataset}: Marvell trades {attack} leak against {utility} better than iso (share "
                "of the curve)",
                source=where,
                values=[share],
                above=0.5,
            )
        )
    return [*claims, _max_norm(dataset, trials, hint)]


def _max_norm(dataset: str, trials: _ByProtection, hint: str) -> PaperClaim:
    heuristic = mean_of(trials.get(("max_norm",), ()), hint)
    loss = mean_of(trials.get(("max_norm",), ()), "test.loss")
    points = _points(trials, "marvell(sum_kl)", hint, "test loss")
    better = [] if loss is None else [at for utility, at in points if utility >= -loss]
    least = min(better, default=None)
    return below(
        f"{dataset}: max_norm is less effective than Marvell against hints (some sumKL has no "
        "more test loss and less leak)",
        source="section 5.3",
        pairs=[(least, heuristic)],
    )


# --- figure 4: day by day on a stream ---


def _plan_stream(full: bool) -> list[dict[str, Any]]:
    size = {"batch_size": 1024, "lr": 1e-4} if full else {"batch_size": 256, "lr": 1e-3}
    values = {**STREAM, "cut": 4, "attacks": ("norm", "hint"), **size}
    return [{**values, "protect": spec, "seed": seed} for spec in _SPECS for seed in range(3)]


def _read_stream(records: Sequence[TrialRecord]) -> Finding:
    hint = _hint(records)
    protections = by_protection(records)
    means = {
        protection: {
            name: mean_over_days(same, what)
            for name, what in (("auc", "auc"), ("norm", "norm"), ("hint", hint))
        }
        for protection, same in protections.items()
    }
    plain = means.get("none", {}).get("auc")
    rows: list[list[Cell]] = [
        [
            protection,
            len(same),
            spread_over_days(same, "auc"),
            _drop(plain, means[protection]["auc"]),
            _DROPS.get(protection),
            *(
                spread_over_days(same, attack, kind)
                for attack in ("norm", hint)
                for kind in POOLED.values()
            ),
        ]
        for protection, same in protections.items()
    ]
    names = ["protection", "seeds", "AUC", "drop, %", "paper: drop, %"]
    table = Tabulated(
        title="Means over days",
        header=[*names, *_LEAK_COLUMNS],
        rows=rows,
        note="AUC of a day's rows before they are trained on; drop is relative to no protection. "
        + READ_LEAKS,
    )
    figures = [
        days_plot(protections, "norm", title="Norm leak by day", y="leak AUC of norm"),
        days_plot(protections, hint, title="Hint leak by day", y="leak AUC of hint"),
        days_plot(protections, "auc", title="AUC by day", y="AUC"),
    ]
    return Finding(tables=[table], claims=_stream_claims(means), figures=figures)


def _drop(plain: float | None, value: float | None) -> float | None:
    return None if plain is None or value is None else 100 * (plain - value) / plain


def _stream_claims(means: _Means) -> list[PaperClaim]:
    def get(protection: str, what: str) -> float | None:
        return means.get(protection, {}).get(what)

    def least(pairs: Sequence[tuple[tuple[str, str], tuple[str, str]]], text: str) -> PaperClaim:
        """Check that the first of each pair, a protection and a measure, is the smaller."""
        values = [(get(*small), get(*large)) for small, large in pairs]
        return below(text, source=_STREAM_SOURCE, pairs=values)

    both = ("norm", "hint")
    iso = sorted((spec for spec in means if spec.startswith("iso")), key=family_of)
    weak, strong = (iso[0], iso[-1]) if iso else _ISO
    others = [spec for spec in means if spec not in ("none", weak)]
    rest = [spec for spec in means if spec != strong]
    return [
        least(
            [((other, a), (weak, a)) for a in both for other in others],
            "iso_1.0 has the worst leak of all protections, by norm and by hint",
        ),
        least([((strong, a), (weak, a)) for a in both], "iso_2.0 protects better than iso_1.0"),
        least(
            [((strong, "hint"), ("max_norm", "hint"))],
            "iso_2.0 protects better against hints than max_norm",
        ),
        least(
            [((strong, "auc"), (spec, "auc")) for spec in rest],
            "iso_2.0 has the worst utility of all",
        ),
        least(
            [((m, a), (strong, a)) for m in (_LOW, _HIGH) for a in both],
            "Marvell leaks less than iso_2.0, at both levels and by both attacks",
        ),
        least(
            [((_HIGH, "hint"), ("max_norm", "hint"))],
            "max_norm is less effective than sumKL_0.25 against hints",
        ),
    ]


_RELEASED: dict[str, Any] = {"released": of_2021, "released_differs": (L2, RATIO, HINT)}
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
        task="tacit.papers.tasks:follow_leaks",
        **_RELEASED,
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
        **_RELEASED,
    ),
    Study(
        name="fig4-stream",
        paper="hint",
        title="day by day: sumKL 0.1 and 0.25, iso 1 and 2, max_norm",
        place="figure 4, section 5.4 of the 2021 version",
        plan=_plan_stream,
        read=_read_stream,
        scaled=(
            "the 43,256 rows of Avazu that are here, in batches of 256 at a rate of 1e-3, in "
            "place of all 40 million in batches of 1,024 at 1e-4",
        ),
        departs=(
            "the paper's data (42.56 million conversions of a company) are not public: the ten "
            "days of Avazu stand in, at either scale",
        ),
        published=[
            Published(what=f"{protection}: drop of AUC, %", value=value, source=_STREAM_SOURCE)
            for protection, value in _DROPS.items()
        ],
        **_RELEASED,
    ),
)
