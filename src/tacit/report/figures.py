"""Figures as plotly objects, from plain numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["bars", "lines"]

# Told apart by readers who do not see red and green alike (Okabe and Ito).
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_LAYOUT: dict[str, Any] = {
    "template": "simple_white",
    "colorway": _COLOURS,
    "font": {"family": "system-ui, sans-serif", "size": 14},
    "margin": {"l": 60, "r": 20, "t": 50, "b": 50},
    "height": 380,
    "legend": {"orientation": "h", "y": -0.25},
}


def lines(
    series: Mapping[str, Sequence[float]],
    *,
    title: str,
    x: str,
    y: str,
) -> Any:  # noqa: ANN401 - plotly's figures are untyped
    """Return one line per series over 1, 2, 3, ..."""
    from plotly import graph_objects as go  # noqa: PLC0415 - loads only when a page is written

    figure = go.Figure(layout={**_LAYOUT, "title": title, "xaxis_title": x, "yaxis_title": y})
    for name, values in series.items():
        places = list(range(1, len(values) + 1))
        figure.add_scatter(x=places, y=list(values), name=name, mode="lines+markers")
    figure.update_xaxes(dtick=max(1, max(map(len, series.values()), default=1) // 10))
    return figure


def bars(
    groups: Mapping[str, Mapping[str, float]],
    *,
    title: str,
    y: str,
    span: tuple[float, float] | None = None,
) -> Any:  # noqa: ANN401 - plotly's figures are untyped
    """Return grouped bars: one colour per group, one cluster per key."""
    from plotly import graph_objects as go  # noqa: PLC0415 - loads only when a page is written

    figure = go.Figure(layout={**_LAYOUT, "title": title, "yaxis_title": y, "barmode": "group"})
    for name, values in groups.items():
        text = [f"{value:.2f}" for value in values.values()]
        figure.add_bar(x=list(values), y=list(values.values()), name=name, text=text)
    if span is not None:
        figure.update_yaxes(range=span)
    return figure
