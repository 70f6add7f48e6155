"""Three feature parties and a label party: one release for all, and any of them may be killed."""

import pytest
import torch
from torch.nn.functional import binary_cross_entropy_with_logits

from parties import KEY, Quartet, as_arrays, differences, rows_of, same_bits, train_here
from party_processes import Training, train
from tacit import Guard, data, nets
from tacit.nets import combine, combined_width
from tacit.party.config import read_party_config
from tacit.party.schedule import Schedule
from tacit.rng import Key


@pytest.fixture(autouse=True)
def _one_thread_and_a_cache_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setenv("TACIT_CACHE", str(tmp_path / "cache"))
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def quartet(folder, *, combine="sum", **more):
    bank = {"protect": "marvell(s=4)", "attacks": []}
    settings = {"epochs": 2, "batch_size": 32, "save_every": 10, **more}
    return Quartet(folder, combine=combine, bank=bank, **settings)


def plain_loop(parties):
    """Train with all bottoms, the top and a guard in one loop."""
    config = read_party_config(parties.bank)
    bank = data.load_party(parties.bank.parent / "labels.csv", role="label")
    tables = [
        data.load_party(parties.folder / name / "features.csv", role="feature")
        for name in parties.features
    ]
    ids = sorted(set(bank.ids.tolist()).intersection(*(t.ids.tolist() for t in tables)))
    here = rows_of(ids, bank)
    net, plan = nets.get(config.model), config.plan(classes=2)
    bottoms = [
        net.bottom(nets.Inputs(*table.inputs), cut=None, classes=2, seed=config.seed, party=number)
        for number, table in enumerate(tables)
    ]
    width = combined_width([plan.cut[0]] * len(tables), config.combine)
    top = net.top(width, own=nets.Inputs(*bank.inputs), cut=None, classes=2, seed=Key(KEY))
    guard = Guard(config.protect, key=KEY)
    labels, own = torch.from_numpy(bank.labels[here]), bank.source(here)
    sources = [table.source(rows_of(ids, table)) for table in tables]
    models = [*bottoms, top]
    settings = {"lr": config.lr, "weight_decay": config.weight_decay, "fused": True}
    optimizers = [torch.optim.Adam(m.parameters(), **settings) for m in models]
    for part in Schedule.of(plan, len(ids)).parts(first=0):
        for rows in part.batches:
            z = [bottom(*source(rows)) for bottom, source in zip(bottoms, sources, strict=True)]
            cut = guard(combine(z, config.combine), labels[rows], ids=rows)
            outputs = top(cut, *own(rows))
            loss = binary_cross_entropy_with_logits(outputs, labels[rows].to(outputs.dtype))
            for optimizer in optimizers:
                optimizer.zero_grad()
            loss.backward()
            for optimizer in optimizers:
                optimizer.step()
    return bottoms, top


@pytest.mark.parametrize("combine", ["sum", "concat"])
def test_four_processes_one_process_and_a_plain_loop_agree(tmp_path, monkeypatch, combine):
    apart = quartet(tmp_path / "apart", combine=combine)
    together = apart.copy(tmp_path / "together")
    train(apart)
    train_here(together, monkeypatch)
    assert not differences(apart, together)
    bottoms, top = plain_loop(apart)
    models = [("bank", "top", top)]
    models += [(n, "bottom", b) for n, b in zip(apart.features, bottoms, strict=True)]
    for party, name, model in models:
        plain = {f"{name}.{key}": value for key, value in as_arrays(model).items()}
        assert same_bits(apart.checkpoint(party)[0]["model"], plain)
    first = [apart.checkpoint(name)[0]["model"] for name in apart.features[:2]]
    assert not same_bits(*first), "each has weights of its own"


def test_killed_parties_end_as_if_nothing_had_been(tmp_path, monkeypatch):
    run = quartet(tmp_path / "run", epochs=4)
    alone = run.copy(tmp_path / "alone")
    train_here(alone, monkeypatch)
    with Training(run) as training:
        for party in ("bureau", "bank", "registry", "platform"):
            training.running["bank"].wait_for("steps to go")
            training.kill(party)
            training.start(party)
        training.finish()
    assert not differences(run, alone)


def test_a_party_that_is_not_one_of_them_is_refused(tmp_path):
    run = quartet(tmp_path / "run", epochs=1)
    text = run.bank.read_text()
    run.bank.write_text(text.replace('["platform", "bureau", "registry"]', '["platform"]'))
    with Training(run) as training:
        training.running["bank"].wait_for("bureau")
        assert "finished" in _end(training, "platform")
        assert training.running["bank"].end() == 0


def _end(training, party):
    assert training.running[party].end() == 0
    return training.running[party].said
