"""Parties that are killed, cut off from each other and slowed down, and end as if never.

Each case trains twice from the same secrets, once disturbed and once not, and compares everything
that is left: weights, optimisers, ledger, journal and history, bit by bit.
"""

from __future__ import annotations

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
    happened: Counter[str] = field(default_factory=Counter)

    def pair(self, folder: Path) -> Any:  # noqa: ANN401 - of the tests, without types
        """Make the companies of this case: two, or a label party with three feature parties."""
        bank = {
            "protect": self.protect,
            "labels": self.labels,
            "attacks": ["norm"],
            "monitor_every": 16,
        }
        kind = Quartet if self.several else Pair
        return kind(folder, rows=1600, epochs=self.epochs, batch_size=16, save_every=25, bank=bank,
                    address=self.address)  # fmt: skip


def killed(case: Case, pair: Any) -> None:  # noqa: ANN401
    """Kill one party or two at a random moment, start them again, many times."""
    rng = random.Random(SEED)  # noqa: S311 - moments are no secret
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
                spaces.inside(party, "tc", "qdisc", "add", "dev", party, "root", "tbf", "rate",
                              "512kbit", "burst", "16kb", "latency", "200ms")  # fmt: skip
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
        Case("cut off", marvell, cut_off, address=address),
        Case("slow", marvell, slowed, address=address),
    ]


def main() -> int:
    print("| disturbed | protection | what happened | steps | seconds | seconds undisturbed | "
          "difference |\n|---|---|---|---|---|---|---|")  # fmt: skip
    wrong = 0
    for case in cases():
        with tempfile.TemporaryDirectory() as folder:
            disturbed = case.pair(Path(folder) / "disturbed")
            alone = disturbed.copy(Path(folder) / "alone")
            begun = monotonic()
            case.disturb(case, disturbed)
            ended = monotonic()
            train(alone, command=AS_TYPED, timeout=LONGEST)
            found = differences(disturbed, alone)
            row = [case.name, f"`{' + '.join(filter(None, (case.protect, case.labels)))}`",
                   _told(case), str(len(disturbed.journal())), f"{ended - begun:.0f}",
                   f"{monotonic() - ended:.0f}", ", ".join(found) or "none"]  # fmt: skip
            print(f"| {' | '.join(row)} |", flush=True)
            wrong += bool(found)
    return 1 if wrong else 0


def _told(case: Case) -> str:
    parts = ", ".join(f"{name} {count}" for name, count in sorted(case.happened.items()))
    return f"{sum(case.happened.values())} SIGKILLs ({parts})" if case.kills else parts


if __name__ == "__main__":
    sys.exit(main())
