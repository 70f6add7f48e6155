"""The live view of a run: progress, rate, time left, loss, test AUC and leakage."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, final

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from tacit.experiment.trial import Progress as Seen

MEASURES = {
    "ace": "ace: the gap between predicted and observed frequencies, 0 is best",
    "nce": "nce: the log loss relative to that of the base rate, below 1 is better",
}
"""What the measures whose names say little are."""


@final
class _Rate(ProgressColumn):
    """Steps per second, over the last moments."""

    def render(self, task: Task) -> Text:
        """Return the rate, or nothing before there is one."""
        return Text(f"{task.speed:.1f} steps/s" if task.speed else "")


@final
class LiveView:
    """A progress bar on standard error, and a table of results at the end."""

    def __init__(self, protection: str, dataset: str, *, quiet: bool, unit: str = "epoch") -> None:
        self._unit = unit
        self._console = Console(stderr=True, quiet=quiet)
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            _Rate(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}"),
            console=self._console,
            transient=True,
        )
        self._task = self._bar.add_task(f"{dataset}, {protection}", total=None, note="")

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

    def __call__(self, seen: Seen) -> None:
        """Show one step; the bar appears with the first, after every check has passed."""
        self._bar.start()
        note = (seen.doing or "") if seen.loss is None else f"loss {seen.loss:.4f}"
        total = seen.steps or None  # of some work it is not known how long it takes
        self._bar.update(self._task, completed=seen.step, total=total, note=note)
        if seen.note is not None:
            self._bar.console.print(seen.note)
        if seen.leak is not None:
            self._bar.console.print(_line(seen, self._unit))

    def summary(self, results: dict[str, Any]) -> None:
        """Print what was found."""
        table = Table(title=f"{results['dataset']}, {results['model']}, {results['protection']}")
        table.add_column("measure")
        table.add_column("value", justify="right")
        for name, value in results["test"].items():
            table.add_row(f"test {name}", f"{value:.4f}")
        if results["public_test"] is not None and "auc" in results["public_test"]:
            table.add_row("test auc, model of both parties", f"{results['public_test']['auc']:.4f}")
        if results["silent"] is not None and results["silent"]["auc"] is not None:
            table.add_row("test auc, silent", f"{results['silent']['auc']:.4f}")
        for attack, leak in results["leak"].items():
            interval = f"[{leak['low']:.3f}, {leak['high']:.3f}]"
            table.add_row(f"leak AUC, {attack}", f"{leak['pooled']:.3f} {interval}")
        if results["memory_leak"] is not None:
            table.add_row("leak AUC, memory over all epochs", f"{results['memory_leak']:.3f}")
        if results["embedding_leak"] is not None:
            shown = f"{results['embedding_leak']:.3f}"
            table.add_row("leak AUC, the feature parties' own output", shown)
        if (bare := results.get("rows_without_noise")) is not None:
            shown = f"{bare['count']} of {bare['rows']}, {bare['share']:.1%}"
            table.add_row("released rows without noise", shown)
        if results["selected"] is not None:
            kept = results["selected"]
            table.add_row(f"epoch kept, by {kept['judged_by']}", str(kept["epoch"]))
        table.add_row("steps per second", f"{results['steps_per_second']:.1f}")
        self._console.print(table)
        explained = [text for name, text in MEASURES.items() if name in results["test"]]
        if explained:
            self._console.print(f"{'; '.join(explained)}.", highlight=False)
        told = results["verdict"]["text"]
        self._console.print(told, markup=False, highlight=False, soft_wrap=True)
        if results["silent"] is not None:
            self._console.print(results["silent"]["text"], soft_wrap=True)
        if results["stopped"] is not None:
            self._console.print(f"stopped early: {results['stopped']}")


def _line(seen: Seen, unit: str) -> str:
    parts = [f"{unit} {seen.part + 1}: loss {seen.loss:.4f}"]
    if seen.test is not None and "auc" in seen.test:
        parts.append(f"test AUC {seen.test['auc']:.4f}")
    parts += [f"{name} {leak['pooled']:.3f}" for name, leak in (seen.leak or {}).items()]
    return ", ".join(parts)
