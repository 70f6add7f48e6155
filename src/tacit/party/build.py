"""Both parties' parts of a training: made the same way in one process and in several."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor, nn

from tacit import data, nets, objective
from tacit.accounting import Forecast, Ledger
from tacit.errors import UsageError
from tacit.guard import Guard
from tacit.nets.initial_weights import Seed
from tacit.party.config import PartyConfig
from tacit.party.run_state import BuiltParty
from tacit.party.settings import TrainingSettings
from tacit.rng import Key
from tacit.training.embedding_watch import EmbeddingWatch
from tacit.training.features import Source
from tacit.training.party import FeatureParty, LabelParty, Released, adam
from tacit.types import Cut, Release
from tacit.wire.psi.align import Alignment


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class OwnColumns:
    """The columns of one party: what a model must know of them, and the way to their rows."""

    inputs: nets.Inputs
    source: Source

    @classmethod
    def of(cls, table: data.PartyTable, common: Alignment) -> OwnColumns:
        """Return the columns of a party's table, by positions in the common order."""
        return cls(inputs=nets.Inputs(*table.inputs), source=table.source(common.order))


def bottom_of(
    settings: TrainingSettings, inputs: nets.Inputs, *, classes: int, number: int = 0
) -> nn.Module:
    """Return a feature party's part of the model as it is before the first step.

    The seed is that of the row order, which all parties know: these weights are no secret.
    """
    return nets.get(settings.model).bottom(
        inputs, cut=settings.cut, classes=classes, seed=settings.seed, party=number
    )


def combined_cut(settings: TrainingSettings, *, classes: int, parties: int) -> int:
    """Return the width of the combined cut."""
    each = nets.get(settings.model).cut_width(cut=settings.cut, classes=classes)
    return nets.combined_width([each] * parties, settings.combine)


def top_of(
    settings: TrainingSettings,
    own: nets.Inputs | None,
    *,
    classes: int,
    parties: int,
    seed: Seed,
) -> nn.Module:
    """Return the label party's part of the model as it is before the first step.

    Where it is trained with others, ``seed`` is a secret key; where other weights take the place of
    the first ones, any seed will do.
    """
    width = combined_cut(settings, classes=classes, parties=parties)
    seen = own if own is not None and own.columns else None
    model = nets.get(settings.model)
    return model.top(width, own=seen, cut=settings.cut, classes=classes, seed=seed)


def optimizer_of(settings: TrainingSettings, model: nn.Module) -> torch.optim.Optimizer:
    """Return what updates a party's part of the model."""
    return adam(model, settings.lr, weight_decay=settings.weight_decay)


def build_feature(
    settings: TrainingSettings, columns: OwnColumns, *, classes: int, number: int = 0
) -> BuiltParty[FeatureParty]:
    """Return a feature party before its first step."""
    bottom = bottom_of(settings, columns.inputs, classes=classes, number=number)
    optimizer = optimizer_of(settings, bottom)
    return BuiltParty(
        party=FeatureParty(bottom, columns.source, optimizer=optimizer, depth=settings.depth),
        models={"bottom": bottom},
        optimizers={"bottom": optimizer},
        states=dict,
    )


def guard_of(
    settings: TrainingSettings,
    *,
    run: str,
    classes: int,
    examples: int,
    planned: Forecast | None,
    watch: Callable[[Cut, Release], None],
    always_count: bool,
    seed: int | None = None,
    key: bytes | None = None,
    label_secret: bytes | None = None,
) -> Guard:
    """Return the guard of a training, with a ledger where there is a budget or one is wanted."""
    assert settings.protect is not None  # noqa: S101 - whoever holds labels has chosen one
    ledger = None
    if always_count or settings.budget is not None:
        ledger = Ledger(
            run=run,
            budget=settings.budget,
            per_release=None if planned is None else planned.sum_kl,
            examples=examples,
            measured=settings.budget is not None,
        )
    return Guard(
        settings.protect,
        seed=seed,
        key=key,
        watch=watch,
        labels=settings.labels,
        label_secret=label_secret,
        classes=classes,
        ledger=ledger,
    )


def build_label(
    settings: TrainingSettings,
    own: OwnColumns | None,
    labels: Tensor,
    *,
    guard: Guard,
    loss: objective.Objective,
    classes: int,
    parties: int,
    key: Key,
    first_steps: int,
    embedded: Callable[[Tensor], None] | None = None,
    watch: EmbeddingWatch,
    release: Callable[[Cut], Released] | None = None,
    early: bool = True,
) -> BuiltParty[LabelParty]:
    """Return the label party before its first step.

    The first weights of the top model, and whatever its objective draws, come out of all 256 bits
    of ``key``: a feature party that could search them would tell more from the gradients.
    """
    inputs = None if own is None else own.inputs
    top = top_of(settings, inputs, classes=classes, parties=parties, seed=key)
    optimizer = optimizer_of(settings, top)
    party = LabelParty(
        top,
        labels,
        guard=guard,
        objective=loss,
        optimizer=optimizer,
        combined_by=settings.combine,
        source=None if own is None or not own.inputs.columns else own.source,
        early=early,
        width=combined_cut(settings, classes=classes, parties=parties),
        key=key,
        first_steps=first_steps,
        embedded=embedded,
        release=release,
        watch=watch,
    )
    return BuiltParty(
        party=party,
        models={"top": top, **party.learner.models},
        optimizers={"top": optimizer, **party.learner.optimizers},
        states=dict,
    )


def objective_of(config: PartyConfig, classes: int) -> objective.Objective:
    """Return the objective that a configuration names, or the one that fits the labels."""
    given = fitting_objective(
        config.objective, classes=classes, parties=len(config.peers), combine=config.combine
    )
    if not isinstance(given, objective.Gafm):
        return given
    if config.workers > 1:
        raise UsageError(
            f"objective {given}: gafm trains on one process: leave workers out, or the objective"
        )
    if given.delta == "auto":
        raise UsageError(
            f"objective {given}: delta=auto takes trial runs on both sides' rows: choose it with "
            "`tacit train`, and write the number here"
        )
    width = combined_cut(config, classes=classes, parties=len(config.peers))
    if width != 1:
        raise UsageError(
            f"model {config.model}: gafm needs a cut one number wide, in (0, 1), got {width}: "
            'write model = "gafm_net" on both sides'
        )
    return given


def fitting_objective(
    spec: str | None, *, classes: int, parties: int, combine: str
) -> objective.Objective:
    """Return an objective that fits the number of classes and parties, or say what would.

    >>> str(fitting_objective(None, classes=10, parties=1, combine="sum"))
    'ce'
    """
    fitting = "bce" if classes == 2 else "ce"
    given = objective.get(spec or fitting)
    adversarial = isinstance(given, objective.Gafm)
    if str(given) != fitting and not (adversarial and classes == 2):
        raise UsageError(f"objective {given}: the labels have {classes} classes and need {fitting}")
    if adversarial and parties > 1 and combine != "mean":
        raise UsageError(
            f"combine {combine}: with several feature parties gafm needs embeddings that stay in "
            "(0, 1): combine them by mean"
        )
    return given
