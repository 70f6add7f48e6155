"""Two processes, two threads and a plain PyTorch loop: three ways to the same weights."""

import numpy as np
import pytest
import torch
from torch.nn.functional import binary_cross_entropy_with_logits

from parties import (
    KEY,
    SECRET,
    Pair,
    as_arrays,
    configure,
    differences,
    rows_of,
    same_bits,
    train_here,
)
from party_processes import train
from tacit import Guard, data, nets
from tacit.party.config import read_party_config
from tacit.party.schedule import Schedule
from tacit.rng import Key

WAYS = [("none", None), ("marvell(s=4)", None), ("none", "rr(epsilon=1.0)")]


@pytest.fixture(autouse=True)
def _one_thread_and_a_cache_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setenv("TACIT_CACHE", str(tmp_path / "cache"))
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def plain_loop(pair):
    """Train as one would without two companies: one loop, one loss, a guard in between."""
    config = read_party_config(pair.bank)
    bank = data.load_party(pair.bank.parent / "labels.csv", role="label")
    platform = data.load_party(pair.platform.parent / "features.csv", role="feature")
    ids = sorted({*bank.ids.tolist()} & {*platform.ids.tolist()})
    here, there = (rows_of(ids, table) for table in (bank, platform))
    net = nets.get(config.model)
    bottom = net.bottom(nets.Inputs(*platform.inputs), cut=None, classes=2, seed=config.seed)
    plan = config.plan(classes=2)
    top = net.top(plan.cut[0], own=nets.Inputs(*bank.inputs), cut=None, classes=2, seed=Key(KEY))
    secret = SECRET if config.labels else None
    guard = Guard(config.protect, key=KEY, labels=config.labels, label_secret=secret)
    labels = torch.from_numpy(bank.labels[here])
    if config.labels:
        labels = guard.labels(ids, labels)
    features, own = platform.source(there), bank.source(here)
    settings = {"lr": config.lr, "weight_decay": config.weight_decay, "fused": True}
    optimizers = [torch.optim.Adam(net.parameters(), **settings) for net in (bottom, top)]
    for part in Schedule.of(plan, len(ids)).parts(first=0):
        for rows in part.batches:
            y = labels[rows]
            outputs = top(guard(bottom(*features(rows)), y, ids=rows), *own(rows))
            targets = y.targets if config.labels else y
            loss = binary_cross_entropy_with_logits(outputs, targets.to(outputs.dtype))
            for optimizer in optimizers:
                optimizer.zero_grad()
            loss.backward()
            for optimizer in optimizers:
                optimizer.step()
    return bottom, top


@pytest.mark.parametrize(("protect", "labels"), WAYS)
def test_three_ways_to_the_same_weights(tmp_path, monkeypatch, protect, labels):
    bank = {"protect": protect, "labels": labels, "attacks": []}
    apart = Pair(tmp_path / "apart", epochs=2, batch_size=32, save_every=10, bank=bank)
    together = apart.copy(tmp_path / "together")
    train(apart, command={"bank": []} if protect != "none" else None)
    train_here(together, monkeypatch)
    assert not differences(apart, together)
    bottom, top = plain_loop(apart)
    for party, name, model in (("platform", "bottom", bottom), ("bank", "top", top)):
        trained = apart.checkpoint(party)[0]["model"]
        plain = {f"{name}.{key}": value for key, value in as_arrays(model).items()}
        assert same_bits(trained, plain)


def test_another_noise_key_ends_elsewhere(tmp_path, monkeypatch):
    """What the test above compares does depend on what is to be the same."""
    bank = {"protect": "marvell(s=4)", "attacks": []}
    first = Pair(tmp_path / "first", epochs=1, batch_size=64, bank=bank)
    other = first.copy(tmp_path / "other")
    (other.state("bank") / "noise.key").write_bytes(bytes(32))
    for pair in (first, other):
        train_here(pair, monkeypatch)
    assert not same_bits(*(p.checkpoint("bank")[0]["model"] for p in (first, other)))
    assert "journal: other releases" in differences(first, other)


def test_half_the_bytes_on_the_wire_end_near_by(tmp_path, monkeypatch):
    bank = {"protect": "none", "attacks": []}
    whole = Pair(tmp_path / "whole", epochs=1, batch_size=64, bank=bank)
    narrow = whole.copy(tmp_path / "narrow")
    for config in (narrow.bank, narrow.platform):
        configure(config, wire="bfloat16")
    train_here(whole, monkeypatch)
    train(narrow)
    first, second = (p.checkpoint("platform")[0]["model"] for p in (whole, narrow))
    assert not same_bits(first, second)
    for name, weight in first.items():
        assert np.allclose(weight, second[name], atol=0.02), name
