"""Private set intersection with a peer that breaks the rules, and callers that do."""

import hashlib
import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.errors import InputError, PeerError, UsageError
from tacit.wire.psi import ecdh as psi
from tacit.wire.psi.curve import hash_to_x
from tacit.wire.psi.ecdh import PsiSide, converse

MINE, THEIRS = list(range(20)), list(range(10, 35))
PRIME = 2**256 - 2**32 - 977
OFF = next(
    x.to_bytes(32, "big")
    for x in range(1, 99)
    if pow(x**3 + 7, (PRIME - 1) // 2, PRIME) == PRIME - 1
)


def conversation(change, *, mine=MINE, theirs=THEIRS, sides=None):
    """Run two sides; ``change`` may replace any message, told its number and sender."""
    feature, label = sides or (PsiSide("feature", mine), PsiSide("label", theirs))
    message, number = feature.start(), 0
    while message is not None:
        answer = label.answer(change(number, message))
        message = feature.answer(change(number + 1, answer))
        number += 2
    return feature, label


def replacing(wanted, change):
    return lambda number, message: change(message) if number == wanted else message


def put(message, index, point):
    at = 2 + 32 * index
    return message[:at] + point + message[at + 32 :]


def refused(wanted, change, words, **options):
    with pytest.raises(PeerError) as caught:
        conversation(replacing(wanted, change), **options)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


# Messages here: 0, 1 open; 2 the feature party's points, 3 the label party's and those of 2 again,
# 4 those of 3 again, 5 nothing; 6, 7 reveal.


def test_the_unchanged_conversation_is_fine():
    feature, label = conversation(lambda _, message: message)
    assert feature.done
    assert label.done
    assert len(feature.result()) == 10


@pytest.mark.parametrize(
    "bad",
    [OFF, b"\xff" * 32, PRIME.to_bytes(32, "big")],
    ids=["no such point", "too large", "the prime"],
)
@pytest.mark.parametrize(("wanted", "index"), [(2, 0), (2, 19), (3, 7)])
def test_a_point_off_the_curve_is_refused_with_its_position(bad, wanted, index):
    refused(wanted, lambda m: put(m, index, bad), f"point {index + 1} must be on the curve")


def test_positions_count_over_messages(monkeypatch):
    monkeypatch.setattr(psi, "CHUNK", 8)
    refused(4, lambda m: put(m, 4, OFF), "point 13 must be on the curve")
    monkeypatch.setattr(psi, "CHUNK", 600)  # and over the pieces that workers share
    refused(2, lambda m: put(m, 555, OFF), "point 556 must be on the curve", mine=range(600))


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        (2, "the feature party sent point 6, the same as point 2: every id may be there once"),
        (3, "the label party sent point 6, the same as point 2: every id may be there once"),
    ],
)
def test_a_point_that_is_sent_twice_is_refused_with_both_positions(wanted, words):
    # Whoever sends a point twice gets the same value back twice, and must live with it.
    sides = PsiSide("feature", MINE), PsiSide("label", THEIRS)
    sender = sides[wanted % 2]
    sender._compare = lambda: sender._indices
    refused(wanted, lambda m: put(m, 5, m[2 + 32 : 2 + 64]), words, sides=sides)


@pytest.mark.parametrize(
    ("wanted", "own", "words"),
    [
        (3, 25, "the label party sent back point 9, the same as point 1"),
        (4, 0, "the feature party sent back point 9, the same as point 1"),
    ],
)
def test_a_value_that_comes_back_twice_is_refused(wanted, own, words):
    sides = PsiSide("feature", MINE), PsiSide("label", THEIRS)
    if wanted == 4:
        sides[0]._proof = lambda role: bytes(32)  # the label party gets as far as to compare

    def twice(message):
        return put(message, own + 8, message[2 + 32 * own : 2 + 32 * (own + 1)])

    refused(wanted, twice, words, sides=sides)


@pytest.mark.parametrize("wanted", range(8))
@pytest.mark.parametrize(
    "change",
    [
        lambda m: m[:-1],
        lambda m: m + b"\0",
        lambda m: b"",
        lambda m: m + bytes(32),
        lambda m: m * 2,
    ],
)
def test_a_message_of_another_length_is_refused(wanted, change):
    with pytest.raises(PeerError):
        conversation(replacing(wanted, change))


@pytest.mark.parametrize("wanted", range(8))
@pytest.mark.parametrize("head", [b"\1\1", b"\3\1", b"\2\0", b"\2\4"])
def test_another_version_or_kind_is_refused(wanted, head):
    refused(wanted, lambda m: head + m[2:], f"got {head.hex()}: run the same release")


@pytest.mark.parametrize("wanted", [6, 7])
def test_a_revealed_seed_that_was_not_committed_to_is_refused(wanted):
    refused(wanted, lambda m: m[:2] + os.urandom(32) + m[34:], "revealed another seed than it had")


@pytest.mark.parametrize("wanted", [0, 1])
def test_a_changed_commitment_is_refused(wanted):
    refused(wanted, lambda m: m[:-32] + os.urandom(32), "revealed another seed than it had")


def test_a_label_party_cannot_copy_the_feature_partys_commitment_and_nonce():
    said = {}

    def copying(number, message):
        said[number] = message
        if number == 1:
            return message[:-32] + said[0][-32:]
        return message[:2] + said[6][2:34] + message[34:] if number == 7 else message

    with pytest.raises(PeerError, match="the label party revealed another seed"):
        conversation(copying)


@pytest.mark.parametrize("wanted", [6, 7])
def test_a_party_that_found_something_else_is_refused(wanted):
    refused(wanted, lambda m: m[:34] + os.urandom(32), "found other common ids than the 10 here")


def test_a_label_party_cannot_send_the_feature_partys_proof_back():
    said = {}

    def copying(number, message):
        said[number] = message
        return message[:34] + said[6][34:] if number == 7 else message

    with pytest.raises(PeerError, match="found other common ids"):
        conversation(copying)


def test_values_that_a_peer_makes_up_show_in_the_end():
    made_up = hash_to_x(bytes(32))
    with pytest.raises(PeerError, match="found other common ids"):
        conversation(
            replacing(
                3,
                lambda m: (
                    m[: 2 + 32 * 25]
                    + b"".join(hashlib.sha256(made_up + bytes([n])).digest() for n in range(20))
                ),
            )
        )


@pytest.mark.parametrize(("count", "wanted"), [(0, 0), (0, 1), (21, 0), (26, 1), (2**64 - 1, 1)])
def test_a_set_beyond_the_cap_is_refused(count, wanted):
    sides = PsiSide("feature", MINE, most=25), PsiSide("label", THEIRS[:20], most=20)
    refused(
        wanted,
        lambda m: m[:2] + count.to_bytes(8, "big") + m[10:],
        f"ids, got {count}: split the table",
        sides=sides,
    )
    with pytest.raises(InputError, match="takes 1 to 24 ids, got 25"):
        PsiSide("label", THEIRS, most=24)


def test_sizes_are_reported_and_bind():
    feature, label = conversation(lambda _, message: message)
    assert (feature.result().own_count, feature.result().peer_count) == (20, 25)
    assert (label.result().own_count, label.result().peer_count) == (25, 20)
    refused(0, lambda m: m[:2] + (19).to_bytes(8, "big") + m[10:], "bytes here, got")


# Callers.


def test_calls_out_of_turn_are_refused_and_change_nothing():
    feature, label = PsiSide("feature", MINE), PsiSide("label", THEIRS)
    for call in (label.start, lambda: feature.answer(b""), feature.result, label.result):
        with pytest.raises(UsageError):
            call()
    found, _ = converse(feature, label)
    assert len(found) == 10
    for call in (
        feature.start,
        label.start,
        lambda: feature.answer(b""),
        lambda: label.answer(b""),
    ):
        with pytest.raises(UsageError):
            call()
    assert feature.result() is found
    with pytest.raises(UsageError, match="a role is one of feature, label, got 'both'"):
        PsiSide("both", MINE)


def test_after_a_broken_rule_a_side_says_nothing_more():
    label = PsiSide("label", THEIRS)
    with pytest.raises(PeerError):
        label.answer(b"\1\2")
    with pytest.raises(UsageError, match="a side that is failed takes no message"):
        label.answer(PsiSide("feature", MINE).start())
    assert not label.done


@given(st.integers(0, 7), st.binary(max_size=80), st.integers(0, 1500))
@settings(max_examples=60, deadline=None)
def test_any_damage_is_a_peer_error_or_changes_nothing_that_both_do_not_see(wanted, noise, at):
    def damage(message):
        index = at % (len(message) + 1)
        return message[:index] + noise + message[index + len(noise) :]

    changed = []

    def change(number, message):
        if number != wanted:
            return message
        changed.append(damage(message) != message)
        return damage(message)

    try:
        feature, label = conversation(change, mine=MINE[:6], theirs=THEIRS[:4] + MINE[:3])
    except PeerError:
        assert any(changed)
    else:
        assert feature.result().digest == label.result().digest
