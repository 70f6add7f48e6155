"""Overlapping steps and peers that do not keep the rules, or go away in the middle."""

import threading
from contextlib import suppress
from functools import partial
from unittest import mock

import pytest

from parties import Pair, configure, differences
from peers import (
    LONG,
    Bank,
    finished,
    honest,
    short,
    tensor,
    train,
)
from tacit.errors import LostError
from tacit.party.schedule import Schedule
from tacit.training.cut import Embedding, Gradient
from tacit.wire.protocol.codec import decode
from tacit.wire.transport.memory import memory_transports
from tacit.wire.transport.wrappers import RecordingTransport

pytestmark = pytest.mark.usefixtures("around")


@pytest.fixture(scope="module", params=[2, 4])
def depth(request):
    return request.param


@pytest.fixture(scope="module")
def fresh(depth, tmp_path_factory):
    return Pair(
        tmp_path_factory.mktemp("fresh") / "pair",
        rows=300,
        epochs=2,
        batch_size=32,
        save_every=4,
        test_percent=20,
        wait=60,
        depth=depth,
        bank={"attacks": []},
    )


class Gate:
    """Holds the label party after its first step until a peer has said all that it wants to."""

    def __init__(self):
        self.open, self.reached = threading.Event(), threading.Event()

    def __call__(self, step, _steps):
        if step.step == 0:
            self.reached.set()
            assert self.open.wait(LONG)


def ahead(pair, gate, more):
    """Say a first step, and ``more`` after it while its release is all that was answered."""
    for config in (pair.bank, pair.platform):
        configure(config, save_every=20)
    roomy = partial(
        memory_transports, waiting=8
    )  # what is held back by the transport is not refused yet
    still = short(beat=LONG)  # nobody reads signs of life while the gate is closed
    with (
        mock.patch("parties.memory_transports", roomy),
        Bank(pair, done=gate, timings=still) as bank,
    ):
        rogue = bank.rogue()
        assert rogue.ready() == 0
        rogue.say(train(0, tensor(*rogue.cut)))
        assert gate.reached.wait(LONG)
        rogue.say(*(train(step, tensor(*rogue.cut, seed=step)) for step in range(1, more + 1)))
        gate.open.set()
        heard = []
        with suppress(LostError):
            while len(heard) <= more:
                heard.append(rogue.hear(Gradient).step)
        rogue.transport.close()
        if rogue.reason is not None:
            bank.said("refused: the feature party broke the rules")
        bank.stop()
        return heard, rogue.reason


def test_as_many_steps_as_the_plan_lets_are_answered_in_order(pair, depth):
    heard, reason = ahead(pair, Gate(), depth)
    assert (heard, reason) == (list(range(depth + 1)), None)


def test_one_step_more_is_refused_and_nothing_is_released_for_it(pair, depth):
    heard, reason = ahead(pair, Gate(), depth + 1)
    assert heard == [0]
    assert f"the plan lets {depth} steps be under way and step {depth + 1} is one more" in reason
    assert "step 1 must have its release first" in reason
    assert pair.releases() == [0, 1]


@pytest.mark.parametrize("stop", [1, 3, 5, 8])
def test_a_feature_party_that_dies_in_between_goes_on_to_the_same_bits(pair, wanted, stop):
    with Bank(pair) as bank:
        honest(bank, stop=stop)
        finished(bank, wanted)


class Cut:
    """A transport that is cut when the feature party has sent so many steps."""

    def __init__(self, transport, after):
        self._left, self.transport = after, RecordingTransport(transport, self._count)

    def _count(self, way, frame):
        if way == "sent" and isinstance(decode(frame), Embedding):
            self._left -= 1
            if self._left < 0:
                self.transport.close()


@pytest.mark.parametrize("after", [1, 4, 7])
def test_a_connection_that_is_lost_with_steps_under_way(pair, wanted, after):
    """Both processes live on; the next connection takes them back to their last checkpoint."""
    dials = []
    with Bank(pair) as bank:

        def dial():
            dials.append(bank.dial())
            return Cut(dials[-1], after).transport if len(dials) == 1 else dials[-1]

        honest(bank, dial=dial)
        assert bank.end()["ended"] == "finished"
    assert len(dials) > 1
    assert not differences(pair, wanted)


def test_a_released_step_is_refused_with_another_embedding_after_a_return(pair, wanted):
    with Bank(pair) as bank:
        honest(bank, stop=7)
        bank.said("refused|lost")  # until then it works on what had come
        before = bank.journal
        rogue = bank.rogue()
        assert rogue.ready(4) == 4
        rogue.say(train(4, tensor(*rogue.cut)))
        assert "step 4 was released before with another embedding" in rogue.refused()
        assert bank.journal == before
        finished(bank, wanted)


@pytest.mark.parametrize("every", [2, 60])
def test_a_budget_ends_both_sides_where_the_plan_does_whatever_the_labels(pair, every):
    """Every second row positive, or so few that most batches have none."""
    table = pair.bank.parent / "labels.csv"
    head, *rows = table.read_text().splitlines()
    cells = [row.split(",") for row in rows]
    for number, row in enumerate(cells):
        row[1] = "no" if number % every else "yes"
    table.write_text("\n".join([head, *map(",".join, cells)]) + "\n")
    configure(pair.bank, protect="marvell(sum_kl=0.5, covariance=full)", budget="sum_kl=1")
    with Bank(pair) as bank:
        found = honest(bank)
        ended = bank.end()
    assert ended["ended"] == found["ended"] == "finished"
    agreed = Schedule.of(bank.party.plan, ended["common"]).steps
    assert found["steps"] == ended["steps"] == len(pair.releases()) == agreed
    assert pair.checkpoint("bank")[1] == pair.checkpoint("platform")[1] == found["steps"]
    assert ended["planned"]["allowed"] == 2
    assert ended["ledger"]["sum_kl"] <= 1 + 1e-9
