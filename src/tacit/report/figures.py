"""Plots as plain data, from plain numbers; the page's script draws them with plotly."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any, final

# After Okabe and Ito, for colour-blind readers; of a middle lightness, so that each is visible on a
# white page and on a dark one. Symbols differ as well.
_COLOURS = ("#1B80C4", "#D9620A", "#0E9470", "#C4679A", "#A87400", "#8A5CC2", "#4F8A8B")
_SYMBOLS = ("circle", "square", "diamond", "triangle-up", "x", "cross", "star")
GREY = "#7D8590"
LIMIT = "#C8283C"  # for bounds only
# Lines that are not measured: colour and dash.
_LOOKS = {"reference": (GREY, "longdashdot"), "baseline": (GREY, "dot"), "bound": (LIMIT, "dash")}
_LAYOUT: dict[str, Any] = {
    "font": {"family": "system-ui, 'Liberation Sans', sans-serif", "size": 13},
    "margin": {"l": 50, "r": 16, "t": 16, "b": 44},
    "paper_bgcolor": "rgba(0,0,0,0)",
    "plot_bgcolor": "rgba(0,0,0,0)",
    "height": 340,
    "showlegend": True,
    "legend": {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom", "font": {"size": 12}},
    "hovermode": "closest",
    "dragmode": False,  # a finger on a plot scrolls the page
}
Values = Sequence[float | None]


@final
@dataclass(frozen=True, kw_only=True)
class AxisChoice:
    """Measures that an axis can show: the name of each, and its values for every trace."""

    axis: str
    label: str
    options: Sequence[tuple[str, Sequence[Values]]]


@final
@dataclass(frozen=True, kw_only=True)
class Plot:
    """What to draw, what to say to those who cannot see it, and its numbers as a table."""

    title: str
    label: str
    data: Sequence[Mapping[str, Any]]
    layout: Mapping[str, Any]
    header: Sequence[str] = ()
    rows: Sequence[Sequence[str | float | None]] = ()
    square: bool = False
    choices: Sequence[AxisChoice] = ()


@final
@dataclass(frozen=True, kw_only=True)
class Series:
    """One line: points, an interval around them where there is one, and the number of its colour.

    ``look`` marks a line that is not measured: ``reference``, ``baseline`` or ``bound``.
    """

    name: str
    x: Values
    y: Values
    low: Values = field(default=())
    high: Values = field(default=())
    style: int = 0
    look: str = ""


def plotly_text(text: str, *, at_most: int = 60) -> str:
    """Return text with its tags escaped, which plotly would read, and cut: plotly wraps nothing.

    >>> plotly_text("<script>"), plotly_text("a" * 9, at_most=5)
    ('&lt;script&gt;', 'aaaa…')
    """
    short = text if len(text) <= at_most else text[: at_most - 1] + "…"
    return escape(short, quote=False)


def style(place: int) -> tuple[str, str]:
    """Return the colour and the symbol of the ``place``-th series; no two of 49 agree in both."""
    return _COLOURS[place % 7], _SYMBOLS[(place + place // 7) % 7]


def with_opacity(colour: str, opacity: float) -> str:
    """Return a colour as CSS, partly transparent.

    >>> with_opacity("#1B80C4", 0.15)
    'rgba(27,128,196,0.15)'
    """
    red, green, blue = bytes.fromhex(colour.removeprefix("#"))
    return f"rgba({red},{green},{blue},{opacity})"


def axis(title: str, **more: Any) -> dict[str, Any]:  # noqa: ANN401 - plotly's own options
    """Return an axis with a title that never sits on its tick labels."""
    text = {"text": plotly_text(title), "standoff": 8}
    return {"title": text, "automargin": True, "fixedrange": True, "zeroline": False, **more}


def layout(x: Mapping[str, Any], y: Mapping[str, Any], **more: Any) -> dict[str, Any]:  # noqa: ANN401
    """Return the common layout with two axes."""
    return {**_LAYOUT, "xaxis": dict(x), "yaxis": dict(y), **more}


def lines(series: Mapping[str, Values], *, title: str, x: str, y: str) -> Plot:
    """Return one line per series over 1, 2, 3, ..."""
    found = [
        Series(name=name, x=list(range(1, len(values) + 1)), y=values, style=place)
        for place, (name, values) in enumerate(series.items())
    ]
    return line_plot(found, title=title, x=x, y=y)


def line_plot(
    drawn: Sequence[Series], *, title: str, x: str, y: str, span: tuple[float, float] | None = None
) -> Plot:
    """Return lines over whole numbers, with intervals, and a table of their values."""
    places = sorted({place for line in drawn for place in line.x if place is not None})
    step = max(1, round((places[-1] - places[0]) / 10)) if places else 1
    ends = {"range": [places[0] - step / 3, places[-1] + step / 3]} if places else {}
    data = [trace for line in drawn for trace in (*_band(line), _trace(line, x=x, y=y))]
    lookup = [dict(zip(line.x, line.y, strict=False)) for line in drawn]
    return Plot(
        title=title,
        label=f"{title}: {y} over {x}, one line each for {_listed(line.name for line in drawn)}.",
        data=data,
        layout=layout(
            axis(x, dtick=step, tick0=places[0] if places else 0, showgrid=False, **ends),
            axis(y, **({} if span is None else {"range": span})),
        ),
        header=[x, *(line.name for line in drawn)],
        rows=[[place, *(values.get(place) for values in lookup)] for place in places],
    )


def bars(
    groups: Mapping[str, Mapping[str, float | None]],
    *,
    title: str,
    y: str,
    span: tuple[float, float] | None = None,
) -> Plot:
    """Return grouped bars: one colour per group, one cluster per key."""
    keys = list(dict.fromkeys(key for values in groups.values() for key in values))
    return Plot(
        title=title,
        label=f"{title}: {y} of {_listed(keys)}, one bar each for {_listed(groups)}.",
        data=[
            _bar(name, values, place=place, y=y)
            for place, (name, values) in enumerate(groups.items())
        ],
        layout=layout(
            axis("", type="category"),
            axis(y, **({} if span is None else {"range": span})),
            barmode="group",
            bargap=0.6 if len(groups) * len(keys) <= 3 else 0.25,
            bargroupgap=0.08,
            showlegend=len(groups) > 1,
        ),
        header=["", *groups],
        rows=[[key, *(values.get(key) for values in groups.values())] for key in keys],
    )


def _bar(name: str, values: Mapping[str, float | None], *, place: int, y: str) -> dict[str, Any]:
    text = ["" if value is None else f"{value:.2f}" for value in values.values()]
    return {
        "type": "bar",
        "name": plotly_text(name),
        "x": [plotly_text(key, at_most=24) for key in values],
        "y": list(values.values()),
        "text": text,
        "textposition": "outside",
        "textangle": 0,
        "cliponaxis": False,
        "marker": {"color": style(place)[0]},
        "hovertemplate": f"%{{fullData.name}}<br>%{{x}}: {plotly_text(y)} %{{y:.4f}}"
        "<extra></extra>",
    }


def _trace(line: Series, *, x: str, y: str) -> dict[str, Any]:
    colour, symbol = style(line.style)
    colour, dash = _LOOKS.get(line.look, (colour, "solid"))
    return {
        "type": "scatter",
        "name": plotly_text(line.name),
        "x": list(line.x),
        "y": list(line.y),
        "mode": "lines" if line.look else "lines+markers",
        "line": {"color": colour, "dash": dash, "width": 2},
        "marker": {"color": colour, "symbol": symbol, "size": 7},
        "hovertemplate": f"%{{fullData.name}}<br>{plotly_text(x)} %{{x}}: "
        f"{plotly_text(y)} %{{y:.4f}}<extra></extra>",
    }


def _band(line: Series) -> list[dict[str, Any]]:
    """Return the interval as one closed shape; points without an interval are left out."""
    ends = [
        (x, low, high)
        for x, low, high in zip(line.x, line.low, line.high, strict=False)
        if x is not None and low is not None and high is not None
    ]
    if len(ends) < 2:
        return []
    xs, lows, highs = map(list, zip(*ends, strict=True))
    return [
        {
            "type": "scatter",
            "x": xs + xs[::-1],
            "y": lows + highs[::-1],
            "fill": "toself",
            "fillcolor": with_opacity(style(line.style)[0], 0.15),
            "line": {"width": 0},
            "mode": "lines",
            "hoverinfo": "skip",
            "showlegend": False,
        }
    ]


def _listed(names: Any) -> str:  # noqa: ANN401 - any iterable of names
    return ", ".join(names) or "nothing"
