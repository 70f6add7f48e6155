import gc
import math
import weakref
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import tacit
from tacit import Cut, Guard, LeakMonitor
from tacit.errors import InputError, ParameterError, ReleaseError, ReplayError
from tacit.testing import low_rank_cut


def _model(seed=0):
    torch.manual_seed(seed)
    bottom = nn.Sequential(nn.Linear(6, 16), nn.ReLU())
    top = nn.Sequential(nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 1))
    return bottom, top


def _train(guard, *, steps=12, probs=False):
    bottom, top = _model()
    optimizer = torch.optim.Adam([*bottom.parameters(), *top.parameters()], lr=1e-2)
    rng = torch.Generator().manual_seed(1)
    for _ in range(steps):
        x = torch.randn(64, 6, generator=rng)
        y = (x[:, 0] + x[:, 1] > 0.8).long()
        z = bottom(x)
        logits = None
        if guard is not None:
            late = (lambda: torch.sigmoid(logits.detach())) if probs else None  # noqa: B023
            z = guard(z, y, probs=late)
        logits = top(z).squeeze(1)
        optimizer.zero_grad()
        nn.functional.binary_cross_entropy_with_logits(logits, y.float()).backward()
        optimizer.step()
    return torch.cat([p.detach().flatten() for p in (*bottom.parameters(), *top.parameters())])


def test_none_is_a_plain_loop_bit_for_bit():
    assert torch.equal(_train(None), _train(Guard("none")))


@pytest.mark.parametrize(
    "spec", ["gaussian(0.1)", "iso(1)", "max_norm", "max_norm_positive", "marvell(s=4)"]
)
def test_training_is_repeatable_and_blind_to_the_monitor(spec):
    probs = spec == "max_norm_positive"
    plain = _train(Guard(spec, seed=5), probs=probs)
    monitor = LeakMonitor(every=2)
    watched = Guard(spec, seed=5, watch=monitor)
    state = torch.get_rng_state()
    assert torch.equal(plain, _train(watched, probs=probs))
    torch.manual_seed(0)
    assert not torch.equal(plain, _train(Guard(spec, seed=6), probs=probs))
    assert not torch.equal(plain, _train(Guard("none")))
    assert monitor.report()["norm"].batches == 6
    assert watched.counts.total() == 12
    torch.set_rng_state(state)


def test_forward_is_the_identity_and_only_the_bottom_sees_the_release():
    bottom, top = _model()
    x, y = torch.randn(32, 6), torch.arange(32) % 2
    grads = {}
    for name, guard in (("raw", Guard("none")), ("noisy", Guard("marvell(s=4)", seed=1))):
        z = guard(bottom(x), y)
        assert torch.equal(z, bottom(x))
        bottom.zero_grad(), top.zero_grad()
        top(z).squeeze(1).sigmoid().sub(y).square().mean().backward()
        grads[name] = [p.grad.clone() for p in (top[0].weight, bottom[0].weight)]
    assert torch.equal(grads["raw"][0], grads["noisy"][0])
    assert not torch.equal(grads["raw"][1], grads["noisy"][1])


def test_the_key_is_fresh_unless_seeded():
    cut = low_rank_cut(64, 8)
    a, b = (Guard("iso(1)").release(cut).grads for _ in range(2))
    assert not torch.equal(a, b)
    text = repr(Guard("iso(1)", seed=123)) + str(vars(Guard("iso(1)", seed=123)))
    assert "123" not in text


def test_a_repeated_step_gets_the_same_bytes():
    guard = Guard("marvell(s=4)", seed=1)
    cut = replace(low_rank_cut(64, 8), step=5, embeddings=torch.ones(64, 8))
    first = guard.release(cut)
    sent = first.grads.clone()
    first.grads.clamp_(-0.01, 0.01)  # what a receiver does with its copy changes nothing
    assert torch.equal(guard.release(replace(cut, grads=cut.grads.clone())).grads, sent)
    assert guard.counts.total() == 1
    following = guard.release(replace(cut, step=6))
    assert torch.equal(guard.release(replace(cut, step=6)).grads, following.grads)


@pytest.mark.parametrize("change", ["embeddings", "grads", "labels"])
def test_a_repeated_step_with_other_content_is_refused(change):
    """Fresh noise per repeat could be averaged away, shared noise cancelled."""
    guard = Guard("marvell(s=4)", seed=1)
    cut = replace(low_rank_cut(64, 8), step=5, embeddings=torch.ones(64, 8))
    guard.release(cut)
    other = getattr(cut, change) * 1
    other[0] = 1 - other[0]
    with pytest.raises(ReplayError, match="this step was released"):
        guard.release(replace(cut, **{change: other}))
    with pytest.raises(ReplayError, match="step 4 was released before"):
        guard.release(replace(cut, step=4))
    assert guard.release(replace(cut, step=None, **{change: other})).step == 6


def test_noise_depends_on_the_embedding_and_the_gradient():
    """Two embeddings at one step must not share noise, or their difference is noise-free."""
    cut = replace(low_rank_cut(64, 8), step=0, embeddings=torch.ones(64, 8))
    noise = {
        name: Guard("gaussian(1)", seed=1).release(other).grads - other.grads
        for name, other in {
            "plain": cut,
            "embedding": replace(cut, embeddings=torch.zeros(64, 8)),
            "gradient": replace(cut, grads=cut.grads + 1),
        }.items()
    }
    assert not torch.isclose(noise["plain"], noise["embedding"], atol=1e-4).all(dim=1).any()
    assert not torch.isclose(noise["plain"], noise["gradient"], atol=1e-4).all(dim=1).any()


def test_backward_twice_is_one_release():
    guard = Guard("gaussian(1)", seed=1)
    z = torch.ones(8, 4, requires_grad=True)
    loss = guard(z, torch.arange(8) % 2).sum()
    loss.backward(retain_graph=True)
    first = z.grad.clone()
    loss.backward()
    assert torch.equal(z.grad, 2 * first)
    assert guard.counts.total() == 1


def test_two_batches_may_be_accumulated():
    guard = Guard("gaussian(1)", seed=1)
    z = torch.ones(8, 4, requires_grad=True)
    y = torch.arange(8) % 2
    a, b = guard(z, y).sum(), guard(z * 2, y).sum()
    a.backward(), b.backward()
    assert guard.counts.total() == 2


def test_no_gradient_no_release():
    guard = Guard("marvell(s=4)", seed=1)
    z = torch.ones(8, 4)
    assert guard(z, torch.arange(8) % 2) is z
    with torch.no_grad():
        guard(torch.ones(8, 4, requires_grad=True), torch.arange(8) % 2)
    assert guard.counts.total() == 0


def test_higher_derivatives_are_refused():
    z = torch.ones(8, 4, requires_grad=True)
    loss = Guard("none")(z, torch.arange(8) % 2).pow(3).sum()
    (grad,) = torch.autograd.grad(loss, z, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        grad.sum().backward()


def test_noise_below_the_resolution_is_refused():
    cut = low_rank_cut(64, 8, dtype=torch.bfloat16)
    with pytest.raises(ReleaseError, match="wider floating-point type"):
        Guard("gaussian(sigma=1e-6)").release(cut)
    big = torch.ones(64, 8)
    big[7] = 1e9
    with pytest.raises(ReleaseError, match="lost in rounding"):
        Guard("gaussian(sigma=0.1)").release(Cut(grads=big, labels=cut.labels))


def test_overflowing_noise_is_refused():
    cut = low_rank_cut(64, 8)
    with pytest.raises(ReleaseError, match="not finite"):
        Guard("iso(1e30)").release(replace(cut, grads=cut.grads * 2.0**100))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"grads": torch.full((64, 8), math.nan)}, "grads must be finite"),
        ({"grads": torch.full((64, 8), math.inf)}, "grads must be finite"),
        (
            {"grads": torch.ones(64, 8, dtype=torch.int32)},
            "must be floating point, got torch.int32",
        ),
        ({"grads": torch.ones(0, 8), "labels": torch.ones(0)}, r"got shape \(0, 8\)"),
        ({"labels": torch.zeros(63)}, r"labels must be \[64\]"),
        ({"labels": torch.full((64,), 2)}, "labels must be 0 or 1 here, got 2"),
        ({"labels": torch.full((64,), -1)}, "got -1"),
        ({"labels": torch.full((64,), 0.5)}, "got 0.5"),
        ({"weight": 0.0}, "weight must be positive"),
        ({"probs": torch.zeros(3)}, r"probs must be \[64\]"),
    ],
)
def test_bad_cuts_are_refused_and_nothing_is_released(change, message):
    guard = Guard("marvell(s=4)", seed=1)
    with pytest.raises(InputError, match=message):
        guard.release(replace(low_rank_cut(64, 8), **change))
    assert guard.counts.total() == 0


def test_bad_calls_are_refused():
    with pytest.raises(InputError, match=r"labels must be \[8\] like the embedding"):
        Guard("none")(torch.ones(8, 2), torch.ones(7))
    with pytest.raises(ParameterError, match="reduction must be mean or sum"):
        Guard("none", reduction="batchmean")
    guard = Guard("none")
    guard.release(low_rank_cut(8, 4))
    with pytest.raises(InputError, match="one cut, of width 4, got 5"):
        guard.release(low_rank_cut(8, 5))


def test_many_classes_pass_where_labels_are_not_used():
    cut = replace(low_rank_cut(64, 8), labels=torch.arange(64) % 10)
    for spec in ("none", "gaussian(1)", "iso(1)", "max_norm"):
        assert Guard(spec, seed=1).release(cut).grads.shape == (64, 8)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"labels": [0, 1]}, InputError),
        ({"grads": None}, InputError),
        ({"weight": None}, InputError),
        ({"step": "1"}, ParameterError),
        ({"step": -3}, InputError),
        ({"step": 1.5}, ParameterError),
    ],
)
def test_wrong_types_are_refused(change, error):
    with pytest.raises(error):
        Guard("marvell(s=4)", seed=1).release(replace(low_rank_cut(64, 8), **change))


def test_numpy_integers_are_seeds_and_steps_like_others():
    cut = low_rank_cut(64, 8)
    plain = [Guard("iso(1)", seed=7).release(replace(cut, step=s)).grads for s in (0, 5)]
    other = [
        Guard("iso(1)", seed=np.int64(7)).release(replace(cut, step=np.int64(s))).grads
        for s in (0, 5)
    ]
    assert all(map(torch.equal, plain, other))
    assert not torch.equal(*plain)
    with pytest.raises(ParameterError, match=r"whole numbers, got 7\.0"):
        Guard("iso(1)", seed=7.0)


@pytest.mark.parametrize("scale", [1e-310, 1e300])
def test_the_ends_of_the_float64_range_do_not_crash(scale):
    cut = low_rank_cut(64, 8, dtype=torch.float64)
    try:
        out = Guard("marvell(s=4)", seed=1).release(replace(cut, grads=cut.grads * scale)).grads
    except ReleaseError:
        return
    assert torch.isfinite(out).all()


def test_half_precision_noise_that_underflows_is_refused():
    grads = torch.zeros(64, 8, dtype=torch.float16)
    labels = torch.arange(64) % 2
    grads[labels == 1] = 2e-6
    with pytest.raises(ReleaseError):
        Guard("gaussian(1e-5)", seed=1).release(Cut(grads=grads, labels=labels, weight=1 / 1024))


def test_what_follows_may_work_in_place():
    z = torch.randn(16, 4, requires_grad=True)
    nn.ReLU(inplace=True)(
        Guard("gaussian(1)", seed=1)(z * 1, torch.arange(16) % 2)
    ).sum().backward()
    assert z.grad is not None


def test_no_copy_is_shared_with_the_caller():
    cut = low_rank_cut(16, 4)
    out = Guard("none").release(cut).grads
    out.zero_()
    assert cut.grads.abs().sum() > 0


def test_a_failed_release_leaves_the_guard_as_it_was():
    cut = low_rank_cut(64, 8)
    clean, shaken = Guard("marvell(s=4)", seed=1), Guard("marvell(s=4)", seed=1)
    with pytest.raises(InputError):
        shaken.release(replace(cut, grads=cut.grads * math.nan))
    assert torch.equal(clean.release(cut).grads, shaken.release(cut).grads)


def test_labels_do_not_outlive_the_step():
    """The guard keeps tags and statistics of a step, never its labels."""
    guard = Guard("marvell(s=4)", seed=1, watch=LeakMonitor())
    labels = torch.arange(64) % 2
    z = torch.randn(64, 8, requires_grad=True)
    guard(z, labels).square().sum().backward()
    kept = weakref.ref(labels)
    del labels
    gc.collect()
    assert kept() is None
    assert "labels" not in tacit.View.__dataclass_fields__


@pytest.mark.parametrize("form", [list, np.array, lambda y: np.array(y, dtype=bool), tuple])
def test_labels_and_ids_may_be_lists_or_arrays(form):
    cut = low_rank_cut()
    plain = Guard("marvell(s=4)", seed=3).release(replace(cut, ids=torch.arange(len(cut.labels))))
    labels, ids = form(cut.labels.tolist()), np.arange(len(cut.labels))
    other = Guard("marvell(s=4)", seed=3).release(replace(cut, labels=labels, ids=ids))
    assert torch.equal(plain.grads, other.grads)
    rows = torch.ones(len(labels), 3, requires_grad=True)
    Guard("none")(rows, labels, ids=ids).sum().backward()
    assert torch.equal(rows.grad, torch.ones_like(rows))
    guard = Guard("none", labels="rr(epsilon=1)", seed=7)
    assert torch.equal(guard.labels(ids, labels).plain, guard.labels(ids, cut.labels).plain)


def test_labels_that_are_words_are_refused_with_the_way_out():
    rows = torch.ones(2, 3, requires_grad=True)
    with pytest.raises(InputError, match=r"labels must be numbers, got list of .*: number them"):
        Guard("none")(rows, ["no", "yes"])
    with pytest.raises(InputError, match="labels must be one number per example"):
        Guard("none")(rows, [[0], [1, 2]])


def test_nan_in_the_features_is_told_as_such():
    x = torch.ones(8, 3)
    x[2:4, 1] = math.nan
    bottom = nn.Linear(3, 2)
    z = Guard("none")(bottom(x), [0, 1] * 4)
    with pytest.raises(InputError, match=r"NaN or infinity in 2 of 8 rows.*missing values"):
        z.sum().mul(z.detach().sum()).backward()
    whole = bottom(torch.ones(8, 3))
    with pytest.raises(InputError, match="lower the learning rate"):
        (Guard("none")(whole, [0, 1] * 4).sum() * math.nan).backward()
