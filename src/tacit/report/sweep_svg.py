"""The trade-off as a still picture for papers: plain SVG, from the records the page draws from."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, final

from tacit.errors import UsageError
from tacit.fields import finite
from tacit.report.figures import style
from tacit.report.sweep import axes_of, spoken
from tacit.report.tradeoff import Family, Panel, panels_of

WIDTH, HEIGHT = 640, 380
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 16, 34, 52
_LINE, _GAP = 18, 14
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
    parts, top = [], 0
    for panel in panels:
        rows = math.ceil(len(panel.families) / 2)
        parts.append(f'<g transform="translate(0,{top})">{_panel(panel, leaks[0], worths[0])}</g>')
        top += HEIGHT + rows * _LINE + _GAP
    text = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{top}" '
        f'viewBox="0 0 {WIDTH} {top}" font-family="Helvetica, Arial, Liberation Sans, sans-serif" '
        f'font-size="13" fill="{_INK}"><rect width="{WIDTH}" height="{top}" fill="#fff"/>'
        f"{''.join(parts)}</svg>\n"
    )
    return text, WIDTH, top


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


def _panel(panel: Panel, leak: str, worth: str) -> str:
    runs = [strength for family in panel.families for strength in family.strengths]
    xs = [value for run in runs for value in run.values(leak) if value is not None]
    ys = [value for run in runs for value in run.values(worth) if value is not None]
    if not xs or not ys:
        return f'<text x="{_LEFT}" y="{_TOP}">{escape(panel.title)}: nothing to draw</text>'
    x = _scale(xs, 0.02, _LEFT, WIDTH - _RIGHT)
    y = _scale(ys, 0.01, HEIGHT - _BOTTOM, _TOP)
    drawn = "".join(
        _family(family, place, lambda s: _at(s, x, y), (leak, worth))
        for place, family in enumerate(panel.families)
    )
    title = f'<text x="{_LEFT}" y="20" font-weight="bold">{escape(panel.title)}</text>'
    return f"{title}{''.join(_axes(x, y, spoken(leak), spoken(worth)))}{drawn}{_legend(panel)}"


Pair = tuple[float | None, float | None]


def _at(pair: Pair, x: _Scale, y: _Scale) -> tuple[float, float] | None:
    return None if pair[0] is None or pair[1] is None else (x(pair[0]), y(pair[1]))


def _axes(x: _Scale, y: _Scale, across: str, up: str) -> Iterator[str]:
    for value in ticks(x.low, x.high):
        at = f"{x(value):.1f}"
        yield f'<path d="M{at} {y.start}V{y.end}" stroke="{_GRID}"/>'
        yield f'<text x="{at}" y="{y.start + 18}" text-anchor="middle">{value:g}</text>'
    for value in ticks(y.low, y.high):
        at = f"{y(value):.1f}"
        yield f'<path d="M{x.start} {at}H{x.end}" stroke="{_GRID}"/>'
        yield f'<text x="{x.start - 8}" y="{at}" dy="4" text-anchor="end">{value:g}</text>'
    yield f'<path d="M{x.start} {y.end}V{y.start}H{x.end}" stroke="{_INK}" fill="none"/>'
    middle, height = (x.start + x.end) / 2, (y.start + y.end) / 2
    yield f'<text x="{middle}" y="{y.start + 40}" text-anchor="middle">{escape(across)}</text>'
    yield (
        f'<text transform="translate(15,{height}) rotate(-90)" text-anchor="middle">'
        f"{escape(up)}</text>"
    )


def _family(
    family: Family,
    place: int,
    at: Callable[[Pair], tuple[float, float] | None],
    axes: tuple[str, str],
) -> str:
    leak, worth = axes
    single = [
        spot
        for s in family.strengths
        for pair in zip(s.values(leak), s.values(worth), strict=True)
        if (spot := at(pair)) is not None
    ]
    means = [at((s.mean(leak), s.mean(worth))) for s in family.strengths]
    known = [spot for spot in means if spot is not None]
    path = "L".join(f"{x:.1f} {y:.1f}" for x, y in known)
    colour = style(place)[0]
    line = f'<path d="M{path}" stroke="{colour}" stroke-width="2" fill="none"/>' if known else ""
    marks = "".join(_mark(spot, place, size=0.6, ink=0.45) for spot in single)
    return marks + line + "".join(_mark(spot, place) for spot in known)


def _mark(spot: tuple[float, float], place: int, *, size: float = 1.0, ink: float = 1.0) -> str:
    colour, symbol = style(place)
    where = f'transform="translate({spot[0]:.1f},{spot[1]:.1f}) scale({size})" opacity="{ink}"'
    if symbol == "circle":
        return f'<circle r="4.5" fill="{colour}" {where}/>'
    shape = f'd="{_SHAPES[symbol]}" {where}'
    if symbol in ("x", "cross"):
        return f'<path {shape} stroke="{colour}" stroke-width="2.5" fill="none"/>'
    return f'<path {shape} fill="{colour}"/>'


def _legend(panel: Panel) -> str:
    parts = []
    for place, family in enumerate(panel.families):
        x = _LEFT + (place % 2) * (WIDTH - _LEFT) / 2
        y = HEIGHT + place // 2 * _LINE + _GAP / 2
        parts.append(
            f'{_mark((x + 6, y), place)}<text x="{x + 18}" y="{y + 4}">{escape(family.name)}</text>'
        )
    return "".join(parts)
