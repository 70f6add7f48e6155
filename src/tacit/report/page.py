"""A page that needs nothing else: one HTML file with its styles, tables and figures inside."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from importlib.resources import files
from pathlib import Path

from tacit._version import __version__
from tacit.fields import embed
from tacit.report.blocks import Figure, Heading, PageBlock, SideBySide

# The browser itself then refuses whatever would leave the page.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
_ENOUGH = 3  # from this many headings on, a list of contents helps


def write_page(
    path: Path,
    *,
    title: str,
    subtitle: str,
    blocks: Sequence[PageBlock],
    record: object = None,
) -> None:
    """Write one self-contained HTML page; ``record`` rides along for those who check it."""
    drawn = any(isinstance(block, (Figure, SideBySide)) for block in blocks)
    body = (
        f"<header><h1>{escape(title)}</h1><p>{escape(subtitle)}</p></header>"
        f"{_contents(blocks)}<main>{''.join(block.html() for block in blocks)}</main>"
        f"<footer><p>Written by tacit {escape(__version__)}. This file is complete in itself: "
        f"it loads nothing and sends nothing.</p></footer>"
        f"{_data(record)}{_scripts() if drawn else ''}"
    )
    path.write_text(
        f'<!doctype html>\n<html lang="en"><head>{_head(title)}</head><body>{body}</body></html>\n',
        encoding="utf-8",
    )


def _head(title: str) -> str:
    return (
        f'<meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        # Without an icon of its own a browser asks the server for one.
        '<link rel="icon" href="data:,">'
        f"<title>{escape(title)}</title><style>{_asset('page.css')}</style>"
    )


def _contents(blocks: Sequence[PageBlock]) -> str:
    headings = [block for block in blocks if isinstance(block, Heading)]
    if len(headings) < _ENOUGH:
        return ""
    links = (f'<li><a href="#{h.anchor}">{escape(h.text)}</a></li>' for h in headings)
    return f'<nav aria-label="Contents"><ul>{"".join(links)}</ul></nav>'


def _data(record: object) -> str:
    if record is None:
        return ""
    return f'<script type="application/json" id="record">{embed(record)}</script>'


def _scripts() -> str:
    from plotly.offline import get_plotlyjs  # noqa: PLC0415 - loads only when a page is written

    missing = "<noscript><p>The plots need scripts; their numbers are in the tables.</p></noscript>"
    return f"{missing}<script>{get_plotlyjs()}</script><script>{_asset('page.js')}</script>"


def _asset(name: str) -> str:
    return (files("tacit.report") / name).read_text(encoding="utf-8")
