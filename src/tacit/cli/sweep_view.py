"""The live view of a sweep: how many trials have ended, how many failed, and the time left."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, final

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

if TYPE_CHECKING:
    from tacit.experiment.sweep import SweepProgress
    from tacit.experiment.sweep_store import TrialRecord


@final
class SweepView:
    """A bar on standard error; where that is no terminal, a line per trial."""

    def __init__(self, name: str, *, quiet: bool) -> None:
        self.kept = self.ended = 0
        self._console = Console(stderr=True, quiet=quiet, soft_wrap=True)
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[note]}"),
            console=self._console,
            transient=True,
        )
        self._task = self._bar.add_task(escape(name), total=None, note="")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar.live.is_started:
            self._bar.stop()

    def __call__(self, seen: SweepProgress) -> None:
        """Show how far the sweep is."""
        if self._console.is_terminal:
            self._bar.start()
        if seen.last is None and seen.note is None:
            self.kept = seen.kept
            self._say(f"{seen.trials} trials, {seen.kept} of them in the store already")
        self.ended = seen.done + seen.failed
        left = "" if seen.left is None else f", {duration(seen.left)} left"
        note = f"{seen.failed} failed{left}"
        self._bar.update(self._task, completed=self.ended, total=seen.trials, note=note)
        if seen.note is not None:
            self._say(seen.note)
        if seen.last is not None and (seen.last.error or not self._console.is_terminal):
            self._say(f"{self.ended}/{seen.trials} {_line(seen.last)}{left}")

    def _say(self, text: str) -> None:
        self._bar.console.print(text, markup=False, highlight=False)


def duration(seconds: float) -> str:
    """Return a duration in its two largest units.

    >>> duration(7.4), duration(125), duration(3 * 3600 + 59)
    ('7 s', '2 min 5 s', '3 h 0 min')
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def _line(record: TrialRecord) -> str:
    config = record.config
    parts = [str(config.get("dataset")), str(config.get("protect"))]
    parts += [str(config["labels"])] if config.get("labels") else []
    what = ", ".join([*parts, f"seed {config.get('seed')}"])
    if record.error is not None:
        return f"{what}: failed: {record.error}"
    test: Any = (record.results or {}).get("test") or {}
    auc = f" test AUC {test['auc']:.4f}," if isinstance(test.get("auc"), float) else ""
    return f"{what}:{auc} {record.run.get('seconds', 0):.1f} s"
