"""Whether two checkouts train to the same weights, bit for bit, on this machine.

``python benchmarks/same_weights.py --against OLD_CHECKOUT [--only NAME]`` trains every case with
both, only through the command line, so modules may have other names in each. ``tacit train`` runs
in one process; ``tacit party`` as two or three processes on loopback, from copies of one folder
with the same keys, tables and secrets. Compared are the weights, of parties all tensors of the last
checkpoint, and the values of ``results.json`` but for times. It exits with 1 where anything differs
or a run fails.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any, NoReturn, TypeAlias, final

import numpy as np
import numpy.typing as npt
from safetensors.numpy import load_file

HERE = Path(__file__).resolve().parents[1]
KEY, SECRET = bytes(range(32)), bytes(range(32, 64))
LONGEST_RUN, LONGEST = 90.0, 900.0
TIMES = {"seconds", "steps_per_second"}
TRAIN, PARTY = "train", "party"

Tensors: TypeAlias = dict[str, npt.NDArray[Any]]
Values: TypeAlias = dict[str, Any]


class RunError(Exception):
    """A run did not end well."""


@final
@dataclass(frozen=True, kw_only=True)
class Case:
    """What is trained, and in which ways beside the plain one."""

    name: str
    protect: str = "none"
    labels: str | None = None
    objective: str | None = None
    model: str = "mlp(hidden=32)"
    several: bool = False
    deep: bool = False

    @property
    def ways(self) -> Iterator[Way]:
        """Every way to train it."""
        for command in (TRAIN, PARTY):
            yield Way(command=command)
            if self.several:
                yield Way(command=command, features=2)
            if self.deep:
                yield Way(command=command, depth=2)


@final
@dataclass(frozen=True, kw_only=True)
class Way:
    """By which command, with how many feature parties and steps under way."""

    command: str
    features: int = 1
    depth: int = 1

    def __str__(self) -> str:
        more = ", two feature parties" if self.features > 1 else ""
        return self.command + more + (f", depth {self.depth}" if self.depth > 1 else "")


CASES = [
    Case(name="none", deep=True),
    Case(name="marvell", protect="marvell(s=4)", several=True, deep=True),
    Case(name="marvell_full", protect="marvell(s=4, covariance=full)"),
    Case(name="rr", labels="rr(epsilon=0.575)", several=True),
    Case(name="gafm", objective="gafm(delta=0.1)", model="gafm_net"),
]


@final
@dataclass(kw_only=True)
class Checkout:
    """A tree with tacit in it, and the commands that were started from it."""

    root: Path
    scratch: Path
    deadline: float
    _running: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def check(self) -> None:
        """Raise unless Python takes tacit from this tree."""
        code = "import tacit; print(tacit.__file__)"
        process = self._start([sys.executable, "-c", code], self.scratch, "which")
        self._wait([process])
        found = Path((self.scratch / "which.out").read_text().strip()).resolve()
        if not found.is_relative_to(self.root / "src"):
            raise RunError(f"tacit comes from {found}, not from {self.root / 'src'}")

    def run(self, *commands: Sequence[str], place: Path) -> None:
        """Run commands of tacit at the same time in a folder, all to a good end."""
        started: list[subprocess.Popen[bytes]] = []
        try:
            for number, words in enumerate(commands):
                called = [sys.executable, "-m", "tacit.cli", *words]
                started.append(self._start(called, place, f"command-{number}"))
            self._wait(started)
        except RunError as error:
            said = [(place / f"command-{n}.err").read_text().strip() for n in range(len(started))]
            last = " / ".join(text.splitlines()[-1] for text in said if text)
            raise RunError(f"{error}: {last}") from None
        finally:
            self.stop()

    def stop(self) -> None:
        """End what still runs, by its process id."""
        for process in self._running:
            if process.poll() is None:
                process.kill()
            process.wait()
        self._running.clear()

    def _start(self, words: list[str], place: Path, name: str) -> subprocess.Popen[bytes]:
        env = {
            **os.environ,
            "PYTHONPATH": str(self.root / "src"),
            "PYTHONPYCACHEPREFIX": str(self.scratch / "bytecode"),
            "NUMBA_CACHE_DIR": str(self.scratch / "numba"),
            "TACIT_CACHE": str(self.scratch / "cache"),
            "OMP_NUM_THREADS": "1",
            "MKL_NUM_THREADS": "1",
        }
        with (place / f"{name}.out").open("wb") as out, (place / f"{name}.err").open("wb") as err:
            process = subprocess.Popen(words, cwd=place, env=env, stdout=out, stderr=err)  # noqa: S603
        self._running.append(process)
        return process

    def _wait(self, started: list[subprocess.Popen[bytes]]) -> None:
        end = min(monotonic() + LONGEST_RUN, self.deadline)
        waiting = list(started)
        while waiting:
            try:
                waiting[0].wait(timeout=0.05)
            except subprocess.TimeoutExpired:
                if monotonic() > end:
                    raise RunError("it took too long and was stopped") from None
            failed = [process.returncode for process in started if process.poll()]
            if failed:
                raise RunError(f"it ended with {failed[0]}")
            waiting = [process for process in waiting if process.poll() is None]


def configure(path: Path, **changes: object) -> None:
    """Change settings of a party's file; None removes one."""
    held = {**tomllib.loads(path.read_text()), **changes}
    lines = [f"{name} = {json.dumps(value)}\n" for name, value in held.items() if value is not None]
    path.write_text("".join(lines))


def write_secret(path: Path, secret: bytes) -> None:
    path.parent.mkdir(mode=0o700, exist_ok=True)
    path.touch(mode=0o600)
    path.write_bytes(secret)


def prepare(checkout: Checkout, folder: Path) -> Path:
    """Make the folder that all runs of parties begin from: keys, tables, and known secrets."""
    checkout.run(["init", str(folder), "--rows", "1200"], place=checkout.scratch)
    authority, bureau = folder / "authority", folder / "bureau"
    checkout.run(["keys", "add", str(authority), "bureau"], place=checkout.scratch)
    shutil.copytree(folder / "platform", bureau)
    for file in authority.glob("bureau.*"):
        shutil.move(file, bureau / "keys")
    table = bureau / "features.csv"
    header, *rows = table.read_text().splitlines(keepends=True)
    table.write_text(header + "".join(rows[10:]))  # the parties do not have the same rows
    configure(bureau / "party.toml", name="bureau", number=1)
    write_secret(folder / "bank" / "state" / "noise.key", KEY)
    write_secret(folder / "bank" / "labels.csv.secret", SECRET)
    return folder


def free_port() -> int:
    """Return a port that nobody listens on, below those that outgoing connections take."""
    while True:
        port = random.SystemRandom().randrange(15_000, 32_000)
        with socket.socket() as tried:
            try:
                tried.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port


def trained_here(checkout: Checkout, case: Case, way: Way, place: Path) -> tuple[Tensors, Values]:
    """Train in one process; return all weights in the run directory, and the results."""
    place.mkdir()
    words = [
        "train",
        "--dataset",
        "ads",
        "--rows",
        "1500",
        "--batch-size",
        "128",
        "--epochs",
        "2",
        "--seed",
        "3",
        "--threads",
        "1",
        "--monitor-every",
        "4",
        "--model",
        case.model,
        "--parties",
        str(way.features),
        "--depth",
        str(way.depth),
        "--out",
        "run",
        "--protect",
        case.protect,
    ]
    words += ["--labels", case.labels] if case.labels else []
    words += ["--objective", case.objective] if case.objective else []
    checkout.run(words, place=place)
    return _weights(place / "run"), {"": json.loads((place / "run/results.json").read_text())}


def trained_apart(
    checkout: Checkout, case: Case, way: Way, place: Path, prepared: Path
) -> tuple[Tensors, Values]:
    """Train with a process for each party; return all weights, and the results."""
    shutil.copytree(prepared, place)
    features = ["platform", "bureau"][: way.features]
    both: dict[str, object] = {
        "address": f"127.0.0.1:{free_port()}",
        "model": case.model,
        "lr": None,  # the default
        "weight_decay": None,
        "epochs": 2,
        "batch_size": 64,
        "save_every": 20,
        "matching": "clear",  # in private, every run has an order of its own
        "depth": way.depth,
        "wait": LONGEST_RUN,
    }
    for name in features:
        configure(place / name / "party.toml", **both)
    own = {"protect": case.protect, "labels": case.labels, "objective": case.objective}
    peer = features if way.features > 1 else features[0]
    configure(place / "bank" / "party.toml", **both, **own, peer=peer, monitor_every=4)
    parties = ["bank", *features]
    checkout.run(*(["party", f"{name}/party.toml"] for name in parties), place=place)
    weights: Tensors = {}
    results: Values = {}
    for name in parties:
        state = place / name / "state"
        last = max(state.glob("checkpoints/step-*"), key=_place)
        weights |= {f"{name}/{key}": value for key, value in _weights(last).items()}
        results[name] = json.loads((state / "results.json").read_text())
    return weights, results


def _place(folder: Path) -> tuple[int, int]:
    found = re.fullmatch(r"step-(\d+)(?:\.(\d+))?", folder.name)
    return (int(found[1]), int(found[2] or 0)) if found else (-1, 0)


def _weights(folder: Path) -> Tensors:
    files = sorted(folder.glob("*.safetensors"))
    return {f"{file.stem}/{key}": held for file in files for key, held in load_file(file).items()}


def compare_weights(ours: Tensors, theirs: Tensors) -> tuple[bool, str]:
    """Return whether all tensors have the same bits, and what there is to say."""
    if not ours or ours.keys() != theirs.keys():
        apart = sorted(ours.keys() ^ theirs.keys())
        return False, f"{len(apart)} tensors in one only: {', '.join(apart[:3])}"
    differing = [name for name in ours if not _same_bits(ours[name], theirs[name])]
    if not differing:
        return True, f"equal, {len(ours)} tensors"
    shapes = [name for name in differing if ours[name].shape != theirs[name].shape]
    if shapes:
        return False, f"other shapes: {', '.join(shapes[:3])}"
    largest = max(_distance(ours[name], theirs[name]) for name in differing)
    return False, f"{len(differing)} of {len(ours)} tensors differ, by up to {largest:.3g}"


def _same_bits(one: npt.NDArray[Any], other: npt.NDArray[Any]) -> bool:
    same_kind = one.dtype == other.dtype and one.shape == other.shape
    return same_kind and one.tobytes() == other.tobytes()


def _distance(one: npt.NDArray[Any], other: npt.NDArray[Any]) -> float:
    apart = np.abs(one.astype(np.float64) - other.astype(np.float64))
    return float(apart.max(initial=0.0))


def compare_values(ours: Values, theirs: Values) -> tuple[bool, str]:
    """Return whether results are equal but for times, and what there is to say."""
    one, other = dict(_leaves(ours)), dict(_leaves(theirs))
    missing = object()
    names = [*one, *(name for name in other if name not in one)]
    differing = [n for n in names if not _equal(one.get(n, missing), other.get(n, missing))]
    if not differing:
        return True, f"equal, {len(one)} values"
    numbers = [
        abs(one[n] - other[n])
        for n in differing
        if isinstance(one.get(n), int | float) and isinstance(other.get(n), int | float)
    ]
    largest = f", by up to {max(numbers):.3g}" if numbers else ""
    return False, f"{len(differing)} of {len(names)} differ{largest}: {', '.join(differing[:3])}"


def _equal(one: object, other: object) -> bool:
    if isinstance(one, float) and isinstance(other, float) and math.isnan(one):
        return math.isnan(other)
    return type(one) is type(other) and one == other


def _leaves(value: object, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every plain value with its path; an empty object or list counts as one."""
    items: list[tuple[str, object]] = []
    if isinstance(value, dict):
        items = [(str(key), held) for key, held in value.items()]
    elif isinstance(value, list):
        items = [(str(number), held) for number, held in enumerate(value)]
    if not items:
        yield path, value
    for key, held in items:
        if key not in TIMES:
            yield from _leaves(held, f"{path}.{key}".strip("."))


def compared(
    checkouts: tuple[Checkout, Checkout], case: Case, way: Way, prepared: Path
) -> tuple[bool, str, str]:
    """Train a case with both checkouts; return whether all is equal, and what to show."""
    made: list[tuple[Tensors, Values]] = []
    for checkout in checkouts:
        place = checkout.scratch / "run"
        shutil.rmtree(place, ignore_errors=True)
        try:
            if way.command == TRAIN:
                made.append(trained_here(checkout, case, way, place))
            else:
                made.append(trained_apart(checkout, case, way, place, prepared))
        except RunError as error:
            return False, f"failed in {checkout.root}", str(error)
    weights, values = (
        compare_weights(made[0][0], made[1][0]),
        compare_values(made[0][1], made[1][1]),
    )
    return weights[0] and values[0], weights[1], values[1]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--against", type=Path, required=True, metavar="OLD_CHECKOUT")
    parser.add_argument("--only", action="append", choices=[case.name for case in CASES])
    asked = parser.parse_args()
    signal.signal(signal.SIGTERM, _stop)
    deadline, wrong = monotonic() + LONGEST, 0
    with tempfile.TemporaryDirectory() as scratch:
        made = []
        for number, root in enumerate((HERE, asked.against.resolve())):
            (own := Path(scratch) / str(number)).mkdir()
            made.append(Checkout(root=root, scratch=own, deadline=deadline))
        checkouts = (made[0], made[1])
        try:
            for checkout in checkouts:
                checkout.check()
            prepared = prepare(checkouts[1], Path(scratch) / "prepared")
            print(
                "| case | kind | weights | results | seconds |\n|---|---|---|---|---|", flush=True
            )
            for case in CASES:
                for way in case.ways if not asked.only or case.name in asked.only else ():
                    begun = monotonic()
                    equal, *cells = compared(checkouts, case, way, prepared)
                    wrong += not equal
                    took = f"{monotonic() - begun:.0f}"
                    print(f"| {' | '.join((case.name, str(way), *cells, took))} |", flush=True)
        except RunError as error:
            print(f"no run could begin: {error}", file=sys.stderr)
            return 1
        finally:
            for checkout in checkouts:
                checkout.stop()
    print(f"{wrong} differ" if wrong else "all equal")
    return 1 if wrong else 0


def _stop(number: int, _frame: object) -> NoReturn:
    sys.exit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
