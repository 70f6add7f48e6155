"""A guard goes on after a restart: the same bytes, the same refusals, or a clear line."""

import copy
import signal
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import guard_examples
from guard_examples import CHAINS, KEY, NAMES, SPECS, course, released, same, stored
from tacit import Guard
from tacit.accounting import Ledger
from tacit.errors import InputError, ParameterError, ReplayError
from tacit.monitor import MemoryMonitor
from tacit.party.checkpoint import CheckpointStore
from tacit.protect.base import BATCH, RUNNING, Plan, Protection
from tacit.protect.noise_terms import Isotropic
from tacit.testing import low_rank_cut

SHAPES = [(64, 8, torch.float32), (24, 40, torch.float32), (24, 40, torch.float64)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("spec", [*SPECS, *CHAINS])
def test_releases_go_on_bit_for_bit(spec, shape, tmp_path):
    cuts = course(*shape)
    whole = Guard(spec, key=KEY)
    expected, states = [], []
    for cut in cuts:
        states.append(whole.to_state())
        expected.append(whole.release(cut))
    assert whole.protection.identity or RUNNING in str(whole.counts) or "gaussian" in spec
    stops = (0, 1, 2, 4, 11, len(cuts) - 4, len(cuts) - 1)
    held = stored(tmp_path, **{f"after_{stop}": states[stop] for stop in stops})
    for stop in stops:
        guard = Guard(spec, key=KEY)
        guard.load_state(*held[f"after_{stop}"])
        assert guard.counts.total() == stop
        assert guard.last_certificate == (expected[stop - 1].certificate if stop else None)
        # Without protection, a step that comes again counts again.
        again = [] if whole.protection.identity else cuts[max(0, stop - 1) : stop]
        same(released(guard, again), expected[stop - len(again) : stop])
        same(released(guard, cuts[stop:]), expected[stop:])
        assert guard.counts == whole.counts
        assert str(guard.to_state()) == str(whole.to_state())


@pytest.mark.parametrize("spec", NAMES)
def test_what_was_refused_stays_refused(spec, tmp_path):
    cuts = course()
    first = Guard(spec, key=KEY)
    released(first, cuts[:5])
    guard = Guard(spec, key=KEY)
    guard.load_state(*stored(tmp_path, guard=first.to_state())["guard"])
    with pytest.raises(ReplayError, match="step 3 was released before, step 4 is the last"):
        guard.release(cuts[3])
    for changed in (
        replace(cuts[4], grads=cuts[4].grads * 2),
        replace(cuts[4], embeddings=cuts[4].embeddings + 1),
        replace(cuts[4], labels=1 - cuts[4].labels),
    ):
        with pytest.raises(ReplayError, match="released with another"):
            guard.release(changed)
    with pytest.raises(InputError, match="one cut, of width 8, got 9"):
        guard.release(replace(low_rank_cut(64, 9), step=5))
    assert guard.release(replace(cuts[5], step=None)).step == 5


def test_a_killed_process_is_taken_up_where_it_was_stored(tmp_path):
    code = (
        "import os, signal, sys\n"
        "from guard_examples import KEY, NAMES, course\n"
        "from tacit import Guard\n"
        "from tacit.party.checkpoint import CheckpointStore\n"
        "store = CheckpointStore(sys.argv[1], run='r')\n"
        "guards = {f'g{n}': Guard(spec, key=KEY) for n, spec in enumerate(NAMES)}\n"
        "for step, cut in enumerate(course(24, 40)[:6]):\n"
        "    for guard in guards.values():\n"
        "        guard.release(cut)\n"
        "    states = {name: guard.to_state() for name, guard in guards.items()}\n"
        "    store.save(step + 1, models={}, optimizers={}, states=states)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    here = Path(guard_examples.__file__).parent
    found = subprocess.run([sys.executable, "-c", code, tmp_path], check=False, cwd=here)  # noqa: S603
    assert found.returncode == -signal.SIGKILL
    cuts, held = course(24, 40), CheckpointStore(tmp_path, run="r").latest()
    assert held.step == 6
    for n, spec in enumerate(NAMES):
        whole, guard = Guard(spec, key=KEY), Guard(spec, key=KEY)
        guard.load_state(*held.states[f"g{n}"])
        same(released(guard, cuts[5:]), released(whole, cuts)[5:])


@pytest.mark.parametrize("spec", NAMES)
def test_a_state_is_a_copy_both_ways(spec):
    cuts = course()
    guard = Guard(spec, key=KEY)
    released(guard, cuts[:4])
    arrays, values = guard.to_state()
    kept = copy.deepcopy((arrays, values))
    expected = released(guard, cuts[4:])
    assert str(kept) == str((arrays, values))
    other = Guard(spec, key=KEY)
    other.load_state(arrays, values)
    for array in arrays.values():
        array[...] = 7
    values["counts"].clear()
    same(released(other, cuts[4:]), expected)


def test_what_two_memories_share_is_stored_once():
    guard = Guard("marvell(s=4)", key=KEY)
    released(guard, course()[:14])
    arrays, _ = guard.to_state()
    assert [array.shape for array in arrays.values()] == [(8,)] * 9


def test_neither_key_nor_labels_are_in_a_state_or_a_message():
    key = bytes([251, 37, 99, 140]) * 8
    guard = Guard("marvell(s=4)", key=key)
    cut = course()[1]
    guard.release(cut)
    arrays, values = guard.to_state()
    shown = f"{guard!r} {vars(guard)} {values} {arrays}"
    for part in (key.hex()[:8], repr(key)[2:-1][:8], str(list(key))[1:12]):
        assert part not in shown
    assert all(array.size != len(cut.labels) for array in arrays.values())
    with pytest.raises(InputError) as caught:
        Guard("marvell(s=4)", key=KEY).load_state(arrays, values)
    assert key.hex()[:8] not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        ({"key": b"x" * 31}, "32 bytes, got 31 bytes: make one with secrets"),
        ({"key": "secret-secret-secret-secret-1234"}, "32 bytes, got str: make one"),
        ({"key": bytearray(32)}, "32 bytes, got bytearray: make one"),
        ({"key": KEY, "seed": 3}, "got key and seed: pass only one"),
        ({"key": KEY, "labels": "rr(epsilon=1)", "label_secret": KEY}, "two secrets"),
    ],
)
def test_keys_that_are_refused(options, rule):
    with pytest.raises(ParameterError, match=rule) as caught:
        Guard("iso(1)", **options)
    assert "secret-secret" not in str(caught.value)


def test_a_key_gives_its_noise_and_no_other():
    cut = course()[1]
    one, again, other = (
        Guard("iso(1)", key=key).release(cut).grads for key in (KEY, KEY, KEY[::-1])
    )
    assert torch.equal(one, again)
    assert not (one == other).any()


def refused(spec, arrays, values, rule="state", **options):
    """The state is refused in one line and the guard is as it was, also one that released."""
    cuts = course()
    guard = Guard(spec, **{"key": KEY, **options})
    released(guard, cuts[:2])
    before = str(guard.to_state())
    with pytest.raises(InputError, match=rule) as caught:
        guard.load_state(arrays, values)
    assert "\n" not in str(caught.value)
    assert str(guard.to_state()) == before


def test_states_of_another_guard_are_refused():
    guard = Guard("marvell(s=4)", key=KEY)
    released(guard, course()[:3])
    arrays, values = guard.to_state()
    refused("marvell(s=2)", arrays, values, "of a guard with 'marvell.s=4.', not 'marvell.s=2.'")
    refused("marvell(s=4) | iso(1)", arrays, values, "make the guard with the spec of its state")
    refused("marvell(s=4)", arrays, values, "made under another key", key=KEY[::-1])
    refused("marvell(s=4)", arrays, values, "made under another key", key=None)
    refused("marvell(s=4)", arrays, {**values, "format": 1}, "states of format 2, got 1")
    wide = Guard("marvell(s=4)", key=KEY)
    wide.release(course(24, 40)[1])
    refused("marvell(s=4)", *wide.to_state(), "one cut, of width 8, got 40")
    refused("marvell(s=4)", *Ledger(run="r").to_state(), "a guard")
    refused("marvell(s=4)", {}, {}, "format 2, got None")
    refused("marvell(s=4)", None, None, "format 2, got None")


def damages(arrays, values):
    for name in values:
        yield arrays, {key: value for key, value in values.items() if key != name}
        yield arrays, {**values, name: None}
        yield arrays, {**values, name: {"a": [1, object()]}}
    for name, array in arrays.items():
        yield {key: value for key, value in arrays.items() if key != name}, values
        raw = array.copy()
        raw.view(np.uint8).reshape(-1)[-3] ^= 1
        other = array.astype(np.float32 if array.dtype == np.float64 else np.float64)
        for wrong in (raw, other, array[None], array[:0], array.tolist(), None):
            yield {**arrays, name: wrong}, values
    yield {**arrays, "more": np.zeros(2)}, values
    yield None, values
    last = copy.deepcopy(values["last"])
    last[1]["step"] -= 1
    yield arrays, {**values, "last": last}
    yield arrays, {**values, "counts": {**values["counts"], BATCH: 3.5}}
    yield arrays, {**values, "seal": values["seal"][::-1]}


@pytest.mark.parametrize("spec", NAMES)
def test_a_damaged_state_is_refused(spec):
    guard = Guard(spec, key=KEY)
    released(guard, course()[:3])
    for arrays, values in damages(*guard.to_state()):
        refused(spec, arrays, values)


@dataclass(frozen=True)
class Remembers(Protection[Any]):
    """A protection of someone else, with a memory of its own."""

    what: Any

    def plan(self, batch, memory):
        return Plan(noise=(Isotropic(std=1.0),), memory=self.what, how="x")


def test_protections_of_others_may_remember_plain_things_only():
    tensor, array = torch.arange(6.0).reshape(2, 3).T, np.arange(3, dtype=np.int16)
    held = (None, True, 3, -0.0, float("nan"), "text", b"\0", (tensor, array), ())
    guard = Guard(Remembers(held), key=KEY)
    guard.release(course()[0])
    other = Guard(Remembers(held), key=KEY)
    other.load_state(*guard.to_state())
    (found,) = other._last.after
    assert repr(found[:7]) == repr(held[:7])
    assert torch.equal(found[7][0], tensor)
    assert np.array_equal(found[7][1], array)
    assert found[7][1].dtype == np.int16
    for wrong in ([1], {"a": 1}, torch.ones(2, dtype=torch.bfloat16), np.int64(3), Ledger(run="r")):
        guard = Guard(Remembers((wrong,)), key=KEY)
        guard.release(course()[0])
        with pytest.raises(InputError, match=r"remembers .*, which has no place in a state: use"):
            guard.to_state()


def test_the_other_states_go_beside_it(tmp_path):
    """Guard, label guard, ledger and monitor from one checkpoint; randomised labels go on too."""
    cuts = [replace(cut, ids=torch.arange(len(cut.labels))) for cut in course()[1:8]]
    cuts = [replace(cut, labels=cuts[0].labels) for cut in cuts]

    def make(ledger):
        options = {"labels": "rr(epsilon=1)", "label_secret": KEY[::-1], "key": KEY}
        monitor = MemoryMonitor(every=2)
        return Guard("marvell(s=4)", ledger=ledger, watch=monitor, **options), monitor

    def run(guard, cuts):
        made = [guard.labels(cut.ids, cut.labels) for cut in cuts]
        return released(guard, [replace(c, labels=y) for c, y in zip(cuts, made, strict=True)])

    whole, seen = make(Ledger(run="r"))
    run(whole, cuts[:3])
    states = stored(
        tmp_path,
        guard=whole.to_state(),
        labels=whole.label_guard.to_state(),
        ledger=whole.ledger.to_state(),
        monitor=seen.to_state(),
    )
    guard, monitor = make(Ledger.from_state(*states["ledger"], run="r"))
    guard.load_state(*states["guard"])
    guard.label_guard.load_state(*states["labels"])
    monitor.load_state(*states["monitor"])
    assert monitor.leak() == seen.leak()
    run(guard, cuts[2:3])
    same(run(guard, cuts[3:]), run(whole, cuts[3:]))
    assert guard.ledger.summary() == whole.ledger.summary()
    assert monitor.leak() == seen.leak() is not None
    assert str(monitor.to_state()) == str(seen.to_state())


def test_foreign_states_of_a_monitor_are_refused():
    monitor, cut = MemoryMonitor(), course()[1]
    cut = replace(cut, ids=torch.arange(len(cut.labels)))
    monitor.load_state(*MemoryMonitor().to_state())
    Guard("none", watch=monitor).release(cut)
    arrays, values = monitor.to_state()
    before = str((arrays, values))
    less = {name: array for name, array in arrays.items() if name != "direction"}
    for wrong in (
        ({}, {}),
        (less, values),
        (arrays, {**values, "seen": 0}),
        (arrays, {**values, "format": 2}),
        ({**arrays, "sums": arrays["sums"][:3]}, values),
        ({**arrays, "labels": arrays["labels"].astype(float)}, values),
        Ledger(run="r").to_state(),
    ):
        with pytest.raises(InputError, match="not the state of a memory monitor"):
            monitor.load_state(*wrong)
    assert str(monitor.to_state()) == before
