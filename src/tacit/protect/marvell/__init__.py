"""Marvell: Gaussian noise that leaves the classes hardest to tell apart for its power."""

from tacit.protect.marvell.isotropic_solver import MarvellSolution, solve_marvell
from tacit.protect.marvell.protection import Marvell

__all__ = ["Marvell", "MarvellSolution", "solve_marvell"]
