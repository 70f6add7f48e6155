"""The page of training runs: one by itself, or several compared."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from tacit.fields import Fields, finite
from tacit.report.blocks import (
    Cell,
    Facts,
    Figure,
    Heading,
    PageBlock,
    Paragraph,
    SideBySide,
    TableBlock,
    Verdict,
)
from tacit.report.figures import Plot, Series, line_plot
from tacit.report.gafm_parts import gafm_parts
from tacit.report.page import write_page
from tacit.report.plots import Dot, dots, trade_off
from tacit.report.tradeoff import NOTHING_LEAKED

_MEMORY = "memory"  # the attack that adds up all releases; its result may stand by itself


@final
@dataclass(frozen=True)
class _Run:
    """One run's results, under the name that the page gives it."""

    name: str
    found: Fields

    @property
    def leaks(self) -> dict[str, Fields]:
        """The leak of each attack over the whole run."""
        return _leaks_of(self.found)

    @property
    def history(self) -> list[Fields]:
        """The measures at the end of each epoch or day."""
        return self.found.rows("history")

    @property
    def silent(self) -> bool:
        """Whether no gradient was sent."""
        return self.found.text("protection") == "silent"

    @property
    def memory(self) -> float | None:
        """The leak AUC of the attack that adds up all epochs."""
        return _memory(self.found)

    @property
    def test_auc(self) -> float | None:
        """The model's AUC on the test rows."""
        return self.found.part_or_empty("test").number("auc")

    @property
    def public_auc(self) -> float | None:
        """The same of the model of both parties, where a private head predicts."""
        return self.found.part_or_empty("public_test").number("auc")

    @property
    def bound(self) -> float | None:
        """What the last certificate claims for one release."""
        return self.found.part_or_empty("certificate").number("auc_bound")

    def worst(self) -> tuple[float | None, str]:
        """Return the highest leak AUC and the attack that reached it.

        >>> _Run("a", Fields({"leak": {"norm": {"pooled": 0.5}}, "memory_leak": 0.9}, "")).worst()
        (0.9, 'memory')
        >>> _Run("a", Fields({"protection": "silent"}, "")).worst()
        (0.5, '')
        """
        if self.silent:
            return NOTHING_LEAKED, ""
        values = [(leak.number("pooled"), name) for name, leak in self.leaks.items()]
        known = [(value, name) for value, name in values if value is not None]
        return max(known, default=(None, ""))


def _leaks_of(found: Fields) -> dict[str, Fields]:
    """Return the leak of each attack in a run or a part of it, that of memory among them.

    >>> found = Fields({"leak": {"norm": {"pooled": 0.5}}, "memory_leak": 0.9}, "")
    >>> {name: leak.number("pooled") for name, leak in _leaks_of(found).items()}
    {'norm': 0.5, 'memory': 0.9}
    """
    leaks = found.named("leak")
    if (memory := _memory(found)) is not None and _MEMORY not in leaks:
        leaks[_MEMORY] = Fields({"pooled": memory}, f"{found.where}.memory_leak")
    return leaks


def _memory(found: Fields) -> float | None:
    if isinstance(found.value.get("memory_leak"), Mapping):
        return found.part_or_empty("memory_leak").number("pooled")
    return found.number("memory_leak")


_SPAN = (0.49, 1.01)
_PUBLIC = "public_test.auc"
# Field, heading and value; the data set only where runs differ in it, the model of both parties
# only where a private head predicts in its place.
_COLUMNS: tuple[tuple[str, str, Callable[[_Run], Cell]], ...] = (
    ("run", "run", lambda run: run.name),
    ("protection", "protection", lambda run: run.found.text("protection")),
    ("dataset", "data", lambda run: run.found.text("dataset")),
    ("test.auc", "test AUC", lambda run: run.test_auc),
    (_PUBLIC, "of both parties", lambda run: run.public_auc),
    ("train.loss", "train loss", lambda run: run.found.part_or_empty("train").number("loss")),
    ("worst", "worst leak", lambda run: run.worst()[0]),
    ("worst_attack", "by", lambda run: run.worst()[1]),
    ("memory_leak", "memory leak", lambda run: run.memory),
    ("embedding_leak", "own output", lambda run: run.found.number("embedding_leak")),
    ("certificate.auc_bound", "bound", lambda run: run.bound),
    ("seconds", "seconds", lambda run: run.found.number("seconds")),
)
_READING = (
    "Leak AUC is how well an attack ranks the label party's positives, whichever end they come out "
    "at: 0.5 is nothing, 1.0 is every label. Mean and q95 are taken over batches, where chance "
    "alone lifts the number; the dots compare all batches together. Memory adds up the releases of "
    "each example from the first one on, and compares examples. The bound is that of one "
    "release for honest batches, under its certificate's assumption: releases of the same examples "
    "add up. Own output is the leak AUC of the feature parties' embedding itself, where it is one "
    "number wide."
)
_SILENT = (
    "A silent run sends no gradient: its worst leak is 0.5 by construction, whatever the features "
    "tell of labels. Its price is on the other side: embeddings show inputs."
)


def runs_page(path: Path, runs: Mapping[str, Mapping[str, Any]]) -> None:
    """Write one page about the results of one or several training runs, by name."""
    kept = finite(runs)
    every = [_Run(name, Fields(found, name)) for name, found in kept.items()]
    one = every[0] if len(every) == 1 else None
    write_page(
        path,
        title=f"Training run: {one.name}" if one else f"{len(every)} training runs compared",
        subtitle=_subtitle(every),
        blocks=[
            *_verdicts(every),
            *_notes(every),
            *_beside_silence(every),
            *([Facts(_facts(one))] if one else []),
            Heading("Results"),
            _table(every),
            *_leakage(every),
            *_over_time(every),
            *_tradeoff(every),
            *_layers(every),
            *gafm_parts({run.name: run.found for run in every}),
            *_releases(every),
        ],
        record={"runs": kept},
    )


def _subtitle(runs: Sequence[_Run]) -> str:
    models = dict.fromkeys(
        f"{run.found.text('model') or 'a model'} on {run.found.text('dataset') or 'unnamed data'}"
        for run in runs
    )
    return f"A split model trained across parties: {', '.join(models)}."


def _verdicts(runs: Sequence[_Run]) -> list[PageBlock]:
    """Return the verdict of one run; of several, the verdicts of those that leak."""
    found = [(run.name, run.found.part("verdict")) for run in runs]
    verdicts = [
        (name, one.text("state"), one.text("text")) for name, one in found if one is not None
    ]
    if len(runs) == 1:
        attacked = not runs[0].silent
        return [Verdict(state, text, attacked) for _, state, text in verdicts]
    return [Paragraph(f"{name}: {text}") for name, state, text in verdicts if state == "leaks"]


def _notes(runs: Sequence[_Run]) -> list[PageBlock]:
    notes: list[PageBlock] = []
    if len({run.found.text("dataset") for run in runs}) > 1:
        notes.append(
            Paragraph("These runs used different data sets: their numbers do not compare.")
        )
    stopped = [run.name for run in runs if run.found.flag("interrupted")]
    if stopped:
        notes.append(Paragraph(f"Interrupted before the end: {', '.join(stopped)}."))
    return notes


def _facts(run: _Run) -> list[tuple[str, Cell, str]]:
    leak, attack = run.worst()
    found, test = run.found, run.found.part_or_empty("test")
    return [
        ("Protection", found.text("protection") or None, found.text("objective")),
        ("Test AUC", run.test_auc, _note("accuracy", test.number("accuracy"))),
        ("Worst leak AUC", leak, _found_by(run, attack)),
        (
            "Bound of one release",
            run.bound,
            _holds_for(run),
        ),
        ("Steps", found.number("steps"), f"{found.number('epochs') or '–'} epochs"),
        ("Seconds", found.number("seconds"), _note("steps/s", found.number("steps_per_second"))),
    ]


def _found_by(run: _Run, attack: str) -> str:
    if run.silent:
        return "no gradient was sent"
    return f"by {attack}" if attack else ""


def _holds_for(run: _Run) -> str:
    if run.silent:
        return "by construction, whatever the other side does"
    return "no certificate" if run.bound is None else "for honest batches, under its assumption"


def _table(runs: Sequence[_Run]) -> TableBlock:
    shown = {
        "dataset": len({run.found.text("dataset") for run in runs}) > 1,
        _PUBLIC: any(run.public_auc is not None for run in runs),
    }
    columns = [column for column in _COLUMNS if shown.get(column[0], True)]
    return TableBlock(
        [heading for _, heading, _ in columns],
        [[value(run) for _, _, value in columns] for run in [*runs, *_silent_rows(runs)]],
        caption="Results of each run",
        fields=[field for field, _, _ in columns],
    )


def _silent_rows(runs: Sequence[_Run]) -> list[_Run]:
    """Return what silence gave on the split and seed of a run, as one more run of the table."""
    return [
        _Run(
            "silent" if len(runs) == 1 else f"{run.name}, silent",
            Fields(
                {
                    "protection": "silent",
                    "dataset": run.found.text("dataset"),
                    "test": {"auc": run.found.part_or_empty("silent").number("auc")},
                },
                f"{run.name}.silent",
            ),
        )
        for run in runs
        if run.found.part("silent") is not None
    ]


def _beside_silence(runs: Sequence[_Run]) -> list[PageBlock]:
    """Return what gradients gained over silence: by a run's own comparison, or by a silent run."""
    told: list[PageBlock] = []
    for run in runs:
        text = run.found.part_or_empty("silent").text("text")
        if text:
            told.append(Paragraph(text if len(runs) == 1 else f"{run.name}: {text}"))
    for silent in [run for run in runs if run.silent and run.test_auc is not None]:
        below = [
            f"{run.name} ({run.test_auc:.4f})"
            for run in runs
            if not run.silent
            and run.found.text("dataset") == silent.found.text("dataset")
            and run.test_auc is not None
            and silent.test_auc is not None
            and run.test_auc < silent.test_auc
        ]
        if below:
            told.append(
                Paragraph(
                    f"Below {silent.name}, which sent no gradient and has a test AUC of "
                    f"{silent.test_auc:.4f}: {', '.join(below)}. Their gradients are not worth "
                    "sending."
                )
            )
    if any(run.silent for run in runs):
        told.append(Paragraph(_SILENT))
    return told


def _leakage(runs: Sequence[_Run]) -> list[PageBlock]:
    groups = {run.name: _dots(run) for run in runs}
    groups = {name: found for name, found in groups.items() if found}
    if not groups and all(run.silent for run in runs):
        return []  # the verdict says why there is nothing to attack
    if not groups:
        return [Paragraph("No attack ran: nothing is known about leakage.")]
    plot = dots(groups, title="Leak AUC of each attack, all batches together")
    fields = ("pooled", "low", "high", "null_high", "mean", "q95")
    rows: list[list[Cell]] = [
        [attack, run.name, *(run.leaks[attack].number(field) for field in fields)]
        for attack in _attacks(runs)
        for run in runs
        if attack in run.leaks
    ]
    table = TableBlock(
        ["attack", "run", "leak AUC", "low", "high", "null to", "batch mean", "batch q95"],
        rows,
        caption="Leakage by attack and run",
        fields=["attack", "run", *fields],
    )
    return [Heading("Leakage by attack"), Figure(plot), table, Paragraph(_READING)]


def _dots(run: _Run) -> list[Dot]:
    return [
        Dot(
            name=name,
            value=leak.number("pooled"),
            low=leak.number("low"),
            high=leak.number("high"),
            null_low=None if leak.number("null_high") is None else 0.5,
            null_high=leak.number("null_high"),
            bound=None if name.startswith(_MEMORY) else run.bound,  # that of one release
        )
        for name, leak in run.leaks.items()
        if leak.number("pooled") is not None
    ]


def _over_time(runs: Sequence[_Run]) -> list[PageBlock]:
    unit = _unit(runs)
    utility = [
        Series(
            name=run.name,
            x=_numbers(run.history),
            style=place,
            y=[part.part_or_empty("test").number("auc") for part in run.history],
        )
        for place, run in enumerate(runs)
        if run.history
    ]
    if not utility:
        return []
    plot = line_plot(utility, title=f"Test AUC after each {unit}", x=unit, y="test AUC")
    return [Heading(f"{unit.capitalize()} by {unit}"), Figure(plot), *_leaks_over_time(runs, unit)]


def _leaks_over_time(runs: Sequence[_Run], unit: str) -> list[PageBlock]:
    """Return one plot of all attacks for one run; for several, a plot per attack."""
    attacks = _attacks(runs)
    if len(runs) == 1:
        drawn = [
            _leak_line(runs[0], attack, name=attack, style=i) for i, attack in enumerate(attacks)
        ]
        drawn = [line for line in drawn if line.x]
        return [Figure(_leak_plot(drawn, f"Leak AUC in each {unit}", unit))] if drawn else []
    plots = []
    for attack in attacks:
        drawn = [_leak_line(run, attack, name=run.name, style=i) for i, run in enumerate(runs)]
        drawn = [line for line in drawn if line.x]
        if drawn:
            plots.append(Figure(_leak_plot(drawn, f"Leak AUC of {attack} in each {unit}", unit)))
    return [SideBySide(plots)] if plots else []


def _leak_plot(drawn: Sequence[Series], title: str, unit: str) -> Plot:
    return line_plot(drawn, title=title, x=unit, y="leak AUC", span=_SPAN)


def _leak_line(run: _Run, attack: str, *, name: str, style: int) -> Series:
    parts = [part for part in run.history if attack in _leaks_of(part)]
    found = [_leaks_of(part)[attack] for part in parts]
    values, low, high = ([leak.number(key) for leak in found] for key in ("pooled", "low", "high"))
    return Series(name=name, x=_numbers(parts), y=values, low=low, high=high, style=style)


def _tradeoff(runs: Sequence[_Run]) -> list[PageBlock]:
    points = [
        (run.name, leak, run.test_auc)
        for run in runs
        if (leak := run.worst()[0]) is not None and run.test_auc is not None
    ]
    if not points:
        return []
    plot = trade_off(points, x="worst leak AUC", y="test AUC")
    return [Heading("Trade-off"), Figure(plot), Paragraph("Better is up and to the left.")]


def _layers(runs: Sequence[_Run]) -> list[PageBlock]:
    rows: list[list[Cell]] = [
        [run.name, layer, attack, leak.number("pooled"), leak.number("low"), leak.number("high")]
        for run in runs
        for layer, inner in run.found.named("layers").items()
        for attack, leak in ((name, inner.part_or_empty(name)) for name in inner.value)
    ]
    if not rows:
        return []
    header = ["run", "layer", "attack", "leak AUC", "low", "high"]
    return [
        Heading("Leakage by layer"),
        TableBlock(header, rows, caption="Leak AUC of the gradients at each layer"),
    ]


def _releases(runs: Sequence[_Run]) -> list[PageBlock]:
    rows: list[list[Cell]] = [
        [run.name, how, run.found.part_or_empty("release_parameters").number(how)]
        for run in runs
        for how in run.found.part_or_empty("release_parameters").value
    ]
    claims = {run.name: run.found.part_or_empty("certificate").text("assumption") for run in runs}
    assumed: list[list[Cell]] = [[name, text] for name, text in claims.items() if text]
    blocks: list[PageBlock] = []
    if rows:
        caption = "Where the protection's parameters came from"
        blocks.append(TableBlock(["run", "parameters", "releases"], rows, caption=caption))
    if assumed:
        caption = "What each certificate assumes"
        blocks.append(TableBlock(["run", "assumption"], assumed, caption=caption))
    return [Heading("What was released, and what is claimed"), *blocks] if blocks else []


def _attacks(runs: Sequence[_Run]) -> list[str]:
    return list(dict.fromkeys(name for run in runs for name in run.leaks))


def _unit(runs: Sequence[_Run]) -> str:
    """Return what the parts of a run are: only the first day of a stream has no test."""
    return "day" if any(r.history and r.history[0].part("test") is None for r in runs) else "epoch"


def _numbers(parts: Sequence[Fields]) -> list[float | None]:
    """Return the numbers of parts, counted from 1; a party's run counts epochs."""
    found = [part.number("epoch" if "epoch" in part.value else "part") for part in parts]
    return [None if at is None else at + 1 for at in found]


def _note(what: str, number: float | None) -> str:
    return "" if number is None else f"{what} {number:.3f}"
