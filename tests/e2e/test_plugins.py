"""The plug-ins of ``examples/plugin`` as a user has them: by ``--plugin``, and installed."""

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from parties import Pair
from party_processes import Running, both_end
from tacit.experiment.sweep_store import SweepStore

EXAMPLES = Path(__file__).parents[2] / "examples" / "plugin"
PROTECTION, ATTACK = EXAMPLES / "tacit_median_noise.py", EXAMPLES / "tacit_far.py"
FILES = ("--plugin", str(PROTECTION), "--plugin", str(ATTACK))
SHORT = ("--dataset", "breast_cancer", "--model", "mlp", "--epochs", "1", "--batch-size", "64")
SWEEP = """
[base]
dataset = "breast_cancer"
model = "mlp"
epochs = 1
batch_size = 64
monitor_every = 1
attacks = ["norm", "far"]
[grid]
protect = ["median_noise(t=1)", "median_noise(t=4)"]
"""


@pytest.fixture(autouse=True)
def _a_cache_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setenv("TACIT_CACHE", str(tmp_path / "cache"))


def tacit(*words, path=(), cwd=None):
    """Run a command in a process of its own: what a plug-in registers stays registered."""
    places = [*map(str, path), *filter(None, sys.path)]
    return subprocess.run(  # noqa: S603
        [sys.executable, "-m", "tacit.cli", *map(str, words)],
        check=False,
        capture_output=True,
        text=True,
        timeout=300,
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(places)},
    )


def answer(*words, **more):
    ran = tacit(*words, "--json", **more)
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


def refused(*words, **more):
    """The command ends with exit code 2 and one line, which is returned."""
    ran = tacit(*words, **more)
    assert (ran.returncode, ran.stdout) == (2, ""), ran
    (line,) = ran.stderr.splitlines()
    return line


def listed(kind, *words, **more):
    return {row["name"]: row for row in answer("list", kind, *words, **more)[kind]}


def test_files_are_listed_trained_with_recorded_audited_and_reported(tmp_path):
    found = listed("protections", *FILES)["median_noise"]
    assert found["spec"] == "median_noise(t=1)"
    assert found["guarantee"] == "empirical only."
    assert "far" in listed("attacks", *FILES)
    words = ("--protect", "median_noise( 2 )", "--attack", "norm", "--attack", "far")
    run = tmp_path / "run"
    trained = answer(
        "train", *SHORT, *words, *FILES, "--monitor-every", "1", "--out", run, "--record"
    )
    assert trained["protection"] == "median_noise(t=2)"
    assert set(trained["leak"]) == {"norm", "far"}
    assert trained["certificate"]["how"] == "by the median gradient"
    audited = answer("audit", run, *FILES, "--attacks", "norm", "far", "--out", tmp_path / "a.html")
    assert {row["attack"] for row in audited["table"]} == {"norm", "far"}
    assert "far" in (tmp_path / "a.html").read_text()
    answer("report", run, *FILES, "--out", tmp_path / "r.html")
    assert "median_noise" in (tmp_path / "r.html").read_text()
    # What was recorded is read without the plug-in: no code of others for a page or a table.
    answer("report", run, "--out", tmp_path / "r.html")
    answer("audit", run, "--attacks", "norm")


def test_workers_of_a_sweep_run_them(tmp_path):
    (tmp_path / "sweep.toml").write_text(SWEEP)
    store = tmp_path / "store"
    words = ("sweep", tmp_path / "sweep.toml", "--store", store, "--workers", "2")
    found = answer(*words, *FILES)
    assert (found["done"], found["failed"], found["kept"]) == (2, 0, 0)
    records = SweepStore(store).records.values()
    specs = {record.config["protect"] for record in records}
    assert specs == {"median_noise", "median_noise(t=4)"}
    assert all(set(record.results["leak"]) == {"norm", "far"} for record in records)
    assert answer(*words, *FILES)["kept"] == 2
    changed = tmp_path / "tacit_median_noise.py"
    changed.write_text(PROTECTION.read_text() + "# another version\n")
    again = answer(*words, "--plugin", changed, "--plugin", ATTACK)
    assert (again["done"], again["kept"]) == (2, 0)
    answer("report", store, *FILES, "--out", tmp_path / "s.html")
    assert "median_noise" in (tmp_path / "s.html").read_text()


def test_a_party_trains_with_one_and_its_state_names_none(tmp_path):
    bank = {"protect": "median_noise(t=1)", "attacks": ["norm", "far"], "monitor_every": 2}
    pair = Pair(tmp_path / "pair", rows=300, epochs=1, batch_size=32, bank=bank)
    configs = {name: pair.folder / name / "party.toml" for name in ("bank", "platform")}
    assert "unknown protection 'median_noise'" in refused("party", configs["bank"])
    with Running(configs["bank"], *FILES) as label, Running(configs["platform"]) as feature:
        both_end(label, feature)
    kept = [p for p in (pair.folder / "bank" / "state").rglob("*") if p.is_file()]
    assert kept
    assert not [p for p in kept if b"tacit_median_noise" in p.read_bytes()]
    configs["bank"].write_text(f'plugins = ["{PROTECTION}"]\n' + configs["bank"].read_text())
    assert "unknown key 'plugins'" in refused("party", configs["bank"])


def entry_points(folder, **entries):
    """Make what an installer leaves of a package: its name and its entry points."""
    about = folder / "tacit_plugin_example-1.0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: tacit-plugin-example\nVersion: 1.0\n"
    )
    lines = [f"{name} = {module}" for name, module in entries.items()]
    (about / "entry_points.txt").write_text("\n".join(["[tacit.plugins]", *lines, ""]))
    return folder


def test_installed_plugins_are_there_without_a_flag(tmp_path):
    about = tomllib.loads((EXAMPLES / "pyproject.toml").read_text())["project"]
    site = entry_points(tmp_path / "site", **about["entry-points"]["tacit.plugins"])
    path = (site, EXAMPLES)
    assert "median_noise" in listed("protections", path=path)
    assert "far" in listed("attacks", path=path)
    trained = answer("train", *SHORT, "--protect", "median_noise", "--attack", "far", path=path)
    assert trained["protection"] == "median_noise"
    assert set(trained["leak"]) == {"far"}
    (tmp_path / "sweep.toml").write_text(SWEEP)
    words = ("sweep", tmp_path / "sweep.toml", "--store", tmp_path / "store", "--workers", "1")
    assert answer(*words, path=path)["done"] == 2
    assert refused("list", "attacks", "--plugin", ATTACK, path=path) == (
        f"error: --plugin {ATTACK}: attack 'far' is registered already, as tacit_far.Far: "
        "choose another name"
    )


def test_what_cannot_be_loaded_is_one_line(tmp_path):
    absent = tmp_path / "absent.py"
    for command in (
        ("train",),
        ("party", tmp_path / "party.toml"),
        ("sweep", tmp_path / "sweep.toml"),
        ("audit", tmp_path),
        ("report", tmp_path),
        ("list", "models"),
        ("data", "list"),
    ):
        line = refused(*command, "--plugin", absent)
        assert line == f"error: --plugin {absent}: there is no such file"
    site = entry_points(tmp_path / "site", gone="tacit_gone")
    assert refused("list", "models", path=(site,)) == (
        "error: plug-in gone of the package tacit-plugin-example: cannot be imported: "
        "ModuleNotFoundError: No module named 'tacit_gone'"
    )
