"""``tacit sweep``: many training runs, on this machine or on a Ray cluster."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

import typer

from tacit.cli.plugin_option import Plugins
from tacit.cli.report_sweep import check_output
from tacit.cli.sweep_view import SweepView
from tacit.errors import TacitError, UsageError

if TYPE_CHECKING:
    from tacit.experiment.sweep_store import TrialRecord


def sweep(
    file: Annotated[Path, typer.Argument(metavar="SWEEP", help="TOML: [base], [grid], [[trial]].")],
    store: Annotated[
        Path | None, typer.Option(help="Where results are kept. [SWEEP with .sweep for .toml]")
    ] = None,
    on: Annotated[str, typer.Option(help="local (processes) or ray (a cluster).")] = "local",
    workers: Annotated[int | None, typer.Option(help="Trials at a time. [the cores]")] = None,
    address: Annotated[
        str | None, typer.Option(help="HOST:PORT of a Ray cluster. [one is started]")
    ] = None,
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="Run again what failed before.")
    ] = False,
    _plugins: Plugins = None,
    report: Annotated[Path | None, typer.Option(help="Page to write. [none]")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Run every trial that the store does not hold yet; write the rows of all of them."""
    if on not in ("local", "ray"):
        raise UsageError(f"--on {on}: must be local or ray")
    if report is not None:
        check_output(report, "--report")
    from tacit.experiment.grid import read_sweep  # noqa: PLC0415 - loads only when used

    plan = read_sweep(file)
    place = store or Path(file.name).with_suffix(".sweep")
    start = time.monotonic()
    where = cast('Literal["local", "ray"]', on)
    with SweepView(plan.name, quiet=as_json) as view:
        records = _run(
            plan.trials,
            view,
            store=place,
            on=where,
            workers=workers,
            address=address,
            retry_failed=retry_failed,
        )
    rows = _write(place, records)
    if report is not None:
        from tacit.report import sweep_page  # noqa: PLC0415 - loads only when used

        sweep_page(report, [asdict(record) for record in records], title=plan.name)
    failed = [record for record in records if not record.done]
    if as_json:
        found = {
            "sweep": plan.name,
            "store": str(place),
            "trials": len(records),
            "done": len(records) - len(failed),
            "failed": len(failed),
            "kept": view.kept,
            "seconds": time.monotonic() - start,
            "rows": rows,
        }
        typer.echo(json.dumps(found, indent=2))
    else:
        typer.echo(f"{len(records)} trials: the rows are in {place / 'rows.parquet'} and rows.csv")
    if failed:
        raise TacitError(
            f"{len(failed)} of {len(records)} trials failed; the first: {failed[0].error} "
            f"(--retry-failed runs them again)"
        )


def _run(trials: Any, view: SweepView, *, store: Path, **how: Any) -> list[TrialRecord]:  # noqa: ANN401
    from tacit.experiment.sweep import run_sweep  # noqa: PLC0415 - loads only when used

    try:
        return run_sweep(trials, store=store, observer=view, **how)
    except KeyboardInterrupt:
        raise TacitError(
            f"interrupted with {view.ended} of {len(trials)} trials in {store}: "
            f"run the same command again to go on"
        ) from None


def _write(place: Path, records: list[TrialRecord]) -> list[dict[str, Any]]:
    from tacit.experiment.export import row_of, write_csv, write_parquet  # noqa: PLC0415

    rows = [row_of(record) for record in records]
    write_csv(place / "rows.csv", rows)
    write_parquet(place / "rows.parquet", rows)
    return rows
