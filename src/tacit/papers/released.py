"""What the authors' released code does and their text does not say, where it changes a result."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tacit.papers.study import Values

L2 = "an L2 penalty of 0.01 on all embeddings (`wdl(l2=0.01)`)"
RATIO = "iso's parameter is the ratio of noise to the longest gradient: t is its square"
HINT = "the hint attack compares with the longest of the drawn hints alone"
# Strengths in the released code's scripts for Criteo: 24 of Marvell's s and 23 ratios, one of them
# zero, which is no protection.
S_VALUES = (
    *(0.01, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 1, 1.5, 1.75, 2, 2.5, 3, 4),
    *(5, 6, 7, 8, 9, 10, 20, 25),
)
RATIOS = (
    *(0.25, 0.5, 0.75, 1, 1.25, 1.5, 1.75, 2, 2.25, 2.5, 2.75, 3, 3.5, 4, 4.5, 5, 6, 7, 9),
    *(11, 15, 25),
)
T_VALUES = tuple(ratio**2 for ratio in RATIOS)


def penalised(trial: Mapping[str, Any]) -> Values:
    """Return a trial with the penalty on embeddings, where its model has any.

    >>> penalised({"model": "wdl", "cut": 4})["model"]
    'wdl(l2=0.01)'
    """
    from tacit.nets import WideDeep  # noqa: PLC0415 - loads torch
    from tacit.nets import get as get_model  # noqa: PLC0415 - loads torch

    model = get_model(trial["model"])
    if isinstance(model, WideDeep):
        model = replace(model, l2=0.01)
    return {**trial, "model": str(model)}


def of_2021(trial: Mapping[str, Any]) -> Values:
    """Return a trial of the 2021 version: also t as the square of the ratio, and one hint.

    >>> of_2021({"model": "wdl", "protect": "iso(t=2)", "attacks": ("norm", "hint")})
    {'model': 'wdl(l2=0.01)', 'protect': 'iso(t=4)', 'attacks': ('norm', 'hint(use=longest)')}
    """
    from tacit.protect import Iso, get  # noqa: PLC0415 - loads torch

    stages = get(trial["protect"]).stages
    squared = [replace(s, t=s.t**2) if isinstance(s, Iso) else s for s in stages]
    attacks = tuple("hint(use=longest)" if a == "hint" else a for a in trial["attacks"])
    changed = {"protect": " | ".join(map(str, squared)), "attacks": attacks}
    return {**penalised(trial), **changed}
