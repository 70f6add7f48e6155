"""A sweep on a Ray cluster of two nodes, in a network of its own, with token authentication."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tacit.experiment.grid import read_sweep
from tacit.experiment.sweep import run_sweep
from tacit.experiment.sweep_store import SweepStore

pytest.importorskip("ray", reason="ray is an extra: pip install 'tacit[ray]'")
SCRIPT = Path(__file__).parents[1] / "support" / "ray_cluster.py"
EIGHT = """
[base]
dataset = "breast_cancer"
model = "mlp"
epochs = 1
batch_size = 64
monitor_every = 1
[grid]
protect = ["none", "marvell(s=4)"]
seed = [0, 1, 2, 3]
"""
# Processes and network of their own; whatever is started in there ends with the first of them.
ALONE = ["unshare", "--net", "--pid", "--fork", "--mount-proc", "--kill-child"]


@pytest.fixture(scope="module")
def alone():
    """Return the words that put a command into a network of its own."""
    if shutil.which("unshare") is None:
        pytest.skip("no unshare on this machine: a Ray cluster would listen on its network")
    for words in (ALONE, [*ALONE, "--map-root-user"]):
        tried = subprocess.run([*words, "true"], check=False, capture_output=True)  # noqa: S603
        if tried.returncode == 0:
            return words
    pytest.skip(f"network namespaces are not permitted here: {tried.stderr.decode().strip()}")


@pytest.mark.slow
def test_trials_spread_over_two_nodes_and_equal_those_of_one_machine(alone, tmp_path):
    with tempfile.TemporaryDirectory(prefix="ray") as short:
        folder = Path(short)
        (folder / "sweep.toml").write_text(EIGHT)
        ran = subprocess.run(  # noqa: S603
            [*alone, sys.executable, str(SCRIPT), short],
            check=False,
            capture_output=True,
            text=True,
            timeout=480,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
        assert ran.returncode == 0, ran.stderr[-2000:]
        said = json.loads(ran.stdout.splitlines()[-1])
        assert said["code"] == 0, said["err"]
        found = json.loads(said["out"])
        assert (found["done"], found["failed"]) == (8, 0)
        nodes = {row["run.node"] for row in found["rows"]}
        assert len(nodes) == 2, nodes
        records = SweepStore(folder / "store").records
        here = run_sweep(read_sweep(folder / "sweep.toml").trials, store=tmp_path, workers=1)
    assert len(here) == 8
    assert all(json.dumps(r.results) == json.dumps(records[r.key].results) for r in here)
