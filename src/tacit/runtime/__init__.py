"""Parties and the training loop between them.

Names load when they are first used: keys and frames need no torch models.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tacit.runtime.messages import Embedding, Gradient
    from tacit.runtime.party import FeatureEnd, FeatureParty, LabelEnd, LabelParty, adam
    from tacit.runtime.recording import Recorded
    from tacit.runtime.session import Step, predict, train

__all__ = [
    "Embedding",
    "FeatureEnd",
    "FeatureParty",
    "Gradient",
    "LabelEnd",
    "LabelParty",
    "Recorded",
    "Step",
    "adam",
    "predict",
    "train",
]

_HOMES = {
    "Embedding": "messages",
    "FeatureEnd": "party",
    "FeatureParty": "party",
    "Gradient": "messages",
    "LabelEnd": "party",
    "LabelParty": "party",
    "Recorded": "recording",
    "Step": "session",
    "adam": "party",
    "predict": "session",
    "train": "session",
}


def __getattr__(name: str) -> object:
    if name in _HOMES:
        return getattr(importlib.import_module(f"tacit.runtime.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'tacit.runtime' has no attribute {name!r}")
