"""Label mechanisms: labels randomised once per example, before any loss sees them."""

from tacit.protect.labels.mechanisms import (
    LABELS,
    GaussianLabels,
    LabelMechanism,
    RandomizedResponse,
    get_labels,
)
from tacit.protect.labels.randomized_labels import RandomizedLabels
from tacit.protect.labels.rr_prior import PriorResponse

__all__ = [
    "LABELS",
    "GaussianLabels",
    "LabelMechanism",
    "PriorResponse",
    "RandomizedLabels",
    "RandomizedResponse",
    "get_labels",
]
