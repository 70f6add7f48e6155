"""A sweep on a Ray cluster of two nodes, in a network of its own, with token authentication."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tacit.experiment.sweep_store import SweepStore

pytest.importorskip("ray", reason="ray is an extra: pip install 'tacit[ray]'")
SCRIPT = Path(__file__).parents[1] / "support" / "ray_cluster.py"
PLUGIN = Path(__file__).parents[2] / "examples" / "plugin" / "tacit_median_noise.py"
NINE = """
[base]
dataset = "breast_cancer"
model = "mlp"
epochs = 1
batch_size = 64
monitor_every = 1
[grid]
protect = ["none", "marvell(s=4)"]
seed = [0, 1, 2, 3]
[[trial]]
protect = "median_noise"
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
        (folder / "sweep.toml").write_text(NINE)
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        plugin = str(shutil.copy(PLUGIN, folder))
        ran = subprocess.run(  # noqa: S603
            [*alone, sys.executable, str(SCRIPT), short, "--plugin", plugin],
            check=False,
            capture_output=True,
            text=True,
            timeout=480,
            env=env,
        )
        assert ran.returncode == 0, ran.stderr[-2000:]
        said = json.loads(ran.stdout.splitlines()[-1])
        assert said["code"] == 0, said["err"]
        found = json.loads(said["out"])
        assert (found["done"], found["failed"]) == (9, 0)
        nodes = {row["run.node"] for row in found["rows"]}
        assert len(nodes) == 2, nodes
        records = SweepStore(folder / "store").records
        words = ["sweep", str(folder / "sweep.toml"), "--store", str(tmp_path / "here")]
        locally = [sys.executable, "-m", "tacit.cli", *words, "--workers", "1", "--plugin", plugin]
        subprocess.run(locally, check=True, env=env)  # noqa: S603 - a plug-in stays registered
    here = SweepStore(tmp_path / "here").records
    assert len(here) == 9
    assert all(json.dumps(r.results) == json.dumps(records[r.key].results) for r in here.values())
