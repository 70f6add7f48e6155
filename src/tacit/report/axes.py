"""Several runs on three axes: what they show of labels, what of inputs, and what they are worth."""

from __future__ import annotations

from collections.abc import Mapping

from tacit.fields import Fields
from tacit.report.figures import Plot, axis, layout, plotly_text

_SCALE = [[0, "#0E9470"], [0.5, "#E3B23C"], [1, "#C8283C"]]  # little, some, every label
_SMALL, _LARGE = 11, 26
_HEIGHT = 420
_SIDES = ("top center", "bottom center")


def three_axes(runs: Mapping[str, Mapping[str, float | None]]) -> Plot:
    """Return one mark for each run: test AUC over input leak, label leak by colour and size.

    A run is ``{"label_leak": .., "input_leak": .., "auc": ..}``: a leak AUC from 0.5 to 1, the
    share of inputs that is rebuilt from 0 to 1, and the test AUC. A run without input leak or AUC
    is in the table only.

    >>> plot = three_axes({"silent": {"label_leak": 0.5, "input_leak": 0.9, "auc": 0.78}})
    >>> plot.data[0]["x"], plot.data[0]["y"], plot.data[0]["text"]
    ([0.9], [0.78], ['silent'])
    """
    found = {name: Fields(record, name) for name, record in runs.items()}
    rows = {
        name: tuple(run.number(key) for key in ("auc", "input_leak", "label_leak"))
        for name, run in found.items()
    }
    drawn = {
        name: (auc, seen, label)
        for name, (auc, seen, label) in rows.items()
        if auc is not None and seen is not None
    }
    aucs = [auc for auc, _, _ in drawn.values()]
    title = "Label leak, input leak and what the model is worth"
    return Plot(
        title=title,
        label=f"{title}: test AUC over input leak, one mark for each of "
        f"{', '.join(runs) or 'nothing'}; the redder and larger, the more labels leak. Best is "
        "up, left, small and green.",
        data=[_marks(drawn)],
        layout=layout(
            axis("input leak: how much of the features is rebuilt", range=[-0.09, 1.09], nticks=6),
            axis("test AUC", range=_span(aucs)),
            height=_HEIGHT,
            showlegend=False,
        ),
        header=["run", "test AUC", "input leak", "label leak (AUC)"],
        rows=[[name, *values] for name, values in rows.items()],
    )


def _marks(drawn: Mapping[str, tuple[float, float, float | None]]) -> dict[str, object]:
    """Return the marks; runs beside each other have their names above and below in turn."""
    order = sorted(drawn, key=lambda name: (drawn[name][1], drawn[name][0]))
    sides = {name: _SIDES[at % 2] for at, name in enumerate(order)}
    labels = [drawn[name][2] for name in drawn]
    share = [max(0.0, min(1.0, 2 * ((0.5 if v is None else v) - 0.5))) for v in labels]
    return {
        "type": "scatter",
        "mode": "markers+text",
        "x": [seen for _, seen, _ in drawn.values()],
        "y": [auc for auc, _, _ in drawn.values()],
        "text": [plotly_text(name, at_most=22) for name in drawn],
        "textposition": [sides[name] for name in drawn],
        "textfont": {"size": 11},
        "cliponaxis": False,
        "customdata": ["not measured" if v is None else f"{v:.3f}" for v in labels],
        "marker": {
            "color": [0.5 if v is None else v for v in labels],
            "size": [_SMALL + (_LARGE - _SMALL) * part for part in share],
            "symbol": ["circle-open" if v is None else "circle" for v in labels],
            "colorscale": _SCALE,
            "cmin": 0.5,
            "cmax": 1.0,
            "showscale": True,
            "colorbar": {
                "title": {"text": "label leak", "side": "right"},
                "thickness": 12,
                "tickvals": [0.5, 0.75, 1.0],
            },
        },
        "hovertemplate": "%{text}<br>test AUC %{y:.4f}<br>input leak %{x:.3f}<br>"
        "label leak %{customdata}<extra></extra>",
    }


def _span(values: list[float]) -> list[float]:
    """Return a range with room for the names above and below the marks."""
    if not values:
        return [0.5, 1.0]
    low, high = min(values), max(values)
    room = max(0.015, 0.25 * (high - low))
    return [low - room, high + room]
