"""``tacit train``: one training run, watched live."""

from __future__ import annotations

import inspect
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import typer
from pydantic.fields import FieldInfo

from tacit.cli.live import LiveView
from tacit.cli.plugin_option import Plugins
from tacit.errors import UsageError
from tacit.experiment.config import TrainConfig, read_config
from tacit.party.cpu import free_cores
from tacit.party.settings import TrainingSettings


def _option(name: str, field: FieldInfo) -> inspect.Parameter:
    """Return the flag of a setting; a value that is not given stays with the file or the default.

    The help is the field's description, with the default in brackets where it does not tell it.
    """
    text, default = field.description or "", field.default
    named = f"--{name.replace('_', '-')}"
    kind: Any = _kind(field.annotation)
    if name == "attacks":  # one at a time
        named, kind = "--attack", list[str]
    elif kind is not bool and default is not None:
        text = f"{text} [{default}]"
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[kind | None, typer.Option(named, help=text, show_default=False)],
    )


def _kind(annotation: Any) -> Any:  # noqa: ANN401 - a type, or what stands for several
    """Return what a flag is read as: settings check their values themselves."""
    choices = get_args(annotation)
    if get_origin(annotation) is Literal:
        choices = tuple({type(choice) for choice in choices})
    plain = [one for one in (*choices, annotation) if isinstance(one, type)]
    return next((one for one in plain if one in (bool, int, float, Path)), str)


def _own_flags(command: Callable[..., None]) -> list[inspect.Parameter]:
    hints = get_type_hints(command, include_extras=True)
    parameters = inspect.signature(command).parameters
    own = [one for one in parameters.values() if one.kind is not one.VAR_KEYWORD]
    return [one.replace(annotation=hints[one.name]) for one in own]


def with_settings(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command a flag for every field of ``TrainConfig``, handed over as keywords.

    The flags that ``tacit party`` has no setting for come first.
    """
    fields = TrainConfig.model_fields
    alone = [name for name in fields if name not in TrainingSettings.model_fields]
    order = [*alone, *(name for name in fields if name not in alone)]
    flags = [_option(name, fields[name]) for name in order]
    own = _own_flags(command)
    config, *rest = [one.replace(kind=one.KEYWORD_ONLY) for one in own]
    every = [config, *flags, *rest]
    command.__signature__ = inspect.Signature(every)  # type: ignore[attr-defined]
    command.__annotations__ = {one.name: one.annotation for one in every}
    return command


def _flag(text: str, *names: str) -> Any:  # noqa: ANN401 - typer's own type is private
    return typer.Option(*names, help=text, show_default=False)


@with_settings
def train(
    config: Annotated[Path | None, _flag("TOML file; flags override it.")] = None,
    _plugins: Plugins = None,
    out: Annotated[Path | None, _flag("Run directory to write. [none]")] = None,
    record: Annotated[
        bool, _flag("Write what is seen to OUT: a tape, or embeddings sent once.", "--record")
    ] = False,
    tensorboard: Annotated[bool, _flag("Log to OUT/tensorboard too.", "--tensorboard")] = False,
    as_json: Annotated[bool, _flag("Print one JSON object, nothing else.", "--json")] = False,
    **settings: Any,  # noqa: ANN401 - as the fields of the configuration say
) -> None:
    """Train a split model in one process, attack its releases and measure both."""
    given = {name: value for name, value in settings.items() if value not in (None, [], ())}
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
    """Run one training with a live view on standard error; return its results and the view.

    Without a number of threads it takes the cores that are free. Sums depend in their last bits
    on that number, so it is kept in the configuration of the run.
    """
    import torch  # noqa: PLC0415 - torch loads only when it is used

    from tacit.experiment.gafm_delta import settled  # noqa: PLC0415 - loads torch
    from tacit.experiment.run import trial_of  # noqa: PLC0415 - loads torch
    from tacit.experiment.run_dir import RunDirectory, TensorBoardLog, check_output  # noqa: PLC0415
    from tacit.experiment.trial import Progress  # noqa: PLC0415 - loads torch

    chosen = TrainConfig.of(given) if config is None else read_config(config, given)
    if chosen.threads is None and "OMP_NUM_THREADS" not in os.environ:
        chosen = chosen.model_copy(update={"threads": free_cores()})
    if chosen.threads is not None:
        torch.set_num_threads(chosen.threads)
    if board and out is None:
        raise UsageError("--tensorboard needs --out: the log lies in the run directory")
    if record and out is None:
        raise UsageError("--record needs --out: what is seen lies in the run directory")
    if out is not None:
        check_output(out, board=board)
    chosen, selection = settled(chosen, tell=lambda line: typer.echo(line, err=True))
    stores: list[RunDirectory | TensorBoardLog] = []
    trial = trial_of(chosen)  # what is refused is refused here, and leaves nothing behind
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

        results = trial.train(observe)
    results["delta_selection"] = selection
    for store in stores:
        store.finish(trial, results)
    return results, view
