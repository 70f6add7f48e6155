"""GAFM, figures 2, B.1 and B.2: predictions against gradients, whole and by component."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tacit.experiment.sweep_store import TrialRecord
from tacit.papers._gafm import METHODS, SCALED, method_of, of_set, sets
from tacit.papers._study import Cell, Finding, PaperClaim, Study, Tabulated
from tacit.report import Plot
from tacit.report.components import component_plot


def _plan(full: bool) -> list[dict[str, Any]]:
    trials = []
    for values in sets(full, seeds=(1, 1, 1)):
        trials.append(of_set(values))
        others = [spec for spec in METHODS.values() if spec != "gafm"]
        trials += [{**values, "protect": spec} for spec in others]
    return trials


def _read(records: Sequence[TrialRecord]) -> Finding:
    rows: list[list[Cell]] = []
    figures: list[Plot] = []
    claims: list[PaperClaim] = []
    for record in records:
        found = (record.results or {}).get("components")
        if not found:
            continue
        dataset, method = record.config["dataset"], method_of(record)
        centres = {part: _centres(found, part) for part in found["gradients"]}
        for part, (negative, positive) in centres.items():
            rows.append([dataset, method, part, negative, positive, found["tvd"].get(part)])
            plot = component_plot(
                part, found["prediction"], found["gradients"][part], found["label"]
            )
            figures.append(_named(plot, f"{dataset}, {method}: {part}"))
        if method == "GAFM":
            claims.append(_opposite(dataset, centres))
    table = Tabulated(
        title="Class centres of the gradients of the last epoch, and the distance of the classes",
        header=["data set", "method", "gradient", "negatives", "positives", "TVD"],
        rows=rows,
        note="Centres are those of the examples that are drawn, from the mean of all, in standard "
        "deviations.",
    )
    claims += _mixed(records)
    return Finding(tables=[table], claims=claims, figures=figures)


def _named(plot: Plot, title: str) -> Plot:
    return Plot(title=title, label=f"{title}. {plot.label}", data=plot.data, layout=plot.layout)


def _centres(found: Any, part: str) -> tuple[float | None, float | None]:  # noqa: ANN401
    values, labels = np.array(found["gradients"][part], float), np.array(found["label"])
    spread = float(values.std()) or 1.0
    each = [(values[labels == c] - values.mean()) / spread for c in (0, 1)]
    negative, positive = (float(one.mean()) if len(one) else None for one in each)
    return negative, positive


def _opposite(dataset: str, centres: dict[str, tuple[float | None, float | None]]) -> PaperClaim:
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
        found=", ".join(f"{value:+.2f}" for value in apart) or "no components",
    )


def _mixed(records: Sequence[TrialRecord]) -> list[PaperClaim]:
    claims = []
    for dataset in dict.fromkeys(record.config["dataset"] for record in records):
        found = {
            method_of(r): (r.results or {}).get("tvd")
            for r in records
            if r.config["dataset"] == dataset
        }
        ours = found.get("GAFM")
        rest = [v for m in ("Vanilla", "Max Norm") if (v := found.get(m)) is not None]
        known = ours is not None and bool(rest)
        claims.append(
            PaperClaim(
                text=f"{dataset}: GAFM's gradients are much more mixed than those of Vanilla and "
                "Max Norm (less TVD)",
                source="figure 2, appendix B.1",
                holds=ours < min(rest) if ours is not None and rest else None,
                found=f"{ours:.3f} against {min(rest):.3f}" if known else "no trial",
            )
        )
    return claims


STUDY = Study(
    name="fig2-gradients",
    paper="gafm",
    title="predictions against gradients at the cut, whole and by component",
    place="figures 2, B.1 and B.2",
    plan=_plan,
    read=_read,
    scaled=SCALED[:1],
    task="tacit.papers._gafm:measured",
)
