"""What is done to embeddings before they are sent: the grid, packing, noise and width."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tacit import pretrain
from tacit.errors import InputError, SpecError, UsageError
from tacit.nets import Inputs
from tacit.pretrain import Grid, noisy, packed, unpacked
from tacit.rng import Key

both = pytest.mark.parametrize("bits", [8, 4])
KEY = Key.from_seed(5)


def embeddings(rows=4000, width=5, seed=0):
    draws = torch.Generator().manual_seed(seed)
    scale = torch.logspace(-3, 3, width)
    return torch.randn(rows, width, generator=draws) * scale + 10 * scale


@both
def test_inside_the_range_half_a_step_is_the_most_that_is_lost(bits):
    z = embeddings()
    grid = Grid.of(z, bits)
    high = grid.low + grid.step * (2**bits - 1)
    assert torch.allclose(grid.low, z.quantile(0.001, dim=0), rtol=1e-4)
    assert torch.allclose(high, z.quantile(0.999, dim=0), rtol=1e-4)
    codes = grid.codes(z)
    assert codes.dtype == torch.uint8
    assert int(codes.max()) == 2**bits - 1
    inside = (z >= grid.low) & (z <= high)
    assert 0.995 < float(inside.float().mean()) < 1
    lost = (grid.values(codes) - z).abs()
    assert bool((lost <= grid.step * 0.5001)[inside].all())
    clipped = torch.where(z < grid.low, grid.low, high)
    assert torch.allclose(grid.values(codes)[~inside], clipped[~inside], rtol=1e-5)


@both
def test_what_was_rounded_is_rounded_no_further(bits):
    grid = Grid.of(embeddings(), bits)
    codes = grid.codes(embeddings(seed=1))
    assert torch.equal(grid.codes(grid.values(codes)), codes)


@both
def test_a_column_of_one_value_stays_as_it_is(bits):
    z = torch.cat([embeddings(width=1), torch.full((4000, 1), 3.25)], dim=1)
    grid = Grid.of(z, bits)
    assert float(grid.step[1]) == 0
    assert bool((grid.values(grid.codes(z))[:, 1] == 3.25).all())


@given(width=st.integers(1, 9), rows=st.integers(1, 5), seed=st.integers(0, 99))
@pytest.mark.parametrize("bits", [8, 4])
def test_packing_loses_nothing(bits, width, rows, seed):
    draws = torch.Generator().manual_seed(seed)
    codes = torch.randint(2**bits, (rows, width), generator=draws).to(torch.uint8)
    sent = packed(codes, bits)
    assert sent.dtype == torch.uint8
    assert sent.numel() == rows * math.ceil(width * bits / 8)
    assert torch.equal(unpacked(sent, bits, width), codes)


def test_what_is_no_grid_and_no_packed_row_is_refused():
    zeros, ones = torch.zeros(2), torch.ones(2)
    for made in (
        lambda: Grid(zeros, ones, 5),
        lambda: Grid(zeros, torch.ones(3), 8),
        lambda: Grid(zeros, -ones, 8),
        lambda: Grid(zeros / 0, ones, 8),
        lambda: Grid.of(torch.zeros(0, 2), 8),
        lambda: unpacked(torch.zeros(2, 3, dtype=torch.uint8), 4, 4),
        lambda: unpacked(torch.zeros(2, 2), 4, 4),
        lambda: noisy(torch.zeros(2, 2), [1], ones, KEY),
        lambda: noisy(torch.zeros(2, 2), [1, 2], torch.ones(3), KEY),
    ):
        with pytest.raises(InputError) as caught:
            made()
        assert "\n" not in str(caught.value)


def test_a_row_has_the_same_noise_whenever_it_is_sent():
    z = embeddings(6)
    std = z.std(0)
    whole = noisy(z, list("abcdef"), std, KEY)
    assert torch.equal(noisy(z[4:], ["e", "f"], std, KEY), whole[4:])
    assert not torch.equal(noisy(z[4:], ["x", "y"], std, KEY), whole[4:])
    assert not torch.equal(noisy(z, list("abcdef"), std, Key.from_seed(6)), whole)
    assert not torch.equal(noisy(z, list("abcdef"), std, KEY, version=1), whole)


def test_noise_is_normal_of_the_deviation_asked_for_and_independent_of_other_rows():
    """4,000 rows of 5: a mean is off by 0.0071 on average, a correlation by 0.016; five of them."""
    z = embeddings()
    std = 0.5 * z.std(0)
    normals = (noisy(z, range(len(z)), std, KEY) - z) / std
    assert float(normals.mean().abs()) < 5 * 0.0071
    assert float((normals.square().mean() - 1).abs()) < 5 * 0.01
    each = torch.corrcoef(torch.cat([normals.T, normals.roll(1, 0).T]))
    assert float((each - torch.eye(10)).abs().max()) < 5 * 0.016


def test_the_last_bits_do_not_show_how_large_an_embedding_was():
    """All that is sent lies on one grid for the column, whatever its size."""
    z = torch.logspace(-6, 1, 200)[:, None].repeat(1, 2)
    sent = noisy(z, range(200), torch.tensor([0.5, 0.0]), KEY)
    assert bool((sent[:, 0] * 2**11 == (sent[:, 0] * 2**11).round()).all())
    assert torch.equal(sent[:, 1], z[:, 1])


@pytest.mark.parametrize(
    ("spec", "inputs", "width", "found"),
    [
        (None, Inputs(5), None, "masked"),
        ("auto", Inputs(5), 8, "masked(width=8)"),
        (None, Inputs(0, (5000,)), 64, "svd(width=64)"),
        (
            None,
            Inputs(100, image=(1, 10, 10)),
            9,
            "concat(a=patches(width=5), b=contrastive(width=4))",
        ),
        ("pca(4)", Inputs(5), 3, "pca(width=3)"),
        ("masked(width=8, epochs=2)", Inputs(5), 4, "masked(width=4, epochs=2)"),
    ],
)
def test_a_width_takes_the_place_of_the_methods_own(spec, inputs, width, found):
    assert str(pretrain.resolved(spec, inputs, width=width)) == found
    if width is not None:
        assert pretrain.resolved(spec, inputs, width=width).embedding_width(inputs) == width


def test_a_width_that_cannot_be_is_refused():
    with pytest.raises(UsageError, match="two parts"):
        pretrain.resolved("concat(pca(2), pca(2))", Inputs(5), width=1)
    with pytest.raises(SpecError, match="did you mean 'masked'"):
        pretrain.resolved("maskd", Inputs(5))
