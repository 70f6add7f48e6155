"""Protections: what turns a cut gradient into something safer to release."""

# ruff: noqa: I001 - protections are listed in the order in which they are imported here
from tacit.protect.parts import Along, Isotropic
from tacit.protect.base import PROTECTIONS, Batch, Plan, Protection
from tacit.protect.noise import Gaussian, Iso, NoProtection
from tacit.protect.max_norm import MaxNorm, MaxNormPositive
from tacit.protect._marvell_solver import MarvellSolution, solve_marvell
from tacit.protect.marvell import Marvell
from tacit.protect.chain import Chain, get

__all__ = [
    "PROTECTIONS",
    "Along",
    "Batch",
    "Chain",
    "Gaussian",
    "Iso",
    "Isotropic",
    "Marvell",
    "MarvellSolution",
    "MaxNorm",
    "MaxNormPositive",
    "NoProtection",
    "Plan",
    "Protection",
    "get",
    "solve_marvell",
]
