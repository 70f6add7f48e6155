"""What a party predicts with: its part of a trained model, read from its state folder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NoReturn, final

import torch
from torch import Tensor, nn

from tacit import data, nets
from tacit.errors import UsageError
from tacit.guard import Guard
from tacit.heads import EmbeddedRows, FittedHead
from tacit.objective import Learner, Setting
from tacit.party.bottom import SentBottom, read_bottom
from tacit.party.build import bottom_of, objective_of, top_of
from tacit.party.config import PartyConfig
from tacit.party.label_head import read_head
from tacit.party.schedule import piece_of
from tacit.party.state_files import ENCODING, checkpoints_of
from tacit.rng import Key
from tacit.state_dir import StateFolder
from tacit.training.cut import Embedding, Gradient
from tacit.training.loop import predict
from tacit.training.party import FeatureEnd, FeatureParty, LabelParty, Rows, adam
from tacit.wire.protocol.plan import TrainingPlan
from tacit.wire.psi.align import Alignment
from tacit.wire.psi.rounds import Rounds

Sender = Callable[[Alignment], FeatureEnd]
"""What makes the feature party's end for some common rows."""
Scorer = Callable[[Alignment, Sequence[FeatureEnd]], Callable[[], Tensor]]
"""What takes all that feature parties send of some common rows. It returns what gives the label
party's predictions, for when nobody is connected: how long a head takes depends on labels."""


def _other_side(*_: object) -> NoReturn:
    raise AssertionError("this is the other party's part")


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class TrainedModel:
    """A party's part of the trained model, and the rows that it has for it.

    Attributes:
        table: the new rows, coded as in training.
        step: how far the model was trained, the same on both sides; of uploads their version.
        plan: of the prediction.
        sender: at a feature party.
        scorer: at the label party.
        rounds: of matching.
    """

    table: data.PartyTable
    step: int
    plan: TrainingPlan
    sender: Sender = _other_side
    scorer: Scorer = _other_side
    rounds: Rounds = field(default_factory=Rounds)


def trained_model(
    config: PartyConfig, folder: StateFolder, rows: Path, *, own_cache: Path
) -> TrainedModel:
    """Return a party's part as it is after training, with the new rows coded as in training."""
    held = folder.read(ENCODING)
    if held is None:
        raise _untrained(config)
    encoding = data.Encoding.from_json(held, where=str(folder.path / ENCODING))
    table = data.load_party(rows, role=config.role, encoding=encoding, own_cache=own_cache)
    inputs, classes = nets.Inputs(*table.inputs), table.classes or config.classes
    plan = config.plan(classes=classes, purpose="predict")
    make = partial(TrainedModel, table=table, plan=plan)
    if config.silent and config.role == "feature":
        bottom = read_bottom(config, folder, inputs)
        return make(step=config.version, sender=partial(_FrozenSender, bottom, table))
    if config.silent:
        score = partial(_by_head, read_head(folder, inputs), table, plan)
        return make(step=config.version, scorer=score)
    latest = checkpoints_of(config).latest()
    if latest is None:
        raise _untrained(config)
    if config.role == "label" and config.private_head:
        score = partial(_by_head, read_head(folder, inputs, steps=latest.step), table, plan)
        return make(step=latest.step, scorer=score)
    part = (
        bottom_of(config, inputs, classes=classes, number=config.number)
        if config.role == "feature"
        else top_of(config, inputs, classes=classes, parties=len(config.peers), seed=0)
    )
    optimizer = adam(part, config.lr)
    learner = None if config.role == "feature" else _learner(config, table, part, optimizer)
    models, optimizers = ({}, {}) if learner is None else (learner.models, learner.optimizers)
    name = "bottom" if config.role == "feature" else "top"
    latest.restore(models={name: part, **models}, optimizers={name: optimizer, **optimizers})
    if learner is None:
        return make(
            step=latest.step,
            sender=lambda common: FeatureParty(
                part, table.source(common.order), optimizer=optimizer
            ),
        )
    return make(step=latest.step, scorer=partial(_by_top, config, learner, part, table, plan))


def _untrained(config: PartyConfig) -> UsageError:
    return UsageError(
        f"{config.of_version(config.version)}: there is no trained model: run tacit party first"
    )


def _learner(
    config: PartyConfig, table: data.PartyTable, top: nn.Module, optimizer: torch.optim.Optimizer
) -> Learner:
    """Return the objective as it ended; it learns nothing here, so any labels and key will do."""
    assert table.classes is not None  # noqa: S101 - a label party's table has classes
    any_labels, any_key = torch.arange(table.classes), Key.from_seed(0)
    return objective_of(config, table.classes).learner(
        Setting(top=top, optimizer=optimizer, labels=any_labels, key=any_key)
    )


@final
class _FrozenSender(FeatureEnd):
    """A feature party with a frozen bottom: it sends rows as they were uploaded for training."""

    def __init__(self, bottom: SentBottom, table: data.PartyTable, common: Alignment) -> None:
        self._bottom, self._embed = bottom, bottom.embedder(table, common.order)

    def forward(self, step: int, rows: Rows) -> Embedding:  # noqa: ARG002
        """Refuse: nothing is trained with a frozen bottom."""
        raise AssertionError("a frozen bottom takes no step")

    def backward(self, gradient: Gradient) -> None:  # noqa: ARG002
        """Refuse, likewise."""
        raise AssertionError("a frozen bottom takes no gradient")

    def embed(self, rows: Rows) -> Tensor:
        """Return what the label party is to have of some rows."""
        return self._bottom.sent(self._embed(rows))


def _by_head(
    head: FittedHead,
    table: data.PartyTable,
    plan: TrainingPlan,
    common: Alignment,
    features: Sequence[FeatureEnd],
) -> Callable[[], Tensor]:
    """Take the embeddings of all common rows; return what gives a head's predictions of them."""
    rows = torch.arange(len(common))
    parts = [
        torch.cat([feature.embed(part).flatten(1) for feature in features], dim=1)
        for part in torch.split(rows, piece_of(plan))
    ]
    inputs = nets.Inputs(*table.inputs)
    examples = EmbeddedRows(
        embeddings=torch.cat(parts).numpy(),
        inputs=inputs if inputs.columns else None,
        source=table.source(common.order) if inputs.columns else None,
    )
    return partial(head.predict, examples, rows)


def _by_top(
    config: PartyConfig,
    learner: Learner,
    top: nn.Module,
    table: data.PartyTable,
    plan: TrainingPlan,
    common: Alignment,
    features: Sequence[FeatureEnd],
) -> Callable[[], Tensor]:
    """Return what gives the top model's predictions of all common rows, made batch by batch."""
    label = LabelParty(
        top,
        torch.zeros(len(common), dtype=torch.int64),  # nothing is learned here
        guard=Guard("none"),
        objective=objective_of(config, table.classes or config.classes),
        optimizer=adam(top, config.lr),
        combined_by=config.combine,
        source=table.source(common.order) if any(table.inputs) else None,
        learner=learner,
    )
    rows = torch.arange(len(common))
    probs = predict(rows, features=features, label=label, batch_size=piece_of(plan))
    return lambda: probs
