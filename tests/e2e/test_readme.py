"""The README's Python runs, in order, in one namespace, as a reader would paste it."""

import re
import runpy
from pathlib import Path

import pytest

from tacit.protect import PROTECTIONS

ROOT = Path(__file__).parents[2]
BLOCKS = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S)


def test_readme_code_runs(capsys):
    assert len(BLOCKS) == 3
    known = dict(PROTECTIONS.entries)
    space: dict[str, object] = {}
    try:
        for block in BLOCKS:
            exec(compile(block, "README.md", "exec"), space)  # noqa: S102 - our own README
    finally:
        PROTECTIONS.entries.clear()
        PROTECTIONS.entries.update(known)
    out = capsys.readouterr().out
    assert re.search(r"cosine\s+leak AUC 0\.\d+ \[0\.\d+, 0\.\d+\]", out)
    assert "covariance uI" in out
    assert "raw" in out or "did not run" in out, "the contract did not notice the fault"


def test_the_first_loop_uses_a_protection_that_holds_in_the_table():
    """What a reader pastes must not be what the page shows to leak; 0.65 is the page's target."""
    (spec,) = re.findall(r'tacit\.Guard\("(.*?)"', BLOCKS[0])
    readme = (ROOT / "README.md").read_text()
    (row,) = [
        line for line in readme.splitlines() if re.match(rf"\| `{re.escape(spec)}` \| [0-9]", line)
    ]
    assert max(map(float, re.findall(r"\d\.\d\d", row))) <= 0.65


def test_the_loop_is_ten_lines_around_one():
    loop = BLOCKS[0].split("for _ in range(50):")[1].split("for attack")[0]
    assert len([line for line in loop.splitlines() if line.strip()]) <= 10
    assert loop.count("guard(") == 1


@pytest.mark.parametrize("name", ["guarded_loop.py"])
def test_examples_run(name, capsys):
    runpy.run_path(str(ROOT / "examples" / name), run_name="__main__")
    out = capsys.readouterr().out
    none, marvell = (
        next(line for line in out.splitlines() if line.startswith(s)) for s in ("none", "marvell")
    )
    assert "cosine 1.000" in none
    assert float(re.search(r"cosine (\S+)", marvell).group(1)) < 0.7
