"""Examples that people can look at, with the labels that attacks recovered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tacit.fields import Fields
from tacit.report.blocks import Heading, PageBlock, Paragraph, Tile, Tiles
from tacit.report.png import Pixels, data_address

_ATTACKS = 6
_HEADING = Heading("Examples with their recovered labels")
_READING = (
    "Below each picture its true label, and the one that the attack found in the recording (for "
    "groups: the label that the group is named after). A wrong one has a broken frame, a cross and "
    "the word."
)
_NOT_KEPT = "a record has no pixels: let tacit audit write the page (--out)"


def galleries(
    audit: Fields, order: Sequence[str], pictures: Mapping[str, Pixels]
) -> list[PageBlock]:
    """Return some examples of the attacks that got furthest, or why none are shown."""
    part = audit.part("pictures")
    if part is None:
        return []
    found = part.named("attacks")
    names = [name for name in order if name in found][:_ATTACKS]
    reason = part.text("reason") or ("" if pictures else _NOT_KEPT)
    if reason:
        return [_HEADING, Paragraph(f"No pictures are shown: {reason}.")]
    blocks: list[PageBlock] = [_HEADING, Paragraph(_READING)] if names else []
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
        label=_named(label, called),
        recovered=_named(recovered, called),
        wrong=label != recovered,
    )


def _named(label: float | None, called: Sequence[str]) -> str:
    """Return a class by name, by number where it has none."""
    if label is None:
        return "no class"
    place = int(label)
    return called[place] if 0 <= place < len(called) else str(place)
