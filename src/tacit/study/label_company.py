"""The label party made from its configuration, and its run over the network."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any, final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from tacit import data, nets, objective
from tacit.errors import UsageError
from tacit.guard import Guard
from tacit.measure import Ledger
from tacit.monitor import LeakMonitor
from tacit.recall import MemoryMonitor
from tacit.rng import Key
from tacit.runtime.align import Common
from tacit.runtime.checkpoint import State
from tacit.runtime.connection import Timings
from tacit.runtime.frames import Limits
from tacit.runtime.grpc_listener import Listener
from tacit.runtime.journal import Journal
from tacit.runtime.journalled import Journalled
from tacit.runtime.label_run import LabelRun
from tacit.runtime.party import LabelParty, adam
from tacit.runtime.place import Place, States, Works
from tacit.runtime.plan import Plan
from tacit.runtime.session import Step
from tacit.runtime.state_folder import StateFolder, kept_secret
from tacit.study.columns import Source
from tacit.study.company import (
    Log,
    checkpoints_of,
    encoding_of,
    identity_of,
    run_name,
    waiting_for,
)
from tacit.study.outcome import leak_records, utility
from tacit.study.party_config import PartyConfig
from tacit.types import Cut, Release

__all__ = ["LabelCompany", "listen", "own_source", "top_of"]

Indices = npt.NDArray[np.int64]
NOISE_KEY = "noise.key"


def listen(config: PartyConfig, log: Log) -> Listener:
    """Open the address that feature parties connect to."""
    return Listener(config.address, identity=identity_of(config), peers=(config.peer,),
                    limits=Limits(), log=log)  # fmt: skip


def top_of(config: PartyConfig, table: data.PartyTable, *, seed: int) -> nn.Module:
    """Return the label party's part of the model as it is before the first step."""
    assert table.classes is not None  # noqa: S101 - a label party's table has classes
    numeric, cardinalities = table.inputs
    own = nets.Inputs(numeric, cardinalities) if numeric or cardinalities else None
    model, classes = nets.get(config.model), table.classes
    width = model.cut_width(cut=config.cut, classes=classes)
    return model.top(width, own=own, cut=config.cut, classes=classes, seed=seed)


def own_source(table: data.PartyTable, common: Common) -> Source | None:
    """Return the way to the label party's own columns, None where it has none."""
    return table.source(common.order) if any(table.inputs) else None


@final
class LabelCompany:
    """The label party: its table, its top model, its guard, its journal.

    The first weights of the top model come out of the noise key: a feature party that knew them
    could tell more from the first gradients.
    """

    def __init__(self, config: PartyConfig, folder: StateFolder, *, log: Log) -> None:
        self.config = config
        self.folder = folder
        self.table = data.load_party(config.data, role="label")
        assert self.table.classes is not None  # noqa: S101 - a label party's table has labels
        self.classes: int = self.table.classes
        self.plan: Plan = config.plan(classes=self.classes)
        self._log = log
        self._common: Common | None = None
        self._numbers: tuple[Indices, Indices] | None = None
        encoding_of(folder, self.table)
        binary = self.classes == 2
        watched = binary and bool(config.attacks)
        self.monitor = LeakMonitor(config.attacks, every=config.monitor_every) if watched else None
        self.memory: MemoryMonitor | None = None
        self.objective = objective.get("bce" if binary else "ce")
        self.history: dict[str, dict[str, Any]] = folder.read("history.json") or {}
        self._key = self._secret()
        self.journal = Journal.open(
            folder.path / "journal", run=run_name(config), sync=config.journal_sync
        )
        self.place: Place[Journalled] = Place(checkpoints_of(config), self.plan, self._build)
        self._check_journal()

    def run(self, listener: Listener, done: Callable[[Step, int], None]) -> dict[str, Any]:
        """Serve the feature party to the end; return what was measured."""
        config = self.config
        ended = LabelRun(
            name=config.name,
            plan=self.plan,
            ids=self.table.ids,
            place=self.place,
            aligned=self._aligned,
            listener=listener,
            timings=Timings(),
            waiting=waiting_for(config, self._log),
            log=self._log,
            done=done,
            evaluated=self._evaluated,
        ).run()
        results = self._results(ended)
        self.folder.write("results.json", {"format": 1, **results})
        return results

    def close(self) -> None:
        """Let another process have the journal."""
        self.journal.close()

    def _secret(self) -> bytes:
        place = self.folder.path / NOISE_KEY
        if (self.folder.path / "journal").exists() and not place.exists():
            raise UsageError(
                f"{place}: the key of this run is gone, and with another one every step would be "
                "released anew: restore it, or name another state folder for a new run"
            )
        return kept_secret(place)

    def _check_journal(self) -> None:
        """Refuse to go on from a checkpoint whose releases are not on record."""
        latest, last = self.place.stops()[-1], self.journal.last
        if latest > (0 if last is None else last.step + 1):
            raise UsageError(
                f"{self.journal.path}: ends before the checkpoint of step {latest}, so what was "
                "released is not known: restore the journal, or start a new run"
            )
        if self.journal.cut:
            self._log(f"{self.journal.path}: {self.journal.cut} bytes of a last record that was "
                      "never finished were cut off; nothing was sent for it")  # fmt: skip

    def _aligned(self, common: Common) -> None:
        self._common = common

    def _build(self, states: States | None) -> Works[Journalled]:
        assert self._common is not None  # noqa: S101 - the run aligns before it builds
        config, common = self.config, self._common
        assert self.table.labels is not None  # noqa: S101 - a label party's table has labels
        truth = torch.from_numpy(np.asarray(self.table.labels)[common.order])
        self.memory = None if self.monitor is None else MemoryMonitor(every=config.monitor_every)
        guard = self._guard(truth)
        if states is not None:
            self._load(guard, states)
        labels = truth
        if config.labels is not None:
            labels = randomized = guard.labels(common.ids, truth)
            order = np.argsort(randomized.numbers)
            self._numbers = randomized.numbers[order], order
        seed = int.from_bytes(Key(self._key).digest(b"first weights")[:8], "little") >> 1
        top = top_of(config, self.table, seed=seed)
        optimizer = adam(top, config.lr)
        party = LabelParty(
            top,
            labels,
            guard=guard,
            objective=objective.corrected(self.objective, guard.flips),
            optimizer=optimizer,
            source=own_source(self.table, common),
        )
        return Works(
            party=Journalled(party, self.journal, scope=bytes.fromhex(common.digest())),
            models={"top": top},
            optimizers={"top": optimizer},
            states=lambda: _states(guard, self.memory),
        )

    def _guard(self, truth: Tensor) -> Guard:
        config = self.config
        assert config.protect is not None and self._common is not None  # noqa: S101, PT018
        secret = None
        if config.labels is not None:
            beside = config.data.with_name(f"{config.data.name}.secret")
            secret = kept_secret(config.label_secret or beside)
        ledger = Ledger(run=run_name(config), budget=config.budget, examples=len(self._common))
        return Guard(
            config.protect,
            key=self._key,
            watch=self._watch(truth),
            labels=config.labels,
            label_secret=secret,
            classes=self.classes,
            ledger=ledger,
        )

    def _load(self, guard: Guard, states: States) -> None:
        guard.load_state(*states["guard"])
        arrays, values = states["ledger"]
        guard.ledger = Ledger.from_state(
            arrays, values, run=run_name(self.config), budget=self.config.budget
        )
        if guard.label_guard is not None:
            guard.label_guard.load_state(*states["label_guard"])
        if self.memory is not None and "memory" in states:
            self.memory.load_state(*states["memory"])

    def _watch(self, truth: Tensor) -> Callable[[Cut, Release], None]:
        def watch(cut: Cut, release: Release) -> None:
            assert cut.ids is not None  # noqa: S101 - the label party names its examples
            rows = self._rows(cut.ids)
            judged = replace(cut, ids=rows, labels=truth[rows])
            for watcher in (self.monitor, self.memory):
                if watcher is not None:
                    watcher(judged, release)

        return watch

    def _rows(self, ids: Tensor) -> Tensor:
        """Return the positions of a cut's examples; randomised labels have other numbers."""
        if self._numbers is None:
            return ids
        numbers, order = self._numbers
        return torch.from_numpy(order[np.searchsorted(numbers, ids.numpy())])

    def _evaluated(self, epoch: int, rows: Tensor, probs: Tensor) -> str | None:
        """Keep the measures of an epoch; return what the feature party may know of them."""
        assert self._common is not None and self.table.labels is not None  # noqa: S101, PT018
        truth = np.asarray(self.table.labels)[self._common.order[rows.numpy()]]
        test = utility(probs.numpy(), truth)
        leak = {} if self.monitor is None else leak_records(self.monitor.recent())
        self.history[str(epoch)] = {
            "epoch": epoch,
            "test": test,
            "leak": leak,
            "memory_leak": None if self.memory is None else self.memory.leak(),
        }
        self.folder.write("history.json", self.history)
        line = ", ".join(f"test {name} {value:.4f}" for name, value in test.items())
        self._log(f"epoch {epoch + 1}: {line}")
        return line if self.config.share_metrics else None

    def _results(self, ended: str) -> dict[str, Any]:
        config, works = self.config, self.place.works
        guard = None if works is None else works.party.party.guard
        certificate = None if guard is None else guard.last_certificate
        epochs = [self.history[key] for key in sorted(self.history, key=int)]
        return {
            "party": config.name,
            "role": config.role,
            "ended": ended,
            "protection": config.protect,
            "labels": config.labels,
            "budget": config.budget,
            "steps": self.place.stops()[-1],
            "common": None if self._common is None else len(self._common),
            "test": epochs[-1]["test"] if epochs else None,
            "history": epochs,
            "certificate": None if certificate is None else vars(certificate),
            "ledger": None if guard is None or guard.ledger is None
            else asdict(guard.ledger.summary()),
            "allowed_again": dict(self.journal.allowed),
            "state": str(self.folder.path),
        }  # fmt: skip


def _states(guard: Guard, memory: MemoryMonitor | None) -> dict[str, State]:
    assert guard.ledger is not None  # noqa: S101 - a label party always counts
    states: dict[str, State] = {"guard": guard.to_state(), "ledger": guard.ledger.to_state()}
    if guard.label_guard is not None:
        states["label_guard"] = guard.label_guard.to_state()
    if memory is not None:
        states["memory"] = memory.to_state()
    return states
