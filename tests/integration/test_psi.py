"""Private set intersection against the plain one, and what its messages give away."""

import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import unicodedata
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.errors import ParameterError
from tacit.wire.psi import ecdh as psi
from tacit.wire.psi.curve import blind_ids, fresh_scalar, hash_to_x
from tacit.wire.psi.ecdh import PsiSide, converse
from tacit.wire.psi.messages import Secrets
from tacit.wire.psi.pool import process_pool
from tacit.wire.psi.values import common_indices, first_repeat, hash_ids, shared_order, shuffled


def matched(mine, theirs, **options):
    feature, label = converse(PsiSide("feature", mine), PsiSide("label", theirs), **options)
    assert feature.digest == label.digest
    assert (feature.own_count, feature.peer_count) == (len(mine), len(theirs))
    assert (label.own_count, label.peer_count) == (len(theirs), len(mine))
    return feature.rows.tolist(), label.rows.tolist()


def secrets_of(number, *, scalar=None):
    def piece(name):
        return hashlib.sha256(f"{name} {number}".encode()).digest()

    return Secrets(
        scalar=piece("scalar") if scalar is None else scalar,
        nonce=piece("nonce"),
        shuffle=piece("shuffle"),
    )


@pytest.fixture
def short_messages(monkeypatch):
    monkeypatch.setattr(psi, "CHUNK", 64)


@pytest.mark.parametrize(
    ("here", "there"),
    [(1, 1), (1, 64), (65, 3), (3, 65), (64, 64), (64, 128), (128, 64), (130, 129), (2500, 2500)],
)
@pytest.mark.usefixtures("short_messages")
def test_it_finds_the_plain_intersection(here, there):
    draw = random.Random(here * there)  # noqa: S311
    pool = draw.sample(range(10**12), here + there)
    common = pool[: min(here, there) * 6 // 10]
    mine = common + pool[len(common) : here]
    theirs = common + pool[here : here + there - len(common)]
    draw.shuffle(mine)
    draw.shuffle(theirs)
    rows, others = matched(mine, [str(id_) for id_ in theirs])
    assert [mine[at] for at in rows] == [theirs[at] for at in others]
    assert {mine[at] for at in rows} == set(mine) & set(theirs)
    assert len(rows) == len(common)


@given(
    st.sets(
        st.text(min_size=1, max_size=4)
        .filter(str.strip)
        .filter(lambda t: unicodedata.is_normalized("NFC", t) and t.isprintable()),
        min_size=1,
        max_size=8,
    ),
    st.data(),
)
@settings(max_examples=15, deadline=None)
def test_it_finds_the_plain_intersection_of_any_texts(ids, data):
    pool = sorted(ids)
    mine = data.draw(st.permutations(pool)) or pool
    theirs = data.draw(st.lists(st.sampled_from([*pool, "more", "other"]), min_size=1, unique=True))
    rows, others = matched(mine, theirs)
    assert [mine[at] for at in rows] == [theirs[at] for at in others]
    assert {mine[at] for at in rows} == set(mine) & set(theirs)


def test_nothing_in_common_is_a_result():
    assert matched([1, 2, 3], [4, 5]) == ([], [])


def test_the_order_is_shared_and_every_run_has_its_own():
    ids = list(range(100))
    orders = [tuple(matched(ids, ids)[0]) for _ in range(3)]
    assert len(set(orders)) == 3
    assert all(list(order) != ids for order in orders)
    values = np.frombuffer(os.urandom(32 * 50), dtype=np.uint8).reshape(-1, 32)
    backwards = values[::-1]
    first, second = shared_order(values, b"s" * 32), shared_order(backwards, b"s" * 32)
    assert np.array_equal(values[first], backwards[second])
    assert not np.array_equal(first, shared_order(values, b"t" * 32))


@pytest.mark.parametrize("changed", ["feature", "label"])
def test_either_nonce_changes_the_order(changed):
    ids = list(range(40))

    def rows(**nonces):
        sides = {}
        for role, number in (("feature", 1), ("label", 2)):
            kept = secrets_of(number)
            nonce = nonces.get(role, kept.nonce)
            sides[role] = PsiSide(
                role, ids, secrets=Secrets(scalar=kept.scalar, nonce=nonce, shuffle=kept.shuffle)
            )
        return converse(sides["feature"], sides["label"])[0].rows.tolist()

    assert rows() == rows()
    assert rows() != rows(**{changed: bytes(32)})


def test_the_messages_show_nothing_of_the_ids_or_the_files_order():
    ids = [f"customer-{n:06}" for n in range(300)]
    said = []
    matched(ids, ids[100:], tap=said.append)
    everything = b"".join(said)
    for id_ in ids:
        hashed = hash_ids([id_]).tobytes()
        for trace in (
            id_.encode(),
            hashed,
            hash_to_x(hashed),
            hashlib.sha256(id_.encode()).digest(),
        ):
            assert trace not in everything
    counts = [len(message) for message in said]
    again = []
    matched([f"{n}" for n in range(300)], [f"{n}" for n in range(200)], tap=again.append)
    assert counts == [len(message) for message in again]  # lengths depend on the sizes alone
    assert {m for m in said if m in again} == {b"\2\2"}  # nothing left to say but that


def test_points_are_sent_in_an_order_of_their_own():
    ids, kept = list(range(500)), secrets_of(3)
    side = PsiSide("feature", ids, secrets=kept)
    side.start()
    other = PsiSide("label", [1])
    sent = side.answer(other.answer(PsiSide("feature", ids).start()))[2:]
    by_row = blind_ids(kept.scalar, hash_ids(ids).tobytes())
    indices = [by_row.index(sent[at : at + 32]) // 32 for at in range(0, len(sent), 32)]
    assert sorted(indices) == ids
    assert indices == shuffled(500, kept.shuffle).tolist() != ids


@pytest.mark.usefixtures("short_messages")
def test_messages_stay_small_however_many_ids_there_are():
    said = []
    matched(list(range(300)), list(range(100)), tap=lambda message: said.append(len(message)))
    assert max(said) == 2 + 2 * 32 * 64
    assert len(said) == 2 + 2 * 5 + 2


def test_the_messages_of_version_2_stay_as_they_are():
    said = []
    sides = [
        PsiSide(role, ids, secrets=secrets_of(role))
        for role, ids in (("feature", [1, 2, "é"]), ("label", ["2", "x", "é", 7]))
    ]
    found, _ = converse(*sides, tap=said.append)
    golden = Path(__file__).parents[1] / "golden" / "psi_v2.json"
    made = {
        "messages": [m.hex() for m in said],
        "rows": found.rows.tolist(),
        "digest": found.digest,
    }
    assert made == json.loads(golden.read_text())


# Many values at once.


def test_values_that_differ_in_one_byte_differ():
    values = np.zeros((64, 32), dtype=np.uint8)
    values[np.arange(32), np.arange(32)] = 1
    values[np.arange(32, 64), np.arange(32)] = 255
    assert first_repeat(values) is None
    assert first_repeat(np.concatenate([values, values[5:6]])) == (5, 64)
    assert common_indices(values, values[10:20]).size == 10
    assert first_repeat(values[:1]) is None


@given(st.lists(st.lists(st.integers(0, 2), min_size=4, max_size=4), min_size=1, max_size=12))
def test_values_are_sorted_whole_whatever_a_peer_makes_alike(numbers):
    values = np.array(numbers, dtype=">u8").view(np.uint8)
    rows = [row.tobytes() for row in values]
    repeat = first_repeat(values)
    assert (repeat is None) == (len(set(rows)) == len(rows))
    if repeat is not None:
        earlier, later = repeat
        assert rows[earlier] == rows[later]
        assert len(set(rows[:later])) == later
    others = np.frombuffer(b"".join(sorted(set(rows))[::2]), dtype=np.uint8).reshape(-1, 32)
    own = np.frombuffer(b"".join(dict.fromkeys(rows)), dtype=np.uint8).reshape(-1, 32)
    assert own[common_indices(own, others)].tobytes() == others.tobytes()


# Workers.


def test_worker_processes_find_the_same():
    ids = list(range(700))
    kept = [secrets_of(n) for n in (1, 2)]

    def run(executor):
        sides = [
            PsiSide(role, ids, secrets=own, executor=executor)
            for role, own in zip(("feature", "label"), kept, strict=True)
        ]
        return converse(*sides)[0].rows.tolist()

    with process_pool(2) as pool:
        assert run(pool) == run(None)
    with pytest.raises(ParameterError, match="got 0"):
        process_pool(0)


def test_workers_do_not_outlive_a_party_that_is_killed():
    code = (
        "import multiprocessing as m, os, signal\n"
        "from tacit.wire.psi.pool import process_pool\n"
        "pool = process_pool(1); pool.submit(abs, 1).result()\n"
        "print(m.active_children()[0].pid, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    party = subprocess.run(  # noqa: S603
        [sys.executable, "-c", code],
        check=False,
        stdout=subprocess.PIPE,
        timeout=120,
    )
    assert party.returncode == -signal.SIGKILL
    # The worker holds the other end of standard output: it is over, or there would be no return.
    assert int(party.stdout) > 0


def test_secrets_are_fresh_and_do_not_show_themselves():
    first, second = Secrets(), Secrets()
    assert first.scalar != second.scalar
    assert first.nonce != second.nonce
    assert first.shuffle != second.shuffle
    assert first.scalar.hex() not in repr(first)
    assert len({fresh_scalar() for _ in range(9)}) == 9
