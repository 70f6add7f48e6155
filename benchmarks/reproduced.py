"""Run tables and figures of the papers at ``--quick`` and write docs/reproduced.md.

``python benchmarks/reproduced.py [NAME ...]`` runs the names given, or all; ``--hours H`` starts no
further one after H hours, and 0 writes the document only. What is in ``--out`` (``out/reproduced``)
is not run again, and the trials of an interrupted name are kept: the same command again goes on.
``--anew`` also runs what another commit has made. Names that were not run keep their section of the
document as it is. Each section says at which commit, when and with which settings it was made. All
names take several hours of one core.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, final

from tacit.errors import SpecError
from tacit.papers import Study, find, studies

ROOT = Path(__file__).parents[1]
DOC = ROOT / "docs" / "reproduced.md"
# Ten epochs, as in the paper, where four are quick: the attacks get better with them.
CHANGED = {"fig4-attacks": ("--set", "epochs=10")}
INTRO = """# The papers' tables and figures, as this machine made them

Every name of [reproduce.md](reproduce.md) at `--quick`, on a CPU without a GPU;
`python benchmarks/reproduced.py` makes this page, {hours:.1f} hours of work in all. What agrees
with the papers, what does not and why is in [results.md](results.md#the-papers-tables). *Work* is
the time of all trials added up, on a machine that was busy with others. Each section names the
commit it was made at; sections of an older commit are in the form they had then.{note}

| name | commit, date | trials | work | claims that hold | that do not | cannot tell |
|---|---|---|---|---|---|---|
"""
# What was made before that day stays until it is run again.
_SINCE = "2026-11-18"
_OLD = f"""

*Sections of before {_SINCE} were made before releases were rounded to one step and first weights
came out of 256-bit keys: the same seeds give other runs today. Their leak AUCs are sign-free and
without what noise alone gives, and GAFM's among them have 16 units in the discriminator.*"""
_TOLD = re.compile(
    r"(\d{4}-\d\d-\d\d), commit (\w+); (\d+) trials, ([\d.]+) (?:minutes|hours) of work"
)
_ROW = re.compile(r"^\| `([^`]+)` \|.*\| (\d+) \| (\d+) \| (\d+) \|$", re.MULTILINE)


@final
@dataclass(frozen=True, kw_only=True)
class Section:
    """One name's part of the document: its text, and what the table at the top says of it."""

    text: str
    commit: str
    date: str
    trials: int
    minutes: float
    verdicts: tuple[int, int, int]

    def row(self, name: str) -> str:
        """Return the line of the table at the top."""
        counts = " | ".join(map(str, self.verdicts))
        made = f"{self.commit}, {self.date}"
        return f"| `{name}` | {made} | {self.trials} | {self.minutes:.1f} min | {counts} |\n"


def main() -> None:
    """Run what is asked for and missing, then write the document."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="names of `tacit reproduce --list` [all]")
    parser.add_argument("--out", type=Path, default=ROOT / "out" / "reproduced")
    parser.add_argument("--hours", type=float, default=float("inf"))
    parser.add_argument("--workers", default="1")
    parser.add_argument("--anew", action="store_true")
    asked = parser.parse_args()
    end = time.monotonic() + 3600 * asked.hours
    try:
        chosen = [find(name) for name in asked.names] or studies()
    except SpecError as error:
        parser.error(str(error))
    for study in chosen:
        if time.monotonic() < end:
            _run(study, asked.out / study.name, workers=asked.workers, anew=asked.anew)
    _write(asked.out)


def _run(study: Study, place: Path, *, workers: str, anew: bool) -> None:
    head = _git("rev-parse", "--short", "HEAD")
    made = place / "made.json"
    if made.is_file():
        if not anew or json.loads(made.read_text())["commit"] == head:
            return
        shutil.rmtree(place)
    print(study.full_name, flush=True)
    words = [*_words(study), "--out", str(place), "--workers", workers]
    subprocess.run([sys.executable, "-m", "tacit.cli", *words], check=True)  # noqa: S603
    made.write_text(json.dumps({"commit": head, "date": datetime.now(UTC).date().isoformat()}))


def _git(*words: str) -> str:
    done = subprocess.run(  # noqa: S603
        ["git", *words],  # noqa: S607
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    return done.stdout.strip()


def _words(study: Study) -> list[str]:
    return ["reproduce", study.full_name, *CHANGED.get(study.name, ())]


def _write(out: Path) -> None:
    sections = _kept()
    for study in studies():
        if (out / study.name / "made.json").is_file():
            sections[study.full_name] = _made(study, out / study.name)
    hours = sum(section.minutes for section in sections.values()) / 60
    rows = "".join(sections[name].row(name) for name in sorted(sections))
    texts = "\n".join(sections[name].text for name in sorted(sections))
    old = any(section.date < _SINCE for section in sections.values())
    DOC.write_text(f"{INTRO.format(hours=hours, note=_OLD if old else '')}{rows}\n{texts}")


def _kept() -> dict[str, Section]:
    """Return the sections of the document as it is, of names that are still there."""
    head, *parts = re.split(r"^(?=## )", DOC.read_text(), flags=re.MULTILINE)
    verdicts = {name: tuple(map(int, counts)) for name, *counts in _ROW.findall(head)}
    known = {study.full_name for study in studies()}
    found = {}
    for part in parts:
        name, told = part[3:].split(":", 1)[0], _TOLD.search(part)
        if name in known and told is not None and name in verdicts:
            date, commit, trials, minutes = told.groups()
            found[name] = Section(
                text=part.rstrip() + "\n",
                commit=commit,
                date=date,
                trials=int(trials),
                minutes=float(minutes),
                verdicts=verdicts[name],  # type: ignore[arg-type]
            )
    return found


def _made(study: Study, place: Path) -> Section:
    record: dict[str, Any] = json.loads((place / "result.json").read_text())
    made: dict[str, str] = json.loads((place / "made.json").read_text())
    title, _, body = (place / "table.md").read_text().partition("\n")
    minutes = record["seconds"] / 60
    holds = [claim["holds"] for claim in record["claims"]]
    told = (
        f"`tacit {' '.join(_words(study))}`, {made['date']}, commit {made['commit']}; "
        f"{record['trials']} trials, {minutes:.1f} minutes of work, one thread each; torch "
        f"{record['run']['torch']}. {_settings(place)}"
    )
    return Section(
        text=f"{title}\n\n{told}\n{body.rstrip()}\n",
        commit=made["commit"],
        date=made["date"],
        trials=record["trials"],
        minutes=minutes,
        verdicts=(holds.count(True), holds.count(False), holds.count(None)),
    )


def _settings(place: Path) -> str:
    """Return what the trials of a name have in common, and which seeds they had."""
    lines = [
        json.loads(line)
        for file in sorted((place / "trials.sweep" / "journal").glob("*.jsonl"))
        for line in file.read_text().splitlines()
    ]
    configs = [line["config"] for line in lines if line.get("state") == "done"]
    names = ("dataset", "model", "rows", "cut", "epochs", "batch_size", "lr", "attacks")
    shared = [
        f"{name} {_plain(values[0])}"
        for name in names
        if (values := [config[name] for config in configs])
        and values[0] not in (None, [])
        and all(value == values[0] for value in values)
    ]
    seeds = sorted({config["seed"] for config in configs})
    return f"Of all trials: {', '.join(shared)}; seeds {', '.join(map(str, seeds))}."


def _plain(value: object) -> str:
    return " and ".join(map(str, value)) if isinstance(value, list) else str(value)


if __name__ == "__main__":
    main()
