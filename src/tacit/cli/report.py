"""``tacit report``: pages about training runs, audits and sweeps."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from tacit.cli.plugin_option import Plugins
from tacit.cli.report_sweep import SweepFiles, check_output, is_store
from tacit.errors import UsageError

FORMAT = 1
_KINDS = {"results.json": "a training run", "audit.json": "an audit"}


def _of_sweep(text: str) -> Any:  # noqa: ANN401 - typer's own type is private
    return typer.Option(help=text, rich_help_panel="Of a sweep")


def report(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN...",
            help="Run directories, label parties' state folders or results.json files; or one "
            "audit.json or its directory; or one sweep's store.",
        ),
    ],
    out: Annotated[Path, typer.Option(help="Page to write.")] = Path("report.html"),
    leak: Annotated[str | None, _of_sweep("Leak to begin with, such as leak.norm.mean.")] = None,
    worth: Annotated[str | None, _of_sweep("Utility to begin with, such as test.loss.")] = None,
    svg: Annotated[Path | None, _of_sweep("SVG picture to write.")] = None,
    pdf: Annotated[Path | None, _of_sweep("The same as PDF, printed by chromium.")] = None,
    csv: Annotated[Path | None, _of_sweep("Rows of all trials to write.")] = None,
    parquet: Annotated[Path | None, _of_sweep("The same as Parquet.")] = None,
    _plugins: Plugins = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Write a page about one or several training runs, about an audit, or about a sweep."""
    wanted = SweepFiles(
        page=out, svg=svg, pdf=pdf, csv=csv, parquet=parquet, leak=leak, worth=worth
    )
    if len(runs) == 1 and is_store(runs[0]):
        files = wanted.write(runs[0])
        _print_summary(out, "sweep", files, as_json=as_json)
        return
    wanted.refuse_options()
    from tacit.report import audit_page, runs_page  # noqa: PLC0415 - loads only when used

    found = {path: _read(path) for path in dict.fromkeys(map(_file, runs))}
    audits = [path for path, record in found.items() if "table" in record]
    if audits and len(found) > 1:
        raise UsageError(
            f"RUN {audits[0]}: is an audit, and an audit has a page of its own: "
            f"name it alone, or name training runs only"
        )
    check_output(out)
    if audits:
        audit_page(out, found[audits[0]])
    else:
        runs_page(out, dict(zip(_names(list(found)), found.values(), strict=True)))
    _print_summary(out, "audit" if audits else "runs", list(found), as_json=as_json)


def _print_summary(out: Path, kind: str, files: list[Path], *, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps({"page": str(out), "kind": kind, "files": [str(p) for p in files]}))
        return
    typer.echo(f"The page is in {out}")


def _file(path: Path) -> Path:
    """Return the results or the audit that an argument names."""
    if path.is_file():
        return path
    if not path.is_dir():
        raise UsageError(f"RUN {path}: there is no such file or directory")
    for name in _KINDS:
        if (path / name).is_file():
            return path / name
    raise UsageError(
        f"RUN {path}: the directory has no results.json and no audit.json; name what "
        f"`tacit train --out` or `tacit audit` wrote (a run that was killed leaves no results)"
    )


def _read(path: Path) -> dict[str, Any]:
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"RUN {path}: cannot be read: {error.strerror}") from None
    except ValueError as error:  # not UTF-8, or not JSON
        raise UsageError(f"RUN {path}: is damaged ({error}); write it again") from None
    if isinstance(record, dict) and record.get("role") == "feature":
        raise UsageError(
            f"RUN {path}: is of a feature party, which knows neither labels nor what leaks about "
            f"them; name the state folder of the label party"
        )
    if not isinstance(record, dict) or not record.keys() & {"history", "table"}:
        raise UsageError(
            f"RUN {path}: holds neither the results of a training run nor an audit; "
            f"name a results.json or an audit.json"
        )
    if record.get("format") != FORMAT:
        raise UsageError(
            f"RUN {path}: has format {record.get('format')!r}, this tacit reads format {FORMAT}; "
            f"use the tacit that wrote it, or write it again"
        )
    return record


def _names(paths: list[Path]) -> list[str]:
    """Name each run after its directory, with as many parents as names need to differ.

    The state folder of a party is named after the party's own folder.
    """
    stems = [p.resolve() for p in paths]
    stems = [p.parent if p.name in _KINDS else p.with_suffix("") for p in stems]
    stems = [p.parent if p.name == "state" else p for p in stems]
    for depth in range(1, max(len(p.parts) for p in stems)):
        names = ["/".join(p.parts[-depth:]) for p in stems]
        if len(set(names)) == len(names):
            return names
    return [str(path) for path in paths]
