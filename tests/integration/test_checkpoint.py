"""Checkpoints: whole or not there, and training goes on from one bitwise as if nothing happened."""

import errno
import json
import os
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from killing import killed
from tacit import Guard
from tacit.accounting import Ledger
from tacit.errors import InputError, ParameterError, TacitError, UsageError
from tacit.party.checkpoint import CheckpointStore, common_step
from tacit.training import adam

FILES = ("manifest.json", "model.safetensors", "optimizer.safetensors", "state.safetensors")


def party(seed=0, make=adam):
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(5, 7), nn.BatchNorm1d(7), nn.ReLU(), nn.Linear(7, 1))
    return net, make(net, 0.01)


def advance(net, optimizer, steps):
    for step in steps:
        rng = torch.Generator().manual_seed(step)
        optimizer.zero_grad()
        net(torch.randn(16, 5, generator=rng)).square().mean().backward()
        optimizer.step()


def save(store, step, net, optimizer, **more):
    return store.save(step, models={"net": net}, optimizers={"net": optimizer}, **more)


def filled(path, steps=(1, 2), **options):
    store = CheckpointStore(path, run="r", **options)
    net, optimizer = party()
    for step in steps:
        advance(net, optimizer, [step])
        save(store, step, net, optimizer, cursor={"epoch": step})
    return store


def names(store):
    return sorted(os.listdir(store.path))


def content(store):
    return {p: p.read_bytes() for p in sorted(store.path.rglob("*")) if p.is_file()}


def bitwise(one, other):
    assert one.keys() == other.keys()
    return all(torch.equal(one[k], other[k]) and one[k].dtype == other[k].dtype for k in one)


OPTIMIZERS = {
    "fused adam": adam,
    "adam": lambda net, lr: torch.optim.Adam(net.parameters(), lr=lr, amsgrad=True),
    "sgd": lambda net, lr: torch.optim.SGD(net.parameters(), lr=lr),
    "momentum": lambda net, lr: torch.optim.SGD(net.parameters(), lr=lr, momentum=0.9),
    "two groups": lambda net, lr: torch.optim.AdamW(
        [{"params": net[0].parameters()}, {"params": net[3].parameters(), "lr": lr / 3}], lr=lr
    ),
}


@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=list(OPTIMIZERS))
def test_training_goes_on_bitwise_as_if_nothing_had_happened(tmp_path, make):
    net, optimizer = party(make=make)
    advance(net, optimizer, range(5))
    save(
        CheckpointStore(tmp_path / "c", run="r"), 5, net, optimizer, cursor={"epoch": 0, "row": 80}
    )
    at_five = {k: v.clone() for k, v in net.state_dict().items()}
    advance(net, optimizer, range(5, 10))

    found = CheckpointStore(tmp_path / "c", run="r").latest()
    for _ in range(2):  # a checkpoint can be used again: nothing works on it in place
        other, its_optimizer = party(seed=9, make=make)
        found.restore(models={"net": other}, optimizers={"net": its_optimizer})
        assert bitwise(other.state_dict(), at_five)
        advance(other, its_optimizer, range(found.step, 10))
        assert bitwise(other.state_dict(), net.state_dict())
    assert found.cursor == {"epoch": 0, "row": 80}
    assert its_optimizer.state_dict()["param_groups"] == optimizer.state_dict()["param_groups"]


def test_the_states_of_ledger_and_label_guard_come_back(tmp_path):
    ledger = Ledger(run="r", budget="sum_kl=9")
    secret = bytes(range(32))
    guard = Guard("none", labels="rr(epsilon=1)", label_secret=secret, ledger=ledger)
    y = torch.tensor([0, 1, 1, 0])
    made = guard.labels([5, 6, 7, 8], y)
    cost = SimpleNamespace(spec="x", sum_kl=0.25, measured_sum_kl=None)
    ledger.charge([5, 900_000_000_000], cost)
    states = {"ledger": ledger.to_state(), "labels": guard.label_guard.to_state(), "none": ({}, {})}
    store = CheckpointStore(tmp_path / "c", run="r")
    store.save(3, models={}, optimizers={}, states=states)
    found = store.latest()
    assert found.states["none"] == ({}, {})
    for name, (arrays, values) in states.items():
        held, plain = found.states[name]
        assert plain == values
        assert all(
            np.array_equal(held[k], a) and held[k].dtype == a.dtype for k, a in arrays.items()
        )
    again = Ledger.from_state(*found.states["ledger"], run="r")
    assert again.summary() == ledger.summary()
    later = Guard("none", labels="rr(epsilon=1)", label_secret=secret)
    later.label_guard.load_state(*found.states["labels"])
    assert bool((later.labels([8, 5], y[[3, 0]]) == made[[3, 0]]).all())
    with pytest.raises(InputError, match="two different labels"):
        later.labels([5], torch.tensor([1]))


def test_any_array_and_tied_weights(tmp_path):
    net = nn.ModuleList([nn.Linear(3, 3), nn.Linear(3, 3)]).to(torch.bfloat16)
    net[1].weight = net[0].weight
    odd = {
        "t": np.arange(12.0).reshape(3, 4).T,
        "big": np.arange(3, dtype=">i4"),
        "point": np.array(7, dtype=np.uint16),
        "empty": np.zeros((0, 2)),
    }
    store = CheckpointStore(tmp_path / "c", run="r")
    store.save(0, models={"a": net, "b": nn.ReLU()}, optimizers={}, states={"s": (odd, {})})
    found = store.latest()
    for name, array in odd.items():
        assert np.array_equal(found.states["s"][0][name], array)
        assert found.states["s"][0][name].shape == array.shape
    other = nn.ModuleList([nn.Linear(3, 3), nn.Linear(3, 3)]).to(torch.bfloat16)
    found.restore(models={"a": other, "b": nn.ReLU()}, optimizers={})
    assert bitwise(other.state_dict(), net.state_dict())


def test_the_last_ones_are_kept(tmp_path):
    assert names(filled(tmp_path / "a", range(5))) == ["step-000000003", "step-000000004"]
    assert names(filled(tmp_path / "b", range(5), keep=1)) == ["step-000000004"]
    assert filled(tmp_path / "c", range(5), keep=3).steps() == [2, 3, 4]
    assert filled(tmp_path / "d", [1], keep=3).steps() == [1]
    assert filled(tmp_path / "e", range(4), keep=5).steps() == [0, 1, 2, 3]
    assert filled(tmp_path / "f", range(6), keep=5).steps() == [1, 2, 3, 4, 5]


def test_going_back_drops_the_course_that_was_given_up(tmp_path):
    store = filled(tmp_path / "c", [10, 20, 30], keep=3)
    net, optimizer = party(seed=4)
    save(store, 20, net, optimizer)
    assert names(store) == ["step-000000010", "step-000000020.1"]
    assert bitwise(store.latest().models["net"], net.state_dict())
    assert store.at(10).step == 10
    save(store, 20, net, optimizer)
    assert names(store) == ["step-000000010", "step-000000020.2"]


def test_only_the_owner_can_read_them(tmp_path):
    store = filled(tmp_path / "c")
    for path in [*store.path.iterdir(), *content(store)]:
        assert path.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("damage", ["flip", "cut", "empty", "gone", "longer"])
def test_a_damaged_one_is_left_out_with_a_line(tmp_path, file, damage):
    store = filled(tmp_path / "c")
    path = store.path / "step-000000002" / file
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes({"flip": data, "cut": data[:-1], "longer": data + b"x"}.get(damage, b""))
    if damage == "gone":
        path.unlink()
    assert store.latest().step == 1
    (line,) = store.damaged
    assert line.startswith("step-000000002 is not whole and was left out: ")
    assert store.steps() == [1]
    with pytest.raises(InputError, match="no whole checkpoint of step 2; step-000000002 is not"):
        store.at(2)


def test_every_flipped_bit_of_a_manifest_is_noticed_or_changes_nothing(tmp_path):
    store = filled(tmp_path / "c", [1])
    path = store.path / "step-000000001" / "manifest.json"
    whole = path.read_bytes()
    for at in range(len(whole)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << at % 7]) + whole[at + 1 :])
        found = store.latest()
        assert found is None or json.loads(path.read_bytes()) == json.loads(whole)


def test_nothing_there_and_nothing_whole(tmp_path):
    store = CheckpointStore(tmp_path / "none", run="r")
    assert (store.latest(), store.steps(), store.damaged) == (None, [], ())
    assert not store.path.exists()
    store = filled(tmp_path / "c")
    for folder in store.path.iterdir():
        (folder / "manifest.json").unlink()
    assert store.latest() is None
    assert len(store.damaged) == 2
    (store.path / "notes.txt").write_text("x")
    os.rename(store.path / "step-000000002", store.path / "step-2")
    assert store.latest() is None
    assert len(store.damaged) == 1


def test_a_folder_under_another_number_is_damage(tmp_path):
    store = filled(tmp_path / "c", [1])
    shutil.copytree(store.path / "step-000000001", store.path / "step-0000000012")
    shutil.copytree(store.path / "step-000000001", store.path / "step-000000007")
    assert store.latest().step == 1
    assert len(store.damaged) == 2


def test_another_run_and_a_future_format_are_refused_by_name(tmp_path, monkeypatch):
    filled(tmp_path / "c")
    with pytest.raises(UsageError, match="checkpoint of run 'r', not of 'q'"):
        CheckpointStore(tmp_path / "c", run="q").latest()
    with pytest.raises(UsageError, match="checkpoint of run 'r', not of 'q'"):
        save(CheckpointStore(tmp_path / "c", run="q"), 1, *party())
    assert CheckpointStore(tmp_path / "c", run="r").steps() == [1, 2]
    monkeypatch.setattr("tacit.party.checkpoint._FORMAT", 2)
    store = filled(tmp_path / "d")
    monkeypatch.undo()
    for look in (store.latest, store.steps, lambda: store.at(2)):
        with pytest.raises(UsageError, match="checkpoint of format 2, this is format 1"):
            look()


def failures(monkeypatch, fail_at):
    """Count calls that write to the disk, and let one of them fail."""
    calls = []
    for name in ("write", "fsync", "rename", "mkdir"):
        real = getattr(os, name)

        def guarded(*args, real=real, **more):
            calls.append(real)
            if len(calls) - 1 == fail_at:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return real(*args, **more)

        monkeypatch.setattr(os, name, guarded)
    return calls


def test_a_full_disk_at_any_moment_leaves_the_old_ones_untouched(tmp_path, monkeypatch):
    net, optimizer = party()
    advance(net, optimizer, [1])
    with monkeypatch.context() as patch:
        calls = failures(patch, -1)
        save(filled(tmp_path / "count"), 3, net, optimizer)
    assert len(calls) > 10
    raised, kept = [], True
    for moment in range(16):
        store = filled(tmp_path / str(moment))
        before = content(store)
        with monkeypatch.context() as patch:
            failures(patch, moment)
            try:
                save(store, 3, net, optimizer)
            except TacitError as error:
                raised.append(str(error))
                kept = before.items() <= content(store).items()
        assert kept
        assert store.latest().step in (2, 3)
        assert store.damaged == ()
        save(store, 4, net, optimizer)
        assert store.latest().step == 4
        assert not [name for name in names(store) if name.startswith(".")]
    assert len(raised) >= 10
    line = "step 3 could not be saved (No space left on device); the checkpoints before it are"
    assert all(line in message for message in raised)


def test_what_does_not_fit_is_refused(tmp_path):
    store = filled(tmp_path / "c", [1])
    found = store.latest()
    net, optimizer = party()
    both = {"models": {"net": net}, "optimizers": {"net": optimizer}}
    wide = nn.Linear(5, 7)
    sgd = torch.optim.SGD(net.parameters())
    cases = [
        ({**both, "models": {}}, r"has models \['net'\], got \[\]"),
        ({**both, "models": {"net": wide}}, "does not fit 'net'.*Missing key"),
        ({**both, "models": {"net": net.double()}}, "is torch.float64, saved was torch.float32"),
        ({"models": {"net": party()[0]}, "optimizers": {"net": sgd}}, "it is SGD, saved was Adam"),
        ({"models": {"net": party()[0]}, "optimizers": {"net": adam(wide, 0.1)}}, "group"),
    ]
    for given, message in cases:
        with pytest.raises(InputError, match=message):
            found.restore(**given)


def test_what_cannot_be_stored_is_refused_before_anything_is_written(tmp_path):
    store = CheckpointStore(tmp_path / "c", run="r")
    net, _ = party()
    by_tensor = torch.optim.Adam(net.parameters(), lr=torch.tensor(0.1), capturable=False)
    cases = [
        ({"models": {"a.b": net}}, "names are letters"),
        ({"cursor": {"at": (1, 2)}}, "lists in place of tuples"),
        ({"cursor": {1: 2}}, "text as keys"),
        ({"cursor": {"at": np.int64(2)}}, "plain values"),
        ({"states": {"s": ({"x": np.array(["a"])}, {})}}, "holds numbers, got <U1 as 'x'"),
        ({"optimizers": {"o": by_tensor}}, "plain values"),
    ]
    for given, message in cases:
        with pytest.raises(InputError, match=message):
            store.save(1, **{"models": {}, "optimizers": {}, **given})
    with pytest.raises(InputError, match="from 0 on, got -1"):
        store.save(-1, models={}, optimizers={})
    assert not store.path.exists()
    for options in ({"run": ""}, {"run": "r", "keep": 0}):
        with pytest.raises(ParameterError):
            CheckpointStore(tmp_path / "c", **options)


def test_the_last_common_step():
    assert common_step([1, 2, 5], [5, 2]) == 5
    assert common_step([3, 4], [1, 3]) == 3
    assert common_step([3], [4]) is None
    assert common_step([], [4]) is None


def test_format_1_can_be_read(tmp_path):
    def tensors(head, data):
        text = json.dumps(head).encode()
        return len(text).to_bytes(8, "little") + text + data

    one = {"net.w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}
    manifest = """{"tacit_checkpoint": 1, "run": "old", "step": 12, "cursor": {"epoch": 3},
      "models": ["net"], "optimizers": {}, "states": {"s": {"a": [1, null]}}, "files": {
      "model.safetensors": "9d5e35821cd230e45138735df26c5e55f50fc6fcdd3c6cc65d759c00eb440c46",
      "optimizer.safetensors": "411a485216e432ece6b9af94fa32154cf79a2a56d4f81266baa50063f45092bd",
      "state.safetensors": "411a485216e432ece6b9af94fa32154cf79a2a56d4f81266baa50063f45092bd"},
      "digest": "bd7ed95638504146492db645003438159a2dbd9f48bf3567d35249ebf0f90ed1"}"""
    folder = tmp_path / "c" / "step-000000012"
    folder.mkdir(parents=True)
    (folder / "manifest.json").write_text(manifest)
    (folder / "model.safetensors").write_bytes(tensors(one, np.float32([1.5, -2]).tobytes()))
    for name in ("optimizer", "state"):
        (folder / f"{name}.safetensors").write_bytes(tensors({}, b""))
    store = CheckpointStore(tmp_path / "c", run="old")
    found = store.latest()
    assert found is not None, store.damaged
    assert (found.step, found.cursor) == (12, {"epoch": 3})
    assert found.models["net"]["w"].tolist() == [1.5, -2.0]
    assert found.states == {"s": ({}, {"a": [1, None]})}


CHILD = """
import os, sys, torch
from torch import nn
from tacit.training import adam
from tacit.party.checkpoint import CheckpointStore
path, acks = sys.argv[1:]
def advance(net, optimizer, step):
    rng = torch.Generator().manual_seed(step)
    for weight in net.parameters():
        weight.grad = torch.randn(weight.shape, generator=rng)
    optimizer.step()
first = nn.Linear(2, 2)
advance(first, adam(first, 0.01), 0)  # torch loads much on first use
def work():
    ack = os.open(acks, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    torch.manual_seed(0)
    net = nn.Linear(64, 64)
    parts = {"models": {"net": net}, "optimizers": {"net": adam(net, 0.01)}}
    store = CheckpointStore(path, run="r")
    found = store.latest()
    if found is not None:
        found.restore(**parts)
    step = 0 if found is None else found.step
    while True:
        advance(net, parts["optimizers"]["net"], step)
        step += 1
        store.save(step, **parts)
        os.write(ack, step.to_bytes(8, "little"))
for _ in sys.stdin:
    child = os.fork()
    if not child:
        work()
    print(child, flush=True)
    os.waitpid(child, 0)
    print("dead", flush=True)
"""


def test_a_process_killed_at_any_moment_leaves_whole_checkpoints(tmp_path):
    store, acks = CheckpointStore(tmp_path / "c", run="r"), tmp_path / "acks"
    before = told = held = 0
    for _ in killed(CHILD, store.path, acks, times=10, seed=3, longest=0.4):
        last = int.from_bytes(acks.read_bytes()[-8:], "little") if acks.exists() else 0
        steps = store.steps()
        assert store.damaged == ()
        end = max(steps, default=0)
        assert last <= end <= max(last, before) + 1  # one more than it was told of, each time
        before = end
        # A save that returned has tidied up; one that did not may leave one checkpoint more.
        assert len(steps) <= (3 if last > told else held + 1)
        told, held = last, len(steps)
    torch.manual_seed(0)
    net = nn.Linear(64, 64)
    optimizer = adam(net, 0.01)
    found = store.latest()
    for step in range(found.step):
        rng = torch.Generator().manual_seed(step)
        for weight in net.parameters():
            weight.grad = torch.randn(weight.shape, generator=rng)
        optimizer.step()
    assert found.step > 3
    assert bitwise(found.models["net"], net.state_dict())
