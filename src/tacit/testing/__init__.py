"""Contracts that new protections and attacks are tested by, before their authors write a test."""

from tacit.testing.attack_contract import AttackContract
from tacit.testing.gradients import low_rank_cut, many_class_cut
from tacit.testing.protection_contract import ProtectionContract

__all__ = ["AttackContract", "ProtectionContract", "low_rank_cut", "many_class_cut"]
