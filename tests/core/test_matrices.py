"""Machine code for matrices against numpy in float64, here and on a plain processor."""

import math

import numpy as np
import pytest
import torch
from llvmlite import binding

from tacit import machine
from tacit.machine import matrices
from tacit.machine.products import products

EPS = np.finfo(np.float32).eps


@pytest.fixture(scope="module")
def plain_code():
    """The same loops for a processor without wide vectors, and with smaller tiles."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(binding, "get_host_cpu_name", lambda: "generic")
        patch.setattr(binding, "get_host_cpu_features", binding.FeatureMap)
        return products.__wrapped__()


@pytest.fixture(params=["here", "plain"], autouse=True)
def _processor(request, monkeypatch, plain_code):
    if request.param == "plain":
        monkeypatch.setattr(matrices, "products", lambda: plain_code)


def normals(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def sides_of(count, *, every=3):
    second = np.arange(count) % every == 1
    return np.flatnonzero(~second), np.flatnonzero(second)


def case(count, width, unit=1.0):
    """Rows with a mean and few large directions, and what the machine finds of them."""
    rows = normals(count, width) * torch.linspace(2.0, 0.01, width) + 0.3
    sides = sides_of(count)
    rows[sides[1]] += 0.5
    return rows, sides, machine.moments(rows, sides, unit)


def definite(width, count=2):
    roots = normals(count, 2 * width, width)
    return roots.mT @ roots / width + 0.01 * torch.eye(width)


@pytest.mark.parametrize(("count", "width"), [(4, 32), (70, 64), (200, 96), (1024, 128)])
@pytest.mark.parametrize("unit", [1.0, 2.0**-20, 2.0**9])
def test_moments(count, width, unit):
    rows, sides, found = case(count, width, unit)
    own = [rows.double().numpy()[side] * unit for side in sides]
    size = np.mean([(part**2).sum(axis=1).mean() for part in own])
    means = [part.mean(axis=0) for part in own]
    for ours, part, trace, centre, mean in zip(
        found.covs.numpy(), own, found.traces, found.centres, means, strict=True
    ):
        assert np.linalg.norm(ours - np.cov(part.T, bias=True)) < 4 * EPS * size
        assert np.array_equal(ours, ours.T)
        assert trace == pytest.approx(np.trace(ours.astype(np.float64)), rel=1e-12)
        assert centre == pytest.approx(mean @ mean, rel=1e-6)
    difference = means[1] - means[0]
    assert np.linalg.norm(found.difference - difference) < 4 * EPS * math.sqrt(size)
    image = found.covs.double().numpy().sum(axis=0) @ found.difference
    np.testing.assert_allclose(found.image, image, rtol=1e-10, atol=1e-14 * np.abs(image).max())
    assert found.gap == pytest.approx(found.difference @ found.difference, rel=1e-12)
    assert found.along == pytest.approx(found.difference @ image, rel=1e-12)


def test_large_means_cost_no_more_than_what_they_add_to_the_size():
    rows = normals(1024, 128) * 1e-3 + 1.0
    found = machine.moments(rows, sides_of(1024), 1.0)
    for ours, side in zip(found.covs.double().numpy(), sides_of(1024), strict=True):
        exact = np.cov(rows.double().numpy()[side].T, bias=True)
        assert np.linalg.norm(ours - exact) < 4 * EPS * 128


@pytest.mark.parametrize("width", [32, 96, 128])
def test_the_noise_is_the_one_that_was_asked_for(width):
    _, _, known = case(600, width)
    asked = {"cover": 0.7, "floor": 1e-3, "power": 3.0 * known.gap}
    found = machine.directed(known, **asked, limit=1e-20 * known.gap, steps=40)
    S0, S1 = known.covs.double().numpy()
    D, W = known.difference, S0 + S1
    across = np.eye(width) - np.outer(D, D) / (D @ D)
    T = W + 0.7 * across @ W @ across + 1e-3 * np.eye(width)
    x = np.linalg.solve(T + asked["power"] * np.eye(width), D)
    np.testing.assert_allclose(found.x, x, rtol=1e-6, atol=1e-8 * np.abs(x).max())
    np.testing.assert_allclose(
        D - (T + asked["power"] * np.eye(width)) @ found.x, found.rest, atol=1e-9
    )
    common = T - W + asked["power"] * np.outer(x, x) / (x @ x)
    for noise, spread, other in zip(found.noise.numpy(), found.spreads, (S1, S0), strict=True):
        assert np.linalg.norm(noise - (common + other)) < 4 * EPS * np.trace(common + other)
        assert spread == pytest.approx(np.linalg.norm(noise.astype(np.float64)), rel=1e-9)


def test_too_few_steps_are_told():
    _, _, known = case(600, 64)
    asked = {"cover": 0.0, "floor": 1e-6, "power": 1e-3 * known.gap, "limit": 1e-16 * known.gap}
    assert machine.directed(known, **asked, steps=1) is None
    assert machine.directed(known, **asked, steps=500) is not None


@pytest.mark.parametrize("width", [32, 64, 160])
def test_factor(width):
    given = definite(width)
    cores = given.clone()
    assert machine.factor(cores)
    exact = np.linalg.cholesky(given.double().numpy()).transpose(0, 2, 1)
    assert np.abs(cores.numpy() - exact).max() < 1e-4
    assert not cores.tril(-1).any()
    again = cores.double().mT @ cores.double()
    assert (again - given).norm() < 8 * EPS * given.double().norm() * math.sqrt(width)


@pytest.mark.parametrize("place", [0, 1, 17, 31])
@pytest.mark.parametrize("value", [-1.0, 0.0, float("nan")])
def test_a_matrix_without_a_factor_is_told(place, value):
    given = torch.eye(32).repeat(2, 1, 1)
    given[1, place, place] = value
    assert not machine.factor(given)


@pytest.mark.parametrize("count", [1, 7, 8, 9, 50])
@pytest.mark.parametrize("in_place", [False, True])
def test_add_shaped(count, in_place):
    width = 64
    base, drawn = normals(120, width), normals(count, width, seed=1)
    core = normals(width, width, seed=2).triu()
    places = torch.randperm(120, generator=torch.Generator().manual_seed(3))[:count]
    given = base.clone()
    out = given if in_place else torch.full_like(base, 7.0)
    machine.add_shaped(given, out, places, drawn, core, 0.3)
    expected = (base if in_place else torch.full_like(base, 7.0)).double()
    expected[places] = base[places].double() + 0.3 * (drawn.double() @ core.double())
    assert torch.allclose(out.double(), expected, atol=1e-5)
    untouched = np.setdiff1d(np.arange(120), places)
    assert torch.equal(out[untouched].double(), expected[untouched])


def test_a_row_does_not_depend_on_how_many_there_are():
    """Blocks of a large batch, or a release after a restart, must have the same bytes."""
    base, drawn, core = normals(50, 96), normals(50, 96, seed=1), normals(96, 96, seed=2).triu()
    whole, single = torch.empty_like(base), torch.empty_like(base)
    machine.add_shaped(base, whole, torch.arange(50), drawn, core, 0.3)
    for row in range(50):
        machine.add_shaped(base, single, torch.tensor([row]), drawn[row], core, 0.3)
    assert torch.equal(whole, single)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda r, c: machine.moments(r, (np.array([0, 4]), np.array([1])), 1.0),
        lambda r, c: machine.moments(r, (np.array([0, -1]), np.array([1])), 1.0),
        lambda r, c: machine.moments(r[:, :16].contiguous(), sides_of(4), 1.0),
        lambda r, c: machine.factor(r.unsqueeze(0)),
        lambda r, c: machine.factor(torch.eye(33).unsqueeze(0)),
        lambda r, c: machine.add_shaped(r, r, torch.tensor([4]), r[:1], c, 1.0),
        lambda r, c: machine.add_shaped(r, r, torch.tensor([-1]), r[:1], c, 1.0),
        lambda r, c: machine.add_shaped(r, r, torch.tensor([0, 1]), r[:1], c, 1.0),
        lambda r, c: machine.add_shaped(r, r[1:], torch.tensor([0]), r[:1], c, 1.0),
        lambda r, c: machine.add_shaped(r, r, torch.tensor([0]), r[:1], c[1:], 1.0),
    ],
)
def test_memory_outside_is_never_touched(wrong):
    with pytest.raises(IndexError):
        wrong(torch.zeros(4, 32), torch.zeros(32, 32))


def test_widths_that_are_no_multiple_of_32_do_not_fit():
    assert machine.fits_matrices(torch.zeros(3, 64), torch.zeros(64, 64))
    for other in (torch.zeros(3, 48), torch.zeros(3, 64, dtype=torch.float64)):
        assert not machine.fits_matrices(torch.zeros(3, 64), other)
