"""The last bits of a release tell no more than the sizes of its values do."""

import math
from dataclasses import replace

import pytest
import torch

from tacit import Guard, View, attack, measure, protect
from tacit.nets import Inputs
from tacit.nets import get as get_model
from tacit.objective import Setting, Turn
from tacit.objective import get as get_objective
from tacit.protect.base import Batch, draw
from tacit.rng import Key
from tacit.testing import low_rank_cut, many_class_cut
from tacit.training import adam

SPECS = [
    "gaussian(0.1)",
    "gaussian(1)",
    "iso(1)",
    "max_norm",
    "max_norm_positive",
    "marvell(s=4)",
    "marvell(sum_kl=0.04)",
    "marvell(s=4, covariance=full)",
    "marvell(sum_kl=0.04, covariance=full)",
    "max_norm | gaussian(0.1)",
]
MANY = ["gaussian(1)", "iso(1)", "max_norm", "marvell(s=4)", "marvell(s=4, covariance=full)"]
DTYPES = [torch.float32, torch.bfloat16]


def _last_bits(grads):
    return attack.get("lowbits")(View(grads=grads), torch.Generator())


def _sizes(grads):
    """The same score made of sizes: a value counts by how many bits lie below its first one."""
    values = grads.double().abs().flatten(1)
    step = 2.0 ** (math.frexp(float(values.max()))[1] - 16)
    return -values.clamp_min(step / 2).log2().sum(dim=1)


def _auc(score, releases):
    """Leak AUC pooled over batches, each score relative to its batch's; the worst class of many."""
    scores = torch.cat([(score(grads) - score(grads).mean()) for grads, _ in releases])
    labels = torch.cat([labels for _, labels in releases])
    classes = range(1, max(2, int(labels.max()) + 1))
    return max(measure.leak_auc(scores, labels == one) for one in classes)


def _released(spec, dtype, *, classes=2, batches=12):
    made = low_rank_cut if classes == 2 else many_class_cut
    for seed in range(batches):
        cut = made(1024, 64, seed=seed, dtype=dtype)
        yield Guard(spec, seed=seed, classes=classes).release(cut).grads, cut.labels


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("spec", "classes"), [*((s, 2) for s in SPECS), *((s, 10) for s in MANY)])
def test_last_bits_tell_sizes_and_nothing_more(spec, classes, dtype):
    releases = list(_released(spec, dtype, classes=classes))
    assert _auc(_last_bits, releases) <= _auc(_sizes, releases) + 0.02


@pytest.mark.parametrize("spec", [s for s in SPECS if "|" not in s])
def test_nor_do_they_over_epochs(spec):
    """Ten releases of each example, scores of the same sign added up."""
    cut, guard = low_rank_cut(4096, 64), Guard(spec, seed=1)
    grads = [guard.release(cut).grads for _ in range(10)]
    summed = [sum(score(g) - score(g).mean() for g in grads) for score in (_last_bits, _sizes)]
    bits, sizes = (measure.leak_auc(scores, cut.labels) for scores in summed)
    assert bits <= sizes + 0.03


@pytest.mark.parametrize("spec", ["gafm", "gafm(sigma=1, gamma=0.5)"])
@pytest.mark.parametrize("protect", ["none", "marvell(s=4)"])
def test_nor_with_gafm(spec, protect):
    model = get_model("gafm_net").build(parties=[Inputs(3)], seed=7).top
    rng = torch.Generator().manual_seed(1)
    labels = (torch.rand(512, generator=rng) < 0.4).long()
    learner = get_objective(spec).learner(
        Setting(
            top=model,
            optimizer=adam(model, 1e-2),
            labels=labels,
            width=1,
            key=Key.from_seed(5),
            first_steps=0,
        )
    )
    guard, releases = Guard(protect, seed=1), []
    for step in range(40):
        z = 0.2 + 0.3 * labels.unsqueeze(1) + 0.3 * torch.rand(512, 1, generator=rng)
        signal = learner.begin(Turn(cut=z, labels=labels, step=step, outputs=model))
        learner.update()
        cut = replace(low_rank_cut(512, 1), grads=signal.grads, labels=labels, step=step)
        releases.append((guard.release(cut).grads, labels))
    assert _auc(_last_bits, releases) <= _auc(_sizes, releases) + 0.02


@pytest.mark.parametrize("spec", ["gaussian(1)", "marvell(s=4)", "marvell(s=4, covariance=full)"])
def test_sums_that_are_left_in_float32_are_found(spec):
    """The same noise added in float32, where the sum keeps the last bits of both."""
    stage, key, releases = protect.get(spec).stages[0], Key.from_seed(1), []
    for seed in range(12):
        cut = low_rank_cut(1024, 64, seed=seed)
        batch = Batch.of(cut)
        noise = draw(stage.plan(batch, None), batch.rows, key.stream("x", seed)) - batch.rows
        releases.append((cut.grads + noise.float(), cut.labels))
    assert _auc(_last_bits, releases) > _auc(_sizes, releases) + 0.05
