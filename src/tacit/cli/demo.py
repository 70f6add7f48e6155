"""``tacit demo``: the main job in a minute and a half, with nothing but what is embedded."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from tacit.cli.audit import audit_tape, claim_of, table_of
from tacit.cli.init import BANK, PLATFORM
from tacit.cli.two_parties import TwoParties

if TYPE_CHECKING:
    from tacit.audit import AuditResult


# What a newcomer compares: nothing, the published method, noise for gradients as they are that is
# meant for all epochs together, and labels randomised once, which no epoch wears out.
RUNS: dict[str, dict[str, str]] = {
    "no protection": {"protect": "none"},
    "Marvell, published": {"protect": "marvell(s=4)"},
    "Marvell, all epochs": {"protect": "marvell(sum_kl=0.0593, covariance=full)"},
    "randomised labels": {"protect": "none", "labels": "rr(epsilon=0.575)"},
}
AUDITED = "Marvell, published"
AUDIT = ("norm", "mean", "energy", "memory", "kmeans(by=direction)")
ATTACKS = ("norm", "cosine", "energy")
COLUMNS = (*ATTACKS, "memory")
ROWS = 60_000
_BOTH: dict[str, Any] = {
    "model": "wdl",
    "lr": 1e-3,
    "weight_decay": 0.0,
    "epochs": 5,
    "batch_size": 1024,
    "matching": "clear",  # in private it takes longer than the training
}


def demo(
    out: Annotated[Path, typer.Option(help="Page to write.")] = Path("tacit-demo.html"),
    seed: Annotated[int, typer.Option(help="Random seed of everything.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Train one split model four times across two processes, and audit what one of them saw.

    A label party and a feature party run as processes of their own on this machine: keys, mutual
    TLS, training, live leakage, an audit of the recording, and a page.
    """
    audit_page = out.with_stem(f"{out.stem}-audit")
    with TemporaryDirectory() as place:
        parties = TwoParties(Path(place), rows=ROWS)
        results = _train_all(parties, seed, quiet=as_json)
        found = _audit(Path(place), seed, quiet=as_json)
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


def _train_all(parties: TwoParties, seed: int, *, quiet: bool) -> dict[str, dict[str, Any]]:
    """Train in every way, two at a time: of two parties, one mostly waits for the other."""
    pool = ThreadPoolExecutor(max_workers=2)
    console = Console(stderr=True, quiet=quiet)

    def one(number: int, name: str) -> dict[str, Any]:
        console.print(f"training {number} of {len(RUNS)}: {name}", highlight=False)
        return _train(parties, name, seed)

    try:
        with console.status("two parties train, in four ways"):
            found = list(pool.map(one, range(1, len(RUNS) + 1), RUNS))
    finally:
        pool.shutdown(cancel_futures=True)
    return dict(zip(RUNS, found, strict=True))


def _train(parties: TwoParties, name: str, seed: int) -> dict[str, Any]:
    """Train in one of the ways; the run that is audited is recorded."""
    return parties.train(
        _folder(name),
        label={
            **RUNS[name],
            "attacks": list(ATTACKS),
            "monitor_every": 2,
            "write_truth": name == AUDITED,
        },
        feature={"record": name == AUDITED},
        both={**_BOTH, "seed": seed},
    )


def _folder(name: str) -> str:
    return f"run-{list(RUNS).index(name)}"


def _audit(place: Path, seed: int, *, quiet: bool) -> AuditResult:
    """Attack what the feature party recorded, with the labels that the label party kept."""
    seen, kept = place / PLATFORM / _folder(AUDITED), place / BANK / _folder(AUDITED)
    (tape,) = seen.glob("*.tape")
    return audit_tape(
        tape,
        kept / "labels.csv",
        list(AUDIT),
        certificate=claim_of(kept / "results.json"),
        seed=seed,
        quiet=quiet,
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
    from tacit import report  # noqa: PLC0415 - jinja2 loads only when a page is written

    rows = [
        [
            name,
            found["labels"] or found["protection"],
            found["test"]["auc"],
            *_leaks(found).values(),
        ]
        for name, found in results.items()
    ]
    curves = {
        name: [part["test"]["auc"] for part in found["history"]] for name, found in results.items()
    }
    leaks = {name: _leaks(found) for name, found in results.items()}
    header = ["", "protection", "test AUC", *(f"{attack} leak" for attack in COLUMNS)]
    report.write_page(
        path,
        title="What leaks, and what protection costs",
        subtitle="A conversion model trained four times across two processes under mutual TLS, on "
        "an embedded synthetic table. The feature party sees only the released gradients.",
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
    )
