"""The plots of leakage: dots against limits, densities, ROC curves, trade-offs, GAFM's parts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

from tacit.report.figures import GREY, LIMIT, Plot, axis, layout, plotly_text, style, with_opacity

# The parts of a gradient that GAFM records.
COMPONENTS = {
    "whole": "Released gradient",
    "gan": "GAN part, before mixing",
    "penalty": "Penalty part, before mixing",
}
_RATES = (0.001, 0.01, 0.05, 0.1, 0.25, 0.5)


@final
@dataclass(frozen=True, kw_only=True)
class Dot:
    """One measured leak AUC, its interval, and what it is compared with."""

    name: str
    value: float | None
    low: float | None = None
    high: float | None = None
    null_low: float | None = None
    null_high: float | None = None
    baseline: float | None = None
    bound: float | None = None


@final
@dataclass(frozen=True, kw_only=True)
class Histogram:
    """The density of an attack's scores in each class, between common edges."""

    attack: str
    edges: Sequence[float]
    negatives: Sequence[float]
    positives: Sequence[float]


@final
@dataclass(frozen=True, kw_only=True)
class Curve:
    """A ROC curve: points by rising false positive rate."""

    attack: str
    fpr: Sequence[float]
    tpr: Sequence[float]
    style: int = 0


@final
@dataclass(frozen=True)
class _Placed:
    """A dot with its height and the height of its row."""

    dot: Dot
    y: float
    lane: float


def dots(groups: Mapping[str, Sequence[Dot]], *, title: str) -> Plot:
    """Return one row per name and group: the dot, its whiskers, the null band and the limits."""
    names = list(dict.fromkeys(dot.name for found in groups.values() for dot in found))
    placed = {
        group: list(_placed(found, names, place=place, groups=len(groups)))
        for place, (group, found) in enumerate(groups.items())
    }
    every = [spot for found in placed.values() for spot in found]
    data = [
        *_null_bands(every),
        *_limits(every, "baseline", "prediction baseline", colour=GREY, dash="dot"),
        *_limits(every, "bound", "certified bound, honest batches", colour=LIMIT, dash="dash"),
        *(_whiskers(group, found, place=i) for i, (group, found) in enumerate(placed.items())),
    ]
    lane = max(36, 20 * len(groups) + 10)
    return Plot(
        title=title,
        label=f"{title}: {_description(every, many=len(groups) > 1, groups=placed)}",
        data=data,
        layout=layout(
            axis("leak AUC", range=_span(every), nticks=7),
            axis(
                "",
                range=[len(names) - 0.5, -0.5],
                tickvals=list(range(len(names))),
                ticktext=[plotly_text(name, at_most=24) for name in names],
                showgrid=False,
            ),
            height=130 + lane * len(names),
        ),
    )


def densities(found: Histogram) -> Plot:
    """Return the score densities of both classes as filled steps."""
    title = f"Scores of {found.attack}"
    classes = (("negatives", found.negatives, 0), ("positives", found.positives, 1))
    cells = zip(found.edges, found.edges[1:], found.negatives, found.positives, strict=False)
    return Plot(
        title=title,
        label=f"{title}: the density of the attack's scores among negatives and positives. "
        "The less the two overlap, the more is known about the labels.",
        data=[_steps(name, found.edges, values, place=place) for name, values, place in classes],
        layout=layout(
            axis("score", showgrid=False), axis("density", rangemode="tozero"), height=280
        ),
        header=["from", "to", "negatives", "positives"],
        rows=[list(row) for row in cells],
    )


def roc(curves: Sequence[Curve]) -> Plot:
    """Return ROC curves, and a table of true positive rates at low false positive rates."""
    title = "True against false positive rate"
    chance = {
        "type": "scatter",
        "x": [0, 1],
        "y": [0, 1],
        "mode": "lines",
        "name": "no information",
        "line": {"color": GREY, "dash": "dot", "width": 1.5},
        "hoverinfo": "skip",
    }
    ends = {"range": [-0.01, 1.01], "dtick": 0.2}
    return Plot(
        title=title,
        label=f"{title}: one curve each for "
        f"{', '.join(curve.attack for curve in curves)}. The diagonal is no information.",
        data=[chance, *map(_curve, curves)],
        layout=layout(
            axis("false positive rate", **ends), axis("true positive rate", **ends), height=480
        ),
        square=True,
        header=[
            "attack; true positives caught at false positives of at most",
            *(f"{rate:g}" for rate in _RATES),
        ],
        rows=[[curve.attack, *(_caught(curve, rate) for rate in _RATES)] for curve in curves],
    )


def trade_off(points: Sequence[tuple[str, float, float]], *, x: str, y: str) -> Plot:
    """Return one mark per run: the highest leak AUC against the utility."""
    title = "What protection buys, and what it costs"
    data = [
        {
            "type": "scatter",
            "mode": "markers",
            "name": plotly_text(name),
            "x": [leak],
            "y": [utility],
            "marker": {"size": 12, "color": style(i)[0], "symbol": style(i)[1]},
            "hovertemplate": f"%{{fullData.name}}<br>{plotly_text(x)} %{{x:.4f}}<br>"
            f"{plotly_text(y)} %{{y:.4f}}<extra></extra>",
        }
        for i, (name, leak, utility) in enumerate(points)
    ]
    return Plot(
        title=title,
        label=f"{title}: {y} against {x}; better is up and to the left.",
        data=data,
        layout=layout(
            axis(x, range=[0.48, 1.02], nticks=7),
            axis(y, range=_value_range([p[2] for p in points])),
        ),
        header=["run", x, y],
        rows=[list(point) for point in points],
    )


def component_plot(
    name: str, predictions: Sequence[float], gradients: Sequence[float], labels: Sequence[float]
) -> Plot:
    """Return predictions against scalar gradients, one mark per example, a colour per class."""
    title = COMPONENTS.get(name, name)
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
                "name": plotly_text(name),
                "x": [utility for utility, _ in points],
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
                "name": plotly_text(name),
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
    measure_name = "" if chosen is None else f" The chosen delta is {chosen:g}."
    return Plot(
        title=title,
        label=f"{title}: leak AUC divided by training AUC over delta, one line each for "
        f"{', '.join(ratios) or 'nothing'}.{measure_name}",
        data=data,
        layout=layout(
            axis("delta", tickvals=deltas, showgrid=False),
            axis("leak AUC / training AUC"),
            shapes=marked,
        ),
        header=["delta", *ratios],
        rows=[[delta, *(values.get(delta) for values in ratios.values())] for delta in deltas],
    )


def _placed(
    found: Sequence[Dot], names: Sequence[str], *, place: int, groups: int
) -> Iterator[_Placed]:
    lane = 1 / groups if groups == 1 else 0.8 / groups
    for dot in found:
        yield _Placed(dot, names.index(dot.name) + (place - (groups - 1) / 2) * lane, lane)


def _null_bands(spots: Sequence[_Placed]) -> list[dict[str, Any]]:
    ends = [(s.dot.null_low, s.dot.null_high, s.y) for s in spots]
    known = [(low, high, y) for low, high, y in ends if low is not None and high is not None]
    width = 16 if not spots or spots[0].lane == 1 else 8
    return (
        [
            {
                "type": "scatter",
                "name": "scores without information",
                "mode": "lines",
                "x": [x for low, high, _ in known for x in (low, high, None)],
                "y": [end for _, _, y in known for end in (y, y, None)],
                "line": {"color": with_opacity(GREY, 0.45), "width": width},
                "hovertemplate": "without information: up to %{x:.4f}<extra></extra>",
            }
        ]
        if known
        else []
    )


def _limits(
    spots: Sequence[_Placed], what: str, name: str, *, colour: str, dash: str
) -> list[dict[str, Any]]:
    """Return a vertical line through each row; equal values of neighbours are one line."""
    ends: list[list[float]] = []
    for spot in spots:
        value, top, foot = getattr(spot.dot, what), spot.y - spot.lane / 2, spot.y + spot.lane / 2
        if ends and ends[-1][0] == value and abs(ends[-1][2] - top) < 1e-9:
            ends[-1][2] = foot
        elif value is not None:
            ends.append([value, top, foot])
    return (
        [
            {
                "type": "scatter",
                "name": name,
                "mode": "lines",
                "x": [x for value, _, _ in ends for x in (value, value, None)],
                "y": [y for _, top, foot in ends for y in (top, foot, None)],
                "line": {"color": colour, "dash": dash, "width": 2},
                "hovertemplate": f"{name} %{{x:.4f}}<extra></extra>",
            }
        ]
        if ends
        else []
    )


def _whiskers(group: str, spots: Sequence[_Placed], *, place: int) -> dict[str, Any]:
    known = [(s.dot.value, s) for s in spots if s.dot.value is not None]
    colour, symbol = style(place)
    up = [max(0.0, (s.dot.high or value) - value) for value, s in known]
    down = [max(0.0, value - (s.dot.low or value)) for value, s in known]
    return {
        "type": "scatter",
        "name": plotly_text(group),
        "mode": "markers",
        "x": [value for value, _ in known],
        "y": [s.y for _, s in known],
        "text": [plotly_text(s.dot.name) for _, s in known],
        "marker": {"color": colour, "symbol": symbol, "size": 10},
        "error_x": {
            "type": "data",
            "array": up,
            "arrayminus": down,
            "symmetric": False,
            "color": colour,
            "thickness": 2,
            "width": 4,
        },
        "hovertemplate": "%{text}: leak AUC %{x:.4f}<extra></extra>",
    }


def _span(spots: Sequence[_Placed]) -> list[float]:
    kept = ("value", "low", "baseline", "bound", "null_low")
    values = [v for s in spots for name in kept if (v := getattr(s.dot, name)) is not None]
    return [min(0.5, *values, 0.5) - 0.015, 1.015]


def _value_range(values: Sequence[float]) -> list[float]:
    """Return a range of at least 0.05: a difference in the third digit should look small."""
    middle, reach = (max(values) + min(values)) / 2, max(values) - min(values)
    half = max(0.6 * reach, 0.025)
    return [middle - half, middle + half]


def _description(
    spots: Sequence[_Placed], *, many: bool, groups: Mapping[str, Sequence[_Placed]]
) -> str:
    if many:
        return f"leak AUC per attack, one mark each for {', '.join(groups)}."
    said = (f"{s.dot.name} {s.dot.value:.3f}" for s in spots if s.dot.value is not None)
    return f"leak AUC of {', '.join(said)}. 0.5 is nothing, 1.0 is every label."


def _steps(
    name: str, edges: Sequence[float], values: Sequence[float], *, place: int
) -> dict[str, Any]:
    colour, _ = style(place)
    return {
        "type": "scatter",
        "name": name,
        "mode": "lines",
        "x": list(edges),
        "y": [*values, *values[-1:]],
        "line": {"shape": "hv", "color": colour, "width": 2, "dash": "solid" if place else "dot"},
        "fill": "tozeroy",
        "fillcolor": with_opacity(colour, 0.25),
        "hovertemplate": f"{name}: density %{{y:.4g}} from %{{x:.4g}}<extra></extra>",
    }


def _curve(curve: Curve) -> dict[str, Any]:
    colour, _ = style(curve.style)
    dash = ("solid", "dash", "dot", "dashdot")[curve.style % 4]
    return {
        "type": "scatter",
        "name": plotly_text(curve.attack),
        "mode": "lines",
        "x": list(curve.fpr),
        "y": list(curve.tpr),
        "line": {"color": colour, "width": 2.5, "dash": dash},
        "hovertemplate": "%{fullData.name}<br>false positives %{x:.4f}, "
        "true positives %{y:.4f}<extra></extra>",
    }


def _caught(curve: Curve, rate: float) -> float:
    """Return the best true positive rate at no more than ``rate``, without interpolation."""
    pairs = zip(curve.fpr, curve.tpr, strict=True)
    return max((tpr for fpr, tpr in pairs if fpr <= rate), default=0.0)
