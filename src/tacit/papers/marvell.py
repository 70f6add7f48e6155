"""Marvell (ICLR 2022): why gradients leak, and leakage over training and over layers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tacit.experiment.sweep_store import TrialRecord
from tacit.papers.claims import below, bounded, falling
from tacit.papers.records import (
    LAYERS,
    by_protection,
    grouped,
    layer_leak,
    leak_over_steps,
    mean,
    present,
    spread,
    steps_plot,
    steps_table,
)
from tacit.papers.study import Cell, Finding, PaperClaim, Study, Tabulated
from tacit.papers.tasks import QUANTILES
from tacit.report.figures import Plot, Series, line_plot

_CLASSES = ("negatives", "positives")
_SAME_ORDER = 10.0
_LOW, _MEDIAN, _HIGH = 0, QUANTILES.index(0.5), len(QUANTILES) - 1
ATTACKS = ("norm", "cosine")
_PLAIN, _STRONG = "none", "marvell(s=4)"
_STRENGTHS = (_PLAIN, "marvell(s=0.1)", "marvell(s=0.25)", "marvell(s=1)", _STRONG)
_SLACK = 0.02
_TRACE = "tacit.papers.tasks:follow_leaks"
_LAYERS_SOURCE = "A.7.3"
_WINDOWED = ("curves are means of windows of batches, in place of a Gaussian kernel",)


# --- figure 2: observations about single batches ---


def _plan_observations(full: bool) -> list[dict[str, Any]]:
    values = {
        "dataset": "criteo",
        "model": "wdl",
        "epochs": 5,
        "lr": 1e-4,
        "attacks": (),
        "monitor_every": 100,
    }
    if full:
        return [{**values, "rows": 4_584_061}]
    return [{**values, "seed": seed} for seed in range(3)]


def looks_of(record: TrialRecord) -> list[dict[str, Any]]:
    """Return the five batches of a record of ``tasks.observe_batches``."""
    found: list[dict[str, Any]] = (record.results or {})["looks"]
    return found


def look_plot(record: TrialRecord, what: str, *, title: str, y: str) -> Plot:
    """Return medians with 5% and 95% quantiles of each class, over the batches of a record."""
    looks = looks_of(record)
    steps = [look["step"] for look in looks]
    lines = []
    for style, name in enumerate(_CLASSES):
        found = [look[what][name] or [None] * len(QUANTILES) for look in looks]
        lines.append(
            Series(
                name=name,
                x=steps,
                y=[f[_MEDIAN] for f in found],
                style=style,
                low=[f[_LOW] for f in found],
                high=[f[_HIGH] for f in found],
            )
        )
    return line_plot(lines, title=title, x="step", y=y)


def _medians(look: Mapping[str, Any], what: str) -> list[float | None]:
    return [None if look[what][c] is None else look[what][c][_MEDIAN] for c in _CLASSES]


def _ratio(look: Mapping[str, Any], what: str) -> float | None:
    negatives, positives = _medians(look, what)
    return None if not negatives or positives is None else positives / negatives


_Looks = Sequence[Sequence[Mapping[str, Any]]]  # the first of every seed, the second, ...


def _read_observations(records: Sequence[TrialRecord]) -> Finding:
    (record, *_) = records
    looks: _Looks = list(zip(*map(looks_of, records), strict=True))
    rows = [_observed(same) for same in looks]
    names = [f"{what} {sign}" for what in ("gap", "|dh/dz|", "|g|") for sign in "-+"]
    attacks = [f"{name}{form}" for name in ATTACKS for form in (" leak", ", sign-free")]
    table = Tabulated(
        title=f"{record.config['dataset']}: medians over a batch, negatives and positives",
        header=["step", "seeds", *names, "acute angles", *attacks, "noise"],
        rows=rows,
        note="gap is |p - y|; acute angles is the share of pairs of dh/dz with a positive cosine. "
        "Leaks are of one batch; noise is what the sign-free one is for scores that know nothing.",
    )
    figures = [
        look_plot(record, "gap", title="Observation 1: confidence gap", y="|p - y|"),
        look_plot(record, "norm_h", title="Observation 2: norm of dh/dz", y="|dh/dz|"),
        look_plot(record, "norm_g", title="Norm of the cut gradient", y="|g|"),
        look_plot(record, "cosine_g", title="Cosine to one positive's gradient", y="cosine"),
    ]
    return Finding(tables=[table], claims=_observation_claims(looks), figures=figures)


def _observed(same: Sequence[Mapping[str, Any]]) -> list[Cell]:
    """Return a look's row over all seeds."""
    medians = [
        spread(values)
        for what in ("gap", "norm_h", "norm_g")
        for values in zip(*(_medians(look, what) for look in same), strict=True)
    ]
    leaks = [f"{attack}_{form}" for attack in ATTACKS for form in ("auc", "leak")]
    rest = [spread(look[name] for look in same) for name in ("acute", *leaks, "noise")]
    return [same[0]["step"], len(same), *medians, *rest]


def _observation_claims(looks: _Looks) -> list[PaperClaim]:
    """Check the means over seeds of every look."""

    def means(value: Callable[[Mapping[str, Any]], float | None]) -> list[float | None]:
        return [mean(map(value, same)) for same in looks]

    return [
        bounded(
            "Observation 1: the model is less confident about positives (ratio of the medians of "
            "the gap)",
            source="section 3.3, figure 2(a)",
            values=means(lambda look: _ratio(look, "gap")),
            above=1,
        ),
        bounded(
            "Observation 2: the norm of dh/dz is of the same order for both classes (ratio of "
            "medians)",
            source="section 3.3, figure 2(b)",
            values=means(lambda look: _ratio(look, "norm_h")),
            above=1 / _SAME_ORDER,
            below=_SAME_ORDER,
        ),
        bounded(
            "the norm leak AUC is consistently above 0.9",
            source="figure 2(c)",
            values=means(lambda look: look["norm_auc"]),
            above=0.9,
        ),
        bounded(
            "Observation 4: any two gradients of h form an acute angle (share of pairs)",
            source="section 3.3, figure 2(d)",
            values=means(lambda look: look["acute"]),
            at_least=1,
        ),
        bounded(
            "the cosine leak AUC has the highest value of 1",
            source="figure 2(e)",
            values=means(lambda look: look["cosine_auc"]),
            at_least=0.995,
        ),
    ]


# --- figures 3, 5 and 6: leakage over training ---


def _plan_progression(full: bool) -> list[dict[str, Any]]:
    every: dict[str, Any] = {"layers": True, "monitor_every": 1, "attacks": ATTACKS, "lr": 1e-4}
    criteo = {**every, "dataset": "criteo", "model": "wdl", "epochs": 5}
    avazu = {**criteo, "dataset": "avazu", "batch_size": 32768}
    images = {**every, "model": "isic_conv", "batch_size": 128}
    if full:
        isic = {**images, "dataset": "isic", "epochs": 1000, "lr": 1e-5}
        settings = [isic, avazu, {**criteo, "rows": 4_584_061}]
    else:
        ham = {**images, "dataset": "ham10000", "epochs": 1, "lr": 1e-3, "rows": 2000}
        settings = [ham, {**avazu, "batch_size": 1024, "lr": 3e-4}, {**criteo, "epochs": 3}]
    return [
        {**values, "protect": spec, "seed": seed}
        for values in settings
        for spec in _STRENGTHS
        for seed in range(1 if full else 3)
    ]


def _read_progression(records: Sequence[TrialRecord]) -> Finding:
    tables, claims, figures = [], [], []
    for (dataset,), found in grouped(records, "dataset").items():
        protections = by_protection(found)
        tables.append(
            steps_table(f"{dataset}: leak AUC over training", protections, LAYERS, ATTACKS)
        )
        figures += [
            steps_plot(
                [(protection, same[0], layer) for protection, same in protections.items()],
                attack=attack,
                title=f"{dataset}: {attack} leak at the {shown}",
            )
            for shown, layer in LAYERS.items()
            for attack in ATTACKS
        ]
        claims += _progression_claims(dataset, protections)
    return Finding(tables=tables, claims=claims, figures=figures)


def _progression_claims(
    dataset: str, protections: dict[str, list[TrialRecord]]
) -> list[PaperClaim]:
    def leaks(protection: str, layer: str) -> list[float | None]:
        same = protections.get(protection, ())
        return [mean(layer_leak(r, layer, attack) for r in same) for attack in ATTACKS]

    orders = {
        attack: [leaks(protection, "cut")[place] for protection in _STRENGTHS]
        for place, attack in enumerate(ATTACKS)
    }
    return [
        bounded(
            f"{dataset}: without protection labels leak completely (norm and cosine at the cut)",
            source="section 5.1",
            values=leaks(_PLAIN, "cut"),
            above=0.9,
        ),
        bounded(
            f"{dataset}: Marvell at s = 4 protects strongly, at the cut and at the first layer "
            "(the paper says about 0.5 in 5.1, around 0.6 in A.7.3; norm, cosine)",
            source="section 5.1, A.7.3",
            values=[leak for layer in LAYERS.values() for leak in leaks(_STRONG, layer)],
            below=0.7,
        ),
        *(
            falling(
                f"{dataset}: the degree of protection follows s, by {attack}",
                source="section 5.1",
                values=values,
                slack=_SLACK,
            )
            for attack, values in orders.items()
        ),
    ]


# --- figures 10 and 11: leakage at every layer of the feature party ---


def _plan_conv_layers(full: bool) -> list[dict[str, Any]]:
    values: dict[str, Any] = {
        "layers": True,
        "attacks": ATTACKS,
        "batch_size": 128,
        "monitor_every": 1,
        "model": "isic_conv",
    }
    if full:
        values |= {"dataset": "isic", "epochs": 1000, "lr": 1e-5}
    else:
        values |= {"dataset": "ham10000", "epochs": 1, "rows": 4000, "lr": 1e-3}
    return [
        {**values, "protect": spec, "seed": seed}
        for spec in (_PLAIN, _STRONG)
        for seed in range(1 if full else 3)
    ]


def _plan_linear_layers(full: bool) -> list[dict[str, Any]]:
    values: dict[str, Any] = {
        "dataset": "criteo",
        "model": "wdl(layers=11)",
        "cut": 8,
        "lr": 1e-4,
        "layers": True,
        "attacks": ATTACKS,
        "monitor_every": 1 if full else 2,
    }
    values |= {"epochs": 5, "rows": 4_584_061} if full else {"epochs": 3}
    return [
        {**values, "protect": spec, "seed": seed}
        for spec in (_PLAIN, _STRONG)
        for seed in range(1 if full else 3)
    ]


def _read_layers(records: Sequence[TrialRecord]) -> Finding:
    protections = by_protection(records)
    first = records[0]
    names = list((first.results or {})["layers"])
    layers = {f"{name} (cut)" if name == names[-1] else name: name for name in names}
    title = f"{first.config['dataset']}: leak AUC at every layer"
    return Finding(
        tables=[steps_table(title, protections, layers, ATTACKS)],
        claims=_layer_claims(protections, names) if len(names) > 1 else [],
        figures=[
            steps_plot(
                [(shown, same[0], layer) for shown, layer in layers.items()],
                attack=attack,
                title=f"{protection}: {attack} leak at every layer",
            )
            for protection, same in protections.items()
            for attack in ATTACKS
        ],
    )


def _layer_claims(
    protections: dict[str, list[TrialRecord]], names: Sequence[str]
) -> list[PaperClaim]:
    plain, strong = (protections.get(spec, ()) for spec in (_PLAIN, _STRONG))
    source = _LAYERS_SOURCE

    def leaks(same: Sequence[TrialRecord]) -> list[float | None]:
        return [mean(layer_leak(r, n, a) for r in same) for a in ATTACKS for n in names]

    def earlier(attack: str) -> tuple[float | None, float | None]:
        *before, cut = (mean(layer_leak(r, n, attack) for r in strong) for n in names)
        return mean(before), cut

    (norm, norm_cut), (cosine, cosine_cut) = (earlier(attack) for attack in ATTACKS)
    return [
        bounded(
            "without protection norm and cosine leak are very high at every layer (the least)",
            source=source,
            values=[min(present(leaks(plain)), default=None)],
            above=0.8,
        ),
        bounded(
            "with Marvell at s = 4 they are around 0.6 at every layer (the most)",
            source=source,
            values=[max(present(leaks(strong)), default=None)],
            below=0.7,
        ),
        bounded(
            "with Marvell the layers are within about 0.05 of each other (median over training)",
            source=source,
            values=[mean(_apart(record, names) for record in strong)],
            at_most=0.05,
        ),
        below(
            "with Marvell the cut leaks less by norm than earlier layers",
            source=source,
            pairs=[(norm_cut, norm)],
        ),
        below(
            "with Marvell earlier layers leak less by cosine than the cut",
            source=source,
            pairs=[(cosine, cosine_cut)],
        ),
    ]


def _apart(record: TrialRecord, names: Sequence[str]) -> float:
    """Return the median over windows of the largest difference between layers, worst attack."""
    found = []
    for attack in ATTACKS:
        values = np.array([leak_over_steps(record, n, attack)[1] for n in names], dtype=float)
        found.append(float(np.median(values.max(axis=0) - values.min(axis=0))))
    return max(found)


STUDIES = (
    Study(
        name="fig2-observations",
        paper="marvell",
        title="confidence gap, gradient norms and cosines after 100 to 500 steps",
        place="figure 2, section 3.3",
        plan=_plan_observations,
        read=_read_observations,
        scaled=(
            "the sample of Criteo that is here (137,139 rows in place of 4.6 million): 500 steps "
            "are four epochs of it",
        ),
        task="tacit.papers.tasks:observe_batches",
    ),
    Study(
        name="fig3-progression",
        paper="marvell",
        title="norm and cosine leak over training, at the cut and at the first layer, over s",
        place="figures 3, 5 and 6, section 5.1 and A.7.1",
        plan=_plan_progression,
        read=_read_progression,
        scaled=(
            "HAM10000 (2,000 images of 32 x 32, enlarged to 84 x 84, one epoch at 1e-3) stands in "
            "for ISIC (5,840 of 84 x 84, 1000 epochs, six convolutions)",
            "the samples of Avazu and Criteo that are here; Avazu in batches of 1,024 at a rate of "
            "3e-4, in place of 32,768 at 1e-4; Criteo for 3 epochs in place of 5",
        ),
        departs=("the paper does not list its values of s but for 4",),
        task=_TRACE,
    ),
    Study(
        name="fig10-layers",
        paper="marvell",
        title="leak at each of four convolutional layers, with and without Marvell",
        place="figure 10, A.7.3",
        plan=_plan_conv_layers,
        read=_read_layers,
        scaled=(
            "HAM10000 (4,000 images of 32 x 32, enlarged to 84 x 84) stands in for ISIC (5,840)",
            "one epoch at a rate of 1e-3, in place of 1000 at 1e-5",
        ),
        departs=_WINDOWED,
        task=_TRACE,
    ),
    Study(
        name="fig11-layers",
        paper="marvell",
        title="leak at each of eight fully connected layers, with and without Marvell",
        place="figure 11, A.7.3",
        plan=_plan_linear_layers,
        read=_read_layers,
        scaled=(
            "the sample of Criteo that is here (137,139 rows in place of 4.6 million) and 3 epochs "
            "in place of 5",
            "every second batch is attacked, in place of every one",
        ),
        departs=_WINDOWED,
        task=_TRACE,
    ),
)
