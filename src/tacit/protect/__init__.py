"""Protections: transformations of a cut gradient into a release that tells less of the labels."""

# ruff: noqa: I001 - protections are listed in the order in which they are imported here
from tacit.protect.noise_terms import Along, Isotropic, Shaped
from tacit.protect.base import PROTECTIONS, Batch, Plan, Protection, noise_only
from tacit.protect.gaussian import Gaussian, Iso, NoProtection
from tacit.protect.max_norm import MaxNorm, MaxNormPositive, PublishedMaxNormPositive
from tacit.protect.marvell.isotropic_solver import MarvellSolution, solve_marvell
from tacit.protect.marvell.protection import Marvell
from tacit.protect.chain import Chain, get
from tacit.protect.labels.mechanisms import (
    LABELS,
    GaussianLabels,
    LabelMechanism,
    RandomizedResponse,
    get_labels,
)
from tacit.protect.labels.rr_prior import PriorResponse
from tacit.protect.labels.randomized_labels import RandomizedLabels

__all__ = [
    "LABELS",
    "PROTECTIONS",
    "Along",
    "Batch",
    "Chain",
    "Gaussian",
    "GaussianLabels",
    "Iso",
    "Isotropic",
    "LabelMechanism",
    "Marvell",
    "MarvellSolution",
    "MaxNorm",
    "MaxNormPositive",
    "NoProtection",
    "Plan",
    "PriorResponse",
    "Protection",
    "PublishedMaxNormPositive",
    "RandomizedLabels",
    "RandomizedResponse",
    "Shaped",
    "get",
    "get_labels",
    "noise_only",
    "solve_marvell",
]
