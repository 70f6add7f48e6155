"""A bank and a platform on two workers each: four processes, two connections over mutual TLS."""

import subprocess
import sys

import pytest

from parties import configure, differences, free_port
from workers import Pairs, WorkerProcesses, train_here


@pytest.fixture(autouse=True)
def _a_cache_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setenv("TACIT_CACHE", str(tmp_path / "cache"))


@pytest.mark.slow
def test_a_killed_worker_comes_back_and_the_run_ends_as_if_nothing_had_been(tmp_path, monkeypatch):
    """Bit for bit, against the same workers undisturbed, as threads of this process."""
    bank = {"protect": "marvell(s=4)", "attacks": []}
    run = Pairs(tmp_path / "run", rows=800, epochs=3, batch_size=32, save_every=10, bank=bank)
    alone = run.copy(tmp_path / "alone")
    with WorkerProcesses(run) as processes:
        processes.running["bank", 0].wait_for(r"step 1\d of")
        processes.running["bank", 1].kill()
        processes.running["bank", 0].wait_for(
            "a worker of bank is gone.*until all 2 workers are here"
        )
        processes.start("bank", 1)
        processes.running["platform", 0].wait_for(r"step 3\d of")
        processes.running["platform", 0].kill()  # the one that saves
        processes.start("platform", 0)
        processes.finish()
    train_here(alone, monkeypatch)
    assert not differences(run, alone)
    assert run.read("bank", "results.json")["ledger"]["releases"] == len(run.releases())
    assert not (run.state("bank") / "worker-1" / "journal").exists()
    assert not list((run.state("bank") / "worker-1").glob("*.key"))


def test_workers_of_other_numbers_or_counts_refuse_each_other(tmp_path):
    run = Pairs(tmp_path / "run", rows=200, batch_size=32, bank={"protect": "none"}, wait=20)
    addresses = [run.config("bank", n).endpoint for n in (1, 0)]
    text = run.platform.read_text()
    lines = [line for line in text.splitlines() if not line.startswith("address")]
    run.platform.write_text("\n".join([*lines, f"address = {addresses}".replace("'", '"')]) + "\n")
    with WorkerProcesses(run) as processes:
        ended = {worker: processes.running["platform", worker].end() for worker in (0, 1)}
        last = {
            worker: processes.running["platform", worker].said.splitlines()[-1] for worker in (0, 1)
        }
    assert 2 in ended.values()
    for worker, code in ended.items():
        assert last[worker].startswith("error: ")
        if code != 2:  # the other one had left before they met
            assert f"worker {1 - worker} of platform" in last[worker]
            continue
        assert "the plans differ" in last[worker]
        assert last[worker].count('"workers":2') == 2
        assert last[worker].count('"worker":1') == 1


@pytest.mark.slow
def test_torchrun_starts_the_workers_and_says_who_they_are(tmp_path):
    run = Pairs(tmp_path / "run", rows=300, epochs=1, batch_size=64, bank={"protect": "none"})
    parties = []
    for config in (run.bank, run.platform):
        configure(config, workers=None, group=None)
        torchrun = ["-m", "torch.distributed.run", "--nproc-per-node", "2"]
        port = ["--master-port", str(free_port())]
        party = ["-m", "tacit.cli", "party", str(config)]
        words = [*torchrun, *port, "--no-python", sys.executable, *party]
        parties.append(subprocess.Popen([sys.executable, *words], stderr=subprocess.PIPE))  # noqa: S603
    for party in parties:
        told = party.communicate(timeout=120)[1].decode()
        assert party.returncode == 0, told
    assert run.checkpoint("bank")[1] == run.checkpoint("platform")[1] == len(run.releases())
    assert (run.state("bank") / "worker-1" / "results.json").exists()
