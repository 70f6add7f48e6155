"""SVG to PDF, with the browser that is at hand."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from tacit.errors import TacitError, UsageError

_NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
_PATIENCE = 60


def find_browser() -> str:
    """Return the browser that prints, or say what is missing."""
    for name in _NAMES:
        if (found := shutil.which(name)) is not None:
            return found
    raise UsageError("--pdf needs chromium to print with: install it, or use --svg")


def print_pdf(path: Path, svg: str, *, width: int, height: int) -> None:
    """Print a picture to a PDF of exactly its size."""
    browser = find_browser()
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
            subprocess.run(  # noqa: S603 - the browser that was found
                words, check=True, timeout=_PATIENCE, capture_output=True, cwd=home
            )
        except (OSError, subprocess.SubprocessError) as error:
            raise TacitError(f"--pdf {path}: {browser} did not print it: {error}") from None
    if not path.is_file():
        raise TacitError(f"--pdf {path}: {browser} printed nothing; use --svg")
