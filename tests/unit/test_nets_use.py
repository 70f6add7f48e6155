"""First weights, whether the models learn, and what is refused on the way to one."""

import pytest
import torch
from torch.nn.functional import binary_cross_entropy_with_logits

from tacit import nets
from tacit.errors import InputError, ParameterError, SpecError
from tacit.nets import Inputs

MIXED = Inputs(numeric=3, cardinalities=(4, 6))
OWN = Inputs(numeric=1, cardinalities=(3,))


def test_first_weights_have_the_distributions_that_are_documented():
    model = nets.get("wdl").build(parties=[Inputs(20, (500, 100_000))], seed=0)
    glorot = model.bottoms[0].layers[1].linear
    assert 0.98 < float(glorot.weight.detach().abs().max()) / (6 / 256) ** 0.5 <= 1
    assert not glorot.bias.any()
    rows = model.bottoms[0].features.embedding.table.weight.split([500, 100_000])
    for size, part in zip((500, 100_000), rows, strict=True):
        assert 0.98 < float(part.detach().abs().max()) / (6 / (size + 4)) ** 0.5 <= 1
    torch_like = nets.get("mlp").build(parties=[Inputs(20)], seed=0).bottoms[0].layers[1].linear
    assert 0.98 < float(torch_like.weight.detach().abs().max()) * 64**0.5 <= 1
    assert 0.8 < float(torch_like.bias.detach().abs().max()) * 64**0.5 <= 1


def test_the_models_learn():
    x = torch.randn(256, 6, generator=torch.Generator().manual_seed(0))
    y = (x[:, 0] * x[:, 1] > 0).float()
    for spec in ("wdl(units=32)", "mlp(hidden=32)", "exploit_criteo", "gafm_net"):
        model = nets.get(spec).build(parties=[Inputs(6)], seed=0)
        parameters = [*model.bottoms[0].parameters(), *model.top.parameters()]
        optimiser = torch.optim.Adam(parameters, lr=1e-2)
        for _ in range(150):
            optimiser.zero_grad()
            loss = binary_cross_entropy_with_logits(model([(x, None)]), y)
            loss.backward()
            optimiser.step()
        assert loss < 0.3, spec


@pytest.mark.parametrize(
    ("spec", "error", "match"),
    [
        ("wdll", SpecError, "did you mean 'wdl'"),
        ("wdl(unit=3)", SpecError, "did you mean 'units'"),
        ("wdl(layers=0)", ParameterError, "layers must be at least 1, got 0"),
        ("wdl(units=0)", ParameterError, "units must be"),
        ("wdl(embedding=0)", ParameterError, "embedding must be"),
        ("mlp(hidden=0)", ParameterError, "hidden must be"),
        ("mlp(layers=0)", ParameterError, "layers must be"),
        ("exploit_criteo(config=3)", ParameterError, "config must be 1 or 2, got 3"),
        ("gafm_net(hidden=-1)", ParameterError, "hidden must be"),
        ("wdl | mlp", SpecError, "one model is expected"),
    ],
)
def test_specs_that_are_refused(spec, error, match):
    with pytest.raises(error, match=match):
        nets.get(spec)


@pytest.mark.parametrize(
    ("asked", "error", "match"),
    [
        ({"parties": []}, InputError, "at least one feature party"),
        ({"parties": [Inputs(0)]}, ParameterError, "party 0 needs at least one column"),
        ({"combine": "add"}, SpecError, "unknown combine 'add'"),
        ({"combine": "summ"}, SpecError, "did you mean 'sum'"),
        ({"classes": 1}, ParameterError, "classes must be at least 2, got 1"),
    ],
)
def test_builds_that_are_refused(asked, error, match):
    with pytest.raises(error, match=match):
        nets.get("mlp").build(**({"parties": [MIXED], "seed": 0} | asked))


def test_columns_that_do_not_fit_are_refused():
    model = nets.get("mlp").build(parties=[MIXED], own=OWN, seed=0)
    x, c = torch.zeros(9, 3), torch.zeros(9, 2, dtype=torch.int64)
    z = model.bottoms[0](x, c)
    with pytest.raises(InputError, match=r"numeric must be \[batch, 3\], got \(9, 2\)"):
        model.bottoms[0](x[:, :2], c)
    with pytest.raises(InputError, match=r"categorical must be \[batch, 2\], got none"):
        model.bottoms[0](x)
    with pytest.raises(InputError, match=r"numeric must be \[batch, 1\], got none"):
        model.top(z)
    with pytest.raises(InputError, match="1 feature parties, got columns of 2"):
        model([(x, c), (x, c)])
    alone = nets.get("mlp").build(parties=[MIXED], own=Inputs(0), seed=0)
    assert alone.top(z, x[:, :0], c[:, :0]).shape == (9,)
    with pytest.raises(InputError, match="built without columns of the label party"):
        alone.top(z, x)
    with pytest.raises(InputError, match="column 1 go from 0 to 5, got 6 in row 0"):
        model.bottoms[0](x, c + torch.tensor([3, 6]), check=True)
    with pytest.raises(ParameterError, match="0 or more, got -1"):
        Inputs(-1)
    with pytest.raises(ParameterError, match="at least 1, got 0"):
        Inputs(1, (3, 0))
