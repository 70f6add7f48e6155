"""The pictures of GAFM: gradients by component, leakage over repetitions, the ratio over delta."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tacit.fields import Fields
from tacit.report.blocks import Cell, Figure, Heading, PageBlock, Paragraph, SideBySide, TableBlock
from tacit.report.figures import GREY, Plot, axis, layout, plain, style
from tacit.report.results import Run

_NAMES = {
    "whole": "Released gradient",
    "gan": "GAN part, before mixing",
    "penalty": "Penalty part, before mixing",
}
_READING = (
    "Each point is an example of the last epoch. Where the two classes lie apart along the "
    "gradient's axis, the gradient tells the label. The objective hopes that its parts pull the "
    "classes in opposite directions and cancel out. The distance under each picture is a "
    "cross-fitted lower estimate of the total variation between the classes: 0 is no difference."
)
_OWN = (
    "The feature parties' own output, by itself and without any gradient, ranks the labels of "
    "examples that were held out with an AUC of {value:.3f}: what a gradient hides is not hidden "
    "from whoever holds the trained embedding."
)
_JOINT = (
    "Read beside the embedding that each belongs to, the gradients of this one epoch tell "
    "the label with an AUC of {value:.3f} to whoever knows half of the labels (nearest neighbours, "
    "each half judged by the other)."
)
_FLIPPED = (
    "The generator had learnt the map upside down (raw test AUC {value:.3f}); the label party "
    "turned its predictions around by its training labels, and sent nothing for it."
)


def component_plot(
    name: str, predictions: Sequence[float], gradients: Sequence[float], labels: Sequence[float]
) -> Plot:
    """Return predictions against scalar gradients, one mark per example, a colour per class."""
    title = _NAMES.get(name, name)
    found = []
    every = list(zip(gradients, predictions, labels, strict=False))
    for place, word in enumerate(("negatives", "positives")):
        chosen = [point for point in every if point[2] == place]
        colour, symbol = style(place)
        found.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": word,
                "x": [point[0] for point in chosen],
                "y": [point[1] for point in chosen],
                "marker": {"color": colour, "symbol": symbol, "size": 5, "opacity": 0.55},
                "hovertemplate": f"{word}<br>gradient %{{x:.4g}}, "
                "prediction %{y:.4f}<extra></extra>",
            }
        )
    return Plot(
        title=title,
        label=f"{title}: the model's prediction against the gradient at the cut, one mark per "
        "example, negatives and positives apart by colour and shape.",
        data=found,
        layout=layout(axis("gradient", nticks=5), axis("prediction")),
    )


def repetitions(
    groups: Mapping[str, Sequence[tuple[float, float]]], *, title: str, attack: str
) -> Plot:
    """Return one mark per repetition: the model's AUC against an attack's leak AUC."""
    data = []
    for place, (name, points) in enumerate(groups.items()):
        colour, symbol = style(place)
        data.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": plain(name),
                "x": [worth for worth, _ in points],
                "y": [leak for _, leak in points],
                "marker": {"color": colour, "symbol": symbol, "size": 9},
                "hovertemplate": "%{fullData.name}<br>test AUC %{x:.4f}, leak AUC %{y:.4f}"
                "<extra></extra>",
            }
        )
    return Plot(
        title=title,
        label=f"{title}: test AUC against the leak AUC of {attack}, one mark per repetition, for "
        f"{', '.join(groups) or 'nothing'}; better is down and to the right.",
        data=data,
        layout=layout(axis("test AUC"), axis(f"leak AUC of {attack}", range=[0.48, 1.02])),
        header=["method", "test AUC", "leak AUC"],
        rows=[[name, *point] for name, points in groups.items() for point in points],
    )


def ratio_plot(
    ratios: Mapping[str, Mapping[float, float]], *, title: str, chosen: float | None = None
) -> Plot:
    """Return leak AUC / training AUC over delta, a line per attack, the chosen delta marked."""
    deltas = sorted({delta for values in ratios.values() for delta in values})
    data: list[dict[str, Any]] = []
    for place, (name, values) in enumerate(ratios.items()):
        colour, symbol = style(place)
        data.append(
            {
                "type": "scatter",
                "mode": "lines+markers",
                "name": plain(name),
                "x": sorted(values),
                "y": [values[delta] for delta in sorted(values)],
                "line": {"color": colour, "width": 2},
                "marker": {"color": colour, "symbol": symbol, "size": 8},
                "hovertemplate": "%{fullData.name}<br>delta %{x}: ratio %{y:.4f}<extra></extra>",
            }
        )
    marked = (
        []
        if chosen is None
        else [
            {
                "type": "line",
                "x0": chosen,
                "x1": chosen,
                "y0": 0,
                "y1": 1,
                "yref": "paper",
                "line": {"color": GREY, "dash": "dot", "width": 2},
            }
        ]
    )
    spoken = "" if chosen is None else f" The chosen delta is {chosen:g}."
    return Plot(
        title=title,
        label=f"{title}: leak AUC divided by training AUC over delta, one line each for "
        f"{', '.join(ratios) or 'nothing'}.{spoken}",
        data=data,
        layout=layout(
            axis("delta", tickvals=deltas, showgrid=False),
            axis("leak AUC / training AUC"),
            shapes=marked,
        ),
        header=["delta", *ratios],
        rows=[[delta, *(values.get(delta) for values in ratios.values())] for delta in deltas],
    )


def component_blocks(runs: Sequence[Run]) -> list[PageBlock]:
    """Return what a page of runs says about scalar cuts: pictures, distances, the own output."""
    blocks: list[PageBlock] = []
    for run in runs:
        found = run.found.need("components")
        if not found.numbers("label"):
            continue
        gradients = found.need("gradients")
        plots = [
            Figure(
                component_plot(
                    name,
                    _known(found.numbers("prediction")),
                    _known(gradients.numbers(name)),
                    _known(found.numbers("label")),
                )
            )
            for name in gradients.value
        ]
        distances = found.need("tvd")
        rows: list[list[Cell]] = [
            [_NAMES.get(name, name), distances.number(name)] for name in gradients.value
        ]
        title = "Prediction against gradient" + (f": {run.name}" if len(runs) > 1 else "")
        blocks += [Heading(title), SideBySide(plots)]
        blocks.append(TableBlock(["gradient", "distance of the classes"], rows, caption=title))
        blocks += [Paragraph(_READING), *_said(run.found), *_selection(run.found)]
    return blocks


def _said(found: Fields) -> list[PageBlock]:
    said: list[PageBlock] = []
    own = found.number("embedding_leak")
    if own is not None:
        said.append(Paragraph(_OWN.format(value=own)))
    joint = found.need("components").number("joint_leak")
    if joint is not None:
        said.append(Paragraph(_JOINT.format(value=joint)))
    raw = found.need("test").number("raw_auc")
    if found.need("objective_record").flag("flipped") and raw is not None:
        said.append(Paragraph(_FLIPPED.format(value=raw)))
    claim = found.need("objective_record").text("claim")
    if claim:
        said.append(Paragraph(f"What the objective claims: {claim}."))
    return said


def _selection(found: Fields) -> list[PageBlock]:
    choice = found.need("delta_selection")
    ratios: dict[str, dict[float, float]] = {}
    for row in choice.rows("rows"):
        delta = row.number("delta")
        for attack in row.need("ratios").value:
            value = row.need("ratios").number(attack)
            if delta is not None and value is not None:
                ratios.setdefault(attack, {})[delta] = value
    if not ratios:
        return []
    title = "Leakage for its worth over delta"
    return [Figure(ratio_plot(ratios, title=title, chosen=choice.number("delta")))]


def _known(values: Sequence[float | None]) -> list[float]:
    return [0.0 if value is None else value for value in values]
