"""Matching answers each peer about one set of ids: no other, in no order, after no restart."""

import json
import threading
from contextlib import ExitStack, suppress

import numpy as np
import pytest
import torch

from parties import Quartet, configure
from peers import TIMINGS, Bank, PausedError, Rogue, fresh_pair, honest
from tacit.cli import main
from tacit.errors import LostError, PeerError, UsageError
from tacit.training.cut import Embedding
from tacit.wire.protocol.codec import decode
from tacit.wire.protocol.connection import Connection
from tacit.wire.protocol.messages import Align, Bye, Heartbeat, Hello
from tacit.wire.protocol.state_machine import Role
from tacit.wire.psi.align import Matching, find_common, join_common
from tacit.wire.psi.ecdh import CHUNK, PsiSide, converse
from tacit.wire.psi.messages import Secrets
from tacit.wire.psi.rounds import Rounds, open_rounds
from tacit.wire.transport.base import Transport
from tacit.wire.transport.memory import memory_transports

ANOTHER = "under another commitment than|other ids from number"


pytestmark = pytest.mark.usefixtures("around")


@pytest.fixture(scope="module")
def fresh(tmp_path_factory):
    made = fresh_pair(tmp_path_factory.mktemp("fresh") / "pair")
    for config in (made.bank, made.platform):
        configure(config, matching="private")
    return made


def sealed(content):
    return Align(sealed=torch.frombuffer(bytearray(content), dtype=torch.uint8))


def opened(message):
    return message.sealed.numpy().tobytes()


def ask(rogue, ids, *, secrets=None, rounds=99):
    """Match ids in private as a feature party; return which of them are common."""
    side = PsiSide("feature", ids, secrets=secrets)
    message = side.start()
    while message is not None and rounds:
        rogue.say(sealed(message))
        message = side.answer(opened(rogue.hear(Align)))
        rounds -= 1
    if not side.done:
        return None
    rows = side.result().rows
    rogue.say(Align(count=len(rows)))
    return {ids[row] for row in rows.tolist()}


def labels_of(pair):
    lines = (pair.bank.parent / "labels.csv").read_text().splitlines()[1:]
    return {line.split(",", 1)[0] for line in lines}


def asked(bank, ids):
    """Return what one conversation about ids finds out, None where it is refused."""
    rogue = bank.rogue()
    rogue.greeted()
    with suppress(LostError):
        found = ask(rogue, ids)
        rogue.hear(Align)
        rogue.say(Bye())
        return found
    assert ANOTHER.split("|", maxsplit=1)[0] in rogue.refused()
    return None


def record(pair, party="bank"):
    lines = (pair.state(party) / "matching.rounds").read_text().splitlines()
    return [json.loads(line) for line in lines]


def test_a_second_set_of_guessed_ids_is_not_answered(pair):
    """Six sets of guesses: one is matched and written down, five learn nothing."""
    known = sorted(labels_of(pair))
    guesses = [[*known[part::6], *(f"guess-{part}-{n}" for n in range(1450))] for part in range(6)]
    with Bank(pair) as bank:
        found = [asked(bank, ids) for ids in guesses[:3]]
        bank.stop()
    with Bank(pair) as bank:  # nor after a restart
        found += [asked(bank, ids) for ids in guesses[3:]]
        assert asked(bank, guesses[0]) is None, "fresh secrets make another set of the same ids"
        bank.stop()
    assert found == [set(known[0::6]), *[None] * 5]
    shown = [line for line in record(pair) if line.get("peer") == "platform"]
    assert [line.get("count", line.get("piece", line.get("common"))) for line in shown] == [
        len(guesses[0]),
        len(guesses[0]),
        len(found[0]),
    ]


def test_every_round_is_in_the_log_with_its_sizes(pair):
    ids = sorted(labels_of(pair))[:200]
    with Bank(pair) as bank:
        asked(bank, ids)
        line = bank.said("round 1 of matching")
        bank.stop()
    assert line == (
        "round 1 of matching with platform: 200 ids are common, of 285 here and 200 there"
    )
    assert main(["party", str(pair.bank), "--match-again"]) == 0
    with Bank(pair) as bank:
        asked(bank, ids[:150])
        bank.said("round 2 of matching with platform: 150 ids are common, of 285 here and 150")
        bank.stop()


@pytest.mark.parametrize("said", [1, 2, 3, 4])
def test_an_interrupted_matching_goes_on_with_the_same_ids_only(pair, said):
    ids, secrets = sorted(labels_of(pair))[:200], Secrets()
    with Bank(pair) as bank:
        rogue = bank.rogue()
        rogue.greeted()
        ask(rogue, ids, secrets=secrets, rounds=said)
        rogue.transport.close()
        if said < 4:
            answered = 0 if said == 1 else 200
            bank.said(f"broke off after {answered} ids of platform were answered")
        bank.stop()
    with Bank(pair) as bank:
        if said > 1:  # with the first message nothing was found out yet
            assert asked(bank, ids[:199]) is None
        rogue = bank.rogue()
        rogue.greeted()
        assert ask(rogue, ids, secrets=secrets) == set(ids)
        rogue.hear(Align)
        rogue.say(Bye())
        bank.stop()


class Cut(Transport):
    """A line that is cut after so many frames; heartbeats do not count, when they come is luck."""

    def __init__(self, inner, frames):
        self._inner, self._left = inner, frames

    @property
    def peer(self):
        return self._inner.peer

    def send(self, frame, *, timeout):
        self._count(frame)
        self._inner.send(frame, timeout=timeout)

    def receive(self, *, timeout):
        frame = self._inner.receive(timeout=timeout)
        self._count(frame)
        return frame

    def _count(self, frame):
        if isinstance(decode(frame), Heartbeat):
            return
        self._left -= 1
        if self._left < 0:
            self._inner.close()
            raise InterruptedError

    def close(self):
        self._inner.close()


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("frames", [2, 3, 4, 5, 6, 7, 8, 9, 10])
def test_the_honest_parties_go_on_after_a_cut_at_every_message(pair, frames, restarted):
    """The feature party's process ends after so many frames, hello included."""
    with ExitStack() as stack:
        bank = stack.enter_context(Bank(pair))
        with pytest.raises(InterruptedError):
            honest(bank, dial=lambda: Cut(bank.dial(), frames))
        if restarted:
            bank.stop()
            bank = stack.enter_context(Bank(pair))
        honest(bank)
        assert bank.end()["matching_rounds"] == 1
    assert [line["round"] for line in record(pair) if "round" in line] == [1]
    assert pair.read("platform", "results.json")["common"] == 270


def test_a_lost_result_is_found_again_and_is_the_same(pair):
    """The round's key is there, so the same blinded ids are shown, answered and found."""
    with Bank(pair) as bank:
        honest(bank, stop=6)
        before = (pair.state("platform") / "matching.npy").read_bytes()
        for name in ("matching.npy", "matching.json"):
            (pair.state("platform") / name).unlink()
        honest(bank)
        assert bank.end()["ended"] == "finished"
    assert (pair.state("platform") / "matching.npy").read_bytes() == before


class Liar(Rogue):
    """A label party that matches whichever ids it is told to."""

    def match(self, ids, secrets=None):
        self.hear(Hello)
        self.say(self.hello(party="bank"))
        side = PsiSide("label", ids, secrets=secrets)
        while not side.done:
            self.say(sealed(side.answer(opened(self.hear(Align)))))
        return {ids[row] for row in side.result().rows.tolist()}


class Lies:
    """What the honest feature party dials: a lying label party at the other end."""

    def __init__(self, pair, ids, secrets=None):
        self.pair, self.found = pair, None
        self._ids, self._secrets = ids, secrets

    def dial(self):
        ours, theirs = memory_transports()
        threading.Thread(target=self._lie, args=(theirs,), daemon=True).start()
        return ours

    def _lie(self, line):
        with suppress(LostError):
            self.found = Liar(line, self.pair).match(self._ids, self._secrets)
            line.close()


def test_a_label_party_gets_one_set_too(pair):
    configure(pair.platform, wait=1)
    known, secrets = Rogue(None, pair).ids, Secrets()
    first = Lies(pair, known[:200], secrets)
    with pytest.raises(LostError):
        honest(first)
    assert first.found == set(known[:200])
    for ids in (known[200:], known[:199], known):
        other = Lies(pair, ids)
        with pytest.raises(PeerError, match=ANOTHER):
            honest(other)
        assert other.found is None
    again = Lies(pair, known[:200], secrets)
    with pytest.raises(LostError):
        honest(again)
    assert again.found == set(known[:200])


def test_another_round_takes_the_word_of_both_operators(pair):
    with Bank(pair) as bank:
        honest(bank, dial=lambda: Once(bank.dial()))
        bank.stop()
    assert main(["party", str(pair.bank), "--match-again"]) == 0
    for _ in range(2):  # it is the platform that protects itself
        with Bank(pair) as bank:
            with pytest.raises(PeerError, match=r"bank shows .* tacit party CONFIG --match-again"):
                honest(bank)
            bank.stop()
    assert main(["party", str(pair.platform), "--match-again"]) == 0
    with Bank(pair) as bank:
        honest(bank)
        assert bank.end()["matching_rounds"] == 2
    assert pair.read("platform", "results.json")["matching_rounds"] == 2


class Once(Transport):
    """A line whose feature party ends before the first step."""

    def __init__(self, inner):
        self._inner = inner

    @property
    def peer(self):
        return self._inner.peer

    def send(self, frame, *, timeout):
        if isinstance(decode(frame), Embedding):
            self._inner.close()
            raise PausedError
        self._inner.send(frame, timeout=timeout)

    def receive(self, *, timeout):
        return self._inner.receive(timeout=timeout)

    def close(self):
        self._inner.close()


def test_only_what_was_matched_can_be_matched_again(pair, capsys):
    words = ["party", str(pair.platform), "--match-again"]
    assert main(words) == 2
    assert "nothing was matched" in capsys.readouterr().err
    with Bank(pair) as bank:
        honest(bank)
        bank.end()
    for config in (pair.bank, pair.platform):
        assert main(["party", str(config), "--match-again"]) == 2
        assert "name another state folder for a new run" in capsys.readouterr().err


def test_other_own_ids_need_the_word_of_the_own_operator(pair, capsys):
    with Bank(pair) as bank:
        honest(bank, dial=lambda: Once(bank.dial()))
        bank.stop()
    table = pair.platform.parent / "features.csv"
    head, *rows = table.read_text().splitlines()
    rows[0] = f"nobody,{rows[0].split(',', 1)[1]}"
    table.write_text("\n".join([head, *rows]) + "\n")
    assert main(["party", str(pair.platform)]) == 2
    said = capsys.readouterr().err
    assert "round 1 of matching was begun with 285 other ids than the 285 of this table" in said
    assert main(["party", str(pair.platform), "--match-again"]) == 0
    with Bank(pair) as bank:  # the bank's operator has not agreed
        with pytest.raises(PeerError, match=r"platform shows .* under another commitment"):
            honest(bank)
        bank.stop()


def test_one_of_several_cannot_ask_again_either(tmp_path):
    four = Quartet(
        tmp_path / "four",
        rows=300,
        epochs=1,
        batch_size=32,
        wait=60,
        bank={"attacks": []},
        matching="private",
    )
    known = sorted(labels_of(four))
    sides = {name: Secrets() for name in four.features}

    def round_of(bank, guesses):
        rogues = {n: Rogue(bank.dial(), four, n) for n in four.features}
        threads = [
            threading.Thread(target=_join, args=(rogue, guesses[name], sides[name], found, name))
            for name, rogue in rogues.items()
        ]
        found.clear()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        return {name: found.get(name) for name in four.features}

    found = {}
    sets = dict.fromkeys(four.features, known[:200])
    with Bank(four) as bank:
        assert round_of(bank, sets) == {name: set(known[:200]) for name in four.features}
        sides["registry"] = Secrets()
        second = round_of(bank, {**sets, "registry": known[200:]})
        assert second["registry"] is None
        bank.said("refused: round 1 of matching: registry shows")
        bank.stop()


def _join(rogue, ids, secrets, found, name):
    with suppress(LostError):
        rogue.greeted()
        matched = ask(rogue, ids, secrets=secrets)
        found[name] = matched
        while rogue.hear(Align).held is None:
            rogue.say(Align(count=len(matched)))
        rogue.say(Bye())


def exchange(feature, label):
    """Let a feature party and a label party match over lines through memory."""
    ours, theirs = memory_transports()
    outcome = {}

    def serve():
        with suppress(Exception), Connection(theirs, Role.LABEL, timings=TIMINGS) as connection:
            connection.receive(Hello)
            connection.send(Hello(versions=(1,), party="b", plan_digest="0" * 64))
            try:
                outcome["label"] = find_common([connection], label)
            except Exception as error:
                outcome["label"] = error
                raise

    thread = threading.Thread(target=serve)
    thread.start()
    with Connection(ours, Role.FEATURE, timings=TIMINGS) as connection:
        connection.send(Hello(versions=(1,), party="a", plan_digest="0" * 64))
        connection.receive(Hello)
        try:
            outcome["feature"] = join_common(connection, feature)
        except (LostError, PeerError) as error:
            outcome["feature"] = error
    thread.join(60)
    return outcome


def test_a_later_worker_only_takes_what_worker_0_has_found():
    ids = np.arange(50)
    outcome = exchange(
        Matching(ids=ids, private=True), Matching(ids=ids, private=True, rounds=None)
    )
    assert isinstance(outcome["label"], LostError)
    assert "another matching than worker 0" in str(outcome["label"])
    assert isinstance(outcome["feature"], LostError)


@pytest.mark.parametrize("private", [True, False])
def test_a_set_of_several_messages_is_held_to_each_of_them(private):
    """The first piece is as before and the second is not: nothing of the second is answered."""
    size = CHUNK if private else 1 << 17
    ids, label = np.arange(size + 100), Rounds()
    key = bytes(32)

    def matching(values, **more):
        return Matching(ids=values, private=private, peers=("p",), **more)

    first = exchange(matching(ids, rounds=Rounds(key=key)), matching(ids[:500], rounds=label))
    assert len(first["label"]) == len(first["feature"]) == 500
    shifted = np.concatenate([ids[:size], ids[size:] + 1000])
    other = exchange(matching(shifted, rounds=Rounds(key=key)), matching(ids[:500], rounds=label))
    assert isinstance(other["feature"], PeerError)
    assert "--match-again" in str(other["label"])
    shorter = exchange(
        matching(ids[:size], rounds=Rounds(key=key)), matching(ids[:500], rounds=label)
    )
    assert isinstance(shorter["label"], PeerError)
    same = exchange(matching(ids[::-1], rounds=Rounds(key=key)), matching(ids[:500], rounds=label))
    assert len(same["label"]) == 500, "the order of the rows does not matter"


# The record on disk.


def test_a_record_that_was_being_written_is_cut_off_and_any_other_damage_refused(tmp_path):
    path = tmp_path / "rounds"
    with open_rounds(path, key=bytes(32)) as rounds:
        rounds.begin(np.arange(5))
        shown = rounds.with_peer("p")
        shown.declare(3, b"\x01" * 32)
        shown.show(b"abc", 3)
    whole = path.read_bytes()
    assert path.stat().st_mode & 0o777 == 0o600
    for cut in range(whole.rindex(b"\n", 0, -1) + 2, len(whole)):
        path.write_bytes(whole[:cut])
        with open_rounds(path, key=bytes(32)) as rounds:
            rounds.with_peer("p").show(b"xyz", 3)  # nothing was sent for what was not written
    for spoilt in (whole[1:], whole.replace(b"piece", b"peace"), b"\n" + whole, b"[1]\n", b"{}\n"):
        path.write_bytes(spoilt)
        with pytest.raises(UsageError, match="is damaged"), open_rounds(path, key=bytes(32)):
            pass


def test_a_record_that_cannot_be_written_means_no_answer(tmp_path):
    def full(_):
        raise OSError(28, "No space left on device")

    rounds = Rounds(append=full)
    shown = rounds.with_peer("feature")
    feature, label = PsiSide("feature", [1, 2]), PsiSide("label", [2, 3], shown=shown)
    message = feature.answer(label.answer(feature.start()))
    with pytest.raises(OSError, match="No space"):
        label.answer(message)


def test_derived_secrets_differ_by_everything_that_they_are_derived_from():
    rounds = Rounds(key=bytes(32))
    rounds.begin(np.arange(3))
    other = Rounds(key=b"\x01" * 32)
    other.begin(np.arange(3))
    more = Rounds(key=bytes(32))
    more.begin(np.arange(4))
    made = [
        rounds.secrets("a", role="label"),
        rounds.secrets("b", role="label"),
        rounds.secrets("a", role="feature"),
        other.secrets("a", role="label"),
        more.secrets("a", role="label"),
    ]
    for part in ("scalar", "nonce", "shuffle"):
        assert len({getattr(secrets, part) for secrets in made}) == len(made)
    mine, theirs = converse(
        PsiSide("feature", [1, 2], secrets=made[0]), PsiSide("label", [2, 3], secrets=made[1])
    )
    assert mine.rows.tolist() == [1]
    assert theirs.rows.tolist() == [0]
