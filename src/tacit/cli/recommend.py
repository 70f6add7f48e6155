"""``tacit recommend``: which protection, and how strong."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from tacit.cli.plugin_option import Plugins
from tacit.errors import UsageError

if TYPE_CHECKING:
    from tacit.audit.measured_choice import MeasuredChoice


def recommend(
    target: Annotated[float, typer.Option(help="Leak AUC to stay at after all epochs.")] = 0.65,
    epochs: Annotated[int, typer.Option(help="How often each example is released.")] = 20,
    examples: Annotated[int, typer.Option(help="How many examples there are.")] = 100_000,
    classes: Annotated[int, typer.Option(help="How many classes there are.")] = 2,
    proven: Annotated[bool, typer.Option("--proven", help="What is proven comes first.")] = False,
    measure: Annotated[
        bool, typer.Option("--measure", help="Train in each way on --dataset and compare.")
    ] = False,
    dataset: Annotated[
        str | None, typer.Option(help="With --measure: as tacit train takes it.")
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(help="With --measure: other settings of tacit train, a TOML file."),
    ] = None,
    rows: Annotated[int | None, typer.Option(help="With --measure: use so many rows.")] = None,
    seed: Annotated[int, typer.Option(help="With --measure: of all trainings.")] = 0,
    hide_inputs: Annotated[
        bool,
        typer.Option("--hide-inputs", help="With --measure: the features are a secret as well."),
    ] = False,
    _plugins: Plugins = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Choose a protection and its strength for a target, the first choice first.

    With --measure, silence (no gradient is sent), planned noise and randomised labels are each
    trained on the user's own table, attacked, and audited for what embeddings show of the inputs.
    """
    if measure:
        given = {"dataset": dataset, "rows": rows, "seed": seed}
        if dataset is None and config is None:
            raise UsageError("--measure needs --dataset: a name of tacit data list, or a file")
        shared = {name: value for name, value in given.items() if value is not None}
        wanted: dict[str, Any] = {"target": target, "epochs": epochs, "hide_inputs": hide_inputs}
        _show_measured(_measured(config, shared, **wanted, quiet=as_json), as_json=as_json)
        return
    if dataset is not None or config is not None or rows is not None or hide_inputs:
        raise UsageError("--dataset, --config, --rows and --hide-inputs are for --measure: add it")
    from tacit.accounting import recommend as choose  # noqa: PLC0415 - loads numpy

    chosen = choose(target=target, epochs=epochs, examples=examples, classes=classes, proven=proven)
    if as_json:
        typer.echo(json.dumps({"recommendations": [asdict(one) for one in chosen]}, indent=2))
        return
    for number, one in enumerate(chosen, start=1):
        typer.echo(f"{number}. {one}")
    typer.echo(
        "Sending no gradient at all leaks no label and often costs less: compare both on your own "
        "table with tacit recommend --measure --dataset FILE"
    )


def _measured(
    config: Path | None,
    shared: Mapping[str, Any],
    *,
    target: float,
    epochs: int,
    hide_inputs: bool,
    quiet: bool,
) -> Sequence[MeasuredChoice]:
    """Train in every way and return what came of it."""
    from tacit import data  # noqa: PLC0415 - loads numpy
    from tacit.audit import FeatureTable  # noqa: PLC0415 - loads torch
    from tacit.audit.measured_choice import measure_ways, ways  # noqa: PLC0415 - loads torch
    from tacit.cli.train import run_training  # noqa: PLC0415 - as above
    from tacit.experiment.config import TrainConfig, read_config  # noqa: PLC0415 - as above

    chosen = TrainConfig.of({**shared}) if config is None else read_config(config, {**shared})
    table = data.load(chosen.dataset, data_dir=chosen.data_dir, rows=chosen.rows, seed=chosen.seed)
    parties = chosen.parties or len(table.parties) or 1
    own = data.assign(table, parties)[0]
    columns = [table.numeric_names[i] for i in own.numeric]
    columns += [table.categorical_names[i] for i in own.categorical]
    each = ways(target=target, epochs=epochs, examples=len(table), classes=table.classes)
    screen = Console(stderr=True, quiet=quiet)

    def train(settings: Mapping[str, Any], folder: Path) -> Mapping[str, Any]:
        name = next(name for name, given in each.items() if given is settings)
        screen.print(f"training {[*each].index(name) + 1} of {len(each)}: {name}")
        given = {**shared, **settings}
        results, _ = run_training(config, given, folder, quiet=True, record=True)
        return results

    with TemporaryDirectory() as folder:
        return measure_ways(
            each,
            train=train,
            features=FeatureTable.of_data(table, columns),
            folder=Path(folder),
            target=target,
            hide_inputs=hide_inputs,
            images=table.image is not None,
            seed=chosen.seed,
        )


def _show_measured(found: Sequence[MeasuredChoice], *, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps({"measured": [one.record() for one in found]}, indent=2))
        return
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("", justify="right")
    table.add_column("way", no_wrap=True)
    for name in ("AUC", "label leak", "inputs shown", "seconds"):
        table.add_column(name, justify="right", no_wrap=True)
    for one in found:
        auc = "" if one.auc is None else f"{one.auc:.3f}"
        shown = f"{one.shown} of {one.columns}"
        rank = "" if one.rank is None else f"{one.rank}."
        table.add_row(rank, one.name, auc, f"{one.leak:.3f}", shown, f"{one.seconds:.0f}")
    Console().print(table)
    for one in found:
        flags = " ".join(f"--{key.replace('_', '-')} '{v}'" for key, v in one.settings.items())
        typer.echo(f"{one.name}: {one.why}. {flags}")
    typer.echo(
        "Label leak: the highest of the live attacks, 0.5 is nothing. Inputs shown: columns that "
        "known examples help to rebuild from all embeddings sent. These AUCs choose the way: judge "
        "the model that you train then on other rows, such as those of another --seed."
    )
