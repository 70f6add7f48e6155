"""Marvell (ICLR 2022): why gradients leak, and leakage over training and over layers."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tacit.experiment.sweep_store import TrialRecord
from tacit.papers.records import (
    LAYERS,
    all_follow,
    first_by_protection,
    grouped,
    layer_leak,
    leak_over_steps,
    present,
    steps_plot,
    steps_table,
)
from tacit.papers.study import Finding, PaperClaim, Study, Tabulated
from tacit.papers.tasks import QUANTILES
from tacit.report.figures import Plot, Series, line_plot

_CLASSES = ("negatives", "positives")
_SAME_ORDER = 10.0
_LOW, _MEDIAN, _HIGH = 0, QUANTILES.index(0.5), len(QUANTILES) - 1
_ATTACKS = ("norm", "cosine")
_PLAIN, _STRONG = "none", "marvell(s=4)"
_STRENGTHS = (_PLAIN, "marvell(s=0.1)", "marvell(s=0.25)", "marvell(s=1)", _STRONG)
_SLACK = 0.02
_TRACE = "tacit.papers.tasks:trace_leaks"
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
    return [{**values, "rows": 4_584_061}] if full else [values]


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


def _read_observations(records: Sequence[TrialRecord]) -> Finding:
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
    return Finding(tables=[table], claims=_observation_claims(looks), figures=figures)


def _observation_claims(looks: Sequence[Mapping[str, Any]]) -> list[PaperClaim]:
    def claim(
        text: str, where: str, values: list[float | None], rule: Callable[[float], bool]
    ) -> PaperClaim:
        shown = ", ".join("–" if value is None else f"{value:.3g}" for value in values)
        return PaperClaim(text=text, source=where, holds=all_follow(values, rule), found=shown)

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


# --- figures 3, 5 and 6: leakage over training ---


def _plan_progression(full: bool) -> list[dict[str, Any]]:
    every: dict[str, Any] = {"layers": True, "monitor_every": 1, "attacks": _ATTACKS, "lr": 1e-4}
    criteo = {**every, "dataset": "criteo", "model": "wdl", "epochs": 5}
    avazu = {**criteo, "dataset": "avazu", "batch_size": 32768}
    images = {**every, "model": "isic_conv", "batch_size": 128}
    if full:
        isic = {**images, "dataset": "isic", "epochs": 1000, "lr": 1e-5}
        settings = [isic, avazu, {**criteo, "rows": 4_584_061}]
    else:
        ham = {**images, "dataset": "ham10000", "epochs": 1, "lr": 1e-3, "rows": 2000}
        settings = [ham, {**avazu, "batch_size": 1024, "lr": 3e-4}, {**criteo, "epochs": 3}]
    return [{**values, "protect": spec} for values in settings for spec in _STRENGTHS]


def _read_progression(records: Sequence[TrialRecord]) -> Finding:
    tables, claims, figures = [], [], []
    for (dataset,), found in grouped(records, "dataset").items():
        protections = first_by_protection(found)
        tables.append(
            steps_table(f"{dataset}: leak AUC over training", protections, LAYERS, _ATTACKS)
        )
        figures += [
            steps_plot(
                [(protection, record, layer) for protection, record in protections.items()],
                attack=attack,
                title=f"{dataset}: {attack} leak at the {shown}",
            )
            for shown, layer in LAYERS.items()
            for attack in _ATTACKS
        ]
        claims += _progression_claims(dataset, protections)
    return Finding(tables=tables, claims=claims, figures=figures)


def _progression_claims(dataset: str, protections: dict[str, TrialRecord]) -> list[PaperClaim]:
    def leaks(protection: str, layer: str) -> list[float]:
        if protection not in protections:
            return []
        return present(layer_leak(protections[protection], layer, attack) for attack in _ATTACKS)

    plain = leaks(_PLAIN, "cut")
    strong = [leak for layer in LAYERS.values() for leak in leaks(_STRONG, layer)]
    order = [leaks(protection, "cut") for protection in _STRENGTHS if protection in protections]
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


# --- figures 10 and 11: leakage at every layer of the feature party ---


def _plan_conv_layers(full: bool) -> list[dict[str, Any]]:
    values: dict[str, Any] = {
        "layers": True,
        "attacks": _ATTACKS,
        "batch_size": 128,
        "monitor_every": 1,
        "model": "isic_conv",
    }
    if full:
        values |= {"dataset": "isic", "epochs": 1000, "lr": 1e-5}
    else:
        values |= {"dataset": "ham10000", "epochs": 1, "rows": 4000, "lr": 1e-3}
    return [{**values, "protect": spec} for spec in (_PLAIN, _STRONG)]


def _plan_linear_layers(full: bool) -> list[dict[str, Any]]:
    values: dict[str, Any] = {
        "dataset": "criteo",
        "model": "wdl(layers=11)",
        "cut": 8,
        "lr": 1e-4,
        "layers": True,
        "attacks": _ATTACKS,
        "monitor_every": 1 if full else 2,
    }
    values |= {"epochs": 5, "rows": 4_584_061} if full else {"epochs": 3}
    return [{**values, "protect": spec} for spec in (_PLAIN, _STRONG)]


def _read_layers(records: Sequence[TrialRecord]) -> Finding:
    protections = first_by_protection(records)
    first = next(iter(protections.values()))
    names = list((first.results or {})["layers"])
    layers = {f"{name} (cut)" if name == names[-1] else name: name for name in names}
    title = f"{first.config['dataset']}: leak AUC at every layer"
    return Finding(
        tables=[steps_table(title, protections, layers, _ATTACKS)],
        claims=[_layer_claim(protections, names, *what) for what in _LAYER_CLAIMS],
        figures=[
            steps_plot(
                [(shown, record, layer) for shown, layer in layers.items()],
                attack=attack,
                title=f"{protection}: {attack} leak at every layer",
            )
            for protection, record in protections.items()
            for attack in _ATTACKS
        ],
    )


def _layer_means(record: TrialRecord, names: Sequence[str], attack: str) -> list[float]:
    found = [present(leak_over_steps(record, name, attack)[1]) for name in names]
    return [float(np.mean(values)) for values in found if values]


_Rule = Callable[[TrialRecord, Sequence[str]], tuple[bool, str]]


def _high(record: TrialRecord, names: Sequence[str]) -> tuple[bool, str]:
    least = min(v for attack in _ATTACKS for v in _layer_means(record, names, attack))
    return least > 0.8, f"at least {least:.3f}"


def _low(record: TrialRecord, names: Sequence[str]) -> tuple[bool, str]:
    most = max(v for attack in _ATTACKS for v in _layer_means(record, names, attack))
    return most < 0.7, f"at most {most:.3f}"


def _close(record: TrialRecord, names: Sequence[str]) -> tuple[bool, str]:
    """Check the median over windows of the largest difference between layers, worst attack."""
    medians = []
    for attack in _ATTACKS:
        values = np.array([leak_over_steps(record, name, attack)[1] for name in names], dtype=float)
        medians.append(float(np.median(values.max(axis=0) - values.min(axis=0))))
    apart = max(medians)
    return apart <= 0.05, f"{apart:.3f} apart (median over training)"


def _earlier(attack: str, sign: int) -> _Rule:
    def rule(record: TrialRecord, names: Sequence[str]) -> tuple[bool, str]:
        *before, cut = _layer_means(record, names, attack)
        more = float(np.mean(before)) - cut
        return sign * more > 0, f"earlier layers {more:+.3f} against the cut"

    return rule


_LAYER_CLAIMS: tuple[tuple[str, str, _Rule], ...] = (
    (
        "without protection norm and cosine leak are very high at every layer (above 0.8)",
        _PLAIN,
        _high,
    ),
    ("with Marvell at s = 4 they are around 0.6 at every layer (below 0.7)", _STRONG, _low),
    ("with Marvell the layers are within about 0.05 of each other", _STRONG, _close),
    ("with Marvell earlier layers leak more than the cut by norm", _STRONG, _earlier("norm", 1)),
    (
        "with Marvell earlier layers leak less than the cut by cosine",
        _STRONG,
        _earlier("cosine", -1),
    ),
)


def _layer_claim(
    protections: dict[str, TrialRecord],
    names: Sequence[str],
    text: str,
    protection: str,
    rule: _Rule,
) -> PaperClaim:
    holds, found = None, "no trial with several layers"
    if protection in protections and len(names) >= 2:
        holds, found = rule(protections[protection], names)
    return PaperClaim(text=text, source=_LAYERS_SOURCE, holds=holds, found=found)


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
