"""The trade-off as a still picture for papers: plain SVG, from the records the page draws from."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

from tacit.errors import UsageError
from tacit.fields import finite
from tacit.report.figures import style
from tacit.report.page import templates
from tacit.report.sweep import axes_of, spoken
from tacit.report.tradeoff import Panel, panels_of

WIDTH, HEIGHT = 640, 380
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


def sweep_svg(
    records: Sequence[Mapping[str, Any]], *, leak: str | None = None, worth: str | None = None
) -> tuple[str, int, int]:
    """Return the trade-off as SVG text with its width and height: one panel below the other."""
    panels = panels_of(finite(records))
    if not panels:
        raise UsageError("no trial of the sweep ran to its end: there is nothing to draw")
    leaks, worths = axes_of(panels, leak=leak, worth=worth)
    drawn: list[_DrawnPanel] = []
    height = 0
    for panel in panels:
        drawn.append(_draw(panel, leaks[0], worths[0], top=height))
        height += HEIGHT + math.ceil(len(panel.families) / 2) * _ROW + _GAP
    text = (
        templates()
        .get_template("tradeoff.svg")
        .render(
            panels=drawn,
            across=spoken(leaks[0]),
            up=spoken(worths[0]),
            width=WIDTH,
            height=height,
            left=_LEFT,
            ink=_INK,
            grid=_GRID,
            shapes=_SHAPES,
            ticks=ticks,
        )
    )
    return text, WIDTH, height


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


def _draw(panel: Panel, leak: str, worth: str, *, top: int) -> _DrawnPanel:
    strengths = [strength for family in panel.families for strength in family.strengths]
    xs = [value for one in strengths for value in one.values(leak) if value is not None]
    ys = [value for one in strengths for value in one.values(worth) if value is not None]
    if not xs or not ys:
        return _DrawnPanel(title=panel.title, top=top)
    x = _scale(xs, 0.02, _LEFT, WIDTH - _RIGHT)
    y = _scale(ys, 0.01, HEIGHT - _BOTTOM, _TOP)

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
                    for pair in zip(one.values(leak), one.values(worth), strict=True)
                ),
                means=spots((one.mean(leak), one.mean(worth)) for one in found),
                legend=(
                    _LEFT + (place % 2) * (WIDTH - _LEFT) / 2,
                    HEIGHT + place // 2 * _ROW + _GAP / 2,
                ),
            )
        )
    return _DrawnPanel(title=panel.title, top=top, x=x, y=y, curves=curves)
