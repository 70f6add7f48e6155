"""Marvell, ICLR 2022, figure 2: why norms and directions of gradients tell labels."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tacit.experiment.sweep_store import TrialRecord
from tacit.papers._observed import QUANTILES
from tacit.papers._reading import yes
from tacit.papers._study import Finding, PaperClaim, Study, Tabulated
from tacit.report.figures import Plot, Series, line_plot

_LOW, _MIDDLE, _HIGH = 0, QUANTILES.index(0.5), len(QUANTILES) - 1
_CLASSES = ("negatives", "positives")
_SAME_ORDER = 10.0


def _plan(full: bool) -> list[dict[str, Any]]:
    values = {
        "dataset": "criteo",
        "model": "wdl",
        "epochs": 5,
        "lr": 1e-4,
        "attacks": (),
        "monitor_every": 100,
    }
    return [{**values, "rows": 4_584_061}] if full else [values]


def looks_of(record: TrialRecord) -> list[dict[str, Any]]:
    """Return the five looks of a record."""
    found: list[dict[str, Any]] = (record.results or {})["looks"]
    return found


def look_plot(record: TrialRecord, what: str, *, title: str, y: str) -> Plot:
    """Return medians with 5% and 95% quantiles of each class, over the looks."""
    looks = looks_of(record)
    steps = [look["step"] for look in looks]
    lines = []
    for style, name in enumerate(_CLASSES):
        found = [look[what][name] or [None] * len(QUANTILES) for look in looks]
        lines.append(
            Series(
                name=name,
                x=steps,
                y=[f[_MIDDLE] for f in found],
                style=style,
                low=[f[_LOW] for f in found],
                high=[f[_HIGH] for f in found],
            )
        )
    return line_plot(lines, title=title, x="step", y=y)


def _medians(look: Mapping[str, Any], what: str) -> list[float | None]:
    return [None if look[what][c] is None else look[what][c][_MIDDLE] for c in _CLASSES]


def _ratio(look: Mapping[str, Any], what: str) -> float | None:
    negatives, positives = _medians(look, what)
    return None if not negatives or positives is None else positives / negatives


def _read(records: Sequence[TrialRecord]) -> Finding:
    (record, *_) = records
    looks = looks_of(record)
    rows = [
        [
            look["step"],
            *_medians(look, "gap"),
            *_medians(look, "norm_h"),
            *_medians(look, "norm_g"),
            look["acute"],
            look["norm_leak"],
            look["cosine_leak"],
        ]
        for look in looks
    ]
    table = Tabulated(
        title=f"{record.config['dataset']}: medians over a batch, negatives and positives",
        header=[
            "step",
            "gap -",
            "gap +",
            "|dh/dz| -",
            "|dh/dz| +",
            "|g| -",
            "|g| +",
            "acute angles",
            "norm leak",
            "cosine leak",
        ],
        rows=rows,
        note="gap is |p - y|; acute angles is the share of pairs of dh/dz with a positive cosine.",
    )
    figures = [
        look_plot(record, "gap", title="Observation 1: confidence gap", y="|p - y|"),
        look_plot(record, "norm_h", title="Observation 2: norm of dh/dz", y="|dh/dz|"),
        look_plot(record, "norm_g", title="Norm of the cut gradient", y="|g|"),
        look_plot(record, "cosine_g", title="Cosine to one positive's gradient", y="cosine"),
    ]
    return Finding(tables=[table], claims=_claims(looks), figures=figures)


def _claims(looks: Sequence[Mapping[str, Any]]) -> list[PaperClaim]:
    def claim(
        text: str, where: str, values: list[float | None], rule: Callable[[float], bool]
    ) -> PaperClaim:
        shown = ", ".join("–" if value is None else f"{value:.3g}" for value in values)
        return PaperClaim(text=text, source=where, holds=yes(values, rule), found=shown)

    return [
        claim(
            "Observation 1: the model is less confident about positives (ratio of the medians of "
            "the gap above 1)",
            "section 3.3, figure 2(a)",
            [_ratio(look, "gap") for look in looks],
            lambda ratio: ratio > 1,
        ),
        claim(
            "Observation 2: the norm of dh/dz is of the same order for both classes (ratio of "
            "medians within 10)",
            "section 3.3, figure 2(b)",
            [_ratio(look, "norm_h") for look in looks],
            lambda ratio: 1 / _SAME_ORDER < ratio < _SAME_ORDER,
        ),
        claim(
            "the norm leak AUC is consistently above 0.9",
            "figure 2(c)",
            [look["norm_leak"] for look in looks],
            lambda leak: leak > 0.9,
        ),
        claim(
            "Observation 4: any two gradients of h form an acute angle (share of pairs)",
            "section 3.3, figure 2(d)",
            [look["acute"] for look in looks],
            lambda share: share >= 1,
        ),
        claim(
            "the cosine leak AUC has the highest value of 1 (at least 0.995)",
            "figure 2(e)",
            [look["cosine_leak"] for look in looks],
            lambda leak: leak >= 0.995,
        ),
    ]


STUDY = Study(
    name="fig2-observations",
    paper="marvell",
    title="confidence gap, gradient norms and cosines after 100 to 500 steps",
    place="figure 2, section 3.3",
    plan=_plan,
    read=_read,
    scaled=(
        "the sample of Criteo that is here (137,139 rows in place of 4.6 million): 500 steps "
        "are four epochs of it",
    ),
    task="tacit.papers._observed:observed",
)
