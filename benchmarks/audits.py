"""Record trainings on real tables, audit each and write ``docs/audits.md``: ``make audits``.

Every run is kept as JSON in ``out/audits``; a second call only fills gaps and writes the page.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from tacit.accounting import recommend
from tacit.measure import bayes_combined_auc

OUT = Path("out/audits")
PAGE = Path("docs/audits.md")
SEEDS = (0, 1, 2)
FLIPS = 0.36
RR = f"rr(epsilon={np.log((1 - FLIPS) / FLIPS):.4f})"
QUADRATIC = "supervised(model=quadratic, by=gradient)"
ATTACKS = ["norm", "mean", "energy", "memory", QUADRATIC, "supervised"]
TABLES = {
    "credit": {"dataset": "credit", "epochs": 20, "lr": 3e-4},
    "spambase": {"dataset": "spambase", "epochs": 20, "lr": 1e-3},
    "criteo": {"dataset": "criteo", "epochs": 5, "lr": 1e-4},
}
WAYS = {
    "none": {},
    "marvell(s=4)": {"protect": "marvell(s=4)"},
    "marvell(s=4, covariance=full)": {"protect": "marvell(s=4, covariance=full)"},
    "advised": {},
    "rr, 36% flips": {"labels": RR},
}
# A perceptron 128 wide: where the published protections were first seen to add up over epochs.
EPOCHS = {"dataset": "credit", "model": "mlp(hidden=128)", "epochs": 20}
ADDING_UP = ("none", "max_norm", "marvell(s=4)")
MARKS = (1, 5, 10, 20)
TARGET, ADVISED = 0.65, "advised"
INTRO = """# What recorded trainings give away

`TACIT_DATA=... make audits` trains, records and audits every run below and writes this page. Batch
1024, cut 128 wide, Adam. Leak AUC: 0.5 is nothing, 1 is every label.

## Adding up over epochs

Credit, `mlp(hidden=128)`, 20 epochs, learning rate 1e-4, seed 0. `energy` is the mean over steps.
The reference is `gaussian_auc` of the certificates' sumKL, added up over an example's releases.
"""
COLUMNS = f"""
## Three tables

Wide & Deep, seeds 0, 1, 2: mean, in brackets the highest (of test AUC the lowest). `rr` flips 36%
of the labels once (`{RR}`), without noise on the gradients.

* `mean` knows the class means, `energy` and `memory` know nothing besides the gradients; `memory`
  is after the last epoch.
* `quadratic` is an adversary with labels, on gradients alone; `supervised` the best one found, on
  gradients and embeddings.
* `baseline` is what the embeddings of the first epoch predict, `trained` those of the last: an
  adversary with embeddings has that much without any gradient.
* `advised` is what `tacit recommend --target {TARGET}` says for that many epochs: the expected leak
  of `memory` is {TARGET}. The rule was made without Spambase.
* `claim` is the certificate's: of one release, or of randomised labels alone and beside what
  features predict (the baseline or the unprotected model's test AUC, whichever is higher).
"""


def jobs() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield a name and a configuration for every run."""
    for spec in ADDING_UP:
        yield f"epochs {spec} 0", {**EPOCHS, "protect": spec, "seed": 0}
    for seed in SEEDS:
        for table, settings in TABLES.items():
            for way, more in WAYS.items():
                chosen = {"protect": advised(settings)} if way == ADVISED else more
                yield f"{table} {way} {seed}", {**settings, **chosen, "seed": seed}


def advised(settings: dict[str, Any]) -> str:
    """Return the protection that keeps the leakage of all epochs at the target."""
    return recommend(target=TARGET, epochs=settings["epochs"], examples=10_000)[0].protect


def work(job: tuple[str, dict[str, Any]]) -> str:
    """Train with a tape, audit it, keep what was found."""
    import torch  # noqa: PLC0415 - in the worker, with one thread

    torch.set_num_threads(1)
    from tacit._config import PLAIN  # noqa: PLC0415 - as above
    from tacit.audit import run_audit  # noqa: PLC0415 - loads torch
    from tacit.experiment.config import TrainConfig  # noqa: PLC0415 - loads torch
    from tacit.experiment.run import run  # noqa: PLC0415 - loads torch

    name, settings = job
    place = OUT / f"{name.replace('/', '_')}.json"
    if place.exists():
        return name
    with tempfile.TemporaryDirectory() as folder:
        trial, results = run(TrainConfig.of({**PLAIN, **settings}), record=Path(folder))
        labels = torch.from_numpy(np.array(trial.table.labels))
        certificate = results["certificate"]
        if certificate is not None and results["sum_kl_per_release"] is not None:
            certificate = {**certificate, "sum_kl": results["sum_kl_per_release"]}
        tape = Path(folder) / "feature_party_0.tape"
        found = run_audit(tape, labels, ATTACKS, certificate=certificate)
    kept = {
        name: found.record[name]
        for name in ("table", "epochs", "reference", "baseline", "trained", "verdict")
    }
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(json.dumps({**kept, "test": results["test"], "settings": settings}))
    return name


def main() -> None:
    """Run what is missing on two processes and write the page."""
    todo = list(jobs())
    with ProcessPoolExecutor(2) as pool:
        for done, name in enumerate(pool.map(work, todo), start=1):
            print(f"{done}/{len(todo)} {name}", file=sys.stderr, flush=True)
    PAGE.write_text("\n".join(page()) + "\n")


def page() -> Iterator[str]:
    """Yield the lines of the page."""
    yield INTRO
    yield from _table(
        ["protection", "energy", *(f"memory after {n}" for n in MARKS), "reference", "test AUC"],
        [_epochs_row(spec) for spec in ADDING_UP],
    )
    yield COLUMNS
    for table, settings in TABLES.items():
        yield f"\n## {table.title()}\n"
        yield f"{settings['epochs']} epochs, learning rate {settings['lr']:g}.\n"
        header = ["protection", "norm", "mean", "energy", "memory", "quadratic", "supervised"]
        header += ["baseline", "trained", "claim", "test AUC"]
        yield from _table(header, [_row(table, way) for way in WAYS])


def _read(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((OUT / f"{name}.json").read_text())
    return found


def _epochs_row(spec: str) -> list[str]:
    found = _read(f"epochs {spec} 0")
    grown = [point["leak_auc"] for point in found["epochs"]["memory"]]
    reference = [point["gaussian_auc"] for point in found["reference"]]
    shown = " / ".join(f"{reference[n - 1]:.3f}" for n in MARKS) if reference else ""
    memory = [f"{grown[n - 1]:.3f}" for n in MARKS]
    energy = next(row["mean"] for row in found["table"] if row["attack"] == "energy")
    return [f"`{spec}`", f"{energy:.3f}", *memory, shown, f"{found['test']['auc']:.3f}"]


def _row(table: str, way: str) -> list[str]:
    runs = [_read(f"{table} {way} {seed}") for seed in SEEDS]
    cells = [_spread([_leak(run, name) for run in runs]) for name in ATTACKS]
    base, after = (
        f"{np.mean([run[name]['auc'] for run in runs]):.3f}" for name in ("baseline", "trained")
    )
    tests = [run["test"]["auc"] for run in runs]
    name = advised(TABLES[table]) if way == ADVISED else way
    return [
        f"`{name}`" + " (advised)" * (way == ADVISED),
        *cells,
        base,
        after,
        _claim(table, way),
        f"{np.mean(tests):.3f} ({min(tests):.3f})",
    ]


def _claim(table: str, way: str) -> str:
    run = _read(f"{table} {way} 0")
    if "labels" in run["settings"]:
        plain = _read(f"{table} none 0")
        known = max(run["baseline"]["auc"], plain["test"]["auc"])
        both = bayes_combined_auc(known, flip=FLIPS)
        return f"{1 - FLIPS:.2f}, beside {known:.2f} from features {both:.2f}"
    energy = next(row for row in run["table"] if row["attack"] == "energy")
    return "none" if energy["bound"] is None else f"{energy['bound']:.2f} per release"


def _leak(run: dict[str, Any], name: str) -> float:
    return float(next(row["leak_auc"] for row in run["table"] if row["attack"] == name))


def _spread(values: list[float]) -> str:
    return f"{np.mean(values):.3f} ({max(values):.3f})"


def _table(header: list[str], rows: list[list[str]]) -> Iterator[str]:
    yield f"| {' | '.join(header)} |"
    yield "|" + "---|" * len(header)
    for row in rows:
        yield f"| {' | '.join(row)} |"


if __name__ == "__main__":
    main()
