"""Accounting: what was released about each example, what a budget allows, what to choose for it.

Bounds are in ``tacit.measure``, what adds up over releases in ``composition``; the ledger keeps the
counts. Nothing here loads torch.
"""

from __future__ import annotations

from tacit.accounting.budget import Budget, Forecast, epsilon_for_auc, forecast, sum_kl_for_auc
from tacit.accounting.ledger import Ledger, LedgerSummary
from tacit.accounting.recommend import Recommendation, recommend

__all__ = [
    "Budget",
    "Forecast",
    "Ledger",
    "LedgerSummary",
    "Recommendation",
    "epsilon_for_auc",
    "forecast",
    "recommend",
    "sum_kl_for_auc",
]
