"""``tacit demo``: the main job in a minute, with nothing but what is embedded."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from tacit.cli.audit import audit_tape, claim_of, table_of
from tacit.cli.train import run_training

if TYPE_CHECKING:
    from tacit.audit import AuditResult

__all__ = ["demo"]

# What a newcomer compares: nothing, the published method, noise for gradients as they are that is
# meant for all epochs together, and labels randomised once, which no epoch wears out.
RUNS: dict[str, dict[str, str]] = {
    "no protection": {},
    "Marvell, published": {"protect": "marvell(s=4)"},
    "Marvell, all epochs": {"protect": "marvell(sum_kl=0.0593, covariance=full)"},
    "randomised labels": {"labels": "rr(epsilon=0.575)"},
}
AUDITED = "Marvell, published"
AUDIT = ("norm", "mean", "energy", "memory", "kmeans(by=direction)")
ATTACKS = ("norm", "cosine", "energy")
COLUMNS = (*ATTACKS, "memory")
_SETTINGS: dict[str, Any] = {
    "dataset": "ads",
    "rows": 60_000,
    "epochs": 5,
    "lr": 1e-3,
    "monitor_every": 2,
    "attacks": ATTACKS,
}


def demo(
    out: Annotated[Path, typer.Option(help="Page to write.")] = Path("tacit-demo.html"),
    seed: Annotated[int, typer.Option(help="Of everything.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Train one split model four times, show what each protection keeps, and audit one run."""
    audit_page = out.with_stem(f"{out.stem}-audit")
    with TemporaryDirectory() as place:
        results = {
            name: _train(way, seed, Path(place) / f"run-{number}", quiet=as_json)
            for number, (name, way) in enumerate(RUNS.items())
        }
        found = _audit(Path(place) / f"run-{list(RUNS).index(AUDITED)}", seed, quiet=as_json)
    _write(out, results)
    found.to_html(audit_page)
    if as_json:
        pages = {"page": str(out), "audit": found.record, "audit_page": str(audit_page)}
        typer.echo(json.dumps({"runs": results, **pages}, indent=2))
        return
    Console().print(_table(results))
    typer.echo("Leak AUC: 0.5 is nothing, 1.0 is every label. Test AUC: the model's own quality.")
    typer.echo("memory adds up over the epochs what it sees of each example.")
    typer.echo(f"\nAn audit of what the feature party recorded under {AUDITED!r}:")
    Console().print(table_of(found))
    typer.echo(found.record["verdict"])
    typer.echo(f"The curves are in {out}, the audit is in {audit_page}")


def _train(way: dict[str, str], seed: int, place: Path, *, quiet: bool) -> dict[str, Any]:
    settings = {**_SETTINGS, **way, "seed": seed}
    recorded = way == RUNS[AUDITED]
    out = place if recorded else None
    return run_training(None, settings, out, quiet=quiet, record=recorded)[0]


def _audit(run: Path, seed: int, *, quiet: bool) -> AuditResult:
    (tape,) = run.glob("*.tape")
    claim = claim_of(run / "results.json")
    return audit_tape(
        tape, run / "labels.csv", list(AUDIT), certificate=claim, seed=seed, quiet=quiet
    )


def _table(results: dict[str, dict[str, Any]]) -> Table:
    table = Table(title="Test AUC, and the leak AUC of four attacks on the released gradients")
    table.add_column("protection", no_wrap=True)
    for column in ("test AUC", *COLUMNS):
        table.add_column(column, justify="right")
    for name, found in results.items():
        leaks = _leaks(found).values()
        cells = (f"[red]{leak:.3f}[/red]" if leak > 0.7 else f"{leak:.3f}" for leak in leaks)
        table.add_row(name, f"{found['test']['auc']:.3f}", *cells)
    return table


def _leaks(found: dict[str, Any]) -> dict[str, float]:
    return {
        **{attack: found["leak"][attack]["pooled"] for attack in ATTACKS},
        "memory": found["memory_leak"],
    }


def _write(path: Path, results: dict[str, dict[str, Any]]) -> None:
    from tacit import report  # noqa: PLC0415 - plotly loads only when a page is written

    rows = [
        [name, found["labels"] or found["protection"], found["test"]["auc"],
         *_leaks(found).values()]
        for name, found in results.items()
    ]  # fmt: skip
    curves = {name: [part["test"]["auc"] for part in found["history"]]
              for name, found in results.items()}  # fmt: skip
    leaks = {name: _leaks(found) for name, found in results.items()}
    header = ["", "protection", "test AUC", *(f"{attack} leak" for attack in COLUMNS)]
    report.write_page(
        path,
        title="What leaks, and what protection costs",
        subtitle="A conversion model trained across two parties four times, on an embedded "
        "synthetic table. The feature party sees only the released gradients.",
        blocks=[
            report.TableBlock(header, rows, alarm=0.7, alarm_from=3),
            report.Paragraph(
                "Leak AUC is how well an attack ranks the label party's positives: 0.5 is nothing, "
                "1.0 is every label. Values above 0.7 are marked. The energy attack needs no side "
                "information; it finds which class a published Marvell gives isotropic noise to. "
                "The memory attack adds up what it sees of each example over the epochs: noise "
                "that is drawn anew averages out, a label that was randomised once does not."
            ),
            report.Figure(
                report.bars(
                    leaks, title="What each attack recovers", y="leak AUC", span=(0.5, 1.05)
                )
            ),
            report.Figure(
                report.lines(curves, title="What protection costs", x="epoch", y="test AUC")
            ),
        ],
    )  # fmt: skip
