"""``tacit sweep`` as a user runs it: killed, run again, with any number of workers."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

import tacit
from party_processes import wait_until
from sweep_examples import SMALL
from tacit.cli import main
from tacit.experiment import ray_pool as on_ray
from tacit.experiment.config import TrainConfig
from tacit.experiment.sweep import ATTEMPTS, run_sweep
from tacit.experiment.sweep_store import SweepStore, key_of

HERE = Path(__file__).parents[1] / "support"
TWENTY = """
name = "twenty"
[base]
dataset = "breast_cancer"
model = "mlp"
epochs = 1
batch_size = 64
lr = 1e-3
monitor_every = 1
[grid]
protect = ["none", "iso(t=1)", "marvell(s=4)", "max_norm"]
seed = [0, 1, 2, 3]
[[trial]]
labels = "rr(epsilon=1)"
[[trial]]
labels = "rr(epsilon=2)"
[[trial]]
protect = "marvell(s=4)"
parties = 2
[[trial]]
batch_size = 5000
"""


def tacit_sweep(capsys, *words):
    code = main(["sweep", *words])
    out, err = capsys.readouterr()
    return code, out, err


def ended(store):
    """Return the keys of every journal, in the order in which they were written."""
    found = {}
    for path in (store / "journal").glob("*.jsonl"):
        lines = path.read_bytes().split(b"\n")[:-1]
        found[path.name] = [json.loads(line)["key"] for line in lines]
    return found


def lines_reach(journal, count, *, patience=300):
    """Wait for so many records; a look costs next to nothing."""
    late = time.monotonic() + patience
    while sum(path.read_bytes().count(b"\n") for path in journal.glob("*.jsonl")) < count:
        assert time.monotonic() < late, f"fewer than {count} trials in {patience} seconds"
        time.sleep(0.02)


def children(pid):
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def alive(pid):
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


@pytest.fixture
def twenty(tmp_path):
    path = tmp_path / "twenty.toml"
    path.write_text(TWENTY)
    return path


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs /proc to find the workers")
def test_a_killed_driver_leaves_what_is_done_and_no_worker(capsys, tmp_path, twenty):
    store = tmp_path / "killed"
    words = [sys.executable, "-m", "tacit.cli", "sweep", str(twenty), "--store", str(store)]
    driver = subprocess.Popen(  # noqa: S603
        [*words, "--workers", "2"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        lines_reach(store / "journal", 9)
        workers = children(driver.pid)
        driver.send_signal(signal.SIGKILL)
        assert driver.wait() == -signal.SIGKILL
    finally:
        driver.kill()
        driver.wait()
    assert len(workers) == 2
    wait_until(lambda: not any(map(alive, workers)), timeout=30)
    (first,) = ended(store).values()
    assert 9 <= len(first) < 20

    code, out, err = tacit_sweep(
        capsys,
        str(twenty),
        "--store",
        str(store),
        "--workers",
        "1",
        "--json",
        "--report",
        str(tmp_path / "page.html"),
    )
    found = json.loads(out)
    assert (code, err.count("\n")) == (1, 1)
    assert "1 of 20 trials failed; the first: " in err
    assert "batch" in err
    assert (found["trials"], found["done"], found["failed"]) == (20, 19, 1)
    assert found["kept"] == len(first)
    every = [key for keys in ended(store).values() for key in keys]
    assert len(every) == len(set(every)) == 20  # nothing that was finished ran again
    assert "Sweep: twenty" in (tmp_path / "page.html").read_text()
    assert (store / "rows.parquet").is_file()

    whole = tmp_path / "whole"
    tacit_sweep(capsys, str(twenty), "--store", str(whole), "--workers", "3", "--json")
    one, other = SweepStore(store).records, SweepStore(whole).records
    assert one.keys() == other.keys()
    for key, kept in one.items():
        assert json.dumps(kept.results) == json.dumps(other[key].results)
        assert (kept.state, kept.error, kept.config) == (
            other[key].state,
            other[key].error,
            other[key].config,
        )
    assert len({kept.run["pid"] for kept in other.values()}) == 3
    assert not any("seconds" in kept.results for kept in one.values() if kept.done)


def test_a_dead_worker_costs_its_trial_another_start_and_nobody_else_anything(
    tmp_path, monkeypatch
):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(HERE), *sys.path]))
    monkeypatch.setenv("SWEEP_NOTES", str(tmp_path))
    trials = [TrainConfig.of({**SMALL, "seed": seed}) for seed in range(5)]
    seen = []
    how = {"store": tmp_path / "s", "workers": 2, "task": "sweep_tasks:dies"}
    found = run_sweep(trials, observer=seen.append, **how)
    assert [r.state for r in found] == ["done", "done", "failed", "failed", "done"]
    starts = [len((tmp_path / str(seed)).read_text().split()) for seed in range(5)]
    assert starts == [1, 2, ATTEMPTS, 1, 1]
    assert [r.run["attempts"] for r in found] == starts
    assert found[2].error == f"its worker ended by signal 9, {ATTEMPTS} times"
    assert found[3].error == "ZeroDivisionError: of its own fault"
    assert found[4].results == {"test": {"auc": 4.5}}
    assert sum(p.note is not None for p in seen) == 1 + ATTEMPTS - 1
    assert (seen[-1].done, seen[-1].failed, seen[-1].left) == (3, 2, 0)

    assert run_sweep(trials, **how) == found  # what failed has ended, too
    run_sweep([trials[0], trials[3]], retry_failed=True, **how)
    assert [len((tmp_path / name).read_text().split()) for name in "03"] == [1, 2]


def test_two_drivers_share_a_store(tmp_path, monkeypatch):
    """Another process ends trials while this one works: they are taken, not repeated."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(HERE), *sys.path]))
    monkeypatch.setenv("SWEEP_NOTES", str(tmp_path))
    task, seeds = "sweep_tasks:dies", (0, 10, 11, 12)
    trials = [TrainConfig.of({**SMALL, "seed": seed}) for seed in seeds]
    other, taken = SweepStore(tmp_path / "s"), []

    def meanwhile(progress):
        if progress.last is not None and not taken:
            taken.extend({key_of(trial, task) for trial in trials} - {progress.last.key})
            for key in taken:
                other.append(replace(progress.last, key=key))

    how = {"store": tmp_path / "s", "workers": 1, "task": task}
    found = run_sweep(trials, observer=meanwhile, **how)
    assert len(taken) == 3
    assert sum((tmp_path / str(seed)).exists() for seed in seeds) == 1
    assert [r.done for r in found] == [True] * 4


@pytest.mark.parametrize(
    ("text", "words", "part"),
    [
        ('[grid]\nprotect = ["none", "marvel(s=4)"]\n', [], "did you mean 'marvell'"),
        ("[grid]\nsede = [1]\n", [], "did you mean 'seed'"),
        ("[grid]\nseed = [1]\n", ["--on", "slurm"], "--on slurm: must be local or ray"),
        ("[grid]\nseed = [1]\n", ["--workers", "0"], "--workers 0: must be at least 1"),
        ("[grid]\nseed = [1]\n", ["--address", "a:1"], "--address a:1: is for --on ray"),
        ("[grid]\nseed = [1]\n", ["--on", "ray", "--address", "ray://a:1"], "must be HOST:PORT"),
        ("[grid]\nseed = [1]\n", ["--report", "/no/where.html"], "does not exist"),
        ("seed = ", [], "not valid TOML"),
    ],
)
def test_mistakes_end_it_before_the_first_run(capsys, tmp_path, text, words, part):
    pytest.importorskip("ray")
    path = tmp_path / "s.toml"
    path.write_text(text)
    code, out, err = tacit_sweep(capsys, str(path), "--store", str(tmp_path / "s"), *words)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert part in err
    assert not list((tmp_path / "s").rglob("*.jsonl"))


def test_ray_that_is_missing_or_far_is_one_clear_line(capsys, tmp_path, monkeypatch):
    path = tmp_path / "s.toml"
    path.write_text("[grid]\nseed = [1]\n")
    words = (str(path), "--store", str(tmp_path / "s"), "--on", "ray", "--address", "127.0.0.1:9")
    if pytest.importorskip("ray"):
        assert on_ray._PATIENCE <= 12
        monkeypatch.setattr(on_ray, "_PATIENCE", 1.0)
        code, _, err = tacit_sweep(capsys, *words)
        assert (code, err.count("\n")) == (1, 1)
        assert "--address 127.0.0.1:9: no Ray cluster answered within 1 seconds" in err
    monkeypatch.setitem(sys.modules, "ray", None)
    code, _, err = tacit_sweep(capsys, *words)
    assert (code, err) == (2, "error: --on ray needs its package: pip install 'tacit[ray]'\n")


def test_only_one_module_knows_ray():
    root = Path(tacit.__file__).parent
    asks = re.compile(r"(import|from) ray\b|import_module\(.ray")
    users = [p.name for p in root.rglob("*.py") if asks.search(p.read_text())]
    assert users == ["ray_pool.py"]
