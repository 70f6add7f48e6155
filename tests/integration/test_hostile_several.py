"""One of three feature parties breaks the rules: it is refused, and the others' run goes on."""

import threading
from contextlib import closing, suppress
from dataclasses import replace

import pytest
import torch

from parties import Quartet, configure, differences
from peers import Bank, Rogue, dial_to, short, tensor, train
from tacit.errors import LostError, UsageError
from tacit.party.config import identity_of, read_party_config
from tacit.party.feature_session import FeatureSession
from tacit.state_dir import StateFolder
from tacit.training.cut import Embedding, Gradient
from tacit.wire.protocol.codec import decode
from tacit.wire.protocol.header import Limits
from tacit.wire.protocol.messages import Align, Heartbeat
from tacit.wire.psi.ecdh import MOST_IDS, PsiSide
from tacit.wire.transport.base import Transport
from tacit.wire.transport.grpc_client import dial
from tacit.wire.transport.wrappers import RecordingTransport

OFF = bytes(31) + b"\x05"  # 5^3 + 7 is no square: no point of the curve has this x
ROGUE = "bureau"
HONEST = ("platform", "registry")


pytestmark = pytest.mark.usefixtures("around")


@pytest.fixture(scope="module")
def fresh(tmp_path_factory):
    return Quartet(
        tmp_path_factory.mktemp("fresh") / "four",
        rows=300,
        epochs=2,
        batch_size=32,
        save_every=4,
        test_percent=20,
        wait=60,
        bank={"attacks": [], "protect": "marvell(s=4)"},
    )


@pytest.fixture(scope="module")
def wanted(fresh, tmp_path_factory):
    made = fresh.copy(tmp_path_factory.mktemp("wanted") / "four")
    with Bank(made, tls=True) as bank:
        started = [Feature(made, party) for party in made.features]
        assert bank.end()["ended"] == "finished"
        for feature in started:
            feature.end()
    return made


@pytest.fixture
def four(fresh, tmp_path):
    return fresh.copy(tmp_path / "four")


class Feature:
    """An honest feature party at work in a thread, over TLS, as ``tacit party`` runs it."""

    def __init__(self, four, party, *, stop=None):
        self.error, self.ended = None, None
        self._four, self._party, self._stop = four, party, stop
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self):
        config = read_party_config(self._four.folder / self._party / "party.toml")
        try:
            with (
                StateFolder(self._four.state(self._party)) as folder,
                closing(FeatureSession(config, folder, log=lambda _: None)) as party,
            ):
                self.ended = party.run(self._count)
        except BaseException as error:
            self.error = error

    def _count(self, step, _):
        if step == self._stop:
            raise InterruptedError

    def end(self):
        self._thread.join(60)
        assert not self._thread.is_alive()
        if self.error is not None and not isinstance(self.error, InterruptedError):
            raise self.error


def rogue_of(four, party=ROGUE):
    return Rogue(dial_to(four, party), four, party)


def refused(four, bank, act, says):
    """Let the rogue act and see it refused, with nothing released."""
    before, heard = bank.journal, len(bank.lines)
    rogue = rogue_of(four)
    with suppress(LostError):
        act(rogue)
    rogue.refused()
    line = bank.said(says, since=heard)
    assert line.startswith("refused: ")
    assert bank.journal == before


def rows_of_step(change):
    """Do everything right up to the first step, and then send other rows than are due."""

    def act(rogue):
        step = rogue.ready(4)
        rogue.say(train(step, change(*rogue.cut)))

    return act


def with_fewer_examples(rogue):
    rogue.greeted(4)
    rogue.align(rogue.ids[:200])
    rogue.hear()


CASES = {
    "too many rows": (rows_of_step(lambda rows, width: tensor(rows + 1, width)), "by the plan"),
    "all parties' rows": (rows_of_step(lambda rows, width: tensor(3 * rows, width)), "by the plan"),
    "all parties' columns": (
        rows_of_step(lambda rows, width: tensor(rows, 3 * width)),
        "by the plan",
    ),
    "too few rows": (rows_of_step(lambda rows, width: tensor(rows - 1, width)), "by the plan"),
    "another party's name": (
        lambda rogue: rogue.say(rogue.hello(party="platform")),
        "bureau calls itself platform: names are bound to certificates",
    ),
    "nothing in common": (
        lambda rogue: (rogue.greeted(4), rogue.align(("x", "y"))),
        "bureau shows other ids",
    ),
    "other examples": (with_fewer_examples, "bureau shows other ids from number 1 on than before"),
}


@pytest.mark.slow
def test_a_rogue_among_three_is_refused_and_the_run_ends_as_if_it_had_not_been(four, wanted):
    with Bank(four, tls=True) as bank:
        first = Feature(four, ROGUE, stop=5)
        others = [Feature(four, party) for party in HONEST]
        first.end()
        for act, says in CASES.values():
            refused(four, bank, act, says)
        again = Feature(four, ROGUE)
        assert bank.end()["ended"] == "finished"
        for feature in (*others, again):
            feature.end()
    assert not differences(four, wanted)


def test_another_partys_embeddings_for_a_step_that_was_are_refused(four, wanted, monkeypatch):
    """Whoever copies what another party sent gets no second release of the step for it."""
    seen = {}

    def overhear(way, frame):
        if way == "sent" and isinstance(message := decode(frame), Embedding):
            seen[message.step] = message.values

    from tacit.party import calling as feature_party

    real = feature_party.dial

    def tapped(*words, identity, **more):
        transport = real(*words, identity=identity, **more)
        return RecordingTransport(transport, overhear) if identity.name == "platform" else transport

    monkeypatch.setattr(feature_party, "dial", tapped)
    with Bank(four, tls=True) as bank:
        first = Feature(four, ROGUE, stop=5)
        others = [Feature(four, party) for party in HONEST]
        first.end()

        def act(rogue):
            step = rogue.ready(4)
            assert step == 4
            rogue.say(train(step, seen[step]))
            rogue.hear(Gradient)

        refused(four, bank, act, "released before with another embedding|came again with another")
        again = Feature(four, ROGUE)
        assert bank.end()["ended"] == "finished"
        for feature in (*others, again):
            feature.end()
    assert not differences(four, wanted)


# Ids that are matched in private.


def sealed(content):
    return Align(sealed=torch.frombuffer(bytearray(content), dtype=torch.uint8))


def opened(rogue):
    return rogue.hear(Align).sealed.numpy().tobytes()


def put(message, index, point):
    at = 2 + 32 * index
    return message[:at] + point + message[at + 32 :]


def with_points(change):
    """Do everything right up to the own points, and change them."""

    def act(rogue):
        rogue.greeted()
        side = PsiSide("feature", rogue.ids)
        rogue.say(sealed(side.start()))
        rogue.say(sealed(change(side.answer(opened(rogue)))))
        rogue.hear()

    return act


def claiming(count):
    def act(rogue):
        rogue.greeted()
        message = PsiSide("feature", rogue.ids).start()
        rogue.say(sealed(message[:2] + count.to_bytes(8, "big") + message[10:]))
        rogue.hear()

    return act


POINTS = {
    "off the curve": (with_points(lambda m: put(m, 7, OFF)), "point 8 must be on the curve"),
    "too many": (with_points(lambda m: m + m[2:34]), "must have .* bytes here"),
    "not there": (with_points(lambda m: m[:2]), "must have .* bytes here"),
    "more than allowed": (claiming(MOST_IDS + 1), f"must have 1 to {MOST_IDS} ids"),
    "none": (claiming(0), f"must have 1 to {MOST_IDS} ids"),
}


@pytest.mark.slow
def test_points_against_the_rules_are_refused_and_the_run_goes_on(four):
    for party in ("bank", *four.features):
        configure(four.folder / party / "party.toml", matching="private")
    with Bank(four, tls=True) as bank:
        others = [Feature(four, party) for party in HONEST]
        for act, says in POINTS.values():
            refused(four, bank, act, says)
        again = Feature(four, ROGUE)
        assert bank.end()["ended"] == "finished"
        for feature in (*others, again):
            feature.end()
    assert four.releases() == list(range(12))


# One that stalls, says what another said, or goes away at every message.


def stalls_after(act):
    """Do everything right up to a point, and then show no more than signs of life."""

    def run(rogue, stop):
        act(rogue)
        with suppress(LostError):
            while not stop.wait(0.05):
                rogue.say(Heartbeat())

    return run


NO_ANSWER = "bureau gave no answer for 6 seconds"
STALLS = {
    "before the hello": (lambda rogue: None, "heartbeat is not allowed in state start"),
    "after the hello": (lambda rogue: rogue.say(rogue.hello(resume_point=3)), NO_ANSWER),
    "in the matching": (lambda rogue: rogue.greeted(4), NO_ANSWER),
    "before a step": (lambda rogue: rogue.ready(4), NO_ANSWER),
}


@pytest.mark.parametrize(
    ("stall", "alive"), [*((stall, True) for stall in STALLS), ("before a step", False)]
)
def test_one_that_stalls_is_dropped_and_the_run_ends_as_if_it_had_not_been(
    four, wanted, stall, alive
):
    act, says = STALLS[stall]
    says = says if alive else "nothing came from bureau"
    timings = short(silence=6, patience=6, greeting=6)
    with Bank(four, tls=True, timings=timings) as bank:
        first = Feature(four, ROGUE, stop=5)
        others = [Feature(four, party) for party in HONEST]
        first.end()
        bank.said("bureau refused to go on")
        before, heard, stop = bank.journal, len(bank.lines), threading.Event()
        rogue = rogue_of(four)
        run = stalls_after(act) if alive else lambda rogue, _: act(rogue)
        thread = threading.Thread(target=run, args=(rogue, stop), daemon=True)
        thread.start()
        bank.said(f"(connection lost|refused): .*{says}", since=heard)
        assert bank.journal == before, "nothing was released to it"
        stop.set()
        thread.join(60)
        rogue.transport.close()
        again = Feature(four, ROGUE)
        assert bank.end()["ended"] == "finished"
        for feature in (*others, again):
            feature.end()
    assert not differences(four, wanted)


@pytest.mark.parametrize(
    ("own_hello", "says"),
    [
        (True, "bureau shows other ids from number 1 on than before"),
        (False, "bureau calls itself platform"),
    ],
)
def test_all_that_another_party_said_gets_nothing_when_it_comes_again(
    four, wanted, monkeypatch, own_hello, says
):
    """Frame by frame, as they were; under its own name, and under the other's."""
    from tacit.party import calling as feature_party

    real, seen = feature_party.dial, []

    def tapped(*words, identity, **more):
        transport = real(*words, identity=identity, **more)
        if identity.name != "platform":
            return transport
        return RecordingTransport(
            transport, lambda way, frame: seen.append(frame) if way == "sent" else None
        )

    monkeypatch.setattr(feature_party, "dial", tapped)
    with Bank(four, tls=True) as bank:
        first = Feature(four, ROGUE, stop=5)
        others = [Feature(four, party) for party in HONEST]
        first.end()
        bank.said("bureau refused to go on")
        before, heard = bank.journal, len(bank.lines)
        frames = [frame for frame in seen if not isinstance(decode(frame), Heartbeat)]
        rogue = rogue_of(four)
        with suppress(LostError):
            if own_hello:
                rogue.say(rogue.hello(resume_point=3))
            for frame in frames[own_hello:]:
                rogue.say(frame)
        rogue.refused()
        bank.said(f"refused: .*{says}", since=heard)
        assert bank.journal == before
        again = Feature(four, ROGUE)
        assert bank.end()["ended"] == "finished"
        for feature in (*others, again):
            feature.end()
    assert not differences(four, wanted)


class Leaving(Transport):
    """A transport that its owner drops when it has sent so many messages."""

    def __init__(self, transport, after):
        self._transport, self._left = transport, after

    @property
    def peer(self):
        return self._transport.peer

    def send(self, frame, *, timeout):
        if not isinstance(decode(frame), Heartbeat):
            self._left -= 1
        if self._left < 0:
            self._transport.close()
        self._transport.send(frame, timeout=timeout)

    def receive(self, *, timeout):
        return self._transport.receive(timeout=timeout)

    def close(self):
        self._transport.close()


def test_one_that_goes_away_at_every_message_in_turn_changes_nothing(four, wanted, monkeypatch):
    """After the first message, then after the second, and so on, up to twenty of them."""
    from tacit.party import calling as feature_party

    real, dials = feature_party.dial, []

    def leaving(*words, identity, **more):
        transport = real(*words, identity=identity, **more)
        if identity.name != ROGUE or len(dials) >= 20:
            return transport
        dials.append(transport)
        return Leaving(transport, len(dials) - 1)

    monkeypatch.setattr(feature_party, "dial", leaving)
    with Bank(four, tls=True) as bank:
        features = [Feature(four, party) for party in four.features]
        assert bank.end()["ended"].startswith("finished")  # it may leave before its goodbye
        for feature in features:
            feature.end()
    assert len(dials) >= 6, "a run has more messages than that"
    assert not differences(four, wanted)


def test_the_certificate_of_one_party_does_not_serve_under_anothers_name(four):
    """Neither in the hello, nor with the other's configuration and its own key."""
    with Bank(four, tls=True) as bank:
        for name in HONEST:
            heard, rogue = len(bank.lines), rogue_of(four)
            rogue.say(rogue.hello(party=name))
            assert f"bureau calls itself {name}" in rogue.refused()
            bank.said(f"refused: bureau calls itself {name}", since=heard)
            config = read_party_config(four.folder / ROGUE / "party.toml")
            identity = replace(identity_of(config), name=name)
            with pytest.raises(UsageError, match=f"the certificate is for party {ROGUE}"):
                dial(
                    config.address, identity=identity, peer=config.peer, limits=Limits(), timeout=10
                )
        features = [Feature(four, party) for party in four.features]
        assert bank.end()["ended"] == "finished"
        for feature in features:
            feature.end()
