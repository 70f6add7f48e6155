"""What the fuzzer shoots at: a label party with all that belongs to it, and scripts for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from torch import Tensor, nn

from tacit import Guard, objective
from tacit.errors import LostError
from tacit.party.acceptor import Acceptor
from tacit.party.backoff import Backoff
from tacit.party.checkpoint import CheckpointStore
from tacit.party.journal import Journal
from tacit.party.journaled_label import JournaledLabelEnd, JournaledLabelParty, Measured
from tacit.party.label_session import LabelSession
from tacit.party.run_state import BuiltParty, RunState, States
from tacit.party.schedule import Schedule
from tacit.training.cut import RECORD_BYTES, Embedding
from tacit.training.party import LabelParty, adam
from tacit.wire.protocol.codec import decode, encode
from tacit.wire.protocol.connection import Timings
from tacit.wire.protocol.header import VERSION
from tacit.wire.protocol.messages import (
    Align,
    Bye,
    CheckpointMessage,
    Evaluate,
    Hello,
    Message,
    Records,
)
from tacit.wire.protocol.plan import TrainingPlan
from tacit.wire.psi.align import Alignment, Matching
from tacit.wire.transport.base import Transport

__all__ = [
    "BATCH",
    "PLAN",
    "STEPS",
    "TIMINGS",
    "WIDTH",
    "Script",
    "Scripted",
    "Target",
    "compared",
    "course",
    "greeting",
    "honest",
    "start_of",
    "values",
]

ROWS, BATCH, WIDTH = 40, 8, 4
PLAN = TrainingPlan(
    epochs=3, batch_size=BATCH, order_seed=1, cut=(WIDTH,), test_percent=20, save_every=3
)
STEPS = Schedule.of(PLAN, ROWS).steps
TIMINGS = Timings(beat=1e6, silence=5, patience=20, greeting=5)
Script = Callable[[list[bytes]], Iterator[bytes]]


@final
class Scripted(Transport):
    """A line whose peer follows a script, which sees what was sent to it."""

    def __init__(self, script: Script) -> None:
        self.answers: list[bytes] = []
        self._frames = script(self.answers)

    @property
    def peer(self) -> None:
        """Nobody vouches for a name."""
        return

    def send(self, frame: bytes, *, timeout: float) -> None:  # noqa: ARG002 - it is taken at once
        """Show the script a frame."""
        self.answers.append(frame)

    def receive(self, *, timeout: float) -> bytes:  # noqa: ARG002 - it is there or never comes
        """Return the script's next frame."""
        frame = next(self._frames, None)
        if frame is None:
            raise LostError("the script is at its end")
        return frame

    def close(self) -> None:
        """Stop; the script is not asked again."""
        self._frames = iter(())


@final
class _OverError(Exception):
    """There are no more conversations."""


@final
class Target(LabelSession):
    """A label party without files of its own that serves one script after the other."""

    journal: Journal

    def __init__(self, *, folder: Path, log: list[str]) -> None:
        self.log = log
        self.plan = PLAN
        self._log = log.append
        self.journal = Journal.open(folder / "journal", run="fuzz", secret=bytes(range(32)))
        checkpoints = CheckpointStore(folder / "checkpoints", run="fuzz")
        self.state = RunState(checkpoints, PLAN, self._build)

    def _build(self, states: States | None) -> BuiltParty[JournaledLabelEnd]:
        rng = torch.Generator().manual_seed(3)
        top = nn.Linear(WIDTH, 1)
        with torch.no_grad():
            top.weight.copy_(torch.randn(1, WIDTH, generator=rng))
            top.bias.zero_()
        optimizer = adam(top, 0.01)
        guard = Guard("marvell(s=4)", key=bytes(range(32)))
        if states is not None:
            guard.load_state(*states["guard"])
        labels = torch.arange(ROWS) % 3 == 0
        party = LabelParty(
            nn.Sequential(top, nn.Flatten(0)),
            labels.long(),
            guard=guard,
            objective=objective.get("bce"),
            optimizer=optimizer,
        )
        return BuiltParty(
            party=JournaledLabelParty(party, self.journal, scope=b"all rows"),
            models={"top": top},
            optimizers={"top": optimizer},
            states=lambda: {"guard": guard.to_state()},
        )

    def _begin(self) -> None:
        """There are no other workers."""

    def _matching(self) -> Matching:
        return Matching(ids=np.arange(ROWS), private=False)

    def _aligned(self, common: Alignment) -> None:
        """All rows are common."""

    def _evaluated(self, epoch: int, rows: Tensor, probs: Tensor) -> Measured:  # noqa: ARG002
        return Measured(note=None, bits=0.0)

    def _results(self, ended: str) -> dict[str, Any]:
        return {"ended": ended}

    def serve_scripts(self, scripts: Iterator[Script]) -> str:
        """Serve until the run is finished or there are no more scripts."""
        acceptor = Acceptor(
            name="bank",
            plan=PLAN,
            peers=("platform",),
            listener=_Scripts(scripts),
            timings=TIMINGS,
            waiting=Backoff("platform", limit=60, log=self.log.append),
            log=self.log.append,
        )
        try:
            return self.serve(acceptor, lambda *_: None)
        except _OverError:
            return "over"

    def weights(self) -> list[Tensor]:
        """Return the top model's weights."""
        assert self.state.built is not None
        return list(self.state.built.models["top"].state_dict().values())


@final
class _Scripts:
    def __init__(self, scripts: Iterator[Script]) -> None:
        self._scripts = scripts

    def accept(self, *, timeout: float) -> Transport:  # noqa: ARG002 - there is one or there is none
        """Return a line that follows the next script."""
        script = next(self._scripts, None)
        if script is None:
            raise _OverError
        return Scripted(script)


def _embedding(step: int) -> Tensor:
    return torch.randn(BATCH, WIDTH, generator=torch.Generator().manual_seed(step))


def greeting(offer: int) -> list[bytes]:
    """Return what a feature party says by the rules before the first step."""
    hello = Hello(
        versions=(VERSION,),
        party="platform",
        plan_digest=PLAN.digest(),
        resume_point=offer - 1 if offer else None,
    )
    ids: list[Message] = [Align(count=20, ids=torch.arange(k, k + 20)) for k in (0, 20)]
    return [encode(m) for m in [hello, *ids, Align(count=ROWS)]]


def compared(answers: list[bytes]) -> Iterator[bytes]:
    """Say that no record of the journal was kept, and take what comes."""
    count = 0
    while True:
        yield encode(Records(count=count))
        answer = decode(answers[-1])
        if not isinstance(answer, Records) or answer.values is None:
            return
        count += len(answer.content) // RECORD_BYTES


def course(start: int, stop: int) -> list[bytes]:
    """Return what a feature party says by the rules from one step to another, and goodbye."""
    said: list[Message] = []
    schedule = Schedule.of(PLAN, ROWS)
    for part in schedule.parts(first=start):
        for step in range(part.first, min(part.stop, stop)):
            said.append(Embedding(step=step, values=_embedding(step)))
        if part.stop > stop:
            break
        if part.test is not None:
            said.append(Evaluate(part=0, values=values(len(schedule.test), WIDTH)))
        said.append(CheckpointMessage(step=part.stop - 1))
    end: list[Message] = [] if stop < STEPS else [CheckpointMessage(step=STEPS - 1), Bye()]
    return [encode(m) for m in (*said, *end)]


def start_of(answers: list[bytes]) -> int:
    """Return the step from which the label party goes on."""
    hello = next(m for m in map(decode, answers) if isinstance(m, Hello))
    return 0 if hello.resume_point is None else hello.resume_point + 1


def values(*shape: int) -> Tensor:
    """Return some numbers of a shape."""
    return torch.linspace(-1, 1, torch.Size(shape).numel()).reshape(shape)


def honest(offer: int, stop: int) -> Script:
    """Return a feature party that keeps the rules from what was agreed on up to a step."""

    def script(answers: list[bytes]) -> Iterator[bytes]:
        yield from greeting(offer)
        yield from compared(answers)
        yield from course(start_of(answers), stop)

    return script
