"""Parties that are killed, cut off from each other and slowed down, and end as if never.

Each case trains twice from the same secrets, once disturbed and once not, and compares everything
that is left: weights, optimisers, ledger, journal and history, bit by bit.

``--kills 1000 --into FILE`` makes rounds of 50 kills instead, each with other moments, until the
file holds so many; a stopped command goes on where the file ends.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic, sleep
from typing import Any, final

from parties import Pair, Quartet, differences  # type: ignore[import-not-found]
from party_processes import AS_TYPED, Training, train  # type: ignore[import-not-found]
from silent_parties import silent_differences, silent_pair  # type: ignore[import-not-found]
from spaces import BANK, namespaces  # type: ignore[import-not-found]

SEED = 20
LONGEST = 900.0
APART = 30.0
PARTIES = ("bank", "platform")
STEP, GREETED, TESTED = r"step \d+ of", "steps to go", r"epoch \d+: test"


@final
@dataclass
class Case:
    """One training with what happens to it."""

    name: str
    protect: str
    disturb: Callable[[Case, Any], None]
    labels: str | None = None
    epochs: int = 4
    kills: int = 0
    address: str | None = None
    several: bool = False
    silent: bool = False
    seed: int = SEED
    happened: Counter[str] = field(default_factory=Counter)

    def pair(self, folder: Path) -> Any:  # noqa: ANN401 - of the tests, without types
        """Make the companies of this case: two, or a label party with three feature parties."""
        if self.silent:  # 36 parts of 4 MB
            return silent_pair(
                folder,
                rows=20_000,
                width=2048,
                bank={"epochs": self.epochs},
                platform={"pretrain": "random"},
                threads=1,
            )
        bank = {
            "protect": self.protect,
            "labels": self.labels,
            "attacks": ["norm"],
            "monitor_every": 16,
        }
        kind = Quartet if self.several else Pair
        return kind(
            folder,
            rows=1600,
            epochs=self.epochs,
            batch_size=16,
            save_every=25,
            bank=bank,
            address=self.address,
        )


def killed(case: Case, pair: Any) -> None:  # noqa: ANN401
    """Kill one party or two at a random moment, start them again, many times."""
    rng = random.Random(case.seed)  # noqa: S311 - moments are no secret
    parties = ["bank", *pair.features]
    with Training(pair, command=AS_TYPED) as training:
        while case.kills > sum(case.happened.values()):
            victims = rng.sample(parties, rng.choice([1, 1, 1, 1, 2]))
            moment = rng.choice(MOMENTS)
            moment(training, victims[-1], rng)
            training.kill(*victims)
            for victim in victims:
                case.happened[f"{victim}: {moment.__name__}"] += 1
                training.start(victim)
        training.finish(timeout=LONGEST)


def upload_killed(case: Case, pair: Any) -> None:  # noqa: ANN401
    """Kill one party or both as soon as another part is there, many times."""
    rng = random.Random(case.seed)  # noqa: S311 - moments are no secret
    stored = pair.state("bank") / "embeddings" / "platform.f32"
    with Training(pair, command=AS_TYPED) as training:
        while case.kills > sum(case.happened.values()):
            held, deadline = _size(stored), monotonic() + LONGEST
            while _size(stored) <= held:
                assert monotonic() < deadline, training.running["bank"].said
                sleep(0.0005)
            sleep(rng.uniform(0, 0.03))
            victims = rng.choice([["bank"], ["platform"], ["bank", "platform"]])
            training.kill(*victims)
            for victim in victims:
                case.happened[victim] += 1
                training.start(victim)
        training.finish(timeout=LONGEST)


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def start(_training: Any, _party: str, rng: random.Random) -> None:  # noqa: ANN401
    sleep(rng.uniform(0, 3))


def align(training: Any, party: str, rng: random.Random) -> None:  # noqa: ANN401
    training.running[party].wait_for(GREETED)
    sleep(rng.uniform(0, 0.02))


def step(training: Any, party: str, rng: random.Random) -> None:  # noqa: ANN401
    training.running[party].wait_for(STEP)
    sleep(rng.uniform(0, 0.2))


def evaluation(training: Any, _party: str, rng: random.Random) -> None:  # noqa: ANN401
    training.running["bank"].wait_for(TESTED)
    sleep(rng.uniform(0, 0.02))


def checkpoint(training: Any, party: str, _rng: random.Random) -> None:  # noqa: ANN401
    """Wait until a checkpoint of this party is half written."""
    store = training.pair.state(party) / "checkpoints"
    held, deadline = set(store.glob("*")), monotonic() + 60
    while not any(p.name.startswith(".aside-") for p in set(store.glob(".*")) - held):
        assert monotonic() < deadline
        sleep(0.001)


MOMENTS = (start, start, start, align, step, step, checkpoint, evaluation)


def cut_off(case: Case, pair: Any) -> None:  # noqa: ANN401
    """Take the line between the two down for half a minute in the middle of the training."""
    with namespaces() as spaces:
        with Training(pair, command=spaces.commands if spaces else AS_TYPED) as training:
            training.running["bank"].wait_for(STEP)
            if spaces:
                spaces.inside("bank", "ip", "link", "set", "bank", "down")
            else:
                training.running["bank"].signal(signal.SIGSTOP)
            sleep(APART)
            if spaces:
                spaces.inside("bank", "ip", "link", "set", "bank", "up")
            else:
                training.running["bank"].signal(signal.SIGCONT)
            case.happened["link down 30 s" if spaces else "stopped 30 s, no namespaces"] += 1
            training.finish(timeout=LONGEST)
        lost = "connection lost" in training.running["bank"].said
        case.happened["loss noticed"] += lost


def slowed(case: Case, pair: Any) -> None:  # noqa: ANN401
    """Train over a line of 512 kbit/s."""
    with (
        namespaces() as spaces,
        Training(pair, command=spaces.commands if spaces else AS_TYPED) as training,
    ):
        if spaces:
            for party in PARTIES:
                spaces.inside(
                    party,
                    "tc",
                    "qdisc",
                    "add",
                    "dev",
                    party,
                    "root",
                    "tbf",
                    "rate",
                    "512kbit",
                    "burst",
                    "16kb",
                    "latency",
                    "200ms",
                )
            case.happened["line of 512 kbit/s"] += 1
        while not spaces and training.running["platform"].ended() is None:
            for number in (signal.SIGSTOP, signal.SIGCONT):
                training.running["bank"].signal(number)
                sleep(0.1)
            case.happened["stopped 0.1 s, no namespaces"] += 1
        training.finish(timeout=LONGEST)


def cases() -> list[Case]:
    with namespaces() as spaces:
        address = f"{BANK}:7700" if spaces else None
    marvell = "marvell(s=4)"
    return [
        Case("killed", marvell, killed, epochs=16, kills=50),
        Case("killed", "none", killed, kills=6),
        Case("killed", "none", killed, labels="rr(epsilon=1.0)", kills=6),
        Case("killed, three feature parties", marvell, killed, epochs=10, kills=30, several=True),
        Case("killed during the upload", "silent", upload_killed, epochs=2, kills=20, silent=True),
        Case("cut off", marvell, cut_off, address=address),
        Case("slow", marvell, slowed, address=address),
    ]


def round_of(number: int) -> Case:
    """Return one of many rounds: another protection and other moments each time."""
    seed, labels = SEED + 1 + number, None
    protect = ("marvell(s=4)", "marvell(s=4, covariance=full)", "none", "none", "marvell(s=4)")
    if number % 5 == 3:
        labels = "rr(epsilon=1.0)"
    several = number % 5 == 4
    return Case(
        "killed, three feature parties" if several else "killed",
        protect[number % 5],
        killed,
        labels=labels,
        epochs=16,
        kills=50,
        several=several,
        seed=seed,
    )


def many(kills: int, record: Path) -> int:
    """Make rounds until the record holds so many kills; return how many rounds differed."""
    record.touch()
    rounds = [json.loads(line) for line in record.read_text().splitlines()]
    while sum(each["kills"] for each in rounds) < kills:
        rounds.append(_round(round_of(len(rounds))))
        with record.open("a") as file:
            file.write(json.dumps(rounds[-1]) + "\n")
    print(
        "| parties | protection | rounds | SIGKILLs | steps | hours | differences |\n"
        "|---|---|---|---|---|---|---|"
    )
    for kind in dict.fromkeys((each["name"], each["protection"]) for each in rounds):
        own = [each for each in rounds if (each["name"], each["protection"]) == kind]
        total = {key: sum(each[key] for each in own) for key in ("kills", "steps", "seconds")}
        differing = [each["difference"] for each in own if each["difference"]]
        parties = "four" if "three" in kind[0] else "two"
        print(
            f"| {parties} | `{kind[1]}` | {len(own)} | {total['kills']} | {total['steps']} "
            f"| {total['seconds'] / 3600:.2f} | {differing or 'none'} |"
        )
    return sum(bool(each["difference"]) for each in rounds)


def _round(case: Case) -> dict[str, Any]:
    """Train disturbed and undisturbed, and return what is to be told of it."""
    with tempfile.TemporaryDirectory() as folder:
        disturbed = case.pair(Path(folder) / "disturbed")
        alone = disturbed.copy(Path(folder) / "alone")
        begun = monotonic()
        case.disturb(case, disturbed)
        ended = monotonic()
        train(alone, command=AS_TYPED, timeout=LONGEST)
        return {
            "name": case.name,
            "protection": " + ".join(filter(None, (case.protect, case.labels))),
            "happened": _told(case),
            "kills": sum(case.happened.values()) if case.kills else 0,
            "steps": 0 if case.silent else len(disturbed.releases()),
            "seconds": round(ended - begun),
            "undisturbed": round(monotonic() - ended),
            "difference": ", ".join(
                (silent_differences if case.silent else differences)(disturbed, alone)
            ),
        }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=0)
    parser.add_argument("--only", help="The cases with this in their name.")
    parser.add_argument("--into", type=Path, default=Path("chaos.jsonl"))
    asked = parser.parse_args()
    if asked.kills:
        return 1 if many(asked.kills, asked.into) else 0
    print(
        "| disturbed | protection | what happened | steps | seconds | seconds undisturbed | "
        "difference |\n|---|---|---|---|---|---|---|"
    )
    wrong = 0
    for case in cases():
        if asked.only is not None and asked.only not in case.name:
            continue
        row = _round(case)
        cells = (
            row["name"],
            f"`{row['protection']}`",
            row["happened"],
            row["steps"],
            row["seconds"],
            row["undisturbed"],
            row["difference"] or "none",
        )
        print(f"| {' | '.join(map(str, cells))} |", flush=True)
        wrong += bool(row["difference"])
    return 1 if wrong else 0


def _told(case: Case) -> str:
    parts = ", ".join(f"{name} {count}" for name, count in sorted(case.happened.items()))
    return f"{sum(case.happened.values())} SIGKILLs ({parts})" if case.kills else parts


if __name__ == "__main__":
    sys.exit(main())
