"""The result of an audit: one record for JSON, the HTML report and the command line."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, final

import numpy as np
import numpy.typing as npt

from tacit.report import audit_page

FORMAT = 1
Values = npt.NDArray[np.float64]

_BINS = 48
_POINTS = 120


@final
@dataclass(frozen=True)
class AuditResult:
    """The findings of an audit.

    Attributes:
        record: everything, as plain values; see ``docs/audit.md``.
        pictures: pixels [channels, height, width] of the examples that are shown, by id.
    """

    record: dict[str, Any]
    pictures: Mapping[str, npt.NDArray[np.uint8]] = field(default_factory=dict, compare=False)

    @property
    def table(self) -> list[dict[str, Any]]:
        """One row per attack."""
        rows: list[dict[str, Any]] = self.record["table"]
        return rows

    def worst(self) -> dict[str, Any] | None:
        """Return the row of the attack that got furthest, or None if none could run."""
        return next((row for row in self.table if row["attack"] == self.record["worst"]), None)

    def to_json(self) -> str:
        """Return the record as JSON text."""
        return json.dumps(self.record, indent=2, allow_nan=False)

    def to_html(self, path: Path | str) -> None:
        """Write the report as one self-contained HTML page."""
        audit_page(Path(path), self.record, pictures=self.pictures)


def roc(scores: Values, labels: Values) -> dict[str, list[float]]:
    """Return the ROC curve, on the side of the diagonal where the leak AUC counts it."""
    order = np.argsort(-scores, kind="stable")
    positive = labels[order] == 1
    ends = np.append(np.flatnonzero(np.diff(scores[order])), len(order) - 1)
    tpr = np.append(0.0, np.cumsum(positive)[ends] / max(1, positive.sum()))
    fpr = np.append(0.0, np.cumsum(~positive)[ends] / max(1, (~positive).sum()))
    if np.trapezoid(tpr, fpr) < 0.5:
        tpr, fpr = fpr, tpr
    grid = np.unique(np.linspace(0, len(fpr) - 1, _POINTS).astype(int))
    return {"fpr": fpr[grid].round(5).tolist(), "tpr": tpr[grid].round(5).tolist()}


def histogram(scores: Values, labels: Values) -> dict[str, list[float]]:
    """Return the densities of both classes over common bins; far tails fall into the outer ones."""
    low, high = np.quantile(scores, (0.002, 0.998))
    if not high > low:
        low, high = low - 0.5, low + 0.5
    edges = np.linspace(low, high, _BINS + 1)
    inside = np.clip(scores, low, high)
    found = {"edges": edges.round(5).tolist()}
    for name, value in (("negatives", 0), ("positives", 1)):
        heights = np.histogram(inside[labels == value], bins=edges, density=True)[0]
        found[name] = heights.round(6).tolist()
    return found
