"""The page of an audit: what leaks, by which attack, against what it should be compared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tacit.fields import Fields, finite
from tacit.report.audit_figures import (
    confusion,
    curves,
    distributions,
    galleries,
    over_epochs,
    sorted_over_epochs,
)
from tacit.report.blocks import (
    Badge,
    Cell,
    Facts,
    Figure,
    Heading,
    Items,
    PageBlock,
    Paragraph,
    TableBlock,
    Verdict,
)
from tacit.report.figures import bars
from tacit.report.inputs import inputs_facts, inputs_section
from tacit.report.page import write_page
from tacit.report.plots import Dot, dots
from tacit.report.png import Pixels

# What a certificate may hold, in words; anything else in it is shown under its own name.
_CERTIFICATE = {
    "spec": "Protection",
    "how": "Parameters",
    "assumption": "Assumption",
    "sum_kl": "Divergence of the classes, one release (sum KL)",
    "measured_sum_kl": "The same, estimated from what was released",
    "auc_bound": "Bound on the AUC of one release, for honest batches",
    "gaussian_auc": "AUC of equal Gaussians at this divergence (a reference, not a bound)",
    "power": "Power of the noise, expected",
    "measured_power": "Power of the noise, measured",
    "epsilon": "Epsilon of the randomised labels",
    "auc": "Bound on the AUC of one randomised label",
    "baseline_auc": "AUC of the features alone, as given",
    "combined_auc": "Bound on the AUC of features and randomised label together",
}
_LIMITS = ("low", "high", "null_low", "null_high", "baseline", "bound")
# Field and heading of each column: three narrow tables are easier to read than a wide one.
_MEASURED = (
    ("attack", "attack"),
    ("leak_auc", "leak AUC"),
    ("state", "state"),
    ("low", "low"),
    ("high", "high"),
    ("null_low", "null from"),
    ("null_high", "null to"),
    ("baseline", "baseline"),
    ("bound", "bound"),
    ("clustering_accuracy", "clustering accuracy"),
)
_VERDICTS = (("attack", "attack"), ("verdict", "verdict"))
_EFFORT = (
    ("attack", "attack"),
    ("mean", "batch mean"),
    ("q95", "batch q95"),
    ("accumulated", "adds up"),
    ("batches", "batches"),
    ("examples", "examples"),
    ("seconds", "seconds"),
)
_READING = (
    "Leak AUC is how well an attack ranks positives before negatives, whichever end they come out "
    "at: 0.5 is nothing, 1.0 is every label. The whiskers (low, high) are its interval. The grey "
    "band (null) is where scores without any information fall. The baseline is what features alone "
    "predict: leakage is what exceeds it. The bound is what the certificate claims for honest "
    "batches, under the assumption given below. An attack that adds up uses all releases about an "
    "example together; batch mean and q95 are over single batches, where chance alone lifts the "
    "number."
)


def audit_page(
    path: Path, record: Mapping[str, Any], *, pictures: Mapping[str, Pixels] | None = None
) -> None:
    """Write the page of an audit's record (the JSON object of ``tacit audit``).

    ``pictures`` are the pixels of examples that the record shows, by id: it has none itself.
    """
    kept = finite(record)
    audit = Fields(kept, "")
    rows = sorted(audit.rows("table"), key=_strength, reverse=True)
    order = _order(audit, rows)
    if not rows and audit.part("inputs_about") is not None:
        _inputs_page(path, audit, kept)
        return
    blocks: list[PageBlock] = [
        Verdict(audit.text("state"), audit.text("verdict")),
        Facts(_facts(audit, rows)),
        *_by_attack(rows),
        *inputs_section(audit),
        *over_epochs(audit, order),
        *sorted_over_epochs(audit, order),
        *confusion(audit, order),
        *galleries(audit, order, pictures or {}),
        *distributions(audit, order),
        *curves(audit, order),
        *_advice(audit),
        *_claims(audit),
        *_skipped(audit),
    ]
    source = audit.part_or_empty("tape").text("source")
    truth = audit.part_or_empty("truth").text("source")
    write_page(
        path,
        title="Label leakage audit",
        subtitle=f"Recording: {source or 'not named'}. Labels: {truth or 'not named'}.",
        blocks=blocks,
        record=kept,
    )


def _inputs_page(path: Path, audit: Fields, record: Mapping[str, Any]) -> None:
    """Write the page of an audit that had no labels, only features."""
    source = audit.part_or_empty("tape").text("source")
    features = audit.part_or_empty("inputs_about").text("source")
    write_page(
        path,
        title="Input leakage audit",
        subtitle=f"Recording: {source or 'not named'}. Features: {features or 'not named'}.",
        blocks=[
            Verdict(audit.text("state"), audit.text("verdict")),
            Facts(inputs_facts(audit)),
            *inputs_section(audit),
        ],
        record=record,
    )


def _strength(row: Fields) -> float:
    """Return an attack's leak AUC, or its clustering accuracy where it has none."""
    leak = row.number("leak_auc")
    return (row.number("clustering_accuracy") if leak is None else leak) or 0.0


def _by_attack(rows: Sequence[Fields]) -> list[PageBlock]:
    """Return the leakage of each attack, the worst first."""
    clustered = any(row.number("clustering_accuracy") is not None for row in rows)
    found = _MEASURED if clustered else _MEASURED[:-1]
    return [
        Heading("Leakage by attack"),
        *_plots(rows),
        _table(rows, found, caption="Leakage by attack"),
        Paragraph(_READING),
        _table(rows, _VERDICTS, caption="What that means"),
        _table(rows, _EFFORT, caption="How each attack ran"),
    ]


def _plots(rows: Sequence[Fields]) -> list[PageBlock]:
    found: list[PageBlock] = []
    measured = [_dot(row) for row in rows if row.number("leak_auc") is not None]
    if measured:
        title = "Leak AUC of each attack against baseline and bound"
        found.append(Figure(dots({"measured, with interval": measured}, title=title)))
    else:
        found.append(Paragraph("No attack gave a leak AUC."))
    # With two classes the leak AUC says it already.
    clustered = {
        row.text("attack"): value
        for row in rows
        if row.number("leak_auc") is None
        and (value := row.number("clustering_accuracy")) is not None
    }
    if clustered:
        title = "Clustering accuracy"
        found.append(Figure(bars({"": clustered}, title=title, y="accuracy", span=(0, 1.08))))
    return found


def _dot(row: Fields) -> Dot:
    limits = {name: row.number(name) for name in _LIMITS}
    return Dot(name=row.text("attack"), value=row.number("leak_auc"), **limits)


def _table(
    rows: Sequence[Fields], columns: Sequence[tuple[str, str]], *, caption: str
) -> TableBlock:
    return TableBlock(
        [heading for _, heading in columns],
        [[_cell(row, field) for field, _ in columns] for row in rows],
        caption=caption,
        fields=[field for field, _ in columns],
    )


def _cell(row: Fields, field: str) -> Cell:
    if field == "state":
        return Badge(row.text(field), row.text(field)) if row.text(field) else None
    if field in ("attack", "verdict"):
        return row.text(field) or None
    if field == "accumulated":
        return "yes" if row.flag(field) else "no"
    return row.number(field)


def _order(audit: Fields, rows: Sequence[Fields]) -> list[str]:
    """Return the attacks, the worst first."""
    names = [row.text("attack") for row in rows]
    worst = audit.text("worst")
    return list(dict.fromkeys([worst, *names] if worst in names else names))


def _facts(audit: Fields, rows: Sequence[Fields]) -> list[tuple[str, Cell, str]]:
    tape, truth = audit.part_or_empty("tape"), audit.part_or_empty("truth")
    worst = audit.text("worst")
    row = next((row for row in rows if row.text("attack") == worst), Fields({}, ""))
    base, claim = audit.part_or_empty("baseline"), audit.part_or_empty("certificate")
    trained = audit.part("trained")
    facts: list[tuple[str, Cell, str]] = [
        _worst(row, worst),
        ("Baseline", base.number("auc"), base.text("from") or "features alone, not measured"),
        (
            "Bound of one release",
            claim.number("auc_bound"),
            f"{claim.text('spec')}, for honest batches" if claim.text("spec") else "no certificate",
        ),
        ("Rows", tape.number("rows"), _rows_note(tape)),
        ("Epochs", tape.number("epochs"), _counted(tape.number("steps"), "steps")),
        (
            "Cut width",
            tape.number("width"),
            "embeddings recorded" if tape.flag("embeddings") else "no embeddings recorded",
        ),
        ("Classes", truth.number("classes"), _share(truth)),
    ]
    if trained is not None:
        note = "has absorbed label information: not the baseline"
        facts.insert(2, ("From trained embeddings", trained.number("auc"), note))
    return facts


def _advice(audit: Fields) -> list[PageBlock]:
    texts = audit.texts("advice")
    return [Heading("What to do next"), Items(texts, numbered=True)] if texts else []


def _claims(audit: Fields) -> list[PageBlock]:
    heading = Heading("What is claimed, and under which assumption")
    claim = audit.part("certificate")
    if claim is None:
        return [
            heading,
            Paragraph(
                "There is no certificate: nothing is claimed beyond what these attacks measured."
            ),
        ]
    rows: list[list[Cell]] = [
        [_CERTIFICATE.get(key, key), value]
        for key in dict.fromkeys([*_CERTIFICATE, *claim.value])
        if (value := _certificate_cell(claim, key)) is not None
    ]
    return [heading, TableBlock(["claim", "value"], rows, caption="The certificate")]


def _certificate_cell(claim: Fields, key: str) -> Cell:
    """Return a field of a certificate; of a field that is not known here only text or number."""
    if key in ("spec", "how", "assumption"):
        return claim.text(key) or None
    if key in _CERTIFICATE:
        return claim.number(key)
    found = claim.value[key]
    return found if isinstance(found, (str, int, float)) else None


def _skipped(audit: Fields) -> list[PageBlock]:
    rows = [[row.text("attack"), row.text("reason")] for row in audit.rows("skipped")]
    if not rows:
        return []
    return [
        Heading("What was not run"),
        TableBlock(["attack", "reason"], rows, caption="Attacks that could not run here"),
    ]


def _worst(row: Fields, attack: str) -> tuple[str, Cell, str]:
    leak, clustered = row.number("leak_auc"), row.number("clustering_accuracy")
    if leak is None and clustered is not None:
        return "Best clustering accuracy", clustered, _by(attack, "")
    return "Worst leak AUC", leak, _by(attack, _between(row))


def _between(row: Fields) -> str:
    low, high = row.number("low"), row.number("high")
    return "" if low is None or high is None else f"{low:.3f} to {high:.3f}"


def _by(attack: str, interval: str) -> str:
    return ", ".join(part for part in (f"by {attack}" if attack else "", interval) if part)


def _counted(number: float | None, what: str) -> str:
    return "" if number is None else f"{number:,} {what}"


def _rows_note(tape: Fields) -> str:
    damaged = tape.number("damaged")
    left_out = f"{damaged:,} damaged batches left out" if damaged else ""
    return ", ".join(filter(None, (_counted(tape.number("examples"), "examples"), left_out)))


def _share(truth: Fields) -> str:
    """Return the share of positives, where two classes have any."""
    positives = truth.number("positives") if truth.number("classes") == 2 else None
    return "" if positives is None else f"{positives:.1%} positives"
