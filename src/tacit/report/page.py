"""A page that needs nothing else: one HTML file with its styles, tables and figures inside."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

from tacit._version import __version__
from tacit.fields import finite
from tacit.report.blocks import Figure, Heading, PageBlock, SideBySide, number_text

if TYPE_CHECKING:
    from jinja2 import Environment

_SCRIPTS = ("plotly-basic.min.js", "page.js")
"""plotly.js-basic-dist-min 4.1.1 as published: the part of plotly that draws what pages show."""


@cache
def templates() -> Environment:
    """Return the package's templates: every text is escaped, a missing name is an error."""
    from jinja2 import (  # noqa: PLC0415 - loads only when a page is written
        Environment,
        PackageLoader,
        StrictUndefined,
    )

    found = Environment(
        loader=PackageLoader("tacit.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    found.filters |= {"finite": finite, "number_text": number_text}
    found.policies["json.dumps_kwargs"] = {"allow_nan": False}
    return found


def write_page(
    path: Path,
    *,
    title: str,
    subtitle: str,
    blocks: Sequence[PageBlock],
    record: object = None,
) -> None:
    """Write one self-contained HTML page; ``record`` is kept in it for those who check it."""
    drawn = any(isinstance(block, (Figure, SideBySide)) for block in blocks)
    text = (
        templates()
        .get_template("page.html")
        .render(
            title=title,
            subtitle=subtitle,
            blocks=blocks,
            headings=[block for block in blocks if isinstance(block, Heading)],
            record=finite(record),
            version=__version__,
            style_sheet=_asset("page.css"),
            scripts=[_asset(name) for name in _SCRIPTS] if drawn else [],
        )
    )
    path.write_text(text, encoding="utf-8")


def _asset(name: str) -> str:
    return (files("tacit.report") / "templates" / name).read_text(encoding="utf-8")
