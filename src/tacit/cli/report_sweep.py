"""What ``tacit report`` and ``tacit sweep`` write about a sweep's store."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import final

from tacit.cli.printing import find_browser, print_pdf
from tacit.errors import UsageError


def is_store(path: Path) -> bool:
    """Return whether a path is a sweep's store."""
    return (path / "store.json").is_file()


def check_place(out: Path, option: str = "--out") -> None:
    """Refuse a file that cannot be written before any work is done for it."""
    if out.is_dir():
        raise UsageError(f"{option} {out}: is a directory: name a file in it")
    if not out.parent.is_dir():
        raise UsageError(
            f"{option} {out}: the directory {out.parent} does not exist: make it first"
        )


@final
@dataclass(frozen=True, kw_only=True)
class SweepFiles:
    """The page of a sweep and whatever else was asked for."""

    page: Path
    svg: Path | None = None
    pdf: Path | None = None
    csv: Path | None = None
    parquet: Path | None = None
    leak: str | None = None
    worth: str | None = None

    def refuse_alone(self) -> None:
        """Refuse what only a sweep has where no sweep's store was named."""
        for name, value in asdict(self).items():
            if name != "page" and value is not None:
                raise UsageError(f"--{name} {value}: is for a sweep: name its store, and it alone")

    def write(self, path: Path) -> list[Path]:
        """Write what was asked for; return the journals that it came from."""
        from tacit.experiment.export import row_of, write_csv, write_parquet  # noqa: PLC0415
        from tacit.experiment.sweep_store import SweepStore  # noqa: PLC0415
        from tacit.report import sweep_page, sweep_svg  # noqa: PLC0415 - loads only when used

        for name in ("page", "svg", "pdf", "csv", "parquet"):
            if (place := getattr(self, name)) is not None:
                check_place(place, "--out" if name == "page" else f"--{name}")
        if self.pdf is not None:
            find_browser()
        records = list(SweepStore(path, create=False).records.values())
        plain = [asdict(record) for record in records]
        title = path.resolve().stem
        sweep_page(self.page, plain, title=title, leak=self.leak, worth=self.worth)
        if self.svg is not None or self.pdf is not None:
            text, width, height = sweep_svg(plain, leak=self.leak, worth=self.worth)
            if self.svg is not None:
                self.svg.write_text(text, encoding="utf-8")
            if self.pdf is not None:
                print_pdf(self.pdf, text, width=width, height=height)
        rows = [row_of(record) for record in records]
        if self.csv is not None:
            write_csv(self.csv, rows)
        if self.parquet is not None:
            write_parquet(self.parquet, rows)
        return sorted((path / "journal").glob("*.jsonl"))
