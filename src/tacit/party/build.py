"""The label party's part of the model, and the objective that trains it."""

from __future__ import annotations

from torch import nn

from tacit import data, nets, objective
from tacit.errors import UsageError
from tacit.nets.initial_weights import Seed
from tacit.party.config import PartyConfig
from tacit.training.features import Source
from tacit.wire.psi.align import Alignment


def combined_cut(config: PartyConfig, classes: int) -> int:
    """Return the width of the combined cut."""
    each = nets.get(config.model).cut_width(cut=config.cut, classes=classes)
    return nets.combined_width([each] * len(config.peers), config.combine)


def top_of(config: PartyConfig, table: data.PartyTable, *, seed: Seed) -> nn.Module:
    """Return the label party's part of the model as it is before the first step.

    Where it is trained, ``seed`` is a secret key; where other weights take the place of the first
    ones, any seed will do.
    """
    assert table.classes is not None  # noqa: S101 - a label party's table has classes
    numeric, cardinalities = table.inputs
    own = nets.Inputs(numeric, cardinalities) if numeric or cardinalities else None
    model, width = nets.get(config.model), combined_cut(config, table.classes)
    return model.top(width, own=own, cut=config.cut, classes=table.classes, seed=seed)


def own_source(table: data.PartyTable, common: Alignment) -> Source | None:
    """Return the way to the label party's own columns, None where it has none."""
    return table.source(common.order) if any(table.inputs) else None


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
    width = combined_cut(config, classes)
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
