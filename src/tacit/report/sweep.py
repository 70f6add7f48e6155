"""A sweep's trade-off, as a page with every number behind it and as an SVG picture."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from tacit.errors import UsageError
from tacit.fields import Fields, finite
from tacit.report.blocks import Cell, Facts, Figure, Heading, PageBlock, Paragraph, TableBlock
from tacit.report.figures import AxisChoice, Plot, axis, layout, plotly_text, style, with_opacity
from tacit.report.page import templates, write_page
from tacit.report.tradeoff import (
    Panel,
    Strength,
    below_silence,
    choose_axis,
    is_silent,
    leaks_of,
    panels_of,
    utilities_of,
)

_WORDS = {
    "q95": "95% quantile over batches",
    "mean": "mean over batches",
    "pooled": "all batches",
    "signed_q95": "95% quantile over batches, with its sign",
    "signed": "all batches, with its sign",
}
_READING = (
    "One line per family of protections, through the means over seeds at each strength; small "
    "marks are single runs. Leak AUC is how well an attack ranks the label party's positives: 0.5 "
    "is nothing, 1.0 is every label; mean and quantile are taken over batches, where chance alone "
    "lifts the number. Better is to the left, and up where more is better."
)
_SILENT = (
    "Silent trials send no gradient, so nothing leaks about labels: they are drawn at 0.5 by "
    "construction. Their price is on the other side: embeddings show inputs."
)
# The sheet of the SVG picture, in pixels.
_WIDTH, _HEIGHT = 640, 380
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 16, 34, 52
_ROW, _GAP = 18, 14  # of the legend
_INK, _GRID = "#1b1f24", "#d5dbe1"
_SHAPES = {
    "square": "M-4-4H4V4H-4Z",
    "diamond": "M0-5.5L5.5 0L0 5.5L-5.5 0Z",
    "triangle-up": "M0-5L5 4H-5Z",
    "x": "M-4-4L4 4M4-4L-4 4",
    "cross": "M0-5V5M-5 0H5",
    "star": "M0-5.5L1.5-1.7L5.2-1.7L2.3.7L3.2 4.5L0 2.3L-3.2 4.5L-2.3.7L-5.2-1.7L-1.5-1.7Z",
}


def sweep_page(
    path: Path,
    records: Sequence[Mapping[str, Any]],
    *,
    title: str,
    leak: str | None = None,
    utility: str | None = None,
) -> None:
    """Write the page of a sweep's records; ``leak`` and ``utility`` are what it shows first."""
    kept = finite(records)
    panels = panels_of(kept)
    failed = [Fields(r, "record") for r in kept if r.get("state") != "done"]
    done = sum(len(panel.trials) for panel in panels)
    blocks: list[PageBlock] = [
        Facts([("Trials", len(kept), ""), ("Done", done, ""), ("Failed", len(failed), "")]),
        *_figures(panels, leak, utility),
        *_failures(failed),
    ]
    data = {
        name
        for p in panels
        for t in p.trials
        if (name := t.part_or_empty("config").text("dataset"))
    }
    write_page(
        path,
        title=f"Sweep: {title}",
        subtitle=f"Split models trained on {', '.join(sorted(data)) or 'no data'}, attacked and "
        "measured under several protections.",
        blocks=blocks,
        record={"records": [{k: v for k, v in r.items() if k != "results"} for r in kept]},
    )


def sweep_plots(records: Sequence[Mapping[str, Any]], *, leak: str, utility: str) -> list[Plot]:
    """Return the trade-offs of a sweep's records, one for each setting, for any page."""
    panels = panels_of(finite(records))
    leaks, utilities = _axes_of(panels, leak=leak, utility=utility)
    return [_plot(panel, leaks, utilities) for panel in panels]


def _axes_of(
    panels: Sequence[Panel], *, leak: str | None, utility: str | None
) -> tuple[list[str], list[str]]:
    """Return the measures of leakage and of utility; those to show first come first."""
    leaks, utilities = leaks_of(panels), utilities_of(panels)
    if not leaks or not utilities:
        raise UsageError("the sweep has no trial with both a leak and a test measure: none to draw")
    first, second = (
        choose_axis(leak, leaks, option="--leak"),
        choose_axis(utility, utilities, option="--worth"),
    )
    return (
        [first, *(name for name in leaks if name != first)],
        [second, *(name for name in utilities if name != second)],
    )


def measure_name(name: str) -> str:
    """Return a measure in words.

    >>> measure_name("leak.cosine.q95"), measure_name("test.auc")
    ('leak AUC of cosine, 95% quantile over batches', 'test AUC')
    """
    parts = name.split(".")
    if name == "memory_leak":
        return "leak AUC of memory over all epochs"
    if parts[0] == "leak":
        return f"leak AUC of {'.'.join(parts[1:-1])}, {_WORDS[parts[-1]]}"
    if parts[0] == "layers":
        return f"leak AUC of {parts[-2]} at {'.'.join(parts[1:-2])}, {_WORDS[parts[-1]]}"
    short = {"auc": "AUC", "nce": "normalised cross-entropy", "ace": "calibration error"}
    return f"{parts[0]} {short.get(parts[1], parts[1])}"


def _figures(panels: Sequence[Panel], leak: str | None, utility: str | None) -> list[PageBlock]:
    if not panels:
        return [Paragraph("No trial ran to its end: there is nothing to draw.")]
    leaks, utilities = _axes_of(panels, leak=leak, utility=utility)
    blocks: list[PageBlock] = [Heading("Trade-off")]
    blocks += [Figure(_plot(panel, leaks, utilities)) for panel in panels]
    blocks += [*_beside_silence(panels), Paragraph(_READING), Heading("Means over seeds")]
    blocks += [_table(panel, leaks, utilities) for panel in panels]
    return blocks


def _beside_silence(panels: Sequence[Panel]) -> list[PageBlock]:
    """Return which protections are below silence, in words."""
    told: list[PageBlock] = []
    for panel in panels:
        found = below_silence(panel)
        if found:
            where = f" ({panel.title})" if panel.title else ""
            each = ", ".join(f"{name} {mean:.4f}" for name, mean, _ in found)
            told.append(
                Paragraph(
                    f"Below silence{where}: with no gradient sent the test AUC is "
                    f"{found[0][2]:.4f}, and the gradients of these are not worth sending: {each}."
                )
            )
    if any(is_silent(trial) for panel in panels for trial in panel.trials):
        told.append(Paragraph(_SILENT))
    return told


def _plot(panel: Panel, leaks: Sequence[str], utilities: Sequence[str]) -> Plot:
    title = "What protection buys, and what it costs" + (f": {panel.title}" if panel.title else "")
    names = ", ".join(family.name for family in panel.families)
    return Plot(
        title=title,
        label=f"{title}: a measure of utility against a leak AUC, one line each for {names}.",
        data=[trace for place in range(len(panel.families)) for trace in _traces(panel, place)],
        layout=layout(
            axis(measure_name(leaks[0]), range=[0.48, 1.02], nticks=7),
            axis(measure_name(utilities[0]), nticks=7),
            height=420,
        ),
        choices=[
            AxisChoice(axis="x", label="Leak", options=[_option(panel, name) for name in leaks]),
            AxisChoice(
                axis="y", label="Utility", options=[_option(panel, name) for name in utilities]
            ),
        ],
    )


def _option(panel: Panel, name: str) -> tuple[str, list[list[float | None]]]:
    """Return a measure's name, and its values in the order of the traces."""
    values: list[list[float | None]] = []
    for family in panel.families:
        values.append([s.mean(name) for s in family.strengths])
        values.append([value for s in family.strengths for value in s.values(name)])
    return measure_name(name), values


def _traces(panel: Panel, place: int) -> list[dict[str, Any]]:
    """Return the line through the means, and the single runs; the page's script sets x and y."""
    family, (colour, symbol) = panel.families[place], style(place)
    where = "%{xaxis.title.text}: %{x:.4f}<br>%{yaxis.title.text}: %{y:.4f}<extra></extra>"
    return [
        {
            "type": "scatter",
            "name": plotly_text(family.name),
            "mode": "lines+markers",
            "legendgroup": family.name,
            "text": [plotly_text(f"{s.name}, {len(s.trials)} seeds") for s in family.strengths],
            "line": {"color": colour, "width": 2},
            "marker": {"color": colour, "symbol": symbol, "size": 10},
            "hovertemplate": f"<b>%{{text}}</b><br>{where}",
        },
        {
            "type": "scatter",
            "name": plotly_text(f"{family.name}, single runs"),
            "mode": "markers",
            "legendgroup": family.name,
            "showlegend": False,
            "text": [_settings(s, t) for s in family.strengths for t in s.trials],
            "marker": {"color": with_opacity(colour, 0.45), "symbol": symbol, "size": 6},
            "hovertemplate": f"%{{text}}<br>{where}",
            "hoverlabel": {"align": "left"},
        },
    ]


def _settings(strength: Strength, trial: Fields) -> str:
    """Return the whole configuration of a trial, in lines that fit beside a mark."""
    config = trial.part_or_empty("config").value
    text = "; ".join(f"{name} {_value_text(v)}" for name, v in config.items() if v is not None)
    lines = [plotly_text(line, at_most=200) for line in textwrap.wrap(text, 60)]
    return "<br>".join([f"<b>{plotly_text(strength.name)}</b>", *lines])


def _value_text(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


def _table(panel: Panel, leaks: Sequence[str], utilities: Sequence[str]) -> TableBlock:
    kinds = [
        name for name in sorted(leaks) if not name.endswith(".pooled") and "layers" not in name
    ]
    shown = [*utilities, *kinds]
    rows: list[list[Cell]] = [
        [family.name, s.name, len(s.trials), *(s.mean(name) for name in shown)]
        for family in panel.families
        for s in family.strengths
    ]
    return TableBlock(
        ["family", "strength", "seeds", *(name.removeprefix("leak.") for name in shown)],
        rows,
        caption=panel.title or "Means over seeds",
        fields=["family", "strength", "seeds", *shown],
    )


def _failures(failed: Sequence[Fields]) -> list[PageBlock]:
    if not failed:
        return []
    rows: list[list[Cell]] = [
        [
            one.part_or_empty("config").text("dataset"),
            one.part_or_empty("config").text("protect"),
            one.part_or_empty("config").number("seed"),
            one.text("error"),
        ]
        for one in failed
    ]
    header = ["data", "protection", "seed", "error"]
    return [Heading("Failed"), TableBlock(header, rows, caption="Trials that failed")]


def sweep_svg(
    records: Sequence[Mapping[str, Any]], *, leak: str | None = None, utility: str | None = None
) -> tuple[str, int, int]:
    """Return the trade-off as SVG text with its width and height: one panel below the other."""
    panels = panels_of(finite(records))
    if not panels:
        raise UsageError("no trial of the sweep ran to its end: there is nothing to draw")
    leaks, utilities = _axes_of(panels, leak=leak, utility=utility)
    drawn: list[_DrawnPanel] = []
    height = 0
    for panel in panels:
        drawn.append(_draw(panel, leaks[0], utilities[0], top=height))
        height += _HEIGHT + math.ceil(len(panel.families) / 2) * _ROW + _GAP
    text = (
        templates()
        .get_template("tradeoff.svg")
        .render(
            panels=drawn,
            across=measure_name(leaks[0]),
            up=measure_name(utilities[0]),
            width=_WIDTH,
            height=height,
            left=_LEFT,
            ink=_INK,
            grid=_GRID,
            shapes=_SHAPES,
            ticks=ticks,
        )
    )
    return text, _WIDTH, height


@final
@dataclass(frozen=True)
class _Scale:
    """Numbers to places on the sheet."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)


def ticks(low: float, high: float, count: int = 6) -> list[float]:
    """Return round numbers between two ends.

    >>> ticks(0.5, 1.0), ticks(0.912, 0.934, 5)
    ([0.5, 0.6, 0.7, 0.8, 0.9, 1.0], [0.915, 0.92, 0.925, 0.93])
    """
    rough = (high - low) / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * m for m in (1, 2, 5, 10) if power * m >= rough * 0.999)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    digits = max(0, 1 - math.floor(math.log10(step)))
    return [round(place * step, digits) for place in range(first, last + 1)]


def _scale(values: Sequence[float], least: float, start: float, end: float) -> _Scale:
    """Return a scale that leaves room around the values, and some where all are alike."""
    middle, reach = (max(values) + min(values)) / 2, max(values) - min(values)
    half = max(0.56 * reach, least)
    return _Scale(middle - half, middle + half, start, end)


_Spots = list[tuple[float, float]]


@final
@dataclass(frozen=True, kw_only=True)
class _Curve:
    """A family on the sheet: its marks, and where its name stands in the legend."""

    name: str
    colour: str
    symbol: str
    runs: _Spots
    means: _Spots
    legend: tuple[float, float]


@final
@dataclass(frozen=True, kw_only=True)
class _DrawnPanel:
    """A panel on the sheet; without scales there is nothing to draw."""

    title: str
    top: int
    x: _Scale | None = None
    y: _Scale | None = None
    curves: Sequence[_Curve] = ()


def _draw(panel: Panel, leak: str, utility: str, *, top: int) -> _DrawnPanel:
    strengths = [strength for family in panel.families for strength in family.strengths]
    xs = [value for one in strengths for value in one.values(leak) if value is not None]
    ys = [value for one in strengths for value in one.values(utility) if value is not None]
    if not xs or not ys:
        return _DrawnPanel(title=panel.title, top=top)
    x = _scale(xs, 0.02, _LEFT, _WIDTH - _RIGHT)
    y = _scale(ys, 0.01, _HEIGHT - _BOTTOM, _TOP)

    def spots(pairs: Iterable[tuple[float | None, float | None]]) -> _Spots:
        return [(x(a), y(b)) for a, b in pairs if a is not None and b is not None]

    curves = []
    for place, family in enumerate(panel.families):
        colour, symbol = style(place)
        found = family.strengths
        curves.append(
            _Curve(
                name=family.name,
                colour=colour,
                symbol=symbol,
                runs=spots(
                    pair
                    for one in found
                    for pair in zip(one.values(leak), one.values(utility), strict=True)
                ),
                means=spots((one.mean(leak), one.mean(utility)) for one in found),
                legend=(
                    _LEFT + (place % 2) * (_WIDTH - _LEFT) / 2,
                    _HEIGHT + place // 2 * _ROW + _GAP / 2,
                ),
            )
        )
    return _DrawnPanel(title=panel.title, top=top, x=x, y=y, curves=curves)
