"""``tacit recommend``: which protection, and how strong."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer


def recommend(
    target: Annotated[float, typer.Option(help="Leak AUC to stay at after all epochs.")] = 0.65,
    epochs: Annotated[int, typer.Option(help="How often each example is released.")] = 20,
    examples: Annotated[int, typer.Option(help="How many examples there are.")] = 100_000,
    classes: Annotated[int, typer.Option(help="How many classes there are.")] = 2,
    proven: Annotated[bool, typer.Option("--proven", help="What is proven comes first.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Choose a protection and its strength for a target, the first choice first."""
    from tacit.accounting import recommend as choose  # noqa: PLC0415 - loads numpy

    found = choose(target=target, epochs=epochs, examples=examples, classes=classes, proven=proven)
    if as_json:
        typer.echo(json.dumps({"recommendations": [asdict(one) for one in found]}, indent=2))
        return
    for number, one in enumerate(found, start=1):
        typer.echo(f"{number}. {one}")
