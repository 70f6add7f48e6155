"""Cross-entropy with targets beyond 0 and 1: unchanged where it is bounded, and bounded below."""

import pytest
import torch
from torch.nn import functional as nn

from tacit.objective import get

TARGETS = torch.tensor([2.2857, -1.2857, 2.2857, -1.2857, 0.3])
FLOOR = 10.0


def gradient(objective, logits, targets):
    leaf = logits.clone().requires_grad_()
    loss = get(objective).loss(leaf, targets)
    loss.backward()
    return loss.detach(), leaf.grad


def test_within_the_floor_every_bit_is_that_of_plain_cross_entropy():
    logits = torch.tensor([3.0, -9.9, -40.0, 40.0, 60.0])
    leaf = logits.clone().requires_grad_()
    plain = nn.binary_cross_entropy_with_logits(leaf, TARGETS)
    plain.backward()
    loss, grads = gradient("bce", logits, TARGETS)
    assert torch.equal(loss, plain.detach())
    assert torch.equal(grads, leaf.grad)


def test_two_classes_and_one_of_two_logits_agree():
    logits = torch.tensor([12.0, -30.0, 5.0, 25.0, 1.0])
    both = torch.stack([1 - TARGETS, TARGETS], dim=1)
    pair = torch.stack([torch.zeros(5), logits], dim=1)
    one, grads = gradient("bce", logits, TARGETS)
    many, grown = gradient("ce", pair, both)
    assert float(one) == pytest.approx(float(many), rel=1e-5)
    assert torch.allclose(grads, grown[:, 1], atol=1e-6)


@pytest.mark.parametrize("far", [12.0, 100.0, 1e4])
def test_beyond_the_floor_a_target_outside_pulls_no_further(far):
    logits = torch.tensor([far, -far])
    loss, grads = gradient("bce", logits, TARGETS[:2])
    assert float(loss) == pytest.approx(-1.2857 * FLOOR, abs=1e-3)
    assert grads.abs().max() < 1e-4
    back, pulled = gradient("bce", -logits, TARGETS[:2])
    assert float(back) > far
    assert pulled.abs().min() > 1
