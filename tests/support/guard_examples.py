"""Specs of every protection, cuts of every kind, and guards that are stored and taken up again."""

from dataclasses import replace

import torch

from tacit import protect
from tacit.party.checkpoint import CheckpointStore
from tacit.testing import low_rank_cut

EXAMPLES = {
    "none": ["none"],
    "gaussian": ["gaussian(0.1)", "gaussian(100)"],
    "iso": ["iso(1)", "iso(t=25)"],
    "max_norm": ["max_norm", "max_norm | gaussian(0.05)"],
    "max_norm_positive": ["max_norm_positive"],
    "marvell": [
        "marvell(s=4)",
        "marvell(s=0.1)",
        "marvell(sum_kl=0.16)",
        "marvell(error=0.4)",
        "marvell(s=4, covariance=full)",
        "marvell(s=0.1, covariance=full)",
        "marvell(sum_kl=0.16, covariance=full)",
        "marvell(error=0.4, covariance=full)",
    ],
}
SPECS = [spec for name in protect.PROTECTIONS.names() for spec in EXAMPLES.get(name, [name])]
KEY = bytes(range(32))
CHAINS = [
    "marvell(s=4) | gaussian(0.01)",
    "max_norm | marvell(sum_kl=0.5, covariance=full) | iso(t=1)",
]
NAMES = ["marvell(s=4)", "marvell(s=4, covariance=full)", "iso(1)", *CHAINS]


def course(batch=64, width=8, dtype=torch.float32):
    """Cuts of every kind: ordinary ones of all scales, one class, zeros, a single row."""
    plain = [low_rank_cut(batch, width, seed=n, dtype=dtype) for n in range(12)]
    plain = [replace(c, grads=c.grads * 2.0 ** (n % 5), weight=0.5) for n, c in enumerate(plain)]
    alone = replace(plain[0], labels=torch.zeros_like(plain[0].labels))
    zero = replace(plain[1], grads=torch.zeros_like(plain[1].grads))
    one = replace(alone, grads=alone.grads[:1], labels=alone.labels[:1], probs=alone.probs[:1])
    cuts = [alone, plain[0], alone, *plain[1:], zero, alone, one, *plain[:2], alone]
    return [replace(cut, step=step, embeddings=cut.grads + step) for step, cut in enumerate(cuts)]


def stored(path, *, step=0, **states):
    """Return states as they come back from a checkpoint on disk."""
    CheckpointStore(path, run="r").save(step, models={}, optimizers={}, states=states)
    return CheckpointStore(path, run="r").latest().states


def released(guard, cuts):
    return [guard.release(cut) for cut in cuts]


def same(ones, others):
    for one, other in zip(ones, others, strict=True):
        assert torch.equal(one.grads, other.grads)
        assert (one.step, one.certificate) == (other.step, other.certificate)
