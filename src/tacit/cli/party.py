"""``tacit party``: one party of a training over the network."""

from __future__ import annotations

import json
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, final

import typer
from rich.console import Console

from tacit.cli.plugin_option import Plugins
from tacit.errors import UsageError

if TYPE_CHECKING:
    from tacit.party.config import PartyConfig
    from tacit.party.label_session import LabelSession
    from tacit.party.silent_label import SilentLabelSession
    from tacit.state_dir import StateFolder
    from tacit.training.loop import Step


ConfigFile = Annotated[Path, typer.Argument(metavar="CONFIG", help="This party's TOML file.")]


def party(
    config: ConfigFile,
    check: Annotated[
        bool, typer.Option("--check", help="Only see whether the other party is there and fits.")
    ] = False,
    allow_again: Annotated[
        int | None,
        typer.Option(
            metavar="STEP",
            help="Label party: let a step be released once more with other content, which counts "
            "as one more release. Decide it only if you know why the embeddings changed.",
        ),
    ] = None,
    match_again: Annotated[
        bool,
        typer.Option(
            "--match-again",
            help="Let ids be matched once more before the first step, which lets the other party "
            "ask about another set of ids. Both sides must say so. Then start the party as ever.",
        ),
    ] = False,
    remove_tables: Annotated[
        bool,
        typer.Option(
            "--remove-tables", help="Remove what was read of this party's table, labels included."
        ),
    ] = False,
    remove_embeddings: Annotated[
        bool,
        typer.Option(
            "--remove-embeddings",
            help="Label party: remove what feature parties uploaded for a head, of all versions.",
        ),
    ] = False,
    worker: Annotated[
        int | None,
        typer.Option(metavar="NUMBER", help="Which of the party's workers this is, from 0 on."),
    ] = None,
    _plugins: Plugins = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Train with another party over the network, or go on with it after any interruption."""
    from tacit.party.config import read_party_config  # noqa: PLC0415 - loads pydantic
    from tacit.party.preflight import check_party  # noqa: PLC0415 - loads torch

    chosen = read_party_config(config, worker=worker)
    if check:
        found = check_party(chosen)
    elif allow_again is not None:
        found = _allow(chosen, allow_again)
    elif match_again:
        found = _match_again(chosen)
    elif remove_tables or remove_embeddings:
        found = _remove(chosen, tables=remove_tables, embeddings=remove_embeddings)
    else:
        found = _run(chosen)
    show(found, as_json=as_json)


def _run(config: PartyConfig) -> dict[str, Any]:
    from tacit.state_dir import StateFolder, made_own  # noqa: PLC0415 - loads torch

    log = Log(config.name if config.worker is None else f"{config.name}/{config.worker}")
    others = " and ".join(config.peers)
    what = f"model {config.model}, {config.epochs} epochs"
    if config.silent:
        what = f"embeddings {config.width} wide are sent once, version {config.version},"
    log(f"{config.role} party, {what} with {others}")
    if config.matching == "clear":
        log("ids are matched in the clear: the label party sees every id of a feature party")
    try:
        if config.own_state != config.state:  # the party's folder is nobody else's either
            made_own(config.state, name="state")
        with StateFolder(config.own_state) as folder:
            return _train(config, folder, log)
    except KeyboardInterrupt:
        log("stopped: the same command goes on from the last checkpoint")
        raise


def _train(config: PartyConfig, folder: StateFolder, log: Log) -> dict[str, Any]:
    import torch  # noqa: PLC0415 - torch loads only when it is used

    from tacit.party.cpu import THREADS, threads_of  # noqa: PLC0415 - loads torch

    threads = threads_of(config, folder, log=log)
    torch.set_num_threads(threads)
    begun = partial(folder.write, THREADS, {"threads": threads})
    if config.role == "feature":
        from tacit.party.feature_session import FeatureSession  # noqa: PLC0415 - loads torch
        from tacit.party.silent_feature import SilentFeatureSession  # noqa: PLC0415 - as above

        calling = SilentFeatureSession if config.silent else FeatureSession
        with closing(calling(config, folder, log=log)) as feature:
            begun()
            return feature.run(log.part if config.silent else log.step)
    from tacit.party.label_session import LabelSession, listen  # noqa: PLC0415 - as above

    with closing(_label_session(config, folder, log)) as label:
        begun()
        ended = "finished"
        if label.awaits_peers:
            with closing(listen(config, log)) as listener:
                log(f"listening on {listener.address} for {' and '.join(config.peers)}")
                ended = (
                    label.receive(listener, log.loss)
                    if isinstance(label, LabelSession)
                    else label.receive(listener, log.part)
                )
        return label.finish(ended)


def _label_session(
    config: PartyConfig, folder: StateFolder, log: Log
) -> LabelSession | SilentLabelSession:
    from tacit.party.label import LabelPartySession  # noqa: PLC0415 - loads torch
    from tacit.party.silent_label import SilentLabelSession  # noqa: PLC0415 - as above
    from tacit.party.workers.label_worker import LabelWorker  # noqa: PLC0415 - as above

    if config.silent:
        return SilentLabelSession(config, folder, log=log)
    return (LabelWorker if config.worker else LabelPartySession)(config, folder, log=log)


def _allow(config: PartyConfig, step: int) -> dict[str, Any]:
    from tacit.data import load_party  # noqa: PLC0415 - loads numpy
    from tacit.party.budget_plan import plan_party  # noqa: PLC0415 - loads torch
    from tacit.party.label_secrets import (  # noqa: PLC0415 - loads torch
        JOURNAL,
        journal_of,
        noise_secret,
    )

    if config.role != "label":
        raise UsageError("--allow-again is the label party's decision: it holds the journal")
    path = config.state / JOURNAL
    if not path.exists():
        raise UsageError(f"--allow-again {step}: {path} does not exist, nothing was released")
    classes = load_party(config.data, role="label").classes
    with journal_of(config, noise_secret(config.state), sync="always") as journal:
        if classes is not None:  # one more release must be within the budget
            plan_party(config, classes=classes, repeats=journal.allowed.total() + 1)
        journal.allow_again(step)
    return {"allowed_again": step, "journal": str(path)}


def _match_again(config: PartyConfig) -> dict[str, Any]:
    from tacit.party.alignment_cache import allow_matching  # noqa: PLC0415 - as above
    from tacit.party.embeddings import has_uploads  # noqa: PLC0415 - as above
    from tacit.party.label_secrets import has_released  # noqa: PLC0415 - as above
    from tacit.party.state_files import checkpoints_of  # noqa: PLC0415 - as above
    from tacit.state_dir import StateFolder  # noqa: PLC0415 - loads torch

    if config.worker:
        raise UsageError(f"--match-again: worker 0 matches ids, this is worker {config.worker}")
    if not config.own_state.exists():
        raise UsageError(f"--match-again: {config.own_state} does not exist, nothing was matched")
    with StateFolder(config.own_state) as folder:
        begun = bool(checkpoints_of(config).steps()) or has_released(config.state)
        if config.silent:
            begun = has_uploads(folder.path)
        number = allow_matching(folder, begun=begun)
    return {"party": config.name, "matching_round": number, "state": str(folder.path)}


def _remove(config: PartyConfig, *, tables: bool, embeddings: bool) -> dict[str, Any]:
    from tacit import data  # noqa: PLC0415 - loads pyarrow
    from tacit.party.embeddings import EMBEDDINGS  # noqa: PLC0415 - as above
    from tacit.party.predict import PREDICTED  # noqa: PLC0415 - as above
    from tacit.party.state_files import TABLES  # noqa: PLC0415 - as above
    from tacit.state_dir import StateFolder, remove_own  # noqa: PLC0415 - loads torch

    names = [*((TABLES, PREDICTED) if tables else ()), *((EMBEDDINGS,) if embeddings else ())]
    versions = [config.state, *sorted(config.state.glob("version-*"))]
    places = [p for p in ([config.own_state] if config.worker else versions) if p.exists()]
    with ExitStack() as stack:
        for place in places:
            stack.enter_context(StateFolder(place))  # no process of this party uses it
        paths = [place / name for place in places for name in names]
        removed = [str(path) for path in paths if remove_own(path)]
    if tables and config.data.is_file() and data.forget_party(config.data, role=config.role):
        removed.append(str(data.cache_directory()))
    return {"party": config.name, "removed": ", ".join(removed) or "nothing was there"}


def show(found: dict[str, Any], *, as_json: bool) -> None:
    """Print results: as JSON, or a line for each plain value and each test measure."""
    if as_json:
        typer.echo(json.dumps(found, indent=2))
        return
    for name, value in found.items():
        if not isinstance(value, dict | list) and value is not None:
            typer.echo(f"{name}: {value}")
    for name, value in (found.get("test") or {}).items():
        typer.echo(f"test {name}: {value:.4f}")
    if found.get("verdict"):
        typer.echo(found["verdict"]["text"])


@final
class Log:
    """Log lines and progress of the run on standard error."""

    def __init__(self, name: str) -> None:
        self._console = Console(stderr=True, highlight=False, soft_wrap=True)
        self._name = name
        self._shown = -1

    def __call__(self, text: str) -> None:
        """Show a line."""
        self._console.print(f"{self._name}: {text}", markup=False)

    def step(self, done: int, steps: int) -> None:
        """Show every tenth of the run when it is done."""
        self._show(done, steps)

    def loss(self, step: Step, steps: int) -> None:
        """Show the same with the loss, at the party that knows it."""
        self._show(step.step + 1, steps, more=f", loss {step.loss:.4f}")

    def part(self, done: int, parts: int) -> None:
        """Show every tenth of an upload when it is done."""
        self._show(done, parts, what="part", more=" of the embeddings")

    def _show(self, done: int, steps: int, *, what: str = "step", more: str = "") -> None:
        tenth = done * 10 // steps
        if tenth != self._shown:
            self._shown = tenth
            self(f"{what} {done} of {steps}{more}")
