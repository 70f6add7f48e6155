"""Objectives: how the label party turns outputs and labels into a loss."""

from tacit.objective.base import OBJECTIVES, Loss, Objective
from tacit.objective.gafm import Gafm
from tacit.objective.learner import Learner, Setting, Signal, Turn
from tacit.objective.supervised import BinaryCrossEntropy, CrossEntropy, Forward, corrected

__all__ = [
    "OBJECTIVES",
    "BinaryCrossEntropy",
    "CrossEntropy",
    "Forward",
    "Gafm",
    "Learner",
    "Loss",
    "Objective",
    "Setting",
    "Signal",
    "Turn",
    "corrected",
    "get",
]


def get(spec: str | Objective) -> Objective:
    """Return the objective that a spec string describes.

    >>> str(get("bce"))
    'bce'
    """
    return spec if isinstance(spec, Objective) else OBJECTIVES.get(spec)
