"""Marvell, 2021 version, figure 3: norm and hint attack against test loss and test AUC."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tacit.experiment.sweep_store import TrialRecord
from tacit.papers._reading import grouped, mean_of, share_below, spread_of
from tacit.papers._study import Finding, PaperClaim, Study, Tabulated
from tacit.report.tradeoff import family_of

_NORM, _HINT = "leak.norm.mean", "leak.hint.mean"
_WORTHS = {"test AUC": ("test.auc", 1), "test loss": ("test.loss", -1)}
_QUICK = (0.04, 0.16, 0.36, 0.64, 1.44, 2.56)
_FULL = (0.01, 0.04, 0.1, 0.16, 0.25, 0.36, 0.49, 0.64, 1.0, 1.44, 2.56, 3.6)
Trials = Mapping[tuple[Any, ...], Sequence[TrialRecord]]


def _plan(full: bool) -> list[dict[str, Any]]:
    base: dict[str, Any] = {
        "model": "wdl",
        "cut": 4,
        "epochs": 5 if full else 3,
        "lr": 1e-4,
        "attacks": ("norm", "hint"),
        "monitor_every": 1 if full else 4,
    }
    marvell = [f"marvell(sum_kl={level:g})" for level in (_FULL if full else _QUICK)]
    iso = [
        f"iso(t={t:g})"
        for t in (
            (0.1, 0.25, 0.5, 1, 2, 3, 4, 6, 8, 12, 16, 24) if full else (0.25, 0.5, 1, 2, 4, 8)
        )
    ]
    sets = ({"dataset": "criteo"}, {"dataset": "avazu", "lr": 1e-4 if full else 3e-4})
    specs = ["none", "max_norm", *marvell, *iso]
    return [{**base, **values, "protect": spec} for values in sets for spec in specs]


def _points(trials: Trials, family: str, leak: str, worth: str) -> list[tuple[float, float]]:
    axis, sign = _WORTHS[worth]
    found = [
        (mean_of(same, axis), mean_of(same, leak))
        for (spec,), same in trials.items()
        if family_of(spec)[0] in (family, "none")
    ]
    return [(sign * w, at) for w, at in found if w is not None and at is not None]


def _read(records: Sequence[TrialRecord]) -> Finding:
    tables, claims = [], []
    for (dataset,), found in grouped(records, "dataset").items():
        trials = grouped(found, "protect")
        axes = ("test.auc", "test.loss", _NORM, _HINT)
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
        claims += _claims(dataset, trials)
    return Finding(
        tables=tables,
        claims=claims,
        tradeoffs=[(_NORM, "test.auc"), (_HINT, "test.loss"), (_HINT, "test.auc")],
    )


def _claims(dataset: str, trials: Trials) -> list[PaperClaim]:
    plain = mean_of(trials.get(("none",), ()), _HINT)
    claims = [
        PaperClaim(
            text=f"{dataset}: five hints make the leak AUC close to 1 without protection (above "
            "0.95)",
            source="section 5.3",
            holds=None if plain is None else plain > 0.95,
            found="no trial" if plain is None else f"{plain:.3f}",
        )
    ]
    for leak, worth, where in (
        (_NORM, "test AUC", "figure 3(a, d)"),
        (_HINT, "test loss", "figure 3(b, e)"),
        (_HINT, "test AUC", "figure 3(c, f)"),
    ):
        curves = [_points(trials, family, leak, worth) for family in ("marvell(sum_kl)", "iso(t)")]
        share = share_below(*curves)
        attack = leak.split(".")[1]
        claims.append(
            PaperClaim(
                text=f"{dataset}: Marvell trades {attack} leak against {worth} better than iso",
                source=where,
                holds=None if share is None else share > 0.5,
                found="no common range" if share is None else f"in {share:.0%} of the curve",
            )
        )
    return [*claims, _max_norm(dataset, trials)]


def _max_norm(dataset: str, trials: Trials) -> PaperClaim:
    heuristic = mean_of(trials.get(("max_norm",), ()), _HINT)
    loss = mean_of(trials.get(("max_norm",), ()), "test.loss")
    points = _points(trials, "marvell(sum_kl)", _HINT, "test loss")
    better = [] if loss is None else [at for worth, at in points if worth >= -loss]
    least = min(better, default=None)
    known = heuristic is not None and least is not None
    return PaperClaim(
        text=f"{dataset}: max_norm is less effective than Marvell against hints (some sumKL has no "
        "more test loss and less leak)",
        source="section 5.3",
        holds=least < heuristic if heuristic is not None and least is not None else None,
        found=f"{heuristic:.3f} against {least:.3f}" if known else "no sumKL with as little loss",
    )


STUDY = Study(
    name="fig3-hint",
    paper="hint",
    title="norm and hint attack (5 hints, inner product) against test loss and test AUC",
    place="figure 3, section 5.3 of the 2021 version",
    plan=_plan,
    read=_read,
    scaled=(
        "the samples that are here: 137,139 rows of Criteo, 43,256 of Avazu, in place of 45 and 40 "
        "million; 3 epochs, and for Avazu a rate of 3e-4",
        "6 strengths of each family in place of 12; every fourth batch is attacked",
    ),
    departs=("the paper gives no list of strengths, epochs or rates",),
)
