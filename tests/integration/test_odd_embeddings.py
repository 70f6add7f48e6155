"""A feature party that sends a few prototypes for embeddings: it is warned of, or refused."""

from contextlib import suppress

import pytest
import torch

from parties import configure
from peers import Bank, finished, honest, tensor, train
from tacit.errors import LostError
from tacit.training.cut import Gradient
from tacit.wire.protocol.messages import CheckpointMessage

pytestmark = pytest.mark.usefixtures("around")


def prototypes(rogue, step):
    rows, width = rogue.cut
    return tensor(8, width)[torch.arange(step, step + rows) % 8]


def test_an_honest_run_is_warned_of_none(pair):
    with Bank(pair) as bank:
        honest(bank)
        assert bank.end()["warnings"] == {"odd_embeddings": 0}
    assert pair.read("bank", "results.json")["warnings"] == {"odd_embeddings": 0}


def test_prototypes_are_served_and_warned_of_once(pair):
    with Bank(pair) as bank:
        rogue = bank.rogue()
        rogue.ready()
        for step in range(4):
            rogue.say(train(step, prototypes(rogue, step)))
            rogue.hear(Gradient)
        rogue.say(CheckpointMessage(step=3))
        rogue.hear(CheckpointMessage)
        rogue.transport.close()
        assert "of the rows repeat others" in bank.said("^warning: the embeddings of step 0")
        bank.said("connection lost")
        assert sum("warning" in line for line in bank.lines) == 1
        found = {"odd_embeddings": 4, "odd_embeddings_repeats": 4}
        assert bank.party.watch.warnings == found
        bank.stop()
    with Bank(pair) as bank:  # what was counted is part of the checkpoint
        rogue = bank.rogue()
        assert rogue.ready(4) == 4
        rogue.transport.close()
        bank.said("connection lost")
        assert bank.party.watch.warnings == found
        bank.stop()


@pytest.mark.parametrize("tls", [False, True], ids=["memory", "grpc"])
def test_prototypes_are_refused_where_that_is_set(pair, wanted, tls):
    configure(pair.bank, on_odd_embeddings="refuse")
    with Bank(pair, tls=tls) as bank:
        for count in range(1, 3):
            rogue = bank.rogue()
            rogue.ready()
            before = bank.journal
            rogue.say(train(0, prototypes(rogue, 0)))
            assert "are unlike those of any bottom model" in rogue.refused()
            bank.said("refused: the embeddings of step 0")
            assert bank.journal == before
            assert bank.party.watch.warnings["odd_embeddings"] == count
        finished(bank, wanted)
        assert bank.results["warnings"]["odd_embeddings"] == 2


def test_whether_a_batch_is_refused_does_not_depend_on_labels(pair):
    """The same embeddings with every label turned get the same answers."""
    configure(pair.bank, on_odd_embeddings="refuse")
    other = pair.copy(pair.folder.with_name("turned"))
    schema = other.bank.parent / "labels.csv.schema.toml"
    turned = schema.read_text().replace('positive = "yes"', 'positive = "no"')
    assert turned != schema.read_text()
    schema.write_text(turned)
    answers = _answers(pair)
    assert answers == _answers(other)
    assert {reason is None for reason in answers} == {True, False}


def _answers(pair):
    """Return the reason for which each of some batches is refused, None for a release."""
    answers = []
    with Bank(pair) as bank:
        for jitter in (0.0, 1e-3, 0.1, 0.2, 0.3, 0.4, 1.0):
            rogue = bank.rogue()
            rogue.ready()
            rogue.say(train(0, prototypes(rogue, 0) + jitter * tensor(*rogue.cut, seed=1)))
            with suppress(LostError):
                rogue.hear(Gradient)
                answers.append(None)
                break  # the step is on record: no other embeddings get anything
            answers.append(rogue.reason)
        rogue.transport.close()
        bank.stop()
    return answers
