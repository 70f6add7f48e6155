"""``tacit train``: one training run, watched live."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from tacit.cli.live import LiveView
from tacit.cli.plugin_option import Plugins
from tacit.errors import UsageError


def _flag(text: str, *names: str) -> Any:  # noqa: ANN401 - typer's own type is private
    return typer.Option(*names, help=text, show_default=False)


def train(
    ctx: typer.Context,
    config: Annotated[Path | None, _flag("TOML file; flags override it.")] = None,
    dataset: Annotated[str | None, _flag("A name of `tacit data list`, or a file. [ads]")] = None,
    data_dir: Annotated[Path | None, _flag("Where data sets lie. [TACIT_DATA]")] = None,
    rows: Annotated[int | None, _flag("Use only so many rows. [all]")] = None,
    model: Annotated[str | None, _flag("A name of `tacit list models`. [wdl]")] = None,
    cut: Annotated[int | None, _flag("Layers at the feature party. [the model's own]")] = None,
    parties: Annotated[int | None, _flag("Feature parties. [as in the schema, or 1]")] = None,
    combine: Annotated[str | None, _flag("sum, mean, max, product or concat. [sum]")] = None,
    protect: Annotated[str | None, _flag("A spec of `tacit list protections`. [none]")] = None,
    labels: Annotated[str | None, _flag("A spec of `tacit list labels`. [none]")] = None,
    budget: Annotated[str | None, _flag("auc=, sum_kl= or epsilon= to stay within. [none]")] = None,
    objective: Annotated[str | None, _flag("bce, ce or gafm(...). [by the classes]")] = None,
    epochs: Annotated[int | None, _flag("Passes over the training rows. [5]")] = None,
    batch_size: Annotated[int | None, _flag("Examples per step. [256]")] = None,
    depth: Annotated[int | None, _flag("Steps under way at once, 1 to 4. [1]")] = None,
    lr: Annotated[float | None, _flag("Learning rate of Adam, both sides. [2e-3]")] = None,
    weight_decay: Annotated[float | None, _flag("L2 penalty, both sides. [3e-4]")] = None,
    bins: Annotated[int | None, _flag("Encode numbers by so many quantiles, 0: none. [32]")] = None,
    rare: Annotated[int | None, _flag("One value for all of fewer rows, 0: keep all. [10]")] = None,
    augment: Annotated[bool | None, _flag("Shift and mirror images.", "--augment")] = None,
    hold_out: Annotated[float | None, _flag("Share to choose the best epoch by. [0]")] = None,
    seed: Annotated[int | None, _flag("Of all, and of the noise key: for study. [0]")] = None,
    stream: Annotated[bool | None, _flag("One pass in time order, by day.", "--stream")] = None,
    layers: Annotated[bool | None, _flag("Measure every layer too.", "--layers")] = None,
    attacks: Annotated[list[str] | None, _flag("An attack to run; repeat it.", "--attack")] = None,
    monitor_every: Annotated[int | None, _flag("Attack every n-th release. [32]")] = None,
    threads: Annotated[int | None, _flag("Threads of torch. [all cores]")] = None,
    _plugins: Plugins = None,
    out: Annotated[Path | None, _flag("Run directory to write. [none]")] = None,
    record: Annotated[bool, _flag("Write what is seen to a tape in OUT.", "--record")] = False,
    tensorboard: Annotated[bool, _flag("Log to OUT/tensorboard too.", "--tensorboard")] = False,
    as_json: Annotated[bool, _flag("Print one JSON object, nothing else.", "--json")] = False,
) -> None:
    """Train a split model in one process, attack its releases and measure both."""
    apart = ("config", "_plugins", "out", "record", "tensorboard", "as_json")
    given = {k: v for k, v in ctx.params.items() if v not in (None, [], ()) and k not in apart}
    results, view = run_training(
        config, given, out, quiet=as_json, board=tensorboard, record=record
    )
    view.summary(results)
    if as_json:
        typer.echo(json.dumps(results, indent=2))


def run_training(
    config: Path | None,
    given: dict[str, Any],
    out: Path | None,
    *,
    quiet: bool,
    board: bool = False,
    record: bool = False,
) -> tuple[dict[str, Any], LiveView]:
    """Run one training with a live view on standard error; return its results and the view."""
    import torch  # noqa: PLC0415 - torch loads only when it is used

    from tacit.experiment.config import TrainConfig, read_config  # noqa: PLC0415 - loads torch
    from tacit.experiment.gafm_delta import settled  # noqa: PLC0415 - loads torch
    from tacit.experiment.run import (  # noqa: PLC0415 - loads torch
        Experiment,
        Progress,
        run_experiment,
    )
    from tacit.experiment.run_dir import RunDirectory, TensorBoardLog, check_place  # noqa: PLC0415

    chosen = TrainConfig.of(given) if config is None else read_config(config, given)
    if chosen.threads is not None:
        torch.set_num_threads(chosen.threads)
    if board and out is None:
        raise UsageError("--tensorboard needs --out: the log lies in the run directory")
    if record and out is None:
        raise UsageError("--record needs --out: the tape lies in the run directory")
    if out is not None:
        check_place(out, board=board)
    chosen, selection = settled(chosen, tell=lambda line: typer.echo(line, err=True))
    stores: list[RunDirectory | TensorBoardLog] = []
    trial = Experiment(chosen)  # what is refused is refused here, and leaves nothing behind
    if out is not None:
        stores.append(RunDirectory(out, chosen))
        stores += [TensorBoardLog(out / "tensorboard")] if board else []
        if record:
            trial.record(out)
    unit = "day" if chosen.stream else "epoch"
    with LiveView(chosen.protect, chosen.dataset, quiet=quiet, unit=unit) as view:

        def observe(progress: Progress) -> None:
            for observer in (view, *stores):
                observer(progress)

        results = run_experiment(trial, observer=observe)
    results["delta_selection"] = selection
    for store in stores:
        store.finish(trial, results)
    return results, view
