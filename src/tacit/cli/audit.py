"""``tacit audit``: how much a recorded training leaks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from tacit.cli.audit_images import images_of
from tacit.cli.audit_inputs import features_of, inputs_table
from tacit.cli.plugin_option import Plugins
from tacit.errors import UsageError

if TYPE_CHECKING:
    from tacit.audit import AuditResult


_COLOURS = {"leaks": "red", "unknown": "yellow"}


def audit(
    ctx: typer.Context,
    tape: Annotated[Path, typer.Argument(help="A tape, a run recorded with --record, .npz, ...")],
    truth: Annotated[Path | None, typer.Option(help="CSV id,label, or .npy in row order.")] = None,
    attacks: Annotated[
        list[str] | None,
        typer.Option("--attacks", "--attack", help="Specs, one or several. [all that apply]"),
    ] = None,
    certificate: Annotated[
        Path | None, typer.Option(help="results.json of the run, for what was claimed.")
    ] = None,
    features: Annotated[
        Path | None, typer.Option(help=".npy for the baseline, row i for example i.")
    ] = None,
    inputs: Annotated[
        str | None,
        typer.Option(help="CSV, Parquet or data set: what embeddings show of these columns."),
    ] = None,
    id_column: Annotated[
        str | None, typer.Option(help="The id's column in --inputs. [that of its schema, or id]")
    ] = None,
    images: Annotated[
        str | None, typer.Option(help="Data set whose pictures to show. [the run's own]")
    ] = None,
    data_dir: Annotated[Path | None, typer.Option(help="Where it lies. [TACIT_DATA]")] = None,
    threshold: Annotated[
        float | None, typer.Option(help="Leak AUC to judge by. [what features predict]")
    ] = None,
    layer: Annotated[str | None, typer.Option(help="Audit the gradients at this layer.")] = None,
    seconds: Annotated[
        float, typer.Option("--seconds", "--time-budget", help="Time for each attack.")
    ] = 120.0,
    seed: Annotated[int, typer.Option(help="Of side information and folds.")] = 0,
    _plugins: Plugins = None,
    out: Annotated[Path | None, typer.Option(help="Page to write.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Attack a tape with everything there is, and judge the attacks by the labels."""
    tape, truth, certificate = _input_files(tape, truth, certificate, inputs=inputs is not None)
    if out is not None and not out.resolve().parent.is_dir():
        raise UsageError(f"--out {out}: there is no directory {out.parent}")
    if out is not None and out.is_dir():
        raise UsageError(f"--out {out}: is a directory: name a file in it")
    specs = _specs(attacks, ctx.args)
    if truth is None and specs is not None:
        raise UsageError(f"--attacks {specs[0]}: attacks find labels, give --truth to judge them")
    if inputs is None and id_column is not None:
        raise UsageError(f"--id-column {id_column}: is of the file that --inputs names, give that")
    result = audit_tape(
        tape,
        truth,
        specs,
        layer=layer,
        quiet=as_json,
        certificate=claim_of(certificate),
        features=features,
        inputs=None if inputs is None else features_of(tape, inputs, id_column, data_dir),
        images=images_of(tape, images, data_dir, shown=out is not None and truth is not None),
        threshold=threshold,
        seconds=seconds,
        seed=seed,
    )
    if out is not None:
        result.to_html(out)
    if as_json:
        typer.echo(result.to_json())
        return
    _print(result)
    if out is not None:
        typer.echo(f"The report is in {out}")


def _print(result: AuditResult) -> None:
    """Print the findings about labels, then those about inputs."""
    if result.table:
        Console().print(table_of(result))
        typer.echo(result.record["verdict"])
    for line in result.record.get("advice", ()):
        typer.echo(f"- {line}")
    if "inputs" in result.record:
        Console().print(inputs_table(result.record))
        about = result.record["inputs_about"]
        typer.echo(about["verdict"])
        typer.echo(
            f"The attacker knew {about['known']} rows; {about['judged']} others were judged."
        )
        if about["note"]:
            typer.echo(about["note"])


def audit_tape(
    tape: Path,
    truth: Path | None,
    attacks: list[str] | None,
    *,
    layer: str | None = None,
    quiet: bool = False,
    **more: Any,  # noqa: ANN401 - what run_audit takes
) -> AuditResult:
    """Run an audit with a progress bar on standard error."""
    from tacit.audit import run_audit  # noqa: PLC0415 - loads torch
    from tacit.tape import open_tape  # noqa: PLC0415 - loads torch

    screen = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    hidden = quiet or not screen.is_terminal
    with Progress(*columns, console=screen, transient=True, disable=hidden) as bar:
        task = bar.add_task("reading", total=1)

        def advance(what: str, done: int, of: int) -> None:
            bar.update(task, description=what, completed=done, total=of)

        return run_audit(open_tape(tape, layer=layer), truth, attacks, progress=advance, **more)


def table_of(result: AuditResult) -> Table:
    """Return the findings as a table for the terminal."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("attack", no_wrap=True)
    for name in ("leak", "interval", "noise", "batch", "base", "claim"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    for row in result.table:
        interval = "" if row["low"] is None else f"{row['low']:.3f}-{row['high']:.3f}"
        leak = row["leak_auc"] if row["leak_auc"] is not None else row["clustering_accuracy"]
        colour = _COLOURS.get(row["state"])
        state = f"[{colour}]{row['state']}[/{colour}]" if colour else row["state"]
        cells = (_number(row[name]) for name in ("null_high", "mean", "baseline", "bound"))
        table.add_row(row["attack"], _number(leak), interval, *cells, state)
    return table


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


def _specs(given: list[str] | None, more: list[str]) -> list[str] | None:
    """Return the specs of all options and of the words after the last one.

    A space or comma inside parentheses does not separate.
    """
    if not given:
        if more:
            raise UsageError(f"unexpected {more[0]!r}: attacks are named after --attacks")
        return None
    specs, depth, word = [], 0, ""
    for letter in " ".join([*given, *more]) + " ":
        depth += (letter == "(") - (letter == ")")
        if depth == 0 and letter in " ,":
            specs += [word] if word else []
            word = ""
        else:
            word += letter
    if word:
        raise UsageError(f"--attacks {word.strip()!r}: a parenthesis is not closed")
    return specs


def _input_files(
    tape: Path, truth: Path | None, claim: Path | None, *, inputs: bool = False
) -> tuple[Path, Path | None, Path | None]:
    """Return the files to read; a run directory holds the tape, labels and certificate.

    An audit of inputs needs no labels, and a run that sent no gradients has embeddings alone.
    """
    run = tape if (tape / "results.json").is_file() else tape.parent
    whole = run == tape
    if whole:
        found = sorted(run.glob("feature_party_*.tape"))
        found = found or (sorted(run.glob("embeddings_*.npz")) if inputs else [])
        if not found:
            raise UsageError(f"{tape}: this run was not recorded: train with --record")
        tape = found[0]
    if tape.suffix == ".tape" and (whole or not inputs):  # a tape by name: inputs alone
        beside = run / "labels.csv"
        truth = beside if truth is None and beside.is_file() else truth
        results = run / "results.json"
        claim = results if claim is None and results.is_file() else claim
    if truth is None and not inputs:
        raise UsageError("--truth is missing: give a CSV file with the header id,label")
    return tape, truth, claim


def claim_of(path: Path | None) -> dict[str, Any] | None:
    """Return the certificate of a run's results, for a release on average."""
    from tacit.measure import auc_bound  # noqa: PLC0415 - loads numpy

    if path is None:
        return None
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"--certificate {path}: not a readable JSON file: {error}") from None
    found = found if isinstance(found, dict) else {"certificate": found or 0}
    claim, mean = found.get("certificate", found), found.get("sum_kl_per_release")
    if claim is not None and not _is_claim(claim):
        raise UsageError(f"--certificate {path}: holds no certificate: give a run's results.json")
    if claim is None:
        return None
    if isinstance(found.get("labels"), str):
        claim = {**claim, "labels": found["labels"]}
    # The last release's certificate, with the divergence of all releases on average.
    return claim if mean is None else {**claim, "sum_kl": mean, "auc_bound": auc_bound(mean)}


def _is_claim(found: object) -> bool:
    """Whether something is a certificate: it claims a divergence, or says that it claims none."""
    if not isinstance(found, dict) or "sum_kl" not in found:
        return False
    return found["sum_kl"] is None or isinstance(found["sum_kl"], int | float)
