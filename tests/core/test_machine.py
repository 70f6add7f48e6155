"""Machine code against the same formula in numpy, and that against float64; and against torch."""

import contextlib
import signal

import numpy as np
import pytest
import torch
from llvmlite import binding

from tacit import machine
from tacit.machine.kernels import kernels
from tacit.machine.normals import normals_of

_SPECIAL = [
    0,
    1,
    -1,
    2**29 - 1,
    2**29,
    -(2**29),
    2**30,
    -(2**30),
    2**31 - 1,
    -(2**31),
    -(2**31) + 1,
]


class Slow:
    """The lanes of the machine code as numpy arrays: one operation at a time, nothing fused."""

    def __init__(self, value):
        self.value = value

    def _with(self, name, other):
        right = other.value if isinstance(other, Slow) else self.value.dtype.type(other)
        return Slow(getattr(self.value, name)(right))

    def __add__(self, other):
        return self._with("__add__", other)

    def __sub__(self, other):
        return self._with("__sub__", other)

    def __mul__(self, other):
        return self._with("__mul__", other)

    def __lshift__(self, count):
        return self._with("__lshift__", count)

    def __rshift__(self, count):
        return self._with("__rshift__", count)

    def __and__(self, mask):
        return self._with("__and__", mask)

    def __xor__(self, other):
        return self._with("__xor__", other)

    def real(self):
        return Slow(self.value.astype(np.float32))

    def bits(self):
        return Slow(self.value.view(np.int32))

    def from_bits(self):
        return Slow(self.value.view(np.float32))

    def sqrt(self):
        return Slow(np.sqrt(self.value))

    def pick(self, one, zero):
        return Slow(np.where(self.value != 0, one.value, zero.value))


def words_of(half):
    """Return words for so many pairs: all pairs of special ones, then random ones."""
    random = np.random.default_rng(0).integers(-(2**31), 2**31, size=(2, half), dtype=np.int32)
    pairs = np.stack(np.meshgrid(_SPECIAL, _SPECIAL)).reshape(2, -1).astype(np.int32)
    return np.concatenate([pairs, random], axis=1)[:, :half]


def made_of(words):
    """Return what the machine makes of the words, and see that it writes nothing behind them."""
    room = torch.from_numpy(np.concatenate([words.reshape(-1), np.full(64, 7, dtype=np.int32)]))
    made = machine.box_muller(room[:-64])
    assert (room[-64:] == 7).all()
    return made.numpy().reshape(words.shape)


@pytest.mark.parametrize("half", [0, 1, 15, 16, 17, 50_000])
def test_the_same_bits_as_one_operation_at_a_time(half):
    words = words_of(half)
    slow = [lane.value for lane in normals_of(Slow(words[0]), Slow(words[1]))]
    np.testing.assert_array_equal(made_of(words).view(np.int32), np.stack(slow).view(np.int32))


def test_the_same_bits_on_a_plain_processor(monkeypatch):
    """Without the vectors of this one, the same loops end in the same bits."""
    monkeypatch.setattr(binding, "get_host_cpu_name", lambda: "generic")
    monkeypatch.setattr(binding, "get_host_cpu_features", binding.FeatureMap)
    words = words_of(1000)
    room = words.copy()
    kernels.__wrapped__()["_box_muller"](room.ctypes.data, words.shape[1])
    np.testing.assert_array_equal(room, made_of(words).view(np.int32))


def test_an_interrupt_while_code_is_made_does_no_harm():
    """In the thread that makes it, LLVM's objects would be freed twice, and the process die."""

    waiting, hits = [], []

    def interrupt(_number, _frame):
        if waiting:
            hits.append(waiting.pop())
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        for delay in np.linspace(0.004, 0.1, 9):
            with contextlib.suppress(KeyboardInterrupt):
                waiting.append(delay)
                signal.setitimer(signal.ITIMER_REAL, delay)
                kernels.__wrapped__()
                waiting.clear()
    finally:
        waiting.clear()
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert hits
    room = words_of(8).copy()
    kernels.__wrapped__()["_box_muller"](room.ctypes.data, room.shape[1])
    np.testing.assert_array_equal(room, made_of(words_of(8)).view(np.int32))


def test_as_exact_as_float32_allows():
    """Errors within a few roundings: of the radius, of the angle, and of their product."""
    words = words_of(200_000)
    share = np.abs(words[0].astype(np.float32)) * np.float32(2**-31) + np.float32(2**-32)
    radius = np.sqrt(-2 * np.log(share.astype(np.float64)))
    angle = np.pi * 2.0**-31 * words[1]
    exact = radius * np.stack([np.cos(angle), np.sin(angle)])
    assert np.abs(made_of(words) - exact).max() <= 4 * 2.0**-24 * radius.max()
    assert np.abs(made_of(words) - exact)[:, radius < 1].max() <= 4 * 2.0**-24


SHAPES = [(1, 1), (3, 17), (7, 64), (40, 130), (1024, 128)]


@pytest.fixture(params=SHAPES, ids=str)
def rows(request):
    return torch.randn(*request.param, generator=torch.Generator().manual_seed(1))


def test_peak(rows):
    assert machine.peak(rows) == float(rows.abs().max())
    for place in (0, rows.numel() // 2, rows.numel() - 1):
        for value in (float("inf"), -float("inf"), float("nan"), -(2.0**100)):
            other = rows.clone()
            other.view(-1)[place] = value
            np.testing.assert_equal(machine.peak(other), abs(value))
    assert machine.peak(torch.zeros(3, 5)) == 0


def test_same(rows):
    assert machine.same(rows, rows.clone())
    for place in (0, rows.numel() // 2, rows.numel() - 1):
        other = rows.clone()
        other.view(-1)[place] *= -1
        assert not machine.same(rows, other)
        other.view(-1)[place] = rows.view(-1)[place].nextafter(torch.tensor(2.0))
        assert not machine.same(rows, other)


def test_class_sums(rows):
    second = np.arange(len(rows)) % 3 == 1
    sums, squares = machine.class_sums(rows, second)
    for number, mask in enumerate((~second, second)):
        own = rows.double().numpy()[mask]
        np.testing.assert_allclose(sums[number], own.sum(axis=0), rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(squares[number], (own * own).sum(axis=0), rtol=1e-12)


def test_row_squares(rows):
    other = rows.flip(0) * 0.5
    exact = (rows - other).double().square().sum(dim=1)
    np.testing.assert_allclose(machine.row_squares(rows, other), exact, rtol=1e-13)


def test_add_to_rows(rows):
    places = torch.arange(0, len(rows), 2)
    noise = torch.randn(len(places), rows.shape[1], generator=torch.Generator().manual_seed(2))
    out = rows.clone()
    machine.add_to_rows(out, places, noise, 0.3)
    expected = rows.clone()
    expected[places] += noise * 0.3
    assert torch.equal(out, expected)


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("more", [False, True])
def test_add_along(rows, in_place, more):
    rng = torch.Generator().manual_seed(3)
    normals, line = torch.randn(len(rows), generator=rng), torch.randn(rows.shape[1], generator=rng)
    std = torch.rand(len(rows), generator=rng, dtype=torch.float64)
    base = rows.clone()
    out = base if in_place else torch.empty_like(rows)
    steps = (normals.double() * std).float()
    expected = rows + steps[:, None] * line
    places = torch.arange(0, len(rows), 3)
    noise = torch.randn(len(places), rows.shape[1], generator=rng)
    if more:
        expected[places] += noise * 0.3
    also = (places, noise, 0.3) if more else None
    machine.add_along(base, out, normals, std, line.double(), also)
    assert torch.equal(out, expected)


def test_other_types_and_layouts_do_not_fit():
    whole = torch.zeros(4, 6)
    assert machine.fits(whole, whole[1:])
    assert not machine.fits(whole, whole[:, 1:])
    assert not machine.fits(whole.double())
    assert machine.fits(whole.double(), dtype=torch.float64)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda r: machine.class_sums(r, np.zeros(3, dtype=bool)),
        lambda r: machine.row_squares(r, r[1:]),
        lambda r: machine.row_squares(r, torch.zeros(4, 5)),
        lambda r: machine.same(r, r[1:]),
        lambda r: machine.add_to_rows(r, torch.tensor([0, 4]), torch.zeros(2, 6), 1.0),
        lambda r: machine.add_to_rows(r, torch.tensor([-1, 0]), torch.zeros(2, 6), 1.0),
        lambda r: machine.add_to_rows(r, torch.tensor([0, 1]), torch.zeros(1, 6), 1.0),
        lambda r: machine.add_along(r, r, torch.zeros(3), torch.zeros(4), torch.zeros(6)),
        lambda r: machine.add_along(r, r, torch.zeros(4), torch.zeros(4), torch.zeros(5)),
        lambda r: machine.add_along(r, r[1:], torch.zeros(4), torch.zeros(4), torch.zeros(6)),
        lambda r: machine.add_along(
            r, r, torch.zeros(4), torch.zeros(4), torch.zeros(6), (torch.tensor([4]), r[:1], 1.0)
        ),
        lambda r: machine.add_along(
            r, r, torch.zeros(4), torch.zeros(4), torch.zeros(6), (torch.tensor([3]), r[:2], 1.0)
        ),
    ],
)
def test_memory_outside_is_never_touched(wrong):
    with pytest.raises(IndexError):
        wrong(torch.zeros(4, 6))
