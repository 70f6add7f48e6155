"""GAFM, figure 4: both losses, the GAN loss alone, the penalty alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tacit.experiment.sweep_store import TrialRecord
from tacit.papers._gafm import MEASURES, SCALED, of_set, sets
from tacit.papers._reading import grouped, number, spread_of
from tacit.papers._study import Finding, PaperClaim, Study, Tabulated
from tacit.report.components import repetitions

# ``ablate`` names the part that is left out.
_VARIANTS = {"GAFM": "none", "GAN": "penalty", "Penalty": "gan"}
_WORST = ("late.norm", "late.mean(hard=true)", "late.median(hard=true)")


def _plan(full: bool) -> list[dict[str, Any]]:
    return [of_set(values, ablate=part) for values in sets(full) for part in _VARIANTS.values()]


def _variant(record: TrialRecord) -> str:
    text = str(record.config["objective"])
    return "GAN" if "ablate=penalty" in text else "Penalty" if "ablate=gan" in text else "GAFM"


def _worst(record: TrialRecord) -> float | None:
    return max((v for axis in _WORST if (v := number(record, axis)) is not None), default=None)


def _read(records: Sequence[TrialRecord]) -> Finding:
    rows, figures, claims = [], [], []
    for (dataset,), found in grouped(records, "dataset").items():
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
                if (w := number(r, "test_auc")) is not None and (leak := _worst(r)) is not None
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
        claims += _claims(dataset, variants)
    table = Tabulated(
        title="Means over repetitions", header=["data set", "losses", "runs", *MEASURES], rows=rows
    )
    return Finding(tables=[table], claims=claims, figures=figures)


def _claims(dataset: str, variants: dict[str, list[TrialRecord]]) -> list[PaperClaim]:
    def mean(name: str, axis: str) -> float | None:
        found = spread_of(variants[name], axis)
        return None if found is None else found.mean

    whole, gan, penalty = (mean(name, "test_auc") for name in _VARIANTS)
    claims = [
        PaperClaim(
            text=f"{dataset}: GAFM gives up some AUC against the penalty alone",
            source="section 4.3.3",
            holds=None if whole is None or penalty is None else whole <= penalty,
            found=_pair(whole, penalty),
        ),
        PaperClaim(
            text=f"{dataset}: GAFM has at least the AUC of the GAN loss alone",
            source="section 4.3.3",
            holds=None if whole is None or gan is None else whole >= gan,
            found=_pair(whole, gan),
        ),
    ]
    if dataset == "imdb":
        claims.append(
            PaperClaim(
                text="imdb: the GAN loss alone classifies at about 0.5 (below 0.6), "
                "GAFM at about 0.9 (above 0.85)",
                source="section 4.3.3",
                holds=None if whole is None or gan is None else gan < 0.6 and whole > 0.85,
                found=_pair(whole, gan),
            )
        )
    return claims


def _pair(a: float | None, b: float | None) -> str:
    return "no trial" if a is None or b is None else f"{a:.3f} against {b:.3f}"


STUDY = Study(
    name="fig4-ablation",
    paper="gafm",
    title="both losses against the GAN loss or the penalty alone",
    place="figure 4, section 4.3.3",
    plan=_plan,
    read=_read,
    scaled=SCALED,
    departs=("the AUC of a map that was learnt upside down counts as if it were turned around",),
    task="tacit.papers._gafm:measured",
)
