"""One training run in one process, with the same parties that run over a network."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tacit import data, nets, objective
from tacit.accounting import Ledger
from tacit.errors import UsageError
from tacit.experiment.batches import check_days, check_epochs, days, epochs, held_out, steps_of_days
from tacit.experiment.config import TrainConfig
from tacit.experiment.layer_leakage import LayerMonitor
from tacit.experiment.model_selection import Selection
from tacit.guard import Guard
from tacit.monitor import LeakMonitor, MemoryMonitor
from tacit.party.budget_plan import plan_training
from tacit.party.build import fitting_objective
from tacit.rng import Key
from tacit.tape.tape import TapeWriter
from tacit.training import (
    FeatureEnd,
    FeatureParty,
    LabelParty,
    RecordedFeatureParty,
    adam,
    predict,
    train,
)
from tacit.training.embedding_leak import Components, Embedded, signed
from tacit.training.embedding_watch import EmbeddingWatch
from tacit.training.features import TableReader
from tacit.training.metrics import Claims, leak_records, mean, results_of, utility
from tacit.types import Cut, Release


@final
@dataclass(frozen=True, kw_only=True)
class Progress:
    """What an observer is told: after every step, and with ``test`` at the end of a part.

    A part is an epoch, or a day of a stream.
    """

    step: int
    steps: int
    part: int
    loss: float
    test: dict[str, float] | None = None
    leak: dict[str, dict[str, float]] | None = None
    note: str | None = None


Observer = Callable[[Progress], None]


Indices = npt.NDArray[np.int64]
Watcher = Callable[[Cut, Release], None]


@final
class Experiment:
    """A run that is set up: its data, its model split between parties, and its monitors.

    What cannot be trained is refused here, before anything is written.
    """

    def __init__(self, config: TrainConfig) -> None:
        self.config = config
        self.table = data.load(
            config.dataset, data_dir=config.data_dir, rows=config.rows, seed=config.seed
        )
        self.planned = plan_training(config, classes=self.table.classes)
        self.columns = data.assign(self.table, config.parties or len(self.table.parties) or 1)
        self.objective = fitting_objective(
            config.objective,
            classes=self.table.classes,
            parties=len(self.columns),
            combine=config.combine,
        )
        train_rows, self.test_rows = data.split(self.table, seed=config.seed)
        self.train_rows, self.held_rows = held_out(train_rows, config.hold_out)
        watch = {"every": config.monitor_every, "classes": self.table.classes}
        self.monitor = LeakMonitor(config.attacks, **watch) if config.attacks else None
        self.memory = MemoryMonitor(every=config.monitor_every) if config.attacks else None
        self.claims = Claims()
        self.notes: list[str] = []
        self.embedded = Embedded()
        watched = self._binary and config.attacks
        self.components = Components(np.asarray(self.table.labels)) if watched else None
        self.selection: Selection | None = None
        self.embedding_leak: float | None = None
        self.features, self.label, self.layers = self._parties()
        self._check_steps()
        self.tapes: list[TapeWriter] = []
        self.ends: list[FeatureEnd] = list(self.features)

    @property
    def _binary(self) -> bool:
        return self.table.classes == 2

    def _check_steps(self) -> None:
        size = self.config.batch_size
        if self.config.stream:
            check_days(self.table, batch_size=size)
        else:
            check_epochs(self.train_rows, batch_size=size, name=self.table.name)

    def record(self, place: Path) -> None:
        """Write what each feature party sees to a tape in that directory."""
        for number, party in enumerate(self.features):
            tape = TapeWriter(place / f"feature_party_{number}.tape")
            layers = party.bottom if self.config.layers else None
            self.tapes.append(tape)
            self.ends[number] = RecordedFeatureParty(party, tape, layers=layers)

    def _parties(self) -> tuple[list[FeatureParty], LabelParty, list[LayerMonitor]]:
        config, table, columns = self.config, self.table, self.columns
        architecture = nets.get(config.model)
        # Where the schema says who owns the columns, none of them is the label party's.
        shared = architecture.uses_own and not table.parties
        own = data.assign(table, 1)[0] if shared else None
        reader = self.reader = TableReader(
            table,
            bins=config.bins,
            rare=config.rare,
            rows=self.train_rows,
            augment=config.seed if config.augment else None,
        )
        model = architecture.build(
            parties=[reader.inputs(part) for part in columns],
            own=None if own is None else reader.inputs(own),
            cut=config.cut,
            combine=config.combine,
            classes=table.classes,
            seed=config.seed,
        )
        features = [
            FeatureParty(
                bottom, reader.source(part), optimizer=self._optimizer(bottom), depth=config.depth
            )
            for bottom, part in zip(model.bottoms, columns, strict=True)
        ]
        layers = self._layer_monitors(features)
        truth = torch.from_numpy(np.array(table.labels))  # a copy: the file is read-only
        guard = self._guard(self._judged(truth, layers))
        # With a label mechanism no true label is used from here on, but to judge what leaks.
        labels = truth if config.labels is None else guard.labels(torch.arange(len(truth)), truth)
        label = LabelParty(
            model.top,
            labels,
            guard=guard,
            objective=objective.corrected(self.objective, guard.flips),
            optimizer=self._optimizer(model.top),
            combined_by=config.combine,
            source=None if own is None else reader.source(own),
            early=False,
            width=model.width,
            key=Key.from_seed(config.seed),
            first_steps=0 if config.stream else len(self.train_rows) // config.batch_size,
            embedded=self.embedded,
            watch=EmbeddingWatch(key=Key.from_seed(config.seed), log=self.notes.append),
        )
        self._select(labels, features, label)
        return features, label, layers

    def _judged(self, truth: Tensor, layers: list[LayerMonitor]) -> Watcher:
        """Show every release to the monitors beside the true labels, also where it has others."""
        asked = (self.monitor, self.memory, self.claims, *layers)
        watchers = [watcher for watcher in asked if watcher is not None]
        plain = self.config.labels is None

        def watch(cut: Cut, release: Release) -> None:
            judged = cut if plain or cut.ids is None else replace(cut, labels=truth[cut.ids])
            for watcher in watchers:
                watcher(judged, release)

        return watch

    def _select(self, labels: Tensor, features: list[FeatureParty], label: LabelParty) -> None:
        if self.config.hold_out is not None:
            self.selection = Selection(self.held_rows, labels, features=features, label=label)

    def _optimizer(self, model: torch.nn.Module) -> torch.optim.Optimizer:
        return adam(model, self.config.lr, weight_decay=self.config.weight_decay)

    def _guard(self, watch: Watcher) -> Guard:
        config = self.config
        ledger = None
        if config.budget is not None:
            run = f"{config.dataset}, seed {config.seed}"
            each = None if self.planned is None else self.planned.sum_kl
            ledger = Ledger(
                run=run, budget=config.budget, per_release=each, examples=len(self.table.labels)
            )
        return Guard(
            config.protect,
            seed=config.seed,
            watch=watch,
            labels=config.labels,
            classes=self.table.classes,
            ledger=ledger,
        )

    def _layer_monitors(self, features: list[FeatureParty]) -> list[LayerMonitor]:
        if not self.config.layers or not self._binary:
            return []
        if len(features) > 1:
            raise UsageError("--layers measures one feature party: use it with --parties 1")
        return [LayerMonitor(features[0], every=self.config.monitor_every)]

    def parts(self) -> Iterator[tuple[list[Indices], Indices]]:
        """Return the batches of every epoch (or day) with the rows to test on."""
        config = self.config
        if config.stream:
            return days(self.table, batch_size=config.batch_size)
        return epochs(
            self.train_rows,
            self.test_rows,
            count=self.epochs,
            batch_size=config.batch_size,
            seed=config.seed,
        )

    @property
    def epochs(self) -> int:
        """How many epochs there will be: those asked for, or what the budget has room for."""
        return self.config.epochs if self.planned is None else self.planned.allowed

    @property
    def steps(self) -> int:
        """How many steps all parts have together."""
        size = self.config.batch_size
        if self.config.stream:
            return steps_of_days(self.table, batch_size=size)
        return len(self.train_rows) // size * self.epochs

    def score(self, rows: Indices) -> dict[str, float]:
        """Return the measures of utility on some rows."""
        place = torch.from_numpy(rows)
        truth = np.asarray(self.table.labels)[rows]
        probs = predict(place, features=self.features, label=self.label).numpy()
        found = utility(probs, truth)
        self.embedding_leak = self.embedded.leak(truth)
        flipped = self.label.learner.record().get("flipped")
        return found if flipped is None else signed(found, flipped=flipped)


@final
class _Run:
    """The state of a run while it goes on: losses per step and measures per part."""

    def __init__(self, trial: Experiment, observer: Observer) -> None:
        self.trial = trial
        self.losses: list[float] = []
        self.history: list[dict[str, Any]] = []
        self._tell = observer

    def go(self) -> None:
        """Train every part; a stream is tested on a day before it trains on it."""
        stream = self.trial.config.stream
        for number, (batches, test) in enumerate(self.trial.parts()):
            before = self.trial.score(test) if stream and number else None
            self._train(number, batches)
            found = before if stream else self.trial.score(test)
            loss = mean(self.losses[-len(batches) :])
            monitor = self.trial.monitor
            leak = {} if monitor is None else leak_records(monitor.recent())
            memory = self.trial.memory
            self.history.append(
                {
                    "part": number,
                    "loss": loss,
                    "test": found,
                    "leak": leak,
                    "memory_leak": None if memory is None else memory.leak(),
                    "embedding_leak": self.trial.embedding_leak,
                }
            )
            if self.trial.selection is not None:
                self.trial.selection.look(number + 1, len(self.losses))
            self._report(number, loss, test=found, leak=leak)

    def _train(self, number: int, batches: list[Indices]) -> None:
        trial = self.trial
        places = trial.reader.batches(torch.from_numpy(rows) for rows in batches)
        steps = train(
            places,
            features=trial.ends,
            label=trial.label,
            first=len(self.losses),
            depth=trial.config.depth,
        )
        if trial.components is not None:
            trial.components.begin()
        for done in steps:
            self.losses.append(done.loss)
            if trial.components is not None:
                trial.components.add(trial.label.last)
            if len(self.losses) == 1 and trial.planned is not None:
                trial.notes.append(str(trial.planned))
            self._report(number, done.loss, note="\n".join(trial.notes) or None)
            trial.notes.clear()

    def _report(self, part: int, loss: float, **more: Any) -> None:  # noqa: ANN401
        step = len(self.losses)
        self._tell(Progress(step=step, steps=self.trial.steps, part=part, loss=loss, **more))


def run(
    config: TrainConfig, *, observer: Observer | None = None, record: Path | None = None
) -> tuple[Experiment, dict[str, Any]]:
    """Train, attack and measure; return the trial and its results as plain values.

    With ``record``, what each feature party sees is written to a tape in that directory.
    """
    trial = Experiment(config)
    if record is not None:
        trial.record(record)
    return trial, run_experiment(trial, observer=observer)


def run_experiment(trial: Experiment, *, observer: Observer | None = None) -> dict[str, Any]:
    """Train, attack and measure a trial; return its results as plain values.

    A budget that has room for fewer epochs than asked for ends training after those; how many is
    settled before the first step, and no label has a part in it. An interrupt keeps what was
    measured so far, where there was a step. With rows held out, the models are in the end those of
    the epoch selected.
    """
    running = _Run(trial, observer or (lambda _: None))
    planned = trial.planned
    short = planned is not None and planned.allowed < planned.epochs
    stopped = f"as planned before the first step: {planned}" if short else None
    start = time.perf_counter()
    try:
        running.go()
    except KeyboardInterrupt:
        if not running.losses:
            raise  # there is nothing to tell of a model that was not trained
        stopped = "interrupted"
    if trial.selection is not None:
        trial.selection.restore()
    seconds = time.perf_counter() - start
    for tape in trial.tapes:
        tape.close()
    return results_of(
        trial,
        running.history,
        steps=len(running.losses),
        seconds=seconds,
        stopped=stopped,
    )
