"""What ``tacit report`` and ``tacit sweep`` write about a sweep's store."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import final

from tacit.errors import TacitError, UsageError

_BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
_PRINT_SECONDS = 60


def is_store(path: Path) -> bool:
    """Return whether a path is a sweep's store."""
    return (path / "store.json").is_file()


def check_output(out: Path, option: str = "--out") -> None:
    """Refuse a path that cannot be written, before any work is done for it."""
    if out.is_dir():
        raise UsageError(f"{option} {out}: is a directory: name a file in it")
    if not out.parent.is_dir():
        raise UsageError(
            f"{option} {out}: the directory {out.parent} does not exist: make it first"
        )


@final
@dataclass(frozen=True, kw_only=True)
class SweepFiles:
    """The files to write about a sweep: its page, and what else the options ask for."""

    page: Path
    svg: Path | None = None
    pdf: Path | None = None
    csv: Path | None = None
    parquet: Path | None = None
    leak: str | None = None
    worth: str | None = None

    def refuse_options(self) -> None:
        """Refuse options that only a sweep has: no sweep's store was named."""
        for name, value in asdict(self).items():
            if name != "page" and value is not None:
                raise UsageError(f"--{name} {value}: is for a sweep: name its store, and it alone")

    def write(self, path: Path) -> list[Path]:
        """Write the files; return the journals that their numbers come from."""
        from tacit.experiment.export import row_of, write_csv, write_parquet  # noqa: PLC0415
        from tacit.experiment.sweep_store import SweepStore  # noqa: PLC0415
        from tacit.report import sweep_page, sweep_svg  # noqa: PLC0415 - loads only when used

        for name in ("page", "svg", "pdf", "csv", "parquet"):
            if (place := getattr(self, name)) is not None:
                check_output(place, "--out" if name == "page" else f"--{name}")
        if self.pdf is not None:
            _find_browser()
        records = list(SweepStore(path, create=False).records.values())
        plain = [asdict(record) for record in records]
        title = path.resolve().stem
        sweep_page(self.page, plain, title=title, leak=self.leak, utility=self.worth)
        if self.svg is not None or self.pdf is not None:
            text, width, height = sweep_svg(plain, leak=self.leak, utility=self.worth)
            if self.svg is not None:
                self.svg.write_text(text, encoding="utf-8")
            if self.pdf is not None:
                _print_pdf(self.pdf, text, width=width, height=height)
        rows = [row_of(record) for record in records]
        if self.csv is not None:
            write_csv(self.csv, rows)
        if self.parquet is not None:
            write_parquet(self.parquet, rows)
        return sorted((path / "journal").glob("*.jsonl"))


def _find_browser() -> str:
    """Return the path of a browser that can print; refuse where there is none."""
    for name in _BROWSERS:
        if (found := shutil.which(name)) is not None:
            return found
    raise UsageError("--pdf needs chromium to print with: install it, or use --svg")


def _print_pdf(path: Path, svg: str, *, width: int, height: int) -> None:
    """Print an SVG picture to a PDF of exactly its size."""
    browser = _find_browser()
    sheet = f"<style>@page{{size:{width}px {height}px;margin:0}}*{{margin:0}}svg{{display:block}}"
    with tempfile.TemporaryDirectory() as home:
        page = Path(home, "page.html")
        page.write_text(f"<!doctype html><meta charset=utf-8>{sheet}</style>{svg}", "utf-8")
        words = [
            browser,
            "--headless",
            "--disable-gpu",
            "--no-first-run",
            "--disable-extensions",
            "--disable-background-networking",
            "--disable-dev-shm-usage",
            f"--user-data-dir={home}/profile",
            "--no-pdf-header-footer",
            f"--print-to-pdf={path.resolve()}",
            page.as_uri(),
        ]
        # The sandbox needs a user that is not root; the page is our own.
        words[1:1] = ["--no-sandbox"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
        try:
            subprocess.run(  # noqa: S603 - the browser found above
                words, check=True, timeout=_PRINT_SECONDS, capture_output=True, cwd=home
            )
        except (OSError, subprocess.SubprocessError) as error:
            raise TacitError(f"--pdf {path}: {browser} did not print it: {error}") from None
    if not path.is_file():
        raise TacitError(f"--pdf {path}: {browser} printed nothing; use --svg")
