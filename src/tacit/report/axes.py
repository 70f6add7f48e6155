"""Several runs on three axes: what they show of labels, what of inputs, and what they are worth."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

from tacit.fields import Fields
from tacit.report.figures import Plot, axis, layout, plotly_text

# From no label to every label; light, so that the number of a run is readable in its mark.
_COLOURS = ("#8FD3BD", "#F2D57E", "#F0949E")
_INK, _EDGE, _UNKNOWN = "#14171B", "#7D8590", "#D5D9DE"
_SMALL, _LARGE = 18, 27
_HEIGHT = 400


def three_axes(runs: Mapping[str, Mapping[str, float | None]]) -> Plot:
    """Return one numbered mark for each run: test AUC over input leak, label leak by colour.

    A run is ``{"label_leak": .., "input_leak": .., "auc": ..}``: a leak AUC from 0.5 to 1, the
    share of inputs that is rebuilt from 0 to 1, and the test AUC. A run without input leak or AUC
    is in the table only; one without label leak is grey.

    >>> plot = three_axes({"silent": {"label_leak": 0.5, "input_leak": 0.9, "auc": 0.78}})
    >>> plot.data[0]["x"], plot.data[0]["y"], plot.data[0]["name"]
    ([0.9], [0.78], '1: silent, label leak 0.50')
    """
    rows = {
        name: tuple(Fields(run, name).number(key) for key in ("auc", "input_leak", "label_leak"))
        for name, run in runs.items()
    }
    data = [
        _mark(f"{number}", name, auc=auc, seen=seen, label=label)
        for number, (name, (auc, seen, label)) in enumerate(rows.items(), start=1)
        if auc is not None and seen is not None
    ]
    aucs = [auc for auc, seen, _ in rows.values() if auc is not None and seen is not None]
    title = "Label leak, input leak and what the model is worth"
    return Plot(
        title=title,
        label=f"{title}: test AUC over input leak, one numbered mark for each of "
        f"{', '.join(runs) or 'nothing'}; the redder and larger, the more labels leak. Best is "
        "up, left, small and green.",
        data=data,
        layout=layout(
            axis("input leak", range=[-0.07, 1.07], nticks=6),
            axis("test AUC", range=_span(aucs)),
            height=_HEIGHT,
        ),
        header=["run", "test AUC", "input leak", "label leak"],
        rows=[
            [f"{number}: {name}", *values]
            for number, (name, values) in enumerate(rows.items(), start=1)
        ],
    )


def _mark(
    number: str, name: str, *, auc: float, seen: float, label: float | None
) -> dict[str, object]:
    leak = "label leak not measured" if label is None else f"label leak {label:.2f}"
    share = 0.0 if label is None else max(0.0, min(1.0, 2 * (label - 0.5)))
    colour = _UNKNOWN if label is None else _between(share)
    return {
        "type": "scatter",
        "mode": "markers+text",
        "name": f"{number}: {plotly_text(name, at_most=30)}, {leak}",
        "x": [seen],
        "y": [auc],
        "text": [number],
        "textposition": "middle center",
        "textfont": {"size": 12, "color": _INK},
        "cliponaxis": False,
        "marker": {
            "color": colour,
            "size": _SMALL + (_LARGE - _SMALL) * share,
            "opacity": 1,
            "line": {"color": _EDGE, "width": 1},
        },
        "hovertemplate": "%{fullData.name}<br>test AUC %{y:.4f}, input leak %{x:.3f}"
        "<extra></extra>",
    }


def _between(share: float) -> str:
    """Return the colour of a share from 0 to 1.

    >>> _between(0.0), _between(0.5), _between(1.0)
    ('#8fd3bd', '#f2d57e', '#f0949e')
    """
    steps = list(pairwise(bytes.fromhex(colour.removeprefix("#")) for colour in _COLOURS))
    at = min(int(share * len(steps)), len(steps) - 1)
    part = share * len(steps) - at
    mixed = (round(a + part * (b - a)) for a, b in zip(*steps[at], strict=True))
    return "#" + bytes(mixed).hex()


def _span(values: list[float]) -> list[float]:
    """Return a range with room for whole marks."""
    if not values:
        return [0.5, 1.0]
    low, high = min(values), max(values)
    room = max(0.01, 0.15 * (high - low))
    return [low - room, high + room]
