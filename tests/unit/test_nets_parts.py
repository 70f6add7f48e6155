"""The parts of models: embeddings, combining, layer capture, and other people's modules."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from tacit import nets
from tacit.errors import InputError, ParameterError, SpecError
from tacit.nets import COMBINES, Inputs, StackedEmbedding, combine, from_modules, layer_outputs
from tacit.nets.combine import combined_width
from tacit.nets.initial_weights import draws_at


@settings(max_examples=30, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=6),
    dim=st.integers(1, 5),
    rows=st.integers(1, 7),
    seed=st.integers(0, 2**31),
)
def test_stacked_embedding_is_separate_tables_side_by_side(sizes, dim, rows, seed):
    rng = torch.Generator().manual_seed(seed)
    stacked = StackedEmbedding(sizes, dim, draws=draws_at(seed))
    tables = [nn.Embedding.from_pretrained(part) for part in stacked.table.weight.split(sizes)]
    for table in tables:
        table.weight.requires_grad_(True)
    index = torch.stack([torch.randint(n, (rows,), generator=rng) for n in sizes], dim=1)
    slow = torch.cat([table(index[:, j]) for j, table in enumerate(tables)], dim=1)
    fast = stacked(index, check=True)
    assert torch.equal(fast, slow)
    (slow**2).sum().backward()
    (fast**2).sum().backward()
    assert torch.allclose(stacked.table.weight.grad, torch.cat([t.weight.grad for t in tables]))


def test_stacked_embedding_checks_only_when_asked():
    layer = StackedEmbedding((3, 4), 2)
    wrong = torch.tensor([[0, 0], [3, 1]])
    assert torch.equal(layer(wrong)[1, :2], layer.table.weight[3])
    with pytest.raises(InputError, match="column 0 go from 0 to 2, got 3 in row 1"):
        layer(wrong, check=True)
    with pytest.raises(InputError, match="column 1 go from 0 to 3, got -1 in row 0"):
        layer(torch.tensor([[0, -1]]), check=True)
    assert set(layer.state_dict()) == {"table.weight"}


def test_stacked_embedding_refuses_what_is_no_table():
    for sizes, dim in (((), 2), ((3, 0), 2), ((3,), 0)):
        with pytest.raises(ParameterError, match="at least"):
            StackedEmbedding(sizes, dim)


def slow_combine(tensors, how):
    rows, width = tensors[0].shape
    if how == "concat":
        return torch.tensor(
            [[v for t in tensors for v in t[i].tolist()] for i in range(rows)], dtype=torch.float64
        )
    out = torch.empty(rows, width, dtype=torch.float64)
    for i in range(rows):
        for j in range(width):
            values = [t[i, j].item() for t in tensors]
            total = values[0]
            for value in values[1:]:
                total = total * value if how == "product" else total + value
            out[i, j] = {
                "sum": total,
                "product": total,
                "mean": total / len(values),
                "max": max(values),
            }[how]
    return out


@pytest.mark.parametrize("how", COMBINES)
@pytest.mark.parametrize("number", [1, 2, 3, 5])
def test_combine_against_loops(how, number):
    rng = torch.Generator().manual_seed(number)
    tensors = [torch.randn(4, 3, dtype=torch.float64, generator=rng) for _ in range(number)]
    assert torch.equal(combine(tensors, how), slow_combine(tensors, how))
    inputs = [t.requires_grad_(True) for t in tensors]
    assert torch.autograd.gradcheck(lambda *parts: combine(parts, how), inputs)


def test_combine_gradients_of_zeros_and_ties():
    def grads(rows, how):
        parts = [torch.tensor([row], requires_grad=True) for row in rows]
        combine(parts, how).sum().backward()
        return [part.grad.flatten().tolist() for part in parts]

    assert grads([[0.0, 2.0], [0.0, 3.0], [5.0, 4.0]], "product") == [
        [0.0, 12.0],
        [0.0, 8.0],
        [0.0, 6.0],
    ]
    assert grads([[0.0, 1.0], [0.0, 1.0], [-1.0, 2.0]], "max") == [
        [0.5, 0.0],
        [0.5, 0.0],
        [0.0, 1.0],
    ]
    assert grads([[1.0], [2.0], [3.0], [4.0]], "mean") == [[0.25]] * 4


def test_combine_takes_different_widths_only_side_by_side():
    narrow, broad = torch.zeros(2, 3), torch.zeros(2, 5)
    assert combine([narrow, broad], "concat").shape == (2, combined_width([3, 5], "concat"))
    with pytest.raises(InputError, match=r"same batch.*\(2, 3\), \(1, 3\)"):
        combine([narrow, narrow[:1]], "concat")
    for how in set(COMBINES) - {"concat"}:
        with pytest.raises(InputError, match=rf"{how} needs the same \[batch, width\]"):
            combine([narrow, broad], how)
        with pytest.raises(InputError, match="equal widths, got 3, 5: use concat"):
            combined_width([3, 5], how)
    with pytest.raises(InputError, match="at least one"):
        combine([], "sum")
    with pytest.raises(InputError, match="at least one"):
        combined_width([], "sum")
    with pytest.raises(InputError, match=r"\[batch, width\]"):
        combine([torch.zeros(3)], "sum")
    with pytest.raises(SpecError, match="did you mean 'product'"):
        combine([narrow], "products")


def capture(module, *columns):
    kept = {}
    for name, layer in layer_outputs(module):
        layer.register_forward_hook(lambda _m, _i, out, name=name: kept.setdefault(name, out))
    out = module(*columns)
    for activation in kept.values():
        activation.retain_grad()
    return kept, out


@pytest.mark.parametrize(("layers", "cut"), [(6, 3), (6, 4), (11, 8)])
def test_every_layer_of_a_bottom_can_be_captured(layers, cut):
    model = nets.get(f"wdl(layers={layers}, units=16)").build(parties=[Inputs(5)], cut=cut, seed=0)
    x = torch.randn(7, 5, generator=torch.Generator().manual_seed(0))
    kept, z = capture(model.bottoms[0], x)
    assert list(kept) == [f"layer{number}" for number in range(1, cut + 1)]
    assert kept[f"layer{cut}"] is z
    first = model.bottoms[0].layers[0].linear
    assert torch.equal(kept["layer1"], torch.relu(first(x)))
    model.top(z).sum().backward()
    assert all(a.grad is not None and a.grad.shape == (7, 16) for a in kept.values())
    kept, logits = capture(model.top, z.detach())
    assert len(kept) == layers + 1 - cut
    assert torch.equal(kept[f"layer{len(kept)}"].squeeze(1), logits)


class Pair(nn.Module):
    """A bottom as a user may write it: two inputs, no list of layers."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(4, 3)
        self.body = nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.Dropout(0.5))
        self.body[1].eval()
        self.layers = 3

    def forward(self, numbers, kinds):
        return self.body(torch.cat([numbers, self.table(kinds[:, 0])], dim=1))


class OwnTop(nn.Module):
    """A top that takes the label party's own columns."""

    def __init__(self, classes=1):
        super().__init__()
        self.a, self.b = nn.Linear(8, classes), nn.Linear(2, classes)

    def forward(self, z, numeric, categorical=None):
        return self.a(z) + self.b(numeric)


def test_custom_modules_make_a_split_model():
    bottom, other, top = Pair(), nn.Sequential(nn.Linear(6, 8), nn.Tanh()), OwnTop()
    before = {k: v.clone() for k, v in bottom.state_dict().items()}
    modes = [m.training for m in bottom.modules()]
    state = torch.get_rng_state()
    model = from_modules(
        [bottom, other],
        top,
        width=8,
        combine="mean",
        parties=[Inputs(2, (4,)), Inputs(6)],
        own=Inputs(2),
    )
    assert torch.equal(torch.get_rng_state(), state)
    assert [m.training for m in bottom.modules()] == modes
    assert all(torch.equal(v, before[k]) for k, v in bottom.state_dict().items())
    assert (model.width, model.combine) == (8, "mean")
    numbers, kinds = torch.randn(4, 2), torch.zeros(4, 1, dtype=torch.int64)
    logits = model([(numbers, kinds), (torch.randn(4, 6), kinds[:, :0])], (numbers, None))
    assert logits.shape == (4,)
    logits.sum().backward()
    assert bottom.table.weight.grad is not None
    assert top.b.weight.grad is not None
    assert [m for _, m in layer_outputs(model.bottoms[0])] == [bottom.table, bottom.body]
    assert [name for name, _ in layer_outputs(model.bottoms[1])] == ["layer1", "layer2"]
    assert [m for _, m in layer_outputs(model.top)] == [top.a, top.b]
    assert layer_outputs(nn.ReLU())[0][0] == "layer1"


def test_custom_modules_take_the_package_s_own_parts_and_many_classes():
    own = nets.get("mlp").build(parties=[Inputs(3, (4,))], seed=0)
    model = from_modules(own.bottoms, own.top, width=64)
    x, c = torch.randn(5, 3), torch.zeros(5, 1, dtype=torch.int64)
    assert torch.equal(model([(x, c)]), own([(x, c)]))
    many = from_modules(
        [nn.Linear(3, 8), nn.Linear(2, 4)], nn.Linear(12, 7), width=12, combine="concat"
    )
    assert many([(x, None), (x[:, :2], None)]).shape == (5, 7)
    double = from_modules([nn.Linear(3, 8).double()], nn.Linear(8, 1).double(), width=8)
    assert double([(x.double(), None)]).dtype == torch.float64


class Broken(nn.Module):
    """A module that returns whatever it is told to."""

    def __init__(self, out):
        super().__init__()
        self.linear = nn.Linear(3, 8)
        self.out = out

    def forward(self, x):
        return self.out


LINEAR = nn.Linear(3, 8)


@pytest.mark.parametrize(
    ("bottoms", "top", "asked", "match"),
    [
        ([LINEAR], nn.Linear(8, 1), {"width": 9}, "width 8, got width=9"),
        ([LINEAR, nn.Linear(3, 7)], nn.Linear(8, 1), {}, "sum needs equal widths, got 8, 7"),
        ([], nn.Linear(8, 1), {}, "at least one feature party"),
        ([LINEAR], nn.Linear(7, 1), {}, r"top does not run on zeros of shape \[3, 8\]"),
        ([LINEAR], nn.Linear(8, 2), {}, "one logit for two classes, got two"),
        ([LINEAR], nn.Unflatten(1, (2, 4)), {}, r"top must return \[3\] or \[3, classes\]"),
        ([LINEAR], Broken(torch.zeros(4)), {}, r"top must return .* got \[4\]"),
        ([LINEAR], nn.Linear(8, 1), {"own": Inputs(2)}, "takes 1 of 3 tensors"),
        ([LINEAR], OwnTop(), {}, "top does not run on zeros"),
        ([LINEAR], nn.Linear(8, 1), {"parties": [Inputs(4)]}, r"bottom 0 does not run .*\[3, 4\]"),
        ([LINEAR], nn.Linear(8, 1), {"parties": []}, "1 bottoms and columns of 0 parties"),
        ([LINEAR], nn.Linear(8, 1), {"parties": [Inputs(3, (2,))]}, "takes 1 of 2 tensors"),
        ([nn.ReLU()], nn.Linear(8, 1), {}, "cannot be read off it: pass parties="),
        ([Broken(torch.zeros(3, 2, 4))], LINEAR, {}, r"bottom 0 must return \[3, width\]"),
        ([Broken((1, 2))], nn.Linear(8, 1), {}, "one floating point tensor, got tuple"),
        ([Broken(torch.zeros(3, 8).long())], LINEAR, {}, "floating point tensor, got torch.int64"),
    ],
)
def test_custom_modules_that_are_refused(bottoms, top, asked, match):
    with pytest.raises(InputError, match=match) as caught:
        from_modules(bottoms, top, **({"width": 8} | asked))
    assert "\n" not in str(caught.value)
