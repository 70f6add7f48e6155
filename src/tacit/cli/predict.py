"""``tacit predict``: both parties score new rows with the model that they trained."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tacit.cli.party import ConfigFile, Log, show
from tacit.cli.plugin_option import Plugins


def predict(
    config: ConfigFile,
    data: Annotated[Path, typer.Option(help="This party's file of new rows.")],
    out: Annotated[Path, typer.Option(help="Label party: where to write the predictions.")] = Path(
        "predictions.csv"
    ),
    _plugins: Plugins = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Score new rows together; run it on both sides. The predictions stay at the label party.

    Rows are matched by id and coded and scaled as the training rows were.
    """
    import torch  # noqa: PLC0415 - torch loads only when it is used

    from tacit.party.config import read_party_config  # noqa: PLC0415 - loads pydantic
    from tacit.party.cpu import cores  # noqa: PLC0415 - as it is used
    from tacit.party.predict import predict_rows  # noqa: PLC0415 - loads torch

    chosen = read_party_config(config)
    torch.set_num_threads(chosen.threads or cores())
    show(predict_rows(chosen, data, out, log=Log(chosen.name)), as_json=as_json)
