"""A table or figure of a paper: the trials to run, and what their records come to."""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, final

from tacit._config import PLAIN
from tacit.errors import UsageError
from tacit.experiment.config import TrainConfig
from tacit.experiment.sweep_store import TrialRecord
from tacit.experiment.sweep_worker import TRAIN
from tacit.report import Plot


@final
@dataclass(frozen=True, kw_only=True)
class Spread:
    """A mean over repetitions, with the standard deviation where there are several.

    >>> str(Spread(mean=0.9344, sd=0.0121, count=3)), str(Spread(mean=0.5, count=1))
    ('0.934 ± 0.012', '0.500')
    """

    mean: float
    sd: float | None = None
    count: int = 1

    def __str__(self) -> str:
        return f"{self.mean:.3f}" + ("" if self.sd is None else f" ± {self.sd:.3f}")


Cell = str | float | Spread | None


@final
@dataclass(frozen=True, kw_only=True)
class Published:
    """A number that a paper's text or table states, and where."""

    what: str
    value: float
    source: str
    sd: float | None = None


_VERDICTS = {True: "holds", False: "does not hold", None: "cannot tell"}


@final
@dataclass(frozen=True, kw_only=True)
class PaperClaim:
    """A statement of the paper, checked; ``holds`` is None where the trials cannot tell.

    ``expected`` is what the statement asks of the numbers, ``found`` what they are.
    """

    text: str
    source: str
    holds: bool | None
    found: str
    expected: str = ""

    @property
    def words(self) -> str:
        """What was expected, what came, and whether the statement holds.

        >>> PaperClaim(text="", source="", holds=True, expected="above 0.9", found="0.95").words
        'expected above 0.9, measured 0.95: holds'
        """
        expected = f"expected {self.expected}, " if self.expected else ""
        return f"{expected}measured {self.found}: {_VERDICTS[self.holds]}"


@final
@dataclass(frozen=True, kw_only=True)
class Tabulated:
    """A table of ours, with the paper's numbers beside them where it states some."""

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    note: str = ""


@final
@dataclass(frozen=True, kw_only=True)
class Finding:
    """What a study's records come to; ``tradeoffs`` are (leak, utility) pairs to draw as SVG."""

    tables: Sequence[Tabulated]
    claims: Sequence[PaperClaim] = ()
    figures: Sequence[Plot] = ()
    tradeoffs: Sequence[tuple[str, str]] = ()
    left_out: Sequence[str] = ()


Values = dict[str, Any]
Plan = Callable[[bool], Sequence[Mapping[str, Any]]]
Read = Callable[[Sequence[TrialRecord]], Finding]


@final
@dataclass(frozen=True, kw_only=True)
class Study:
    """One table or figure of a paper.

    Attributes:
        name: as the command takes it; ``paper/name`` works too.
        paper: the paper's short name.
        title: one line.
        place: where in the paper.
        plan: fields of ``TrainConfig`` for every trial, beside those of ``PLAIN``; True asks for
            the paper's own setting.
        read: turns the records of the trials that ran to their end into the finding.
        scaled: what ``--quick`` scales down against ``--full``, one line each.
        departs: what differs from the paper at either scale.
        published: the paper's own numbers.
        task: what a worker does with a configuration.
        full_task: the same for ``--full``, where that differs.
        alone: one trial at a time, because it measures time.
        released: makes a trial one of the authors' released code, where that differs from the text
            in what changes results; None where it does not, or is not known.
        released_differs: how it differs, one line each.
        hours: the processor hours that the trials take at most, for studies where they are many.
    """

    name: str
    paper: str
    title: str
    place: str
    plan: Plan
    read: Read
    scaled: Sequence[str]
    departs: Sequence[str] = ()
    published: Sequence[Published] = ()
    task: str = TRAIN
    full_task: str | None = None
    alone: bool = False
    released: Callable[[Mapping[str, Any]], Values] | None = None
    released_differs: Sequence[str] = ()
    hours: Callable[[Sequence[TrainConfig]], float] | None = None

    @property
    def full_name(self) -> str:
        """The name with its paper."""
        return f"{self.paper}/{self.name}"

    def trials(self, full: bool, *, released: bool = False) -> list[Values]:
        """Return the fields of every trial, with nothing left to the defaults of a training."""
        if released and self.released is None:
            raise UsageError(
                f"--as-released: {self.full_name} has no other procedure in the authors' code, as "
                "far as it is known here: leave the flag out"
            )
        trials = self.plan(full)
        if released and self.released is not None:
            trials = [self.released(trial) for trial in trials]
        return [{**PLAIN, **trial} for trial in trials]

    def number(self, what: str) -> float:
        """Return a published number by its name."""
        return next(one.value for one in self.published if one.what == what)


def published_table(name: str) -> list[dict[str, str]]:
    """Return the rows of a table as a paper states it, from ``published/NAME.csv``.

    >>> published_table("exploit_table2")[0]["no LPR"]
    '0.6829'
    """
    text = (files("tacit.papers") / "published" / f"{name}.csv").read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines()))
