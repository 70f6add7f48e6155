"""The two parties and the one training loop between them."""

from tacit.training.cut import Embedding, Gradient
from tacit.training.loop import Step, predict, train
from tacit.training.party import FeatureEnd, FeatureParty, LabelEnd, LabelParty, adam
from tacit.training.recorder import RecordedFeatureParty

__all__ = [
    "Embedding",
    "FeatureEnd",
    "FeatureParty",
    "Gradient",
    "LabelEnd",
    "LabelParty",
    "RecordedFeatureParty",
    "Step",
    "adam",
    "predict",
    "train",
]
