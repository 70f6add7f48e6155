"""The plots and the pictures of an audit's page; a part without data is left out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tacit.errors import InputError
from tacit.fields import Fields
from tacit.report.blocks import (
    Cell,
    Figure,
    Heading,
    PageBlock,
    Paragraph,
    SideBySide,
    TableBlock,
    Tile,
    Tiles,
)
from tacit.report.figures import Series, line_plot
from tacit.report.plots import Curve, Histogram, densities, roc
from tacit.report.png import Pixels, data_address

_LINES = 6  # more lines than this look alike
_BANDS = 2  # and more intervals than this hide each other
_DENSITIES = 4
_EPOCHS_NOTE = (
    "Every epoch releases something about the same examples again: independent noise averages out, "
    "and attacks that remember add it up. Shaded: the intervals of the two worst."
)
_COMPOSED_NOTE = (
    " The composed reference is what the certificate comes to if the noise of all epochs is "
    "independent and Gaussian; it is not a bound."
)
_GALLERIES = 6
_HEADING = Heading("Examples with their recovered labels")
_TILES = (
    "Below each picture its true label, and the one that the attack found in the recording (for "
    "groups: the label that the group is named after). A wrong one has a broken frame, a cross and "
    "the word."
)
_NOT_KEPT = "a record has no pixels: let tacit audit write the page (--out)"


def over_epochs(audit: Fields, order: Sequence[str]) -> list[PageBlock]:
    """Return leakage after each epoch, with what the certificate composes to."""
    inner = audit.part_or_empty("epochs")
    names = [name for name in order if _has(inner.rows(name), "leak_auc")][:_LINES]
    if not names:
        return []
    drawn = [
        _epoch_line(inner.rows(name), name, style=order.index(name), band=place < _BANDS)
        for place, name in enumerate(names)
    ]
    drawn += _compared(audit, places=[place for line in drawn for place in line.x])
    plot = line_plot(
        drawn, title="Leak AUC after each epoch", x="epoch", y="leak AUC", span=(0.49, 1.01)
    )
    note = _EPOCHS_NOTE + (_COMPOSED_NOTE if audit.rows("reference") else "")
    return [Heading("Leakage over epochs"), Figure(plot), Paragraph(note)]


def sorted_over_epochs(audit: Fields, order: Sequence[str]) -> list[PageBlock]:
    """Return the clustering accuracy after each epoch, of attacks that sort examples."""
    inner = audit.part_or_empty("epochs")
    names = [name for name in order if _has(inner.rows(name), "clustering_accuracy")][:_LINES]
    if not names:
        return []
    drawn = [
        Series(
            name=name,
            x=_epochs(rows),
            style=order.index(name),
            y=[row.number("clustering_accuracy") for row in rows],
        )
        for name in names
        for rows in [inner.rows(name)]
    ]
    plot = line_plot(
        drawn, title="Clustering accuracy after each epoch", x="epoch", y="accuracy", span=(0, 1.05)
    )
    return [
        Heading("Examples sorted into classes"),
        Figure(plot),
        Paragraph(
            "The share of examples in the right group, each group named after the class that fits "
            "best. An attacker who sorts examples needs the name of one of each group only."
        ),
    ]


def confusion(audit: Fields, order: Sequence[str]) -> list[PageBlock]:
    """Return which classes the best sorting confuses."""
    found = audit.part("confusion")
    name = next((n for n in order if found is not None and found.value.get(n)), None)
    if found is None or name is None:
        return []
    table: list[list[int]] = found.value[name]
    header = ["class", *(f"as {c}" if c < len(table) else "unnamed" for c in range(len(table[0])))]
    rows: list[list[Cell]] = [[str(c), *counts] for c, counts in enumerate(table)]
    return [TableBlock(header, rows, caption=f"Classes as recovered by {name}")]


def _has(rows: Sequence[Fields], key: str) -> bool:
    return any(row.number(key) is not None for row in rows)


def _compared(audit: Fields, *, places: Sequence[float | None]) -> list[Series]:
    """Return the lines to compare with: the composed certificate and the baseline."""
    rows, base = audit.rows("reference"), audit.part_or_empty("baseline").number("auc")
    kinds = (
        ("gaussian_auc", "composed reference", "reference"),
        ("auc_bound", "composed bound, honest batches", "bound"),
    )
    found = [
        Series(name=words, x=_epochs(rows), y=[row.number(key) for row in rows], look=look)
        for key, words, look in kinds
        if any(row.number(key) is not None for row in rows)
    ]
    whole = sorted({place for place in (*places, *_epochs(rows)) if place is not None})
    if base is not None:
        found.append(Series(name="baseline", x=whole, y=[base] * len(whole), look="baseline"))
    return found


def _epoch_line(rows: Sequence[Fields], name: str, *, style: int, band: bool) -> Series:
    low, high = ([row.number(key) for row in rows] if band else [] for key in ("low", "high"))
    values = [row.number("leak_auc") for row in rows]
    return Series(name=name, x=_epochs(rows), y=values, low=low, high=high, style=style)


def _epochs(rows: Sequence[Fields]) -> list[float | None]:
    """Return the epochs, counted from 1."""
    return [None if (at := row.number("epoch")) is None else at + 1 for row in rows]


def distributions(audit: Fields, order: Sequence[str]) -> list[PageBlock]:
    """Return the score densities of the strongest attacks."""
    found = audit.named("histograms")
    kept = [_histogram(name, found[name]) for name in order if name in found]
    kept = [part for part in kept if part.edges][:_DENSITIES]
    if not kept:
        return []
    return [
        Heading("Scores of each class"),
        Paragraph("The strongest attacks. What leaks is the part that does not overlap."),
        SideBySide([Figure(densities(part)) for part in kept]),
    ]


def _histogram(name: str, part: Fields) -> Histogram:
    edges, negatives, positives = (
        [0.0 if value is None else value for value in part.numbers(key)]
        for key in ("edges", "negatives", "positives")
    )
    if edges and not len(edges) == len(negatives) + 1 == len(positives) + 1:
        raise InputError(
            f"the record's field {part.where} needs one edge more than densities, got "
            f"{len(edges)} edges, {len(negatives)} and {len(positives)} densities"
        )
    return Histogram(attack=name, edges=edges, negatives=negatives, positives=positives)


def curves(audit: Fields, order: Sequence[str]) -> list[PageBlock]:
    """Return the ROC curves of the strongest attacks."""
    found = audit.named("curves")
    kept = [_curve(name, found[name], style=i) for i, name in enumerate(order) if name in found]
    kept = [curve for curve in kept if curve.fpr][:_LINES]
    if not kept:
        return []
    return [
        Heading("ROC curves"),
        Figure(roc(kept)),
        Paragraph(
            "A curve that rises at the far left means that some labels are known almost for "
            "certain, even where the AUC as a whole looks modest."
        ),
    ]


def _curve(name: str, part: Fields, *, style: int) -> Curve:
    pairs = zip(part.numbers("fpr"), part.numbers("tpr"), strict=False)
    known = [(fpr, tpr) for fpr, tpr in pairs if fpr is not None and tpr is not None]
    return Curve(attack=name, fpr=[f for f, _ in known], tpr=[t for _, t in known], style=style)


def galleries(
    audit: Fields, order: Sequence[str], pictures: Mapping[str, Pixels]
) -> list[PageBlock]:
    """Return some examples of the strongest attacks, or why none are shown."""
    part = audit.part("pictures")
    if part is None:
        return []
    found = part.named("attacks")
    names = [name for name in order if name in found][:_GALLERIES]
    reason = part.text("reason") or ("" if pictures else _NOT_KEPT)
    if reason:
        return [_HEADING, Paragraph(f"No pictures are shown: {reason}.")]
    blocks: list[PageBlock] = [_HEADING, Paragraph(_TILES)] if names else []
    for name in names:
        blocks += _gallery(name, found[name], part, pictures)
    return blocks


def _gallery(
    name: str, attack: Fields, part: Fields, pictures: Mapping[str, Pixels]
) -> list[PageBlock]:
    called = part.texts("class_names")
    drawn, more = (
        [_tile(row, called, pictures) for row in attack.rows(key)]
        for key in ("drawn", "more_wrong")
    )
    total, wrong = attack.number("examples") or 0, attack.number("wrong") or 0
    hits = sum(tile.wrong for tile in drawn)
    blocks: list[PageBlock] = [
        Tiles(
            f"{name}: {len(drawn)} of {total:,} examples of {part.text('source')}, drawn at random "
            f"(seed {part.number('seed')}); {hits} of them wrong, {wrong:,} of all "
            f"({wrong / max(1, total):.1%})",
            drawn,
        )
    ]
    if more:
        blocks.append(Tiles(f"{name}: wrong ones only, {len(more)} more, drawn at random", more))
    return blocks


def _tile(row: Fields, called: Sequence[str], pictures: Mapping[str, Pixels]) -> Tile:
    label, recovered = row.number("label"), row.number("recovered")
    example = row.text("id")
    return Tile(
        address=data_address(pictures[example]) if example in pictures else "data:,",
        example=example,
        label=_class_name(label, called),
        recovered=_class_name(recovered, called),
        wrong=label != recovered,
    )


def _class_name(label: float | None, called: Sequence[str]) -> str:
    """Return a class by name, by number where it has none."""
    if label is None:
        return "no class"
    place = int(label)
    return called[place] if 0 <= place < len(called) else str(place)
