"""The session against a plain PyTorch loop with the guard: the same weights, bit for bit."""

import pytest
import torch
from torch import nn

from tacit import Guard, LeakMonitor, list_models
from tacit.errors import InputError, ReleaseError, ReplayError
from tacit.nets import ImageStacked, Inputs, combine
from tacit.nets import get as get_model
from tacit.objective import get as get_objective
from tacit.training import Embedding, FeatureParty, Gradient, LabelParty, adam, predict, train

N, BATCH = 512, 64
SPECS = [
    "none",
    "gaussian(0.1)",
    "iso(1)",
    "max_norm",
    "max_norm_positive",
    "max_norm_positive_published",
    "marvell(s=4)",
    "max_norm | gaussian(0.01)",
]
INPUTS = Inputs(numeric=5, cardinalities=(7, 11))


def _table():
    rng = torch.Generator().manual_seed(0)
    numeric = torch.randn(N, 5, generator=rng)
    codes = torch.stack([torch.randint(0, c, (N,), generator=rng) for c in (7, 11)], dim=1)
    labels = (numeric[:, 0] + 0.3 * codes[:, 0] > 1.5).long()
    return numeric, codes, labels


def _batches(epochs=2):
    rng = torch.Generator().manual_seed(1)
    return [b for _ in range(epochs) for b in torch.randperm(N, generator=rng).split(BATCH)]


def _model(name, parties=1, how="sum", own=True):
    each = [INPUTS] if parties == 1 else [Inputs(numeric=5, cardinalities=())] * parties
    architecture = get_model(name)
    return architecture.build(
        parties=each,
        own=INPUTS if own and architecture.uses_own else None,
        cut=None,
        combine=how,
        classes=2,
        seed=3,
    )


def _session(name, spec, *, watch=None, parties=1, how="sum", early=True):
    numeric, codes, labels = _table()
    model = _model(name, parties, how)
    wide = get_model(name).uses_own
    none = torch.zeros(N, 0, dtype=torch.int64)
    categories = codes if parties == 1 else none
    features = [
        FeatureParty(b, lambda r: (numeric[r], categories[r]), optimizer=adam(b, 1e-3))
        for b in model.bottoms
    ]
    label = LabelParty(
        model.top,
        labels,
        guard=Guard(spec, seed=9, watch=watch),
        objective=get_objective("bce"),
        optimizer=adam(model.top, 1e-3),
        combined_by=how,
        source=(lambda r: (numeric[r], codes[r])) if wide else None,
        early=early,
    )
    losses = [s.loss for s in train(_batches(), features=features, label=label)]
    return losses, _weights(model), features, label


def _weights(model):
    parts = [*model.bottoms, model.top]
    return torch.cat([p.detach().flatten() for part in parts for p in part.parameters()])


def _plain(name, spec):
    """What a PyTorch user writes, with the guard as the one changed line."""
    numeric, codes, labels = _table()
    model = _model(name)
    bottom, top = model.bottoms[0], model.top
    wide = get_model(name).uses_own
    guard = Guard(spec, seed=9)
    optimizers = [torch.optim.Adam(m.parameters(), lr=1e-3, fused=True) for m in (bottom, top)]
    losses = []
    for rows in _batches():
        y = labels[rows]
        logits = None
        z = guard(
            bottom(numeric[rows], codes[rows]),
            y,
            ids=rows,
            probs=lambda: torch.sigmoid(logits.detach()),  # noqa: B023
        )
        logits = top(z, numeric[rows], codes[rows]) if wide else top(z)
        loss = nn.functional.binary_cross_entropy_with_logits(logits, y.float())
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        losses.append(float(loss.detach()))
    return losses, _weights(model)


@pytest.mark.parametrize("early", [True, False])
@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize(
    "name", [name for name in list_models() if not isinstance(get_model(name), ImageStacked)]
)
def test_session_and_plain_loop_are_bitwise_equal(name, spec, early):
    losses, weights, _, _ = _session(name, spec, early=early)
    plain_losses, plain_weights = _plain(name, spec)
    assert losses == plain_losses
    assert torch.equal(weights, plain_weights)


@pytest.mark.parametrize("spec", ["none", "marvell(s=4)"])
def test_the_monitor_changes_nothing(spec):
    monitor = LeakMonitor()
    _, watched, _, _ = _session("wdl", spec, watch=monitor)
    assert torch.equal(watched, _session("wdl", spec)[1])
    assert monitor.report()["norm"].batches == len(_batches())


def test_split_and_unsplit_models_learn_the_same():
    """Without protection the cut is only a place: the whole model in one piece, same seeds."""
    numeric, codes, labels = _table()
    model = _model("wdl")
    bottom, top = model.bottoms[0], model.top
    whole = nn.ModuleList([bottom, top])
    optimizer = torch.optim.Adam(whole.parameters(), lr=1e-3, fused=True)
    for rows in _batches():
        logits = top(bottom(numeric[rows], codes[rows]), numeric[rows], codes[rows])
        loss = nn.functional.binary_cross_entropy_with_logits(logits, labels[rows].float())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    _, split, features, label = _session("wdl", "none")
    assert torch.equal(_weights(model), split)
    with torch.no_grad():
        expected = torch.sigmoid(top(bottom(numeric, codes), numeric, codes))
    found = predict(torch.arange(N), features=features, label=label, batch_size=100)
    assert torch.allclose(found, expected, atol=1e-6)


@pytest.mark.parametrize("how", ["sum", "mean", "max", "product", "concat"])
def test_several_parties_get_their_share_of_one_release(how):
    """The combined cut is protected once; each share is the derivative of the combination."""
    seen = []
    losses, _, _, label = _session(
        "mlp", "gaussian(0.1)", watch=lambda cut, release: seen.append(release), parties=3, how=how
    )
    assert losses[-1] < losses[0]
    assert len(seen) == len(_batches())
    parts = [torch.randn(4, 6, requires_grad=True) for _ in range(3)]
    joined = combine(parts, how)
    release = torch.randn(joined.shape)
    shares = torch.autograd.grad(joined, parts, release)
    if how == "sum":
        assert all(torch.equal(share, release) for share in shares)
    if how == "mean":
        assert all(torch.equal(share, shares[0]) for share in shares)
    if how == "concat":
        assert torch.equal(torch.cat(shares, dim=1), release)
    assert label.guard.counts.total() == len(_batches())


def test_messages_out_of_order_are_refused():
    _, _, features, label = _session("mlp", "gaussian(1)")
    with pytest.raises(ReleaseError, match="without its embedding"):
        features[0].backward(Gradient(step=99, values=torch.zeros(1)))
    with pytest.raises(ReleaseError, match="before a step was begun"):
        label.update()
    old = features[0].forward(3, torch.arange(8))
    with pytest.raises(ReplayError, match="step 3 was released before"):
        label.step(torch.arange(8), [old])


def test_a_refused_step_does_not_train_the_top_model():
    _, _, features, label = _session("mlp", "gaussian(1)")
    old = features[0].forward(3, torch.arange(8))
    with pytest.raises(ReplayError):
        label.step(torch.arange(8), [old])
    with pytest.raises(ReleaseError, match="before a step was begun"):
        label.update()


def test_embeddings_that_break_the_rules_are_refused():
    _, _, features, label = _session("mlp", "none")
    rows = torch.arange(8)
    good = features[0].forward(100, rows)
    for wrong in (good.values[:4], good.values.long()):
        with pytest.raises(InputError, match="an embedding must be"):
            label.step(rows, [Embedding(step=100, values=wrong)])
    with pytest.raises(InputError, match="of one step"):
        label.step(rows, [good, Embedding(step=7, values=good.values)])
    with pytest.raises(InputError, match="like its embedding"):
        features[0].backward(Gradient(step=100, values=torch.zeros(8, 3)))
