"""The overlap is real: a feature party works on later steps while the label party is at one."""

import threading

import pytest
import torch

from tacit.party.proxies import RemoteFeature, RemoteLabel
from tacit.training import Embedding, FeatureEnd, Gradient, LabelEnd, train
from tacit.wire.protocol.connection import Connection, Timings
from tacit.wire.protocol.messages import Align, Hello
from tacit.wire.protocol.state_machine import Role
from tacit.wire.transport.memory import memory_transports

STEPS, LONG = 6, 60.0
BATCHES = [torch.arange(4)] * STEPS


class Ahead(FeatureEnd):
    """Notes which steps it has begun; the label party in this test looks there."""

    def __init__(self):
        self.begun = [threading.Event() for _ in range(STEPS)]

    def forward(self, step, rows):
        self.begun[step].set()
        return Embedding(step=step, values=torch.full((len(rows), 2), float(step)))

    def backward(self, gradient):
        pass

    def embed(self, rows):
        raise NotImplementedError


class Slow(LabelEnd):
    """Answers a step only when the feature party is as far ahead as it may be, and no further."""

    def __init__(self, party, depth):
        self._party, self._depth = party, depth
        self.seen = []

    def step(self, rows, embeddings):
        step = embeddings[0].step
        last = min(step + self._depth, STEPS) - 1
        ahead = self._party.begun[last].wait(LONG)
        further = last + 1 < STEPS and self._party.begun[last + 1].is_set()
        self.seen.append((step, ahead, further))
        return [Gradient(step=step, values=torch.zeros(len(rows), 2))]

    def update(self):
        return 0.0

    def predict(self, rows, embeddings):
        raise NotImplementedError


@pytest.mark.parametrize("depth", [1, 2, 4])
def test_the_label_party_can_wait_for_steps_that_come_later(depth):
    ours, theirs = memory_transports()
    feature = Connection(ours, Role.FEATURE, timings=Timings(), depth=depth)
    label = Connection(theirs, Role.LABEL, timings=Timings(), depth=depth)
    party = Ahead()
    slow = Slow(party, depth)

    def serve():
        hello = Hello(versions=(1,), party="bank", plan_digest="0" * 64)
        for kind, answer in ((Hello, hello), (Align, Align(count=4))):
            label.receive(kind)
            label.send(answer)
        list(train(BATCHES, features=[RemoteFeature(label, cut=(2,))], label=slow))

    with feature, label:
        thread = threading.Thread(target=serve)
        thread.start()
        hello = Hello(versions=(1,), party="clinic", plan_digest="0" * 64)
        for message in (hello, Align(count=4)):
            feature.send(message)
            feature.receive(type(message))
        done = list(train(BATCHES, features=[party], label=RemoteLabel(feature), depth=depth))
        thread.join(LONG)
    assert [step.step for step in done] == list(range(STEPS))
    assert slow.seen == [(step, True, False) for step in range(STEPS)]
