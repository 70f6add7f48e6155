"""The workers of one party: their rendezvous, what they share, and how they share a step."""

import socket
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from parties import Pair, configure, free_port
from parties import train_here as train_alone
from party_processes import wait_until
from tacit.cli import main
from tacit.errors import BudgetError, InputError, LostError, TacitError, UsageError
from tacit.party.schedule import Schedule
from tacit.party.workers.collectives import Collectives, WorkersLostError
from tacit.party.workers.group import WorkerGroup
from tacit.party.workers.rendezvous import Rendezvous
from tacit.wire.protocol.plan import TrainingPlan
from workers import Pairs, train_here

SECONDS = 60
SECRET = bytes(32)


@pytest.fixture(autouse=True)
def _one_thread_and_a_cache_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setenv("TACIT_CACHE", str(tmp_path / "cache"))
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def rendezvous_of(workers, *, address=None, wait=SECONDS, facts=None, log=lambda _: None):
    address = address or f"127.0.0.1:{free_port()}"
    return [
        Rendezvous(
            address,
            party="bank",
            worker=n,
            workers=workers,
            wait=wait,
            log=log,
            secret=SECRET,
            facts={"lr": "0.1", **((facts or {}).get(n, {}))},
        )
        for n in range(workers)
    ]


def at_once(*calls):
    """Return what calls in threads of their own return or raise."""

    def outcome(call):
        try:
            return call()
        except TacitError as error:
            return error

    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(outcome, calls))


@pytest.fixture
def trio():
    groups = [Collectives(each, log=lambda _: None) for each in rendezvous_of(3)]
    assert at_once(*(group.form for group in groups)) == [None] * 3
    yield groups
    for group in groups:
        group.leave()


# --- sharing a step ---


def test_the_shares_of_a_batch_are_the_batch_in_its_order():
    plan = TrainingPlan(
        epochs=2, batch_size=12, order_seed=3, cut=(2,), test_percent=25, save_every=4
    )
    whole = Schedule.of(plan, 80)
    shares = [Schedule.of(_worker(plan, n), 80) for n in range(3)]
    assert torch.equal(torch.cat([share.test_rows for share in shares]), whole.test_rows)
    for part, *parts in zip(whole.parts(first=0), *(s.parts(first=0) for s in shares), strict=True):
        for rows, *pieces in zip(part.batches, *(p.batches for p in parts), strict=True):
            assert [len(piece) for piece in pieces] == [4] * 3
            assert torch.equal(torch.cat(pieces), rows)


def _worker(plan, number):
    return replace(plan, worker=number, workers=3)


def test_plans_that_workers_cannot_share():
    fits = {"epochs": 1, "batch_size": 12, "order_seed": 0, "cut": (2,)}
    with pytest.raises(InputError, match=r"workers must divide batch_size.*5 workers"):
        TrainingPlan(**fits, workers=5)
    with pytest.raises(InputError, match="worker must be a whole number from 0 to 2, got 3"):
        TrainingPlan(**fits, workers=3, worker=3)
    few = TrainingPlan(**fits, workers=4, test_percent=10)
    with pytest.raises(InputError, match="3 held-out examples are fewer than 4 workers"):
        Schedule.of(few, 30)
    digests = {
        TrainingPlan(**fits, workers=n, worker=i).digest() for n, i in ((1, 0), (2, 0), (2, 1))
    }
    assert len(digests) == 3, "worker i of one party refuses worker j of the other"


# --- rendezvous ---


def test_a_worker_that_does_not_come_is_named():
    first, _, last = rendezvous_of(3, wait=0.4)
    lost = at_once(first.join, last.join)
    assert isinstance(lost[0], LostError)
    assert "worker 1 of bank did not come within 0.4 seconds (expected at 127.0.0.1:" in str(
        lost[0]
    )
    assert "): start it with --worker 1, or allow more with wait" in str(lost[0])
    assert "of bank did not come within 0.4 seconds" in str(lost[1])


def test_worker_0_that_does_not_come_is_named():
    with pytest.raises(
        LostError, match=r"worker 0 of bank did not come within 0.2 seconds \(no answer at"
    ):
        rendezvous_of(2, wait=0.2)[1].join()


def test_a_worker_that_comes_twice_is_told():
    """One of both is told at once; the other one and the rest go on as if it had not come."""
    address = f"127.0.0.1:{free_port()}"
    first, one, last = rendezvous_of(3, address=address)
    twin = rendezvous_of(3, address=address)[1]
    wanted = "worker 1 of bank came twice: every worker needs its own number from 0 to 2"
    with ThreadPoolExecutor(4) as pool:
        opened = pool.submit(first.join)
        both = [pool.submit(each.join) for each in (one, twin)]
        told = next(as_completed(both))
        with pytest.raises(UsageError, match=wanted):
            told.result()
        both.remove(told)
        for joined in (opened, *both, pool.submit(last.join)):
            assert not joined.result().broken()


def test_a_worker_with_another_setting_is_refused():
    said, address = [], f"127.0.0.1:{free_port()}"
    first, other = rendezvous_of(2, address=address, facts={1: {"lr": "0.2"}}, log=said.append)
    wanted = "worker 1 of bank has lr 0.2, worker 0 has 0.1: give all workers of a party the same"
    with ThreadPoolExecutor(2) as pool:
        opened = pool.submit(first.join)
        with pytest.raises(UsageError) as refused:
            other.join()
        assert str(refused.value) == wanted
        assert said == [f"refused: {wanted}"]
        mended = rendezvous_of(2, address=address)[1]  # its user starts it again
        assert not mended.join().broken()
        assert not opened.result().broken()


def test_an_address_that_is_taken():
    address = f"127.0.0.1:{free_port()}"
    first, other = rendezvous_of(2, address=address)
    again = rendezvous_of(2, address=address, wait=1)[0]
    with ThreadPoolExecutor(1) as pool:
        opened = pool.submit(first.join)
        wait_until(lambda: listens(address))
        with pytest.raises(UsageError, match="worker 0 of bank cannot listen there"):
            again.join()
        assert not other.join().broken()
        assert not opened.result().broken()


def listens(address):
    host, port = address.split(":")
    with socket.socket() as tried:
        return tried.connect_ex((host, int(port))) == 0


# --- the group ---


def test_sums_are_the_same_bits_everywhere(trio):
    parts = torch.randn(3, 1001, generator=torch.Generator().manual_seed(5))
    sums = at_once(*(lambda g=g, p=p: g.add(p) for g, p in zip(trio, parts, strict=True)))
    assert torch.equal(sums[0], sums[1])
    assert torch.equal(sums[0], sums[2])
    assert torch.allclose(sums[0], parts.sum(0), rtol=0, atol=3 * 2**-22 * float(parts.abs().max()))


def test_gradients_of_shares_add_up_to_those_of_the_batch(trio):
    x = torch.randn(12, 4, generator=torch.Generator().manual_seed(1))
    models = [nn.Linear(4, 1) for _ in trio]

    def share(group, model, rows):
        group.copy_first(model)
        model(rows).square().mean().backward()
        group.add_gradients(model, scale=1 / 3)
        return model.weight.grad

    grads = at_once(*(lambda t=t: share(*t) for t in zip(trio, models, x.chunk(3), strict=True)))
    whole = nn.Linear(4, 1)
    whole.load_state_dict(models[0].state_dict())
    whole(x).square().mean().backward()
    for grad in grads:
        assert torch.equal(grad, grads[0])
        assert torch.allclose(grad, whole.weight.grad, rtol=1e-5, atol=1e-6)


def test_rows_come_together_at_worker_0_and_go_back(trio):
    rows = torch.arange(7.0).split([3, 1, 3])

    def both(group, mine):
        together = group.gather_rows(mine)
        return together, group.scatter(
            torch.arange(6.0) if group.first else None, like=torch.empty(2)
        )

    found = at_once(*(lambda t=t: both(*t) for t in zip(trio, rows, strict=True)))
    assert torch.equal(found[0][0], torch.arange(7.0))
    assert [together for together, _ in found[1:]] == [None, None]
    assert torch.equal(torch.cat([share for _, share in found]), torch.arange(6.0))


@pytest.mark.parametrize("kind", [BudgetError, UsageError])
def test_what_fails_at_worker_0_fails_everywhere(trio, kind):
    def make():
        raise kind("no more")

    errors = at_once(*(lambda g=g: g.only_first("a step", make) for g in trio))
    assert type(errors[0]) is kind
    assert [str(error) for error in errors[1:]] == ["worker 0 of bank stopped: no more"] * 2
    assert all(isinstance(error, BudgetError) == (kind is BudgetError) for error in errors)


def test_workers_at_different_steps_do_not_go_on(trio):
    told = at_once(
        lambda: trio[0].broadcast("checkpoint 7", b"x"),
        lambda: trio[1].broadcast("checkpoint 5"),
        lambda: trio[2].broadcast("checkpoint 7"),
    )
    assert isinstance(told[1], WorkersLostError)
    assert "worker 0 of bank is at 'checkpoint 7', this one at 'checkpoint 5'" in str(told[1])


def test_replicas_that_differ_are_not_saved(trio):
    errors = at_once(*(lambda g=g: g.same("weights", bytes([g.worker == 1])) for g in trio))
    assert all("the workers of bank differ in weights" in str(error) for error in errors)


def test_a_lost_worker_is_noticed_and_all_can_connect_again(trio):
    trio[1].leave()
    lost = at_once(lambda: trio[0].add(torch.ones(3)), lambda: trio[2].add(torch.ones(3)))
    assert all(isinstance(error, WorkersLostError) for error in lost)
    assert at_once(*(group.form for group in trio)) == [None] * 3
    sums = at_once(*(lambda g=g: g.add(torch.ones(2)) for g in trio))
    assert all(torch.equal(total, torch.full((2,), 3.0)) for total in sums)


# --- whole runs, every worker a thread ---


def runs(tmp_path, monkeypatch, *, workers=2, **settings):
    """Return a run on several workers, and the same on one with the same batches."""
    several = Pairs(tmp_path / "several", workers=workers, **settings)
    single = Pair(tmp_path / "single", **settings)
    train_here(several, monkeypatch)
    train_alone(single, monkeypatch)
    return several, single


@pytest.mark.parametrize("labels", [None, "rr(epsilon=1.0)"])
def test_workers_end_where_one_process_does(tmp_path, monkeypatch, labels):
    """Up to rounding: a sum over 128 rows in another order moves a gradient by 128 units of
    2^-24 at most, Adam passes on relative changes, and ten times as much is for compounding."""
    bank = {"protect": "none", "labels": labels, "attacks": []}
    several, single = runs(tmp_path, monkeypatch, rows=700, epochs=3, batch_size=128, bank=bank)
    for party in ("bank", "platform"):
        (ours, step), (theirs, wanted) = several.checkpoint(party), single.checkpoint(party)
        assert step == wanted == 12
        tolerance = step * 3e-3 * 2 * 128 * 2**-24 * 10
        moved = 0.0
        for name, value in theirs["model"].items():
            assert np.abs(ours["model"][name] - value).max() < tolerance
            moved = max(moved, np.abs(theirs["optimizer"][_moment(name, theirs)]).max())
        assert moved > 0
        assert 100 * tolerance < 12 * 3e-3, "the tolerance is far below what training moves"
    ledgers = [run.read("bank", "results.json")["ledger"] for run in (several, single)]
    assert ledgers[0] == ledgers[1]
    tests = [run.read("bank", "results.json")["test"] for run in (several, single)]
    assert tests[0] == pytest.approx(tests[1], abs=1e-3)


def _moment(name, arrays):
    return next(key for key in arrays["optimizer"] if key.endswith("exp_avg"))


def test_the_noise_of_a_step_is_planned_once_for_all_workers(tmp_path, monkeypatch):
    """After one step: the class statistics and the certificate are those of the whole batch."""
    bank = {"protect": "marvell(s=4)", "attacks": []}
    settings = {"rows": 300, "epochs": 1, "batch_size": 192, "bank": bank}
    several, single = runs(tmp_path, monkeypatch, workers=3, **settings)
    (ours, step), (theirs, _) = several.checkpoint("bank"), single.checkpoint("bank")
    assert step == 1
    found, wanted = ours["state"], theirs["state"]
    assert found.keys() == wanted.keys()
    for name in wanted:
        if name.startswith("ledger") or "mean" in name or "count" in name:
            np.testing.assert_allclose(found[name], wanted[name], rtol=1e-4, atol=1e-7)
    certificates = [r.read("bank", "results.json")["certificate"] for r in (several, single)]
    for field in ("sum_kl", "power", "auc_bound"):
        assert certificates[0][field] == pytest.approx(certificates[1][field], rel=1e-4)
    assert len(several.releases()) == 1


def test_a_budget_holds_for_all_workers(tmp_path, monkeypatch):
    spec = "marvell(sum_kl=0.1, covariance=full)"
    bank = {"protect": spec, "attacks": [], "budget": "sum_kl=0.3"}
    settings = {"rows": 600, "epochs": 3, "batch_size": 128, "bank": bank, "save_every": 50}
    several = Pairs(tmp_path / "several", **settings)
    setups = train_here(several, monkeypatch)
    ended = {key: setup.folder.read("results.json")["ended"] for key, setup in setups.items()}
    assert set(ended.values()) == {"finished"}
    steps = several.checkpoint("bank")[1]
    assert steps == several.checkpoint("platform")[1] == len(several.releases()) == 3 * 3
    assert several.read("bank", "results.json")["ledger"]["sum_kl"] == pytest.approx(0.3)


# --- what people get wrong ---


def test_batch_normalisation_needs_the_whole_batch():
    group = Collectives(rendezvous_of(2)[0], log=lambda _: None)
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    with pytest.raises(UsageError, match=r"batch normalisation .* use one worker"):
        WorkerGroup(group).replicate(
            model, torch.optim.SGD(model.parameters()), new=True, mean=False
        )


@pytest.fixture
def pairs(tmp_path):
    return Pairs(
        tmp_path / "pairs", rows=200, batch_size=32, wait=1, bank={"protect": "none", "attacks": []}
    )


@pytest.mark.parametrize(
    ("changes", "words", "code", "line"),
    [
        (
            {},
            [],
            2,
            "worker is missing: this party has 2 workers: start each with its number, "
            "--worker 0 to --worker 1",
        ),
        ({}, ["--worker", "2"], 2, "worker must be a number from 0 to 1"),
        (
            {"workers": 3},
            ["--worker", "0"],
            2,
            "workers must divide batch_size: 3 workers cannot share batches of 32 equally",
        ),
        ({"group": None}, ["--worker", "0"], 2, "group is missing"),
        ({"workers": 4}, ["--worker", "0"], 2, "address must be one, or one for each of 4 workers"),
        (
            {"workers": 1, "address": "127.0.0.1:7700"},
            ["--worker", "1"],
            2,
            "worker must be a number from 0 to 0",
        ),
        ({}, ["--worker", "0"], 1, "worker 1 of bank did not come"),
        ({}, ["--worker", "1"], 1, "worker 0 of bank did not come within 1 seconds (no answer at"),
    ],
)
def test_one_plain_line(pairs, capsys, changes, words, code, line):
    configure(pairs.bank, **changes)
    assert main(["party", str(pairs.bank), *words]) == code
    said = capsys.readouterr()
    assert said.out == ""
    assert "Traceback" not in said.err
    last = said.err.splitlines()[-1]
    assert last.startswith("error: ")
    assert line in last


@pytest.mark.parametrize(
    ("store", "group"),
    [({}, "10.0.0.7:29500"), ({"TORCHELASTIC_USE_AGENT_STORE": "True"}, "10.0.0.7:29501")],
)
def test_torchruns_variables_stand_for_what_the_file_leaves_out(pairs, monkeypatch, store, group):
    told = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "10.0.0.7", "MASTER_PORT": "29500"}
    for name, value in (told | store).items():
        monkeypatch.setenv(name, value)
    written = pairs.config("bank", 0)
    assert (written.worker, written.group) == (0, pairs.config("bank", 1).group) != (1, group)
    configure(pairs.bank, workers=None, group=None)
    found = pairs.config("bank", None)
    assert (found.worker, found.workers, found.group) == (1, 2, group)
    monkeypatch.setenv("WORLD_SIZE", "1")
    configure(pairs.bank, address="127.0.0.1:7700")
    alone = pairs.config("bank", None)
    assert (alone.worker, alone.workers, alone.group) == (None, 1, None)


def test_the_same_worker_twice_on_one_machine(pairs, capsys):
    from tacit.state_dir import StateFolder

    (pairs.bank.parent / "state").mkdir(mode=0o700, exist_ok=True)
    with StateFolder(pairs.config("bank", 1).own_state):
        assert main(["party", str(pairs.bank), "--worker", "1"]) == 2
    assert "worker-1: another process uses it" in capsys.readouterr().err
