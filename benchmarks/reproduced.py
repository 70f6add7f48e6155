"""Run every table and figure of the papers at ``--quick`` and write docs/reproduced.md.

``python benchmarks/reproduced.py [NAME ...]`` runs the names given, or all; what is in
``out/reproduced`` is not run again. All that is there goes into the document, with the commit and
the date at which it was made. About two hours on two cores.
"""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tacit.papers import Study, studies

ROOT = Path(__file__).parents[1]
OUT = ROOT / "out" / "reproduced"
DOC = ROOT / "docs" / "reproduced.md"
VERDICTS = {True: "yes", False: "NO", None: "cannot tell"}
# Ten epochs, as in the paper, where four are quick: the attacks get better with them.
CHANGED = {"fig4-attacks": ("--set", "epochs=10")}
INTRO = """# The papers' tables and figures, as this machine made them

Every name of [reproduce.md](reproduce.md) at `--quick`, on two cores of a CPU without a GPU;
`python benchmarks/reproduced.py` makes this page. What agrees with the papers, what does not and
why is in [results.md](results.md#the-papers-tables). *Work* is the time of all trials added up, on
a machine that was busy with others of them.

"""


def main() -> None:
    for study in studies():
        if not sys.argv[1:] or study.name in sys.argv[1:]:
            _run(study)
    made = [study for study in studies() if (OUT / study.name / "made.json").is_file()]
    found = [(study, *_read(OUT / study.name)) for study in made]
    DOC.write_text(INTRO + _summary(found) + "".join(_section(*one) for one in found))


def _run(study: Study) -> None:
    place = OUT / study.name
    if (place / "made.json").is_file():
        return
    print(study.full_name, flush=True)
    command = [sys.executable, "-m", "tacit.cli", *_words(study), "--out", str(place)]
    subprocess.run(command, check=True)  # noqa: S603
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],  # noqa: S607
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout.strip()
    made = {"commit": commit, "date": datetime.now(UTC).date().isoformat()}
    (place / "made.json").write_text(json.dumps(made))


def _words(study: Study) -> list[str]:
    return ["reproduce", study.full_name, *CHANGED.get(study.name, ())]


def _read(place: Path) -> tuple[dict[str, Any], dict[str, str], str]:
    return (
        json.loads((place / "result.json").read_text()),
        json.loads((place / "made.json").read_text()),
        (place / "table.md").read_text(),
    )


def _summary(found: list[tuple[Study, dict[str, Any], dict[str, str], str]]) -> str:
    lines = [
        "| name | trials | work | claims that hold | that do not | cannot tell |",
        "|---|---|---|---|---|---|",
    ]
    for study, record, _, _ in found:
        verdicts = [claim["holds"] for claim in record["claims"]]
        counts = " | ".join(str(verdicts.count(verdict)) for verdict in VERDICTS)
        work = f"{record['seconds'] / 60:.1f} min"
        lines.append(f"| `{study.full_name}` | {record['trials']} | {work} | {counts} |")
    return "\n".join(lines) + "\n\n"


def _section(study: Study, record: dict[str, Any], made: dict[str, str], text: str) -> str:
    title, _, body = text.partition("\n")
    work = f"{record['trials']} trials, {record['seconds'] / 60:.1f} minutes of work"
    told = f"`tacit {' '.join(_words(study))}`, {made['date']}, commit {made['commit']}; {work}."
    return f"{title}\n\n{told}\n{body.rstrip()}\n\n"


if __name__ == "__main__":
    main()
