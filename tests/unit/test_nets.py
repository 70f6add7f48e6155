"""Every registered model: shapes, sizes, cuts, seeds, and the split model against the whole."""

import inspect
import threading

import pytest
import torch
from torch import nn
from torch.nn.functional import leaky_relu, linear

from tacit import nets
from tacit.errors import ParameterError
from tacit.nets import COMBINES, Inputs
from tacit.nets.embedding import StackedEmbedding
from tacit.training import adam

MIXED = Inputs(numeric=3, cardinalities=(4, 6))
PARTIES = [MIXED, Inputs(numeric=2), Inputs(numeric=0, cardinalities=(5,))]
OWN = Inputs(numeric=1, cardinalities=(3,))
SMALL = {"wdl": "wdl(units=16)", "mlp": "mlp(hidden=12)"}
SPECS = [
    *(SMALL.get(name, name) for name in nets.names() if hasattr(nets.get(name), "stack")),
    "wdl(layers=1, units=8)",
    "mlp(hidden=5, layers=1, embedding=2)",
    "exploit_criteo(config=2)",
    "gafm_net(hidden=3)",
    "gafm_net(first=8, second=4)",
    "wdl(layers=1, units=8, l2=0.01)",
]


def columns(inputs, rows=9, seed=0):
    rng = torch.Generator().manual_seed(seed)
    categories = [torch.randint(n, (rows,), generator=rng) for n in inputs.cardinalities]
    empty = torch.zeros(rows, 0, dtype=torch.int64)
    return (
        torch.randn(rows, inputs.numeric, generator=rng),
        torch.stack(categories, dim=1) if categories else empty,
    )


def run(model, parties=(MIXED,), own=None):
    given = (None, None) if own is None else columns(own, seed=99)
    return model([columns(inputs, seed=p) for p, inputs in enumerate(parties)], given)


def weights(*modules):
    return [p.detach().clone() for module in modules for p in module.parameters()]


def same(left, right):
    return len(left) == len(right) and all(
        torch.equal(a, b) for a, b in zip(left, right, strict=True)
    )


def count(*modules):
    return sum(p.numel() for module in modules for p in module.parameters())


@pytest.mark.parametrize("own", [None, OWN], ids=["labels only", "own columns"])
@pytest.mark.parametrize("classes", [2, 10])
@pytest.mark.parametrize("combine", COMBINES)
@pytest.mark.parametrize("number", [1, 2, 3])
@pytest.mark.parametrize("spec", SPECS)
def test_shapes_and_gradients(spec, number, combine, classes, own):
    parties, architecture = PARTIES[:number], nets.get(spec)
    model = architecture.build(
        parties=parties, own=own, cut=None, combine=combine, classes=classes, seed=1
    )
    width = architecture.cut_width(cut=None, classes=classes)
    assert (len(model.bottoms), model.combine) == (number, combine)
    assert model.width == (width * number if combine == "concat" else width)
    for party, (bottom, inputs) in enumerate(zip(model.bottoms, parties, strict=True)):
        assert bottom(*columns(inputs, seed=party)).shape == (9, width)
    logits = run(model, parties, own)
    assert logits.shape == ((9,) if classes == 2 else (9, classes))
    logits.square().sum().backward()
    for part in (*model.bottoms, model.top):
        assert all(p.grad is not None and p.grad.isfinite().all() for p in part.parameters())


@pytest.mark.parametrize("spec", SPECS)
def test_every_parameter_gets_a_gradient_that_is_not_zero(spec):
    parties = PARTIES[:2]
    for cut in range(1, nets.get(spec).depth + 1):
        model = nets.get(spec).build(
            parties=parties, own=OWN, cut=cut, combine="concat", classes=3, seed=3
        )
        run(model, parties, OWN)[:, 0].sum().backward()
        for part in (*model.bottoms, model.top):
            for name, parameter in part.named_parameters():
                assert parameter.grad.abs().sum() > 0, (cut, name)


def test_wide_and_deep_has_the_parameters_of_the_paper():
    sizes = tuple(range(2, 29))
    criteo, c, n = Inputs(numeric=14, cardinalities=sizes), 27, 14
    model = nets.get("wdl").build(parties=[criteo], own=criteo, seed=0)
    first = (n + 4 * c) * 128 + 128
    layer = 128 * 128 + 128
    assert count(*model.bottoms) == 4 * sum(sizes) + first + 2 * layer
    assert count(model.top) == 3 * layer + (128 + 1) + sum(sizes) + (n + c) + 1
    assert model.width == 128
    alone = nets.get("wdl").build(parties=[criteo], own=None, seed=0)
    assert count(alone.top) == 3 * layer + 128 + 1
    avazu = Inputs(numeric=0, cardinalities=sizes)
    model = nets.get("wdl").build(parties=[avazu], own=avazu, seed=0)
    assert count(*model.bottoms) == 4 * sum(sizes) + 4 * c * 128 + 128 + 2 * layer
    assert count(model.top.own) == sum(sizes) + c + 1


def test_the_other_models_have_the_parameters_of_their_formulas():
    log = Inputs(numeric=3, cardinalities=(7,) * 17)
    layer, embedded = 32 * 32 + 32, 4 * 7 * 17
    first = (3 + 4 * 17) * 32 + 32
    one = nets.get("exploit_criteo(config=1)").build(parties=[log], seed=0)
    two = nets.get("exploit_criteo(config=2)").build(parties=[log], seed=0)
    assert (count(*one.bottoms), count(one.top)) == (embedded + first + layer, layer + 33)
    assert (count(*two.bottoms), count(two.top)) == (embedded + first, 2 * layer + 33)
    spam = nets.get("gafm_net").build(parties=[Inputs(57)], seed=0)
    assert count(*spam.bottoms) == (57 * 16 + 16) + (16 * 16 + 16) + (16 + 1)
    assert count(spam.top) == (16 + 16) + (16 * 16 + 16) + (16 + 1)
    films = nets.get("gafm_net(first=256, second=128)").build(parties=[Inputs(500)], seed=0)
    assert count(*films.bottoms) == (500 * 256 + 256) + (256 * 128 + 128) + (128 + 1)
    assert count(films.top) == count(spam.top)
    plain = nets.get("mlp").build(parties=[Inputs(10)], own=Inputs(5), seed=0)
    assert count(*plain.bottoms) == (10 * 64 + 64) + (64 * 64 + 64)
    assert count(plain.top) == 2 * (64 * 64 + 64) + 65 + 5 * 64


@pytest.mark.parametrize(
    ("spec", "published", "depth"),
    [
        ("wdl", 3, 6),
        ("wdl(layers=4)", 2, 4),
        ("wdl(layers=1)", 1, 1),
        ("mlp", 2, 4),
        ("mlp(layers=5)", 2, 5),
        ("exploit_criteo", 2, 3),
        ("exploit_criteo(config=2)", 1, 3),
        ("gafm_net", 3, 5),
    ],
)
def test_cuts(spec, published, depth):
    architecture = nets.get(spec)
    assert (architecture.published_cut, architecture.depth) == (published, depth)
    for cut in (None, *range(1, depth + 1)):
        model = architecture.build(parties=[MIXED], cut=cut, seed=0)
        assert len(model.bottoms[0].layers) == (cut or published)
        assert len(model.top.layers) == depth + 1 - (cut or published)
    for cut in (0, -1, depth + 1):
        with pytest.raises(ParameterError, match=rf"cut must be 1 to {depth} .*got {cut}"):
            architecture.build(parties=[MIXED], cut=cut, seed=0)


def test_the_eight_layer_study_keeps_the_label_partys_part():
    published = nets.get("wdl").build(parties=[MIXED], own=MIXED, seed=0)
    study = nets.get("wdl(layers=11)").build(parties=[MIXED], own=MIXED, cut=8, seed=0)
    assert len(study.bottoms[0].layers) == 8
    assert [p.shape for p in study.top.parameters()] == [
        p.shape for p in published.top.parameters()
    ]


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("own", [None, OWN], ids=["labels only", "own columns"])
def test_the_cut_changes_neither_weights_nor_logits(spec, own):
    """One model, wherever it is cut; own columns of a model that is not wide join at the cut."""
    architecture, reference = nets.get(spec), None
    wide = architecture.stack(2).wide
    for cut in range(1, architecture.depth + 1):
        model = architecture.build(parties=[MIXED], own=own, cut=cut, seed=5)
        found = weights(model.bottoms[0], model.top.layers)
        logits = run(model, own=own).detach()
        reference = reference or (found, logits)
        assert same(found, reference[0])
        if own is None or wide:
            assert torch.equal(logits, reference[1])


def test_wide_and_deep_against_plain_functions():
    model = nets.get("wdl(layers=3, units=16)").build(parties=[MIXED], own=OWN, seed=2)
    x, c = columns(MIXED, seed=0)
    x1, c1 = columns(OWN, seed=99)
    (bottom,), top = model.bottoms, model.top
    deep, wide = bottom.features.embedding.table.weight, top.own.features.embedding.table.weight
    h = torch.cat([deep[c[:, 0]], deep[4 + c[:, 1]], x], dim=1)
    chain = [*bottom.layers, *top.layers]
    for layer in chain[:-1]:
        h = torch.relu(linear(h, layer.linear.weight, layer.linear.bias))
    h = linear(h, chain[-1].linear.weight, chain[-1].linear.bias)
    raw = torch.cat([wide[c1[:, 0]], x1], dim=1)
    h = h + linear(raw, top.own.linear.weight, top.own.linear.bias)
    assert torch.equal(run(model, own=OWN), h.squeeze(1))


def test_a_penalty_on_embeddings_is_what_the_loss_would_have():
    """Adam's step with ``l2`` is its step on the loss plus ``l2 ||E||^2``, for both tables."""

    def stepped(spec, penalty):
        model = nets.get(spec).build(parties=[MIXED], own=OWN, seed=2)
        parts = [*model.bottoms, model.top]
        optimisers = [adam(part, 0.1) for part in parts]
        for _ in range(3):
            loss = run(model, own=OWN).square().mean()
            tables = [weight for part in parts for weight in tables_of(part)]
            (loss + penalty * sum(weight.square().sum() for weight in tables)).backward()
            for optimiser in optimisers:
                optimiser.step()
                optimiser.zero_grad()
        return weights(*parts), len(tables)

    found, count_of_tables = stepped("wdl(layers=2, units=4, l2=0.01)", 0.0)
    asked, _ = stepped("wdl(layers=2, units=4)", 0.01)
    plain, _ = stepped("wdl(layers=2, units=4)", 0.0)
    assert count_of_tables == 2
    for one, other in zip(found, asked, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
    assert any(not torch.equal(one, other) for one, other in zip(found, plain, strict=True))


def tables_of(part):
    return [w for m in part.modules() if isinstance(m, StackedEmbedding) for w in m.parameters()]


def test_gafm_sends_a_probability_and_own_columns_join_the_first_layer_after_the_cut():
    model = nets.get("gafm_net").build(parties=[MIXED], own=OWN, seed=2)
    x, c = columns(MIXED, rows=50)
    z = model.bottoms[0](30 * x, c)
    assert z.shape == (50, 1)
    assert ((z > 0) & (z < 1)).all()
    x1, c1 = columns(OWN, rows=50)
    first, *rest = model.top.layers
    h = leaky_relu(first.linear(z) + model.top.own.linear(model.top.own.features(x1, c1)))
    for layer in rest:
        h = layer(h)
    assert torch.equal(model.top(z, x1, c1), h.squeeze(1))
    assert all(isinstance(m.activation, nn.LeakyReLU) for m in model.bottoms[0].layers[:2])


@pytest.mark.parametrize("spec", SPECS)
def test_seeds(spec):
    def build(seed):
        model = nets.get(spec).build(parties=PARTIES, own=OWN, combine="mean", seed=seed)
        return weights(*model.bottoms, model.top)

    torch.manual_seed(11)
    before = torch.get_rng_state()
    first = build(7)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(12)
    assert same(first, build(7))
    for other in (8, -7, 7 + 2**32):
        drawn = [(a, b) for a, b in zip(first, build(other), strict=True) if a.any() or b.any()]
        assert all(not torch.equal(a, b) for a, b in drawn)


def test_parts_built_alone_or_at_once_have_the_weights_of_the_whole():
    architecture = nets.get("wdl(units=16)")
    whole = architecture.build(parties=PARTIES, own=OWN, cut=2, combine="concat", seed=4)
    for party, inputs in enumerate(PARTIES):
        alone = architecture.bottom(inputs, cut=2, classes=2, seed=4, party=party)
        assert same(weights(alone), weights(whole.bottoms[party]))
    top = architecture.top(48, own=OWN, cut=2, classes=2, seed=4)
    assert same(weights(top), weights(whole.top))
    twins = architecture.build(parties=[MIXED, MIXED], seed=4).bottoms
    assert not same(weights(twins[0]), weights(twins[1]))
    found = []

    def build():
        model = architecture.build(parties=PARTIES, own=OWN, cut=2, combine="concat", seed=4)
        found.append(weights(*model.bottoms, model.top))

    threads = [threading.Thread(target=build) for _ in range(4)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert all(same(w, weights(*whole.bottoms, whole.top)) for w in found)


@pytest.mark.parametrize("spec", SPECS)
def test_specs_print_back(spec):
    assert str(nets.get(spec)) == spec
    assert nets.get(str(nets.get(spec))) == nets.get(spec)
    assert nets.get(architecture := nets.get(spec)) is architecture
    for entry in nets.MODELS:
        assert entry.summary
        assert "References:" in inspect.getdoc(entry.cls) or entry.name == "mlp"
