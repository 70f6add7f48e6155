"""Attacks that train a model of their own: gradient matching and model completion."""

from tacit.attack.learned._trials import TrialLog

__all__ = ["TrialLog"]
