"""Run a study's trials as a sweep that resumes, and write its results to files.

::

    OUT/result.json     tables, claims, the paper's numbers, what was scaled down
    OUT/page.html       the same as a page, with figures
    OUT/table.md        the tables as text
    OUT/figure-*.svg    trade-offs, where the study has them; axes are chosen on the page
    OUT/rows.csv        one row per trial
    OUT/trials.sweep    the store: the same command again only fills gaps
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Literal

from tacit import data
from tacit.data.formats import is_table_file
from tacit.errors import TacitError, UsageError
from tacit.experiment.config import TrainConfig
from tacit.experiment.export import row_of, write_csv
from tacit.experiment.grid import trials_of
from tacit.experiment.sweep import SweepObserver, SweepProgress, run_sweep
from tacit.experiment.sweep_store import TrialRecord
from tacit.fields import finite
from tacit.papers.study import Finding, Spread, Study
from tacit.report import paper_page, sweep_plots, sweep_svg, table_text


def planned(
    study: Study,
    *,
    full: bool = False,
    released: bool = False,
    data_dir: Path | None = None,
    changed: Mapping[str, Any] | None = None,
) -> tuple[tuple[TrainConfig, ...], list[str]]:
    """Return a study's trials, and the data sets whose files are missing.

    ``changed`` sets fields of every trial; trials that are then equal are one.
    """
    values = [
        {**trial, **(changed or {}), "data_dir": data_dir}
        for trial in study.trials(full, released=released)
    ]
    trials = trials_of(
        {"trial": values}, source=study.full_name
    )  # wrong settings are refused before files are looked for
    names = list(dict.fromkeys(trial.dataset for trial in trials))
    missing = [name for name in names if not _available(name, data_dir)]
    kept = tuple(trial for trial in trials if trial.dataset not in missing)
    if not kept:
        raise UsageError(
            f"{study.full_name}: needs {' or '.join(names)}, and none is in "
            f"{data.data_directory(data_dir)}: see `tacit data describe {names[0]}`"
        )
    return kept, missing


def _available(name: str, data_dir: Path | None) -> bool:
    if is_table_file(name):
        return True
    return not data.describe(name).places or bool(data.find(name, data_dir))


def reproduce(
    study: Study,
    *,
    out: Path,
    full: bool = False,
    released: bool = False,
    data_dir: Path | None = None,
    workers: int | None = None,
    on: Literal["local", "ray"] = "local",
    address: str | None = None,
    changed: Mapping[str, Any] | None = None,
    observer: SweepObserver | None = None,
) -> dict[str, Any]:
    """Run a study's trials that are not in ``out`` yet, write its files, return its record.

    >>> from tacit.papers import find
    >>> record = reproduce(find("table1-runtime"), out=Path("out"))  # doctest: +SKIP
    >>> [claim["holds"] for claim in record["claims"]]  # doctest: +SKIP
    """
    trials, missing = planned(
        study, full=full, released=released, data_dir=data_dir, changed=changed
    )
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"--out {out}: cannot be made: {error.strerror}") from None
    if full and study.hours is not None and observer is not None:
        observer(_estimate(study.hours(trials), len(trials)))
    records = run_sweep(
        trials,
        store=out / "trials.sweep",
        on=on,
        workers=1 if study.alone else workers,
        address=address,
        task=study.full_task or study.task if full else study.task,
        observer=observer,
    )
    done = [record for record in records if record.done]
    if not done:
        raise TacitError(
            f"{study.full_name}: all {len(records)} trials failed; the first: {records[0].error}"
        )
    finding = study.read(done)
    differs = [*(study.released_differs if released else ()), *study.departs]
    record: dict[str, Any] = finite(
        _record(
            study, finding, records, full=full, changed=changed, missing=missing, differs=differs
        )
    )
    _write(out, record, finding, records)
    return record


def _estimate(hours: float, trials: int) -> SweepProgress:
    """Return what an observer is told before a study of many hours begins."""
    note = f"at most {hours:,.0f} processor hours of attacks, less what was done before"
    return SweepProgress(trials=trials, kept=0, done=0, failed=0, note=note)


def _record(
    study: Study,
    finding: Finding,
    records: Sequence[TrialRecord],
    *,
    full: bool,
    changed: Mapping[str, Any] | None,
    missing: Sequence[str],
    differs: Sequence[str],
) -> dict[str, Any]:
    failed = [record for record in records if not record.done]
    changes = [f"{name} = {value}, set by hand" for name, value in (changed or {}).items()]
    return {
        "name": study.full_name,
        "title": study.title,
        "paper": study.paper,
        "place": study.place,
        "scale": "full" if full else "quick",
        "scaled": [*([] if full else study.scaled), *changes],
        "departs": list(differs),
        "missing": list(missing),
        "left_out": list(finding.left_out),
        "tables": [
            {
                "title": table.title,
                "header": list(table.header),
                "rows": [[_cell(cell) for cell in row] for row in table.rows],
                "note": table.note,
            }
            for table in finding.tables
        ],
        "claims": [{**asdict(claim), "words": claim.words} for claim in finding.claims],
        "published": [asdict(one) for one in study.published],
        "trials": len(records),
        "failed": [{"config": dict(one.config), "error": one.error} for one in failed],
        "seconds": sum(record.run.get("seconds", 0.0) for record in records),
        "run": {key: records[0].run.get(key) for key in ("at", "tacit", "torch")},
    }


def _cell(cell: object) -> object:
    return {**asdict(cell), "text": str(cell)} if isinstance(cell, Spread) else cell


def _write(
    out: Path, record: dict[str, Any], finding: Finding, records: Sequence[TrialRecord]
) -> None:
    files = {"json": "result.json", "page": "page.html", "table": "table.md", "rows": "rows.csv"}
    plain = [asdict(replace(one, results=_slim(one))) for one in records]
    figures = list(finding.figures)
    for place, (leak, utility) in enumerate(finding.tradeoffs, 1):
        name = f"figure-{place}.svg"
        text, _, _ = sweep_svg(plain, leak=leak, utility=utility)
        (out / name).write_text(text, encoding="utf-8")
        files[f"figure-{place}"] = name
    if finding.tradeoffs:
        leak, utility = finding.tradeoffs[0]
        figures += sweep_plots(plain, leak=leak, utility=utility)
    record["files"] = {kind: str(out / name) for kind, name in files.items()}
    (out / files["table"]).write_text(table_text(record), encoding="utf-8")
    paper_page(out / files["page"], record, figures)
    write_csv(out / files["rows"], [row_of(one) for one in records])
    (out / files["json"]).write_text(json.dumps(record, indent=2, allow_nan=False) + "\n")


def _slim(record: TrialRecord) -> dict[str, Any] | None:
    """Return results without the history, which no trade-off draws."""
    if record.results is None:
        return None
    return {name: value for name, value in record.results.items() if name != "history"}
