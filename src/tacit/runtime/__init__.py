"""Parties and the training loop between them."""

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
