"""GAFM, table C.1: the noise sigma on the labels that the discriminator sees."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from tacit.experiment.sweep_store import TrialRecord
from tacit.papers._gafm import COLUMNS, SCALED, cells, of_set, paper_cells, published_rows, sets
from tacit.papers._reading import grouped, mean_of
from tacit.papers._study import Finding, PaperClaim, Study, Tabulated

_SIGMAS = (0.01, 0.25, 1)
_PAPER = {
    ("spambase", "0.01"): (0.94, 0.01, 0.93, 0.02, 0.56, 0.04, 0.67, 0.05, 0.66, 0.05, 0.42, 0.09),
    ("spambase", "0.25"): (0.94, 0.01, 0.93, 0.01, 0.60, 0.06, 0.67, 0.03, 0.67, 0.03, 0.42, 0.05),
    ("spambase", "1"): (0.94, 0.01, 0.94, 0.01, 0.57, 0.05, 0.68, 0.04, 0.68, 0.04, 0.42, 0.09),
    ("credit", "0.01"): (0.65, 0.07, 0.65, 0.07, 0.61, 0.06, 0.63, 0.11, 0.63, 0.10, 0.31, 0.20),
    ("credit", "0.25"): (0.67, 0.03, 0.66, 0.03, 0.57, 0.06, 0.69, 0.10, 0.68, 0.08, 0.40, 0.19),
    ("credit", "1"): (0.68, 0.02, 0.68, 0.02, 0.62, 0.05, 0.73, 0.06, 0.72, 0.05, 0.46, 0.15),
    ("imdb", "0.01"): (0.92, 0.02, 0.90, 0.01, 0.55, 0.06, 0.67, 0.02, 0.67, 0.02, 0.36, 0.06),
    ("imdb", "0.25"): (0.92, 0.0, 0.90, 0.0, 0.53, 0.01, 0.65, 0.01, 0.65, 0.01, 0.31, 0.02),
    ("imdb", "1"): (0.92, 0.0, 0.90, 0.0, 0.53, 0.02, 0.65, 0.02, 0.64, 0.02, 0.30, 0.05),
}
_LOSS = 0.05


def _plan(full: bool) -> list[dict[str, Any]]:
    return [of_set(values, sigma=sigma) for values in sets(full) for sigma in _SIGMAS]


def _sigma(record: TrialRecord) -> str:
    found = re.search(r"sigma=([\d.e-]+)", str(record.config["objective"]))
    return f"{float(found.group(1)):g}" if found else "0.01"


def _read(records: Sequence[TrialRecord]) -> Finding:
    rows, claims = [], []
    for (dataset,), found in grouped(records, "dataset").items():
        by_sigma: dict[str, list[TrialRecord]] = {}
        for record in found:
            by_sigma.setdefault(_sigma(record), []).append(record)
        for sigma, same in by_sigma.items():
            known = _PAPER.get((dataset, sigma))
            numbers = None if known is None else known[::2]
            rows.append([dataset, float(sigma), len(same), *cells(same, paper_cells(numbers))])
        worth = [v for same in by_sigma.values() if (v := mean_of(same, "test_auc")) is not None]
        lost = worth[0] - min(worth) if len(worth) > 1 else None
        claims.append(
            PaperClaim(
                text=f"{dataset}: a moderately large sigma does not hurt prediction much (less "
                f"than {_LOSS} of AUC)",
                source="appendix C.1",
                holds=None if lost is None else lost < _LOSS,
                found="one sigma only" if lost is None else f"at most {lost:.3f} lost",
            )
        )
    table = Tabulated(
        title="Means over repetitions, ours and the paper's",
        header=["data set", "sigma", "runs", *COLUMNS],
        rows=rows,
    )
    return Finding(tables=[table], claims=claims)


STUDY = Study(
    name="tableC1-sigma",
    paper="gafm",
    title="GAFM at sigma 0.01, 0.25 and 1",
    place="table C.1, appendix C.1",
    plan=_plan,
    read=_read,
    scaled=SCALED,
    published=published_rows(_PAPER, "table C.1"),
    task="tacit.papers._gafm:measured",
)
