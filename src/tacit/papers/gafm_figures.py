"""GAFM: its figures of gradients and of the ablation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tacit.experiment.sweep_store import TrialRecord
from tacit.papers.claims import below, bounded
from tacit.papers.gafm import (
    MEASURES,
    NETS,
    SCALED,
    by_data,
    by_method,
    method_of,
    named,
    settings,
    with_gafm,
)
from tacit.papers.records import mean_of, number, present, spread_of
from tacit.papers.study import Cell, Finding, PaperClaim, Study, Tabulated
from tacit.report import Plot
from tacit.report.plots import component_plot, repetitions


def _plan_gradients(full: bool) -> list[dict[str, Any]]:
    found = settings(full, seeds=(1, 1))
    return [trial for values in found for trial in by_method(values)]


# ``ablate`` names the part that is left out.
_VARIANTS = {"GAFM": "none", "GAN": "penalty", "Penalty": "gan"}
_ATTACK_AXES = tuple(MEASURES[name] for name in ("norm", "mean", "median"))


# --- figures 2, B.1 and B.2: predictions against gradients, whole and by component ---


def _read_gradients(records: Sequence[TrialRecord]) -> Finding:
    rows: list[list[Cell]] = []
    figures: list[Plot] = []
    claims: list[PaperClaim] = []
    for record in records:
        found = (record.results or {}).get("components")
        if not found:
            continue
        dataset, method = named(record.config["dataset"]), method_of(record)
        centres = {part: _centres(found, part) for part in found["gradients"]}
        for part, (negative, positive) in centres.items():
            rows.append([dataset, method, part, negative, positive, found["tvd"].get(part)])
            plot = component_plot(
                part, found["prediction"], found["gradients"][part], found["label"]
            )
            figures.append(_retitled(plot, f"{dataset}, {method}: {part}"))
        if method == "GAFM":
            claims.append(_opposite_claim(dataset, centres))
    table = Tabulated(
        title="Class centres of the gradients of the last epoch, and the distance of the classes",
        header=["data set", "method", "gradient", "negatives", "positives", "TVD"],
        rows=rows,
        note="Centres are those of the examples that are drawn, from the mean of all, in standard "
        "deviations.",
    )
    claims += _mixing_claims(records)
    return Finding(tables=[table], claims=claims, figures=figures)


def _retitled(plot: Plot, title: str) -> Plot:
    return Plot(title=title, label=f"{title}. {plot.label}", data=plot.data, layout=plot.layout)


def _centres(found: Any, part: str) -> tuple[float | None, float | None]:  # noqa: ANN401
    values, labels = np.array(found["gradients"][part], float), np.array(found["label"])
    spread = float(values.std()) or 1.0
    each = [(values[labels == c] - values.mean()) / spread for c in (0, 1)]
    negative, positive = (float(one.mean()) if len(one) else None for one in each)
    return negative, positive


def _opposite_claim(
    dataset: str, centres: dict[str, tuple[float | None, float | None]]
) -> PaperClaim:
    apart = [
        b - a
        for part in ("gan", "penalty")
        if part in centres
        for a, b in [centres[part]]
        if a is not None and b is not None
    ]
    return PaperClaim(
        text=f"{dataset}: the class centres of the GAN part and of the penalty part differ in "
        "opposite directions",
        source="figure 2",
        holds=apart[0] * apart[1] < 0 if len(apart) == 2 else None,
        expected="opposite signs",
        found=", ".join(f"{value:+.2f}" for value in apart) or "no components",
    )


def _mixing_claims(records: Sequence[TrialRecord]) -> list[PaperClaim]:
    claims = []
    for dataset, same in by_data(records).items():
        found = {method_of(r): (r.results or {}).get("tvd") for r in same}
        rest = present(found.get(method) for method in ("Vanilla", "Max Norm"))
        claims.append(
            below(
                f"{dataset}: GAFM's gradients are much more mixed than those of Vanilla and Max "
                "Norm (less TVD)",
                source="figure 2, appendix B.1",
                pairs=[(found.get("GAFM"), min(rest, default=None))],
            )
        )
    return claims


# --- figure 4: both losses, the GAN loss alone, the penalty alone ---


def _plan_ablation(full: bool) -> list[dict[str, Any]]:
    return [
        with_gafm(values, ablate=part) for values in settings(full) for part in _VARIANTS.values()
    ]


def _variant(record: TrialRecord) -> str:
    text = str(record.config["objective"])
    return "GAN" if "ablate=penalty" in text else "Penalty" if "ablate=gan" in text else "GAFM"


def _strongest(record: TrialRecord) -> float | None:
    return max(present(number(record, axis) for axis in _ATTACK_AXES), default=None)


def _read_ablation(records: Sequence[TrialRecord]) -> Finding:
    rows, figures, claims = [], [], []
    for dataset, found in by_data(records).items():
        variants = {name: [r for r in found if _variant(r) == name] for name in _VARIANTS}
        rows += [
            [dataset, name, len(same), *(spread_of(same, axis) for axis in MEASURES.values())]
            for name, same in variants.items()
            if same
        ]
        groups = {
            name: [
                (w, leak)
                for r in same
                if (w := number(r, "test_auc")) is not None and (leak := _strongest(r)) is not None
            ]
            for name, same in variants.items()
        }
        figures.append(
            repetitions(
                groups,
                title=f"{dataset}: the strongest of norm, mean and median attack",
                attack="the strongest attack",
            )
        )
        claims += _ablation_claims(dataset, variants)
    table = Tabulated(
        title="Means over repetitions", header=["data set", "losses", "runs", *MEASURES], rows=rows
    )
    return Finding(tables=[table], claims=claims, figures=figures)


def _ablation_claims(dataset: str, variants: dict[str, list[TrialRecord]]) -> list[PaperClaim]:
    def mean(name: str, axis: str) -> float | None:
        return mean_of(variants[name], axis)

    whole, gan, penalty = (mean(name, "test_auc") for name in _VARIANTS)
    claims = [
        below(
            f"{dataset}: GAFM gives up some AUC against the penalty alone",
            source="section 4.3.3",
            pairs=[(whole, penalty)],
        ),
        below(
            f"{dataset}: the GAN loss alone has less AUC than GAFM",
            source="section 4.3.3",
            pairs=[(gan, whole)],
        ),
    ]
    if dataset == "imdb":
        claims += [
            bounded(
                "imdb: the GAN loss alone classifies at about 0.5",
                source="section 4.3.3",
                values=[gan],
                below=0.6,
            ),
            bounded(
                "imdb: GAFM classifies at about 0.9",
                source="section 4.3.3",
                values=[whole],
                above=0.85,
            ),
        ]
    return claims


STUDIES = (
    Study(
        name="fig2-gradients",
        paper="gafm",
        title="predictions against gradients at the cut, whole and by component",
        place="figures 2, B.1 and B.2",
        plan=_plan_gradients,
        read=_read_gradients,
        scaled=SCALED[:1],
        departs=(NETS,),
        task="tacit.papers.gafm:train_and_measure",
    ),
    Study(
        name="fig4-ablation",
        paper="gafm",
        title="both losses against the GAN loss or the penalty alone",
        place="figure 4, section 4.3.3",
        plan=_plan_ablation,
        read=_read_ablation,
        scaled=SCALED,
        departs=(
            "the AUC of a map that was learnt upside down counts as if it were turned around",
            NETS,
        ),
        task="tacit.papers.gafm:train_and_measure",
    ),
)
