"""First weights: out of all 256 bits of a key, never out of torch's generators, and as torch's."""

import hashlib
import math
import subprocess
import sys

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from parties import KEY, Pair
from tacit import nets, objective
from tacit.errors import InputError, ParameterError
from tacit.nets import Inputs, initialise
from tacit.nets.initial_weights import WeightDraws, convolution, draws_at, linear, table
from tacit.objective import Setting
from tacit.rng import Key

OWN = Inputs(numeric=1, cardinalities=(3,))
SPECS = ["wdl", "mlp", "gafm_net", "exploit_criteo", "isic_conv", "mnist_conv", "resnet"]


def weights(module):
    return [p.detach().clone() for p in module.parameters()]


def top_of(spec, seed):
    architecture = nets.get(spec)
    width = architecture.cut_width(cut=None, classes=2)
    return architecture.top(width, own=OWN, cut=None, classes=2, seed=seed)


class Random(TorchDispatchMode):
    """Notes every operation that draws from a generator of torch."""

    def __init__(self):
        super().__init__()
        self.found = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        if torch.Tag.nondeterministic_seeded in func.tags and not made.is_meta:  # no values there
            self.found.append(str(func))
        return made


def test_every_model_is_looked_at():
    assert sorted(SPECS) == sorted(nets.names())


@pytest.mark.parametrize("spec", SPECS)
def test_no_first_weight_of_a_top_is_drawn_by_torch(spec):
    with Random() as random:
        torch.rand(1)
    assert random.found == ["aten.rand.default"]
    with Random() as random:
        first = top_of(spec, Key(KEY))
    assert random.found == []
    torch.manual_seed(1)
    again, other = top_of(spec, Key(KEY)), top_of(spec, Key(KEY[::-1]))
    for one, same, another in zip(*map(weights, (first, again, other)), strict=True):
        assert torch.equal(one, same)
        constant = bool((one == one.flatten()[0]).all()) and one.numel() > 1
        assert constant or one.numel() < 2 or not torch.equal(one, another)


def test_thirty_two_bits_do_not_find_the_first_weights():
    """What a generator of torch keeps of its seed, 32 bits, was all that a layer depended on.

    The search is shown at its end, with the seed that finds the weights of the derivation before:
    64 bits of a digest, of which the lower 32 gave the same weights.
    """
    seed = int.from_bytes(Key(KEY).digest(b"first weights")[:8], "little") >> 1
    digest = hashlib.sha256(repr((seed, "layer", 5, 0)).encode()).digest()
    kept = int.from_bytes(digest[:8], "big") % 2**32
    found = torch.empty(64, 64).uniform_(-1 / 8, 1 / 8, generator=_generator(kept))
    whole = _generator(int.from_bytes(digest[:8], "big"))
    assert torch.equal(found, torch.empty(64, 64).uniform_(-1 / 8, 1 / 8, generator=whole))
    for given in (seed, Key(KEY)):
        top = nets.get("mlp(layers=6)").top(64, own=None, cut=4, classes=2, seed=given)
        assert not torch.equal(top.layers[0].linear.weight, found)


def _generator(seed):
    return torch.Generator().manual_seed(seed)


def test_all_bits_of_a_seed_and_of_a_key_count():
    seeds = [7, 7 + 2**32, 7 + 2**64, 7 + 2**200, -7]
    keys = [Key(bytes([*KEY[:place], KEY[place] ^ 1, *KEY[place + 1 :]])) for place in range(32)]
    drawn = [draws_at(each, "layer", 1).uniform(4) for each in (*seeds, Key(KEY), *keys)]
    places = [("layer", 2), ("layer", 1, 0), ("layer1",), (1, "layer"), ()]
    drawn += [draws_at(7, *place).uniform(4) for place in places]
    assert len({tuple(one.tolist()) for one in drawn}) == len(drawn)


def test_the_bits_are_those_of_every_processor():
    """Whole numbers, powers of two and square roots: nothing is an approximation."""
    numbers = draws_at(7, "layer", 1).uniform(3)
    assert [x.hex() for x in numbers.tolist()] == [
        "0x1.29d475f32d7ccp-3",
        "0x1.4174aa3add67fp-1",
        "-0x1.62a7ccbcd8378p-4",
    ]
    code = (
        "from tacit.nets.initial_weights import linear, draws_at;"
        "print(linear(64, 64, draws_at(7)).weight.flatten().view(dtype=__import__('torch').int32)"
        ".sum().item())"
    )
    out = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)  # noqa: S603
    here = linear(64, 64, draws_at(7)).weight.detach().flatten().view(dtype=torch.int32)
    assert int(out.stdout) == int(here.sum())


def test_uniform_draws_are_uniform_and_independent():
    count = 200_000
    drawn = WeightDraws(Key(KEY), "layer", 1)
    numbers = drawn.uniform(count)
    assert numbers.dtype == torch.float64
    assert float(numbers.abs().max()) < 1
    assert not (numbers == 0).any()
    for power in (1, 2, 3, 4):
        wanted = 0 if power % 2 else 1 / (power + 1)
        spread = math.sqrt((1 / (2 * power + 1) - wanted**2) / count)
        assert abs(float((numbers**power).mean()) - wanted) < 6 * spread
    counts = torch.histc(numbers, bins=100, min=-1, max=1)
    chi = float(((counts - count / 100) ** 2 / (count / 100)).sum())
    assert abs(chi - 99) < 6 * math.sqrt(2 * 99)
    other = WeightDraws(Key(KEY), "layer", 2).uniform(count)
    for pair in ((numbers[1:], numbers[:-1]), (numbers, other), (numbers, drawn.uniform(count))):
        assert abs(float((pair[0] * pair[1]).mean())) < 6 / 3 / math.sqrt(count - 1)
    normals = WeightDraws(Key(KEY), "rows").normal(count)
    for power, wanted, spread in ((1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)):
        assert abs(float((normals**power).mean()) - wanted) < 6 * math.sqrt(spread / count)


LAYERS = [
    lambda: nn.Linear(300, 200),
    lambda: nn.Linear(50, 900, bias=False),
    lambda: nn.Conv1d(16, 300, 5),
    lambda: nn.Conv2d(8, 600, 3, groups=2),
    lambda: nn.Conv3d(4, 300, 3),
    lambda: nn.ConvTranspose1d(30, 300, 5),
    lambda: nn.ConvTranspose2d(40, 100, 3),
    lambda: nn.ConvTranspose3d(12, 60, 3),
    lambda: nn.Embedding(300, 100, padding_idx=3),
    lambda: nn.EmbeddingBag(300, 100),
    lambda: nn.LayerNorm(40),
    lambda: nn.GroupNorm(4, 40),
    lambda: nn.BatchNorm1d(40),
    lambda: nn.InstanceNorm2d(40, affine=True),
]


def moments(values):
    """Return mean and variance, and six standard errors of each by the sample itself."""
    x = values.double().flatten()
    centred = (x - x.mean()) ** 2
    error = 6 / math.sqrt(len(x))
    return (
        float(x.mean()),
        float(centred.mean()),
        error * float(x.std()),
        error * float(centred.std()),
    )


@pytest.mark.parametrize("make", LAYERS, ids=lambda make: type(make()).__name__)
def test_layers_start_as_torch_starts_them(make):
    torch.manual_seed(0)
    theirs, ours = make(), make()
    before = {name: value.clone() for name, value in ours.state_dict().items()}
    with Random() as random:
        assert initialise(ours, key=KEY) is ours
    assert random.found == []
    for name, value in theirs.named_parameters():
        found = ours.get_parameter(name).detach()
        assert (found.shape, found.dtype) == (value.shape, value.dtype)
        if float(value.detach().var()) == 0:
            assert torch.equal(found, value)
            continue
        assert not torch.equal(found, before[name])
        mean, var, mean_error, var_error = moments(found)
        wanted_mean, wanted_var, more, and_more = moments(value.detach())
        assert abs(mean - wanted_mean) < math.hypot(mean_error, more)
        assert abs(var - wanted_var) < math.hypot(var_error, and_more)
        if not isinstance(ours, nn.Embedding | nn.EmbeddingBag):
            # Of n uniform numbers the largest falls short of the bound by a share of about 1 / n.
            largest = float(value.detach().abs().max())
            assert abs(float(found.abs().max()) / largest - 1) < 20 / value.numel()
    if getattr(ours, "padding_idx", None) is not None:
        assert not ours.weight[3].any()


def test_the_layers_of_models_start_as_torch_starts_them():
    torch.manual_seed(0)
    for ours, theirs in (
        (linear(300, 200, draws_at(0)), nn.Linear(300, 200)),
        (convolution(16, 300, draws_at(0), kernel=5), nn.Conv2d(16, 300, 5)),
    ):
        for found, value in zip(weights(ours), weights(theirs), strict=True):
            mean, var, mean_error, var_error = moments(found)
            wanted_mean, wanted_var, more, and_more = moments(value)
            assert abs(mean - wanted_mean) < math.hypot(mean_error, more)
            assert abs(var - wanted_var) < math.hypot(var_error, and_more)
            assert abs(float(found.abs().max() / value.abs().max()) - 1) < 20 / value.numel()
    for layer, bound in (
        (linear(300, 200, draws_at(0), init="glorot"), math.sqrt(6 / 500)),
        (convolution(16, 30, draws_at(0), init="glorot"), math.sqrt(6 / (46 * 9))),
        (table((400,), 100, draws_at(0)), math.sqrt(6 / 500)),
    ):
        _, var, _, error = moments(layer.weight.detach())
        assert abs(var - bound**2 / 3) < error
        assert float(layer.weight.detach().abs().max()) <= bound


def test_modules_of_others_start_from_a_key_by_name():
    def make():
        return nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Sequential(nn.Linear(8, 1)))

    first, again, fresh = initialise(make(), key=KEY), initialise(make(), key=KEY), make()
    assert all(map(torch.equal, weights(first), weights(again)))
    assert not any(map(torch.equal, weights(first), weights(initialise(fresh))))
    assert not any(map(torch.equal, weights(initialise(make())), weights(fresh)))
    wide = initialise(make().double(), key=KEY)
    assert all(
        torch.equal(a.float(), b) for a, b in zip(weights(wide), weights(first), strict=True)
    )
    model = nets.from_modules([nn.Linear(5, 8)], initialise(nn.Linear(8, 1)), width=8)
    assert model([(torch.zeros(4, 5), None)]).shape == (4,)


class Gain(nn.Linear):
    """A layer with a parameter that no other has."""

    def __init__(self):
        super().__init__(3, 3)
        self.gain = nn.Parameter(torch.ones(3))


@pytest.mark.parametrize(
    ("module", "match"),
    [
        (nn.LSTM(3, 4), "LSTM '' holds bias_hh_l0"),
        (nn.Sequential(nn.Linear(3, 3), nn.PReLU()), "PReLU '1' holds weight"),
        (nn.Sequential(nn.Linear(3, 3), Gain()), "Gain '1' holds bias, gain, weight"),
        (nn.MultiheadAttention(4, 2), "MultiheadAttention '' holds in_proj_bias"),
        (nn.Bilinear(2, 3, 4), "Bilinear"),
    ],
)
def test_layers_that_are_not_known_are_refused_and_nothing_is_changed(module, match):
    before = weights(module)
    with pytest.raises(InputError, match=match) as caught:
        initialise(module)
    assert "\n" not in str(caught.value)
    assert all(map(torch.equal, weights(module), before))
    with pytest.raises(ParameterError, match="32 bytes"):
        initialise(nn.Linear(2, 2), key=b"short")


def test_gafm_draws_nothing_from_torch():
    """Its discriminator, its noise on labels and its targets are secrets of the label party."""
    top = top_of("gafm_net", Key(KEY))
    cut, labels = torch.rand(16, 1), torch.arange(16) % 2
    own = torch.zeros(16, 1), torch.zeros(16, 1, dtype=torch.int64)
    grads = []
    for key in (KEY, KEY, KEY[::-1]):
        with Random() as random:
            learner = objective.get("gafm").learner(
                Setting(
                    top=top,
                    optimizer=torch.optim.Adam(top.parameters()),
                    labels=labels,
                    width=1,
                    key=Key(key),
                    first_steps=1,
                )
            )
            for step in (0, 1):
                turn = objective.Turn(
                    cut=cut, labels=labels, step=step, outputs=lambda z: top(z, *own)
                )
                grads.append(learner.begin(turn).grads)
                learner.undo()
        assert random.found == []
    assert torch.equal(grads[0], grads[2])
    assert torch.equal(grads[1], grads[3])
    assert not torch.equal(grads[1], grads[5])


def test_a_label_party_starts_from_all_of_its_noise_key(tmp_path, monkeypatch):
    """The company builds its top from the key file; the plan's seed has no part in it."""
    from tacit import data
    from tacit.party.build import top_of as party_top
    from tacit.party.config import read_party_config

    monkeypatch.setenv("TACIT_CACHE", str(tmp_path / "cache"))
    pair = Pair(tmp_path / "pair", rows=60)
    config = read_party_config(pair.bank)
    rows = data.load_party(config.data, role="label")
    own = nets.Inputs(*rows.inputs)

    def made(config, key):
        return weights(party_top(config, own, classes=2, parties=1, seed=Key(key)))

    first = made(config, KEY)
    moved = config.model_copy(update={"seed": config.seed + 1})
    assert all(map(torch.equal, first, made(moved, KEY)))
    last_bit = bytes([*KEY[:-1], KEY[-1] ^ 1])
    other = made(config, last_bit)
    drawn = [(a, b) for a, b in zip(first, other, strict=True) if a.any()]
    assert drawn
    assert not any(torch.equal(a, b) for a, b in drawn)
