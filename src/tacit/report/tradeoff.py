"""Leakage against utility, from the records of a sweep: families over their strength, by panel."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, final

from tacit.errors import SpecError
from tacit.fields import Fields
from tacit.spec import Item, nearest, parse

_UTILITIES = ("test.auc", "test.loss", "train.loss", "test.accuracy", "test.nce", "test.ace")
_KINDS = ("q95", "mean", "pooled", "signed_q95", "signed")
# The trials of a panel differ in these settings only.
_INNER = ("protect", "labels", "seed")
_DATA = ("dataset", "rows", "parties")
"""What a silent trial shares with those that it is compared with: it has a training of its own."""
_OF_SILENT = ("pretrain", "width", "head", "embed_bits", "embed_noise", "epochs", "lr")
"""What tells silent trials of one panel apart."""
NOTHING_LEAKED = 0.5
"""The leak AUC of a run that sent nothing which depends on labels."""


@final
@dataclass(frozen=True, kw_only=True)
class Strength:
    """The trials of one protection at one strength: they differ in nothing but their seeds."""

    name: str
    order: tuple[float, ...]
    trials: Sequence[Fields]

    def values(self, axis: str) -> list[float | None]:
        """Return a measure of every trial."""
        return [value_of(trial, axis) for trial in self.trials]

    def mean(self, axis: str) -> float | None:
        """Return a measure's mean over the seeds."""
        known = [value for value in self.values(axis) if value is not None]
        return fmean(known) if known else None


@final
@dataclass(frozen=True, kw_only=True)
class Family:
    """One kind of protection over its strengths, weakest number first."""

    name: str
    strengths: Sequence[Strength]


@final
@dataclass(frozen=True, kw_only=True)
class Panel:
    """Families on the same data set, model and settings; ``title`` names what panels differ in."""

    title: str
    families: Sequence[Family]

    @property
    def trials(self) -> list[Fields]:
        """Every trial of the panel."""
        return [t for f in self.families for s in f.strengths for t in s.trials]


def panels_of(records: Iterable[Mapping[str, Any]]) -> list[Panel]:
    """Return the trials that ran to their end, in one panel for each setting.

    Silent trials are in every panel of their data: how end-to-end models are trained is nothing to
    them.
    """
    trials = [
        Fields(record, f"trial[{i}]")
        for i, record in enumerate(records)
        if record.get("state") == "done"
    ]
    silent = [trial for trial in trials if is_silent(trial)]
    sending = [trial for trial in trials if not is_silent(trial)]
    groups: dict[str, list[Fields]] = {}
    varied = _varied([_settings(trial) for trial in sending])
    for trial in sending:
        title = ", ".join(f"{name} {_settings(trial).get(name)}" for name in varied)
        groups.setdefault(title, []).append(trial)
    for trial in silent:
        same = [found for found in groups.values() if _data(found[0]) == _data(trial)]
        for found in same or [groups.setdefault(_data_title(trial, silent), [])]:
            found.append(trial)
    return [Panel(title=title, families=_families(found)) for title, found in groups.items()]


def is_silent(trial: Fields) -> bool:
    """Return whether a trial sent no gradient."""
    return trial.part_or_empty("config").text("protect") == "silent"


def _settings(trial: Fields) -> Mapping[str, Any]:
    return trial.part_or_empty("config").value


def _data(trial: Fields) -> list[Any]:
    return [_settings(trial).get(name) for name in _DATA]


def _data_title(trial: Fields, silent: Sequence[Fields]) -> str:
    """Return what the data of a silent trial are called, where none sends gradients on them."""
    varied = [name for name in _varied([_settings(one) for one in silent]) if name in _DATA]
    return ", ".join(f"{name} {_settings(trial).get(name)}" for name in varied)


def _varied(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    names = dict.fromkeys(name for config in settings for name in config)
    return [
        name
        for name in names
        if name not in _INNER and len({json.dumps(c.get(name)) for c in settings}) > 1
    ]


def _families(trials: Sequence[Fields]) -> list[Family]:
    found: dict[str, dict[tuple[tuple[float, ...], str], list[Fields]]] = {}
    silent = _varied([_settings(trial) for trial in trials if is_silent(trial)])
    told = [name for name in silent if name in _OF_SILENT]
    for trial in trials:
        config = trial.part_or_empty("config")
        protect, labels = config.text("protect") or "none", config.text("labels")
        family, order = family_of(protect, labels)
        name = " + ".join(text for text in (protect, labels) if text and text != "none") or "none"
        if is_silent(trial):
            name = ", ".join([name, *(f"{one} {config.value.get(one)}" for one in told)])
            order = (config.number("width") or 0.0,)
        found.setdefault(family, {}).setdefault((order, name), []).append(trial)
    return [
        Family(
            name=family,
            strengths=[
                Strength(name=name, order=order, trials=_by_seed(same))
                for (order, name), same in sorted(strengths.items(), key=lambda item: item[0])
            ],
        )
        for family, strengths in sorted(found.items(), key=lambda item: item[0])
    ]


def _by_seed(trials: Sequence[Fields]) -> list[Fields]:
    return sorted(trials, key=lambda trial: trial.part_or_empty("config").number("seed") or 0)


def family_of(protect: str, labels: str = "") -> tuple[str, tuple[float, ...]]:
    """Return the name of a protection without its numbers, and the numbers.

    >>> family_of("iso(t=1) | marvell(s=4, covariance=full)")
    ('iso(t) | marvell(s, covariance=full)', (1.0, 4.0))
    >>> family_of("none", "rr(epsilon=0.5)")
    ('rr(epsilon)', (0.5,))
    """
    names: list[str] = []
    order: list[float] = []
    for text in (protect, labels):
        if text and text != "none":
            parts = []
            for item in parse(text):
                name, numbers = _item(item)
                parts.append(name)
                order += numbers
            names.append(" | ".join(parts))
    return " + ".join(names) or "none", tuple(order)


def _item(item: Item) -> tuple[str, list[float]]:
    said, numbers = [], []
    for name, value in (*(("", v) for v in item.positional), *item.named):
        if isinstance(value, (int, float)):
            numbers.append(float(value))
            said += [name] if name else []
        else:
            shown = value.name if isinstance(value, Item) else str(value)
            said.append(f"{name}={shown}" if name else shown)
    return (f"{item.name}({', '.join(said)})" if said else item.name), numbers


def value_of(trial: Fields, axis: str) -> float | None:
    """Return a measure by its dotted name, as the rows of a sweep name it.

    >>> found = {"layers": {"bottom.0": {"norm": {"mean": 0.6}}}}
    >>> value_of(Fields({"results": found}, ""), "layers.bottom.0.norm.mean")
    0.6
    """
    if is_silent(trial) and axis.startswith(("leak.", "memory_leak", "layers.")):
        return NOTHING_LEAKED
    found, rest = trial.part_or_empty("results"), axis
    while rest not in found.value:  # a name may hold dots itself
        name = next((key for key in found.value if rest.startswith(f"{key}.")), None)
        if name is None:
            return None
        found, rest = found.part_or_empty(name), rest.removeprefix(f"{name}.")
    return found.number(rest)


def leaks_of(panels: Sequence[Panel]) -> list[str]:
    """Return the measures of leakage that some trial has: of the cut, of memory, of layers."""
    results = [trial.part_or_empty("results") for panel in panels for trial in panel.trials]
    attacks = dict.fromkeys(name for found in results for name in found.named("leak"))
    named = [f"leak.{attack}.{kind}" for attack in attacks for kind in _KINDS]
    memory = any(found.number("memory_leak") is not None for found in results)
    layers = dict.fromkeys(
        f"layers.{layer}.{attack}.{kind}"
        for found in results
        for layer, inner in found.named("layers").items()
        for attack in inner.value
        for kind in _KINDS
    )
    known = [*named, *(["memory_leak"] if memory else []), *layers]
    silent = any(is_silent(trial) for panel in panels for trial in panel.trials)
    return known or (
        ["memory_leak"] if silent else []
    )  # of silence alone there is one leak to draw


def below_silence(panel: Panel) -> list[tuple[str, float, float]]:
    """Return the protections whose mean test AUC is below silence: name, its AUC, and silence's.

    Silence is the best strength of it that was run, by its mean over seeds.
    """
    axis = "test.auc"
    means = [
        (strength, mean)
        for family in panel.families
        for strength in family.strengths
        if (mean := strength.mean(axis)) is not None
    ]
    silent = [mean for strength, mean in means if is_silent(strength.trials[0])]
    if not silent:
        return []
    best = max(silent)
    others = [(one.name, mean) for one, mean in means if not is_silent(one.trials[0])]
    return [(name, mean, best) for name, mean in others if mean < best]


def utilities_of(panels: Sequence[Panel]) -> list[str]:
    """Return the measures of utility that some trial has."""
    trials = [trial for panel in panels for trial in panel.trials]
    return [w for w in _UTILITIES if any(value_of(trial, w) is not None for trial in trials)]


def choose_axis(wanted: str | None, known: Sequence[str], *, option: str) -> str:
    """Return the measure to show first: the one asked for, or cosine's q95, or the first."""
    if wanted is None:
        return "leak.cosine.q95" if "leak.cosine.q95" in known else known[0]
    if wanted not in known:
        raise SpecError(f"{option} {wanted}: no trial has it: {nearest(wanted, list(known))}")
    return wanted
