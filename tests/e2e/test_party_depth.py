"""Steps that overlap between two companies: the same bits however it runs and who is killed."""

import pytest
import torch
from torch.nn.functional import binary_cross_entropy_with_logits

from parties import (
    KEY,
    Pair,
    Quartet,
    as_arrays,
    configure,
    differences,
    rows_of,
    same_bits,
    train_here,
)
from party_processes import Running, Training, train
from stale import stale_training
from tacit import Guard, data, nets
from tacit.cli import main
from tacit.nets import combine
from tacit.party.config import read_party_config
from tacit.party.schedule import Schedule
from tacit.rng import Key

STEP = r"step \d+ of \d+"
SMALL = {"rows": 400, "epochs": 2, "batch_size": 32, "save_every": 7}


@pytest.fixture(autouse=True)
def _one_thread_and_a_cache_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setenv("TACIT_CACHE", str(tmp_path / "cache"))
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Duo(Quartet):
    """A bank and two feature parties."""

    features = ("platform", "bureau")


def one_process(pair):
    """Return the models after the same training without parties, worked out the long way."""
    config = read_party_config(pair.bank)
    bank = data.load_party(pair.bank.parent / "labels.csv", role="label")
    tables = [
        data.load_party(pair.folder / name / "features.csv", role="feature")
        for name in pair.features
    ]
    ids = sorted(set(bank.ids.tolist()).intersection(*(t.ids.tolist() for t in tables)))
    here, net, plan = rows_of(ids, bank), nets.get(config.model), config.plan(classes=2)
    bottoms = [
        net.bottom(nets.Inputs(*t.inputs), cut=None, classes=2, seed=config.seed, party=n)
        for n, t in enumerate(tables)
    ]
    top = net.top(plan.cut[0], own=nets.Inputs(*bank.inputs), cut=None, classes=2, seed=Key(KEY))
    guard, own = Guard(config.protect, key=KEY), bank.source(here)
    labels = torch.from_numpy(bank.labels[here])
    sources = [table.source(rows_of(ids, table)) for table in tables]

    def loss_of(z, rows):
        outputs = top(guard(combine(z, "sum"), labels[rows], ids=rows), *own(rows))
        return binary_cross_entropy_with_logits(outputs, labels[rows].to(outputs.dtype))

    stale_training(
        bottoms,
        [
            torch.optim.Adam(
                m.parameters(), lr=config.lr, weight_decay=config.weight_decay, fused=True
            )
            for m in (*bottoms, top)
        ],
        [part.batches for part in Schedule.of(plan, len(ids)).parts(first=0)],
        depth=config.depth,
        embed=lambda used, rows: [b(*s(rows)) for b, s in zip(used, sources, strict=True)],
        loss_of=loss_of,
    )
    return bottoms, top


def assert_models(pair, bottoms, top):
    models = [("bank", "top", top)]
    models += [(n, "bottom", b) for n, b in zip(pair.features, bottoms, strict=True)]
    for party, name, model in models:
        plain = {f"{name}.{key}": value for key, value in as_arrays(model).items()}
        assert same_bits(pair.checkpoint(party)[0]["model"], plain), party


@pytest.mark.parametrize("protect", ["none", "marvell(s=4)"])
@pytest.mark.parametrize("depth", [2, 4])
def test_two_processes_memory_lines_and_one_process_agree(tmp_path, monkeypatch, depth, protect):
    bank = {"protect": protect, "attacks": []}
    apart = Pair(tmp_path / "apart", depth=depth, bank=bank, **SMALL)
    together = apart.copy(tmp_path / "together")
    train(apart)
    train_here(together, monkeypatch)
    assert not differences(apart, together)
    assert_models(apart, *one_process(apart))


def test_two_feature_parties_agree_with_one_process_and_outlive_a_kill(tmp_path, monkeypatch):
    bank = {"protect": "marvell(s=4)", "attacks": []}
    apart = Duo(tmp_path / "apart", depth=2, bank=bank, **{**SMALL, "rows": 600})
    together = apart.copy(tmp_path / "together")
    train_here(together, monkeypatch)
    with Training(apart) as training:
        training.running["bureau"].wait_for(STEP)
        training.kill("bureau")
        training.start("bureau")
        training.finish()
    assert not differences(apart, together)
    assert_models(apart, *one_process(apart))


@pytest.mark.parametrize("depth", [2, 4])
def test_each_side_is_killed_and_the_run_ends_as_if_it_had_not_been(tmp_path, monkeypatch, depth):
    bank = {"protect": "marvell(s=4)", "attacks": []}
    killed = Pair(
        tmp_path / "killed",
        rows=1000,
        epochs=2,
        batch_size=16,
        save_every=12,
        depth=depth,
        bank=bank,
    )
    alone = killed.copy(tmp_path / "alone")
    with Training(killed) as training:
        for party in ("platform", "bank"):
            training.running[party].wait_for(STEP)
            training.kill(party)
            training.start(party)
        for party in ("bank", "platform"):
            training.running[party].wait_for(STEP)
        training.kill("bank", "platform")
        for party in ("bank", "platform"):
            training.start(party)
        training.finish()
    train_here(alone, monkeypatch)
    assert not differences(killed, alone)


@pytest.mark.parametrize(
    ("depth", "limit"), [(0, "greater than or equal to 1"), (5, "less than or equal to 4")]
)
@pytest.mark.parametrize("party", ["bank", "platform"])
def test_a_depth_that_is_none_is_refused_in_one_line(tmp_path, capsys, party, depth, limit):
    pair = Pair(tmp_path / "pair", depth=depth, bank={"protect": "none"}, **SMALL)
    assert main(["party", str(getattr(pair, party))]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    for part in ("error: ", f"depth = {depth}", limit):
        assert part in err


def test_parties_that_disagree_on_the_depth_do_not_start(tmp_path):
    pair = Pair(tmp_path / "pair", bank={"protect": "none"}, wait=60, **SMALL)
    configure(pair.platform, depth=2)
    with Running(pair.bank) as bank, Running(pair.platform) as platform:
        assert platform.end() == 2
        last = platform.said.splitlines()[-1]
        assert last.startswith("error: bank refused to go on: the plans differ")
        assert '"depth":1,' in last
        assert '"depth":2,' in last
        assert "Traceback" not in platform.said
        bank.wait_for("refused: the plans differ")
    assert not pair.journal()


def test_a_run_keeps_its_depth(tmp_path, capsys, monkeypatch):
    pair = Pair(tmp_path / "pair", depth=2, bank={"protect": "none", "attacks": []}, **SMALL)
    train_here(pair, monkeypatch)
    for config in (pair.bank, pair.platform):
        configure(config, depth=1)
        assert main(["party", str(config)]) == 2
        last = capsys.readouterr().err.splitlines()[-1]
        assert "the plans differ in depth: 1 here, 2 there: go on with the same plan" in last


def test_a_run_keeps_its_number_of_threads(tmp_path, capsys, monkeypatch):
    """A number that is not configured is that of the cores, and then that of the run."""
    pair = Pair(tmp_path / "pair", threads=None, bank={"protect": "none", "attacks": []}, **SMALL)
    used = []
    monkeypatch.setattr(torch, "set_num_threads", used.append)
    monkeypatch.setattr("tacit.party.acceptor.GOODBYE", 0.1)
    monkeypatch.setattr("tacit.party.cpu.cores", lambda: 3)
    for config in (pair.bank, pair.platform):
        configure(config, wait=0.1)
        assert main(["party", str(config)]) == 1  # nobody comes
    monkeypatch.setattr("tacit.party.cpu.cores", lambda: 64)
    assert main(["party", str(pair.bank)]) == 1
    assert used == [3, 3, 3]
    capsys.readouterr()
    configure(pair.bank, threads=2)
    assert main(["party", str(pair.bank)]) == 1
    assert "2 threads, where this run had 3" in capsys.readouterr().err
    assert used[-1] == 2
    old = Pair(tmp_path / "old", threads=None, bank={"protect": "none", "attacks": []}, **SMALL)
    train_here(old, monkeypatch)  # as before the number was kept
    assert main(["party", str(old.bank)]) == 0
    assert used[-1] == 1
