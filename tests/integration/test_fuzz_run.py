"""The short version of ``make fuzz``: mutated frames end in a refusal or a lost connection."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

FUZZ = Path(__file__).parents[2] / "benchmarks" / "fuzz.py"


@pytest.mark.slow
def test_mutated_frames_are_refused_and_change_nothing():
    words = ["--frames", "2000", "--conversations", "80", "--seed", "1"]
    done = subprocess.run(  # noqa: S603
        [sys.executable, str(FUZZ), *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        env={**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    *kinds, last = done.stdout.splitlines()
    assert re.match(r"2,00\d mutated frames at connections, \d+ in 80 conversations", last)
    found = {line.split(maxsplit=1)[1]: int(line.split()[0].replace(",", "")) for line in kinds}
    assert len(found) > 30, "the mutations are too coarse"
    for kind in ("not allowed in this state", "values must be finite", "a body must be canonical"):
        assert any(kind in name for name in found), kind
    assert any(name.startswith("taken:") for name in found), "some mutations keep the rules"
