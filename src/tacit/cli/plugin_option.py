"""``--plugin FILE``, for every command that reads names of protections, attacks and the like."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Files = list[Path] | None


def load_plugins(paths: Files) -> Files:
    """Load what is installed as a plug-in, then these files."""
    from tacit.plugins import load_file, load_installed  # noqa: PLC0415 - loads only when used

    load_installed()
    for path in paths or ():
        load_file(path)
    return paths


Plugins = Annotated[
    Files,
    typer.Option(
        "--plugin",
        metavar="FILE",
        callback=load_plugins,  # while the command line is read
        is_eager=True,
        show_default=False,
        help="Python file to run first, which registers names of its own; repeat it.",
    ),
]
