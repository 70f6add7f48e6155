"""One training run in one process, with the parties, the schedule and the loop of ``tacit party``.

Only what a network needs is left out: messages, the journal, checkpoints and the matching of ids.
On the same rows and with the same secrets the weights are the same, bit for bit.
"""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from safetensors.torch import save
from torch import Tensor

from tacit import data, heads, nets, objective
from tacit.errors import UsageError
from tacit.experiment.batches import DaySchedule, check_days, check_epochs
from tacit.experiment.config import TrainConfig
from tacit.experiment.head import TrainedHead, train_private_head
from tacit.experiment.layer_leakage import LayerMonitor
from tacit.experiment.model_selection import Selection
from tacit.experiment.silent import SilentExperiment, compared
from tacit.experiment.trial import Observer, Progress, Trial
from tacit.party.budget_plan import plan_budget
from tacit.party.build import OwnColumns, build_feature, build_label, fitting_objective, guard_of
from tacit.party.metrics import LabelMeasures, results_of
from tacit.party.schedule import Indices, Part, Parts, Schedule, follow
from tacit.rng import Key
from tacit.tape.tape import TapeWriter
from tacit.training import FeatureEnd, FeatureParty, LabelParty, RecordedFeatureParty, predict
from tacit.training.embedding_leak import Components
from tacit.training.embedding_watch import EmbeddingWatch
from tacit.training.features import TableReader
from tacit.training.loop import Step
from tacit.training.metrics import leak_records, mean
from tacit.wire.protocol.plan import TrainingPlan


@final
class Experiment(Trial):
    """A run that sends gradients: its model split between parties, its measures."""

    def __init__(self, config: TrainConfig) -> None:
        super().__init__(config)
        classes = self.table.classes
        self.planned = plan_budget(
            config.budget,
            protect=config.protect,
            labels=config.labels,
            classes=classes,
            releases=1 if config.stream else config.epochs,  # of a stream, each example comes once
        )
        self.objective = fitting_objective(
            config.objective, classes=classes, parties=len(self.columns), combine=config.combine
        )
        self.reader = TableReader(
            self.table,
            bins=config.bins,
            rare=config.rare,
            rows=self.train_rows,
            augment=config.seed if config.augment else None,
        )
        self.measures = LabelMeasures(config, classes=classes)
        self.notes: list[str] = []
        watched = self._binary and config.attacks
        self.components = Components(np.asarray(self.table.labels)) if watched else None
        self.features = self._features()
        self.layers = self._layer_monitors()
        self.label, labels = self._label()
        self.selection: Selection | None = None
        if config.hold_out is not None:
            self.selection = Selection(
                self.held_rows, labels, features=self.features, label=self.label
            )
        self.schedule = self._schedule()
        self.tapes: list[TapeWriter] = []
        self.private: TrainedHead | None = None
        if config.private_head:
            heads.get(config.head or "net").check()
        self.ends: list[FeatureEnd] = list(self.features)

    @property
    def _binary(self) -> bool:
        return self.table.classes == 2

    def record(self, folder: Path) -> None:
        """Write what each feature party sees to a tape in that directory."""
        for number, party in enumerate(self.features):
            tape = TapeWriter(folder / f"feature_party_{number}.tape")
            layers = party.bottom if self.config.layers else None
            self.tapes.append(tape)
            self.ends[number] = RecordedFeatureParty(party, tape, layers=layers)

    def _own(self, columns: data.Columns) -> OwnColumns:
        return OwnColumns(inputs=self.reader.inputs(columns), source=self.reader.source(columns))

    def _features(self) -> list[FeatureParty]:
        classes = self.table.classes
        return [
            build_feature(self.config, self._own(part), classes=classes, number=number).party
            for number, part in enumerate(self.columns)
        ]

    def _label(self) -> tuple[LabelParty, Tensor]:
        """Return the label party, and the labels that it learns from."""
        config, table, truth = self.config, self.table, self.truth
        guard = guard_of(
            config,
            run=f"{config.dataset}, seed {config.seed}",
            classes=table.classes,
            examples=len(truth),
            planned=self.planned,
            watch=self.measures.watcher(truth, more=self.layers),
            always_count=False,
            seed=config.seed,
        )
        labels = truth
        if config.labels is not None:
            # No true label is used from here on, but to judge what leaks.
            labels = guard.labels(torch.arange(len(truth)), truth)
            self.measures.number(labels.numbers)
        # Where the schema says who owns the columns, none of them is the label party's.
        shared = nets.get(config.model).uses_own and not table.parties
        key = Key.from_seed(config.seed)
        built = build_label(
            config,
            self._own(data.assign(table, 1)[0]) if shared else None,
            labels,
            guard=guard,
            loss=objective.corrected(self.objective, guard.flips),
            classes=table.classes,
            parties=len(self.columns),
            key=key,
            first_steps=0 if config.stream else len(self.train_rows) // config.batch_size,
            embedded=self.measures.embedded,
            watch=EmbeddingWatch(key=key, log=self.notes.append),
            early=False,
        )
        self.measures.learner = built.party.learner
        return built.party, labels

    def _layer_monitors(self) -> list[LayerMonitor]:
        if not self.config.layers or not self._binary:
            return []
        if len(self.features) > 1:
            raise UsageError("--layers measures one feature party: use it with --parties 1")
        return [LayerMonitor(self.features[0], every=self.config.monitor_every)]

    def _schedule(self) -> Parts:
        """Return what is trained on and tested on when: days of a stream, or epochs."""
        config, size = self.config, self.config.batch_size
        if config.stream:
            check_days(self.table, batch_size=size)
            return DaySchedule(self.table, size)
        check_epochs(self.train_rows, batch_size=size, name=self.table.name)
        width = nets.get(config.model).cut_width(cut=config.cut, classes=self.table.classes)
        plan = TrainingPlan(
            # Those asked for, or what the budget has room for.
            epochs=config.epochs if self.planned is None else self.planned.allowed,
            batch_size=size,
            order_seed=config.seed,
            cut=(width,),
            save_every=len(self.train_rows) // size,  # nothing is saved, so a part is an epoch
            depth=config.depth,
        )
        return Schedule(plan, self.train_rows, self.test_rows)

    def train(self, observer: Observer | None = None) -> dict[str, Any]:
        """Train, attack and measure; return the results as plain values.

        A budget that has room for fewer epochs than asked for ends training after those; how many
        is settled before the first step, and no label has a part in it. An interrupt keeps what was
        measured so far, where there was a step. With rows held out, the models are in the end those
        of the epoch selected.
        """
        tell = observer or (lambda _: None)
        running = _Run(self, tell)
        planned = self.planned
        short = planned is not None and planned.allowed < planned.epochs
        stopped = f"as planned before the first step: {planned}" if short else None
        start = time.perf_counter()
        try:
            running.go()
        except KeyboardInterrupt:
            if not running.losses:
                raise  # there is nothing to tell of a model that was not trained
            stopped = "interrupted"
        if self.selection is not None:
            self.selection.restore()
        seconds = time.perf_counter() - start
        for tape in self.tapes:
            tape.close()
        steps = len(running.losses)
        found = _results(self, steps=steps, seconds=seconds, stopped=stopped)
        if stopped == "interrupted":
            return found
        return found | self._beside(found["test"], tell)

    def _beside(self, test: dict[str, float], tell: Observer) -> dict[str, Any]:
        """Train what is trained when nothing more is sent: a private head, a silent run."""
        found: dict[str, Any] = {}
        if self.config.private_head:
            self.private = train_private_head(self, [party.embed for party in self.features], tell)
            found |= {
                "test": self.private.test,
                "public_test": test,
                "head": self.private.record(),
            }
        if self.config.compare_silent:
            found["silent"] = compared(self.config, found.get("test", test), tell)
        return found

    def files(self) -> dict[str, bytes]:
        """Return the models of all parties, and the labels that an audit of a tape needs."""
        models = {
            f"feature_party_{number}": party.bottom for number, party in enumerate(self.features)
        } | {"label_party": self.label.top}
        found = {f"{name}.safetensors": save(m.state_dict()) for name, m in models.items()}
        if self.private is not None:
            found |= self.private.files()
        if self.tapes:
            labels = self.truth.tolist()
            # A stream is tested on a day before it trains on it: it trains on every row.
            rows = range(len(labels)) if self.config.stream else sorted(self.train_rows.tolist())
            lines = "".join(f"{row},{labels[row]}\n" for row in rows)
            found["labels.csv"] = f"id,label\n{lines}".encode()
        return found

    @property
    def steps(self) -> int:
        """How many steps all parts have together."""
        return self.schedule.steps

    def score(self, rows: Indices) -> dict[str, float]:
        """Return the measures of utility on some rows."""
        probs = predict(torch.from_numpy(rows), features=self.features, label=self.label)
        return self.measures.score(probs, np.asarray(self.table.labels)[rows])

    def releases(self, steps: int) -> float:
        """Return how often each example was released in so many steps, on average."""
        if self.config.stream:
            return 1.0
        return steps / (len(self.train_rows) // self.config.batch_size)


@final
class _Run:
    """The state of a run while it goes on: losses per step and measures per part."""

    def __init__(self, trial: Experiment, observer: Observer) -> None:
        self.trial = trial
        self.losses: list[float] = []
        self._test: dict[str, float] | None = None
        self._tell = observer

    def go(self) -> None:
        """Train every part."""
        trial = self.trial
        follow(
            trial.schedule,
            features=trial.ends,
            label=trial.label,
            done=self._done,
            evaluate=self._evaluate,
            save=self._save,
            depth=trial.config.depth,
            read_ahead=trial.reader.batches,
        )

    def _evaluate(self, part: Part) -> None:
        assert part.test is not None  # noqa: S101 - else there is nothing to evaluate
        self._test = self.trial.score(part.test.numpy())

    def _done(self, step: Step, part: Part) -> None:
        trial = self.trial
        self.losses.append(step.loss)
        if trial.components is not None:
            if step.step == part.first:
                trial.components.begin()
            trial.components.add(trial.label.last)
        if step.step == 0 and trial.planned is not None:
            trial.notes.append(str(trial.planned))
        self._report(part, step.loss, note="\n".join(trial.notes) or None)
        trial.notes.clear()

    def _save(self, part: Part) -> None:
        loss = mean(self.losses[part.first :])
        kept = self.trial.measures.keep(part.number, self._test, part=part.number, loss=loss)
        if self.trial.selection is not None:
            self.trial.selection.look(part.number + 1, part.stop)
        self._report(part, loss, test=self._test, leak=kept["leak"])

    def _report(self, part: Part, loss: float, **more: Any) -> None:  # noqa: ANN401
        step, steps = len(self.losses), self.trial.steps
        self._tell(Progress(step=step, steps=steps, part=part.number, loss=loss, **more))


def trial_of(config: TrainConfig) -> Trial:
    """Return the run of a configuration, set up: with gradients, or without any."""
    return SilentExperiment(config) if config.silent else Experiment(config)


def run(
    config: TrainConfig, *, observer: Observer | None = None, record: Path | None = None
) -> tuple[Trial, dict[str, Any]]:
    """Train, attack and measure; return the trial and its results as plain values.

    With ``record``, what each feature party sees is written to a tape in that directory.
    """
    trial = trial_of(config)
    if record is not None:
        trial.record(record)
    return trial, trial.train(observer)


def _results(
    trial: Experiment, *, steps: int, seconds: float, stopped: str | None
) -> dict[str, Any]:
    """Return everything that was measured."""
    config, guard = trial.config, trial.label.guard
    chosen = None if trial.selection is None else trial.selection.choice
    found = results_of(
        config,
        trial.measures,
        dataset=trial.table.name,
        objective=trial.objective,
        steps=steps,
        planned=trial.planned,
        guard=guard,
        ledger=guard.ledger,
        watch=trial.label.watch,
        releases=trial.releases(steps),
    )
    history, components = found["history"], trial.components
    if found["test"] is None:  # no part was finished
        found["test"] = trial.score(trial.test_rows)
        found["embedding_leak"] = trial.measures.embedding_leak
    if chosen is not None:
        kept = history[chosen.epoch - 1]
        found |= {name: kept[name] for name in ("test", "embedding_leak")}
    return found | {
        "parties": len(trial.columns),
        "depth": config.depth,
        "seed": config.seed,
        "train": {"loss": history[-1]["loss"] if history else None},
        "selected": None if chosen is None else asdict(chosen),
        "layers": {
            name: leak_records(monitor.report())
            for layer in trial.layers
            for name, monitor in layer.monitors.items()
        },
        "components": None
        if components is None
        else components.record(flipped=bool(found["objective_record"].get("flipped"))),
        "releases": steps * len(trial.columns),  # a message to each feature party
        "release_parameters": dict(guard.counts),
        "head": None,
        "public_test": None,
        "silent": None,
        "interrupted": stopped == "interrupted",
        "stopped": stopped,
        "seconds": seconds,
        "steps_per_second": steps / seconds if seconds > 0 else 0.0,
    }
