"""``tacit demo``: the main job in a minute and a half, with nothing but what is embedded."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from tacit.cli.audit import audit_tape, claim_of, table_of
from tacit.cli.init import BANK, PLATFORM
from tacit.cli.two_parties import TwoParties

if TYPE_CHECKING:
    from tacit.audit import AuditResult


# What a newcomer compares: nothing, the published method, noise that is planned for all epochs with
# the best head that it allows, and no gradient at all. Rates and batches are the defaults, which do
# best without protection (on held-out rows of seeds 10 and 11), and are the same for all.
RUNS: dict[str, dict[str, dict[str, Any]]] = {
    "no protection": {"label": {"protect": "none"}},
    "Marvell, published": {"label": {"protect": "marvell(s=4)"}},
    "Marvell, planned": {
        "label": {"protect": "marvell(sum_kl=0.0593, covariance=full)"},
        "both": {"private_head": True},
    },
    "silent": {
        "label": {"epochs": 8},
        "feature": {"pretrain": "svd"},
        "both": {"protect": "silent", "width": 128},
    },
}
AUDITED = "Marvell, published"
SILENT = "silent"
AUDIT = ("norm", "mean", "energy", "memory", "kmeans(by=direction)")
ATTACKS = ("norm", "cosine", "energy")
COLUMNS = (*ATTACKS, "memory")
ROWS = 30_000
_KNOWN = 1_000  # rows whose features the attacker on inputs knows, and as many are judged
_EVERY: dict[str, Any] = {"matching": "clear"}  # in private it takes longer than the training
_TRAINED: dict[str, Any] = {"model": "wdl", "epochs": 5}


def demo(
    out: Annotated[Path, typer.Option(help="Page to write.")] = Path("tacit-demo.html"),
    seed: Annotated[int, typer.Option(help="Random seed of everything.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Train one split model four times across two processes, and audit what both parties saw.

    A label party and a feature party run as processes of their own on this machine: keys, mutual
    TLS, training, live leakage, an audit of the recording, what embeddings show, and a page.
    """
    audit_page = out.with_stem(f"{out.stem}-audit")
    with TemporaryDirectory() as place:
        parties = TwoParties(Path(place), rows=ROWS)
        results = _train_all(parties, Path(place), seed, quiet=as_json)
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
    typer.echo(
        "Planned: noise for all epochs together; a private head, which sends nothing, predicts."
    )
    typer.echo(
        "Inputs: features rebuilt by half or more from all embeddings that the label party got."
    )
    typer.echo(f"\nAn audit of what the feature party recorded under {AUDITED!r}:")
    Console().print(table_of(found))
    typer.echo(found.record["verdict"])
    typer.echo(f"The curves are in {out}, the audit is in {audit_page}")


def _train_all(
    parties: TwoParties, place: Path, seed: int, *, quiet: bool
) -> dict[str, dict[str, Any]]:
    """Train in every way, two at a time: of two parties, one mostly waits for the other."""
    pool = ThreadPoolExecutor(max_workers=2)
    console = Console(stderr=True, quiet=quiet)
    auditing = Lock()  # threads share generators, limits on threads, and CPython 3.11's parser

    def one(number: int, name: str) -> dict[str, Any]:
        console.print(f"training {number} of {len(RUNS)}: {name}", highlight=False)
        results = _train(parties, name, seed)
        with auditing:
            return {**results, "inputs": _inputs(place, name, seed)}

    try:
        with console.status("two parties train, in four ways"):
            found = list(pool.map(one, range(1, len(RUNS) + 1), RUNS))
    finally:
        pool.shutdown(cancel_futures=True)
    return dict(zip(RUNS, found, strict=True))


def _train(parties: TwoParties, name: str, seed: int) -> dict[str, Any]:
    """Train in one of the ways; a feature party that gets gradients records what it sees."""
    run = RUNS[name]
    watched: dict[str, Any] = {
        "attacks": list(ATTACKS),
        "monitor_every": 8,
        "write_truth": name == AUDITED,
    }
    sends = name != SILENT
    return parties.train(
        _folder(name),
        label={**(watched if sends else {}), **run["label"]},
        feature={**({"record": True} if sends else {}), **run.get("feature", {})},
        both={**_EVERY, **(_TRAINED if sends else {}), **run.get("both", {}), "seed": seed},
    )


def _inputs(place: Path, name: str, seed: int) -> list[dict[str, Any]]:
    """Return how well each column is rebuilt from all embeddings that the label party got."""
    import numpy as np  # noqa: PLC0415 - loads only when used

    from tacit.audit import FeatureTable, audit_inputs  # noqa: PLC0415 - loads torch
    from tacit.audit.sent_rows import SentRows  # noqa: PLC0415 - as above
    from tacit.tape import open_tape  # noqa: PLC0415 - as above

    seen, kept = place / PLATFORM / _folder(name), place / BANK / _folder(name)
    order = np.load(seen / "matching.npy", allow_pickle=False)
    features = FeatureTable.read(place / PLATFORM / "features.csv", id_column="id").take(order)
    if name == SILENT:
        width = RUNS[name]["both"]["width"]
        file = kept / "embeddings" / f"{PLATFORM}.f32"
        sent = np.fromfile(file, dtype="<f4").reshape(-1, width)
    else:
        (tape,) = seen.glob("*.tape")
        rows = SentRows.of(open_tape(tape), features, seed=seed)
        sent, features = rows.latest if rows.every is None else rows.every, rows.features
    chosen = np.random.default_rng(seed).permutation(len(sent))[: 2 * _KNOWN]
    return audit_inputs(sent[chosen], features.take(chosen), seed=seed).table()


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
    table = Table(title="Test AUC, what leaks of labels, and what embeddings show of inputs")
    table.add_column("protection", no_wrap=True)
    for column in ("test AUC", *COLUMNS, "inputs"):
        table.add_column(column, justify="right", no_wrap=True)
    for name, found in results.items():
        leaks = _leaks(found).values()
        cells = (f"[red]{leak:.3f}[/red]" if leak > 0.7 else f"{leak:.3f}" for leak in leaks)
        table.add_row(name, f"{found['test']['auc']:.3f}", *cells, _shown(found))
    return table


def _leaks(found: dict[str, Any]) -> dict[str, float]:
    """Return the leak AUC of each attack; where nothing was sent, that of a guess."""
    if found["releases"] == 0:
        return dict.fromkeys(COLUMNS, 0.5)
    return {
        **{attack: found["leak"][attack]["pooled"] for attack in ATTACKS},
        "memory": found["memory_leak"],
    }


def _gains(found: dict[str, Any]) -> list[float]:
    return [max(0.0, row["gain"]) for row in found["inputs"] if row["gain"] is not None]


def _shown(found: dict[str, Any]) -> str:
    gains = _gains(found)
    return f"{sum(gain >= 0.5 for gain in gains)}/{len(gains)}"


def _write(path: Path, results: dict[str, dict[str, Any]]) -> None:
    from tacit import report  # noqa: PLC0415 - jinja2 loads only when a page is written

    rows = [
        [
            name,
            found["protection"],
            found["test"]["auc"],
            *_leaks(found).values(),
            _shown(found),
        ]
        for name, found in results.items()
    ]
    curves = {
        name: [part["test"]["auc"] for part in found["history"] if part["test"]]
        for name, found in results.items()
    }
    axes = {
        name: {
            "label_leak": max(_leaks(found).values()),
            "input_leak": sum(_gains(found)) / len(_gains(found)),
            "auc": found["test"]["auc"],
        }
        for name, found in results.items()
    }
    leaks = {name: _leaks(found) for name, found in results.items()}
    header = ["", "protection", "test AUC", *COLUMNS, "inputs"]
    report.write_page(
        path,
        title="What leaks, and what protection costs",
        subtitle="A conversion model trained four times across two processes under mutual TLS, on "
        "an embedded synthetic table. The feature party sees the released gradients, the label "
        "party the embeddings.",
        blocks=[
            report.TableBlock(header, rows, alarm=0.7, alarm_from=3),
            report.Paragraph(
                "Leak AUC is how well an attack ranks the label party's positives: 0.5 is nothing, "
                "1.0 is every label. Values above 0.7 are marked. The energy attack needs no side "
                "information; it finds which class a published Marvell gives isotropic noise to. "
                "The memory attack adds up what it sees of each example over the epochs: noise "
                "that is drawn anew averages out. Planned is noise that is meant for all epochs "
                "together, beside a private head: it predicts, and nothing of it is sent. The "
                "curve below is that of the model behind the gradients."
            ),
            report.Paragraph(
                "Silent sends no gradient: the bottom learns without labels, its embeddings are "
                "sent once, and the labels stay at home. The price is on the other side: "
                "embeddings show inputs. The last column counts the features that are rebuilt by "
                "half or more from all embeddings sent, by one who knows a thousand examples."
            ),
            report.Figure(report.three_axes(axes)),
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
