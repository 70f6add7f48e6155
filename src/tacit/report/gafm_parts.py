"""What a page of training runs says of GAFM: its gradients' parts, and how delta was found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tacit.fields import Fields
from tacit.report.blocks import Cell, Figure, Heading, PageBlock, Paragraph, SideBySide, TableBlock
from tacit.report.plots import COMPONENTS, component_plot, ratio_plot

_GRADIENTS = (
    "Each point is an example of the last epoch. Where the two classes lie apart along the "
    "gradient's axis, the gradient tells the label. The objective is designed so that its parts "
    "move the classes in opposite directions and cancel out. The distance under each picture is a "
    "cross-fitted lower estimate of the total variation between the classes: 0 is no difference."
)
_EMBEDDING_LEAK = (
    "The feature parties' own output, by itself and without any gradient, ranks the labels of "
    "examples that were held out with an AUC of {value:.3f}: what a gradient hides is not hidden "
    "from whoever holds the trained embedding."
)
_JOINT_LEAK = (
    "Read beside the embedding that each belongs to, the gradients of this one epoch tell "
    "the label with an AUC of {value:.3f} to whoever knows half of the labels (nearest neighbours, "
    "each half judged by the other)."
)
_FLIPPED = (
    "The generator had learnt the two classes the wrong way round (raw test AUC {value:.3f}); the "
    "label party reversed its predictions by its training labels, without sending anything."
)


def gafm_parts(runs: Mapping[str, Fields]) -> list[PageBlock]:
    """Return the parts of the gradients at a cut one number wide, and what the embedding tells."""
    blocks: list[PageBlock] = []
    for run, results in runs.items():
        found = results.part_or_empty("components")
        if not found.numbers("label"):
            continue
        gradients = found.part_or_empty("gradients")
        plots = [
            Figure(
                component_plot(
                    name,
                    _or_zero(found.numbers("prediction")),
                    _or_zero(gradients.numbers(name)),
                    _or_zero(found.numbers("label")),
                )
            )
            for name in gradients.value
        ]
        distances = found.part_or_empty("tvd")
        rows: list[list[Cell]] = [
            [COMPONENTS.get(name, name), distances.number(name)] for name in gradients.value
        ]
        title = "Prediction against gradient" + (f": {run}" if len(runs) > 1 else "")
        blocks += [Heading(title), SideBySide(plots)]
        blocks.append(TableBlock(["gradient", "distance of the classes"], rows, caption=title))
        blocks += [Paragraph(_GRADIENTS), *_notes(results), *_delta_selection(results)]
    return blocks


def _notes(found: Fields) -> list[PageBlock]:
    notes: list[PageBlock] = []
    own = found.number("embedding_leak")
    if own is not None:
        notes.append(Paragraph(_EMBEDDING_LEAK.format(value=own)))
    joint = found.part_or_empty("components").number("joint_leak")
    if joint is not None:
        notes.append(Paragraph(_JOINT_LEAK.format(value=joint)))
    raw = found.part_or_empty("test").number("raw_auc")
    if found.part_or_empty("objective_record").flag("flipped") and raw is not None:
        notes.append(Paragraph(_FLIPPED.format(value=raw)))
    claim = found.part_or_empty("objective_record").text("claim")
    if claim:
        notes.append(Paragraph(f"What the objective claims: {claim}."))
    return notes


def _delta_selection(found: Fields) -> list[PageBlock]:
    choice = found.part_or_empty("delta_selection")
    ratios: dict[str, dict[float, float]] = {}
    for row in choice.rows("rows"):
        delta = row.number("delta")
        for attack in row.part_or_empty("ratios").value:
            value = row.part_or_empty("ratios").number(attack)
            if delta is not None and value is not None:
                ratios.setdefault(attack, {})[delta] = value
    if not ratios:
        return []
    title = "Leak AUC / training AUC over delta"
    return [Figure(ratio_plot(ratios, title=title, chosen=choice.number("delta")))]


def _or_zero(values: Sequence[float | None]) -> list[float]:
    return [0.0 if value is None else value for value in values]
