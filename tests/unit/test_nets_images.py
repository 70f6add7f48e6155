"""The models of images: shapes of the papers, cuts, weights, and what is refused."""

import os
import platform
import subprocess
import sys
from math import prod

import pytest
import torch
from torch import nn
from torch.nn.functional import conv2d, linear, max_pool2d

from tacit import Guard, nets
from tacit.errors import InputError, ParameterError
from tacit.nets import Inputs
from tacit.objective import get as objective
from tacit.training import FeatureParty, LabelParty, adam, predict, train
from tacit.training.features import augmented, prefetch

SMALL = {
    "isic_conv": "isic_conv(channels=2, hidden=5, size=64)",
    "mnist_conv": "mnist_conv(channels=4, hidden=5, size=12)",
    "resnet": "resnet(blocks_each=1, channels=4, hidden=5, size=8)",
}
SPECS = [
    *SMALL.values(),
    "mnist_conv(config=2, channels=4, size=12, colours=3)",
    "resnet(config=2, blocks_each=1, channels=2, size=8)",
]


def images(architecture, rows=6, seed=0):
    rng = torch.Generator().manual_seed(seed)
    return torch.randn(rows, prod(architecture.image), generator=rng)


def whole(architecture):
    return Inputs(prod(architecture.image), image=architecture.image)


def weights(*modules):
    return [p.detach().clone() for module in modules for p in module.parameters()]


def same(left, right):
    return len(left) == len(right) and all(map(torch.equal, left, right))


def test_every_model_of_images_is_tested_here():
    names = [n for n in nets.names() if isinstance(nets.get(n), nets.ImageStacked)]
    assert names == list(SMALL)


@pytest.mark.parametrize(
    ("spec", "cut", "width", "layers"),
    [
        ("isic_conv", (64, 5, 5), 1600, (4, 4)),
        ("mnist_conv", (64, 3, 3), 576, (4, 2)),
        ("mnist_conv(config=2)", (64, 3, 3), 576, (3, 3)),
        ("resnet", (64, 1, 1), 64, (10, 2)),
        ("resnet(config=2)", (32, 16, 16), 8192, (7, 5)),
    ],
)
def test_shapes_at_the_published_cuts(spec, cut, width, layers):
    architecture = nets.get(spec)
    assert architecture.cut_shape() == cut
    assert architecture.cut_width(cut=None, classes=10) == width
    model = architecture.build(parties=[whole(architecture)], classes=10, seed=0)
    (bottom,) = model.bottoms
    assert (len(bottom.layers), len(model.top.layers)) == layers
    with torch.no_grad():
        z = bottom(images(architecture, 2))
        assert z.shape == (2, width)
        assert model.top(z).shape == (2, 10)
    assert bottom.shape == cut


def test_parameters_are_those_of_the_papers():
    def count(*parts):
        return sum(p.numel() for part in parts for p in part.parameters())

    isic = nets.get("isic_conv").build(parties=[Inputs(3 * 84 * 84)], seed=0)
    conv = 64 * 64 * 9 + 64
    assert count(*isic.bottoms) == 3 * 64 * 9 + 64 + 3 * conv
    assert count(isic.top) == 2 * conv + (64 * 64 + 64) + 65  # after six pools 1 x 1 is left
    net = nets.get("resnet").build(parties=[Inputs(3 * 32 * 32)], classes=10, seed=0)
    parts = [m for part in (*net.bottoms, net.top) for m in part.modules()]
    linears = [m for m in parts if isinstance(m, nn.Linear)]
    convolutions = [m for m in parts if isinstance(m, nn.Conv2d) and m.kernel_size == (3, 3)]
    assert (len(linears), len(convolutions)) == (2, 19)


@pytest.mark.parametrize("spec", SPECS)
def test_every_cut_is_the_same_model_in_value_and_in_weights(spec):
    architecture, reference = nets.get(spec), None
    for cut in range(1, architecture.depth + 1):
        model = architecture.build(parties=[whole(architecture)], cut=cut, classes=3, seed=5)
        z = model.bottoms[0](images(architecture))
        assert z.shape == (6, architecture.cut_width(cut=cut, classes=3))
        logits = model([(images(architecture), None)])
        logits[:, 0].sum().backward()
        for name, parameter in [
            *model.bottoms[0].named_parameters(),
            *model.top.named_parameters(),
        ]:
            assert parameter.grad.abs().sum() > 0, (cut, name)
        found = weights(model.bottoms[0], model.top)
        reference = reference or (found, logits.detach())
        assert same(found, reference[0])
        assert torch.allclose(logits, reference[1], atol=1e-6)


@pytest.mark.parametrize("combine", nets.COMBINES)
@pytest.mark.parametrize("spec", SPECS)
def test_two_parties_own_columns_and_two_classes(spec, combine):
    architecture, own = nets.get(spec), Inputs(2, (3,))
    parties = [whole(architecture)] * 2
    model = architecture.build(parties=parties, own=own, combine=combine, seed=1)
    batch = [(images(architecture, seed=p), None) for p in range(2)]
    columns = torch.randn(6, 2), torch.zeros(6, 1, dtype=torch.int64)
    logits = model(batch, columns)
    assert logits.shape == (6,)
    # Own columns are a linear term of the logit.
    plain = architecture.build(parties=parties, combine=combine, seed=1)
    assert torch.allclose(logits - plain(batch), model.top.own(*columns).squeeze(1), atol=1e-5)
    assert not same(weights(model.bottoms[0]), weights(model.bottoms[1]))


def test_no_strided_convolution_of_one_pixel():
    """oneDNN's AVX2 kernel for its weights' gradient writes past a buffer below 8 channels."""
    strided = [
        (spec, name)
        for spec in [*nets.names(), *SPECS]
        if isinstance(nets.get(spec), nets.ImageStacked)
        for model in [nets.get(spec).build(parties=[whole(nets.get(spec))], classes=3, seed=0)]
        for part in (*model.bottoms, model.top)
        for name, layer in part.named_modules()
        if isinstance(layer, nn.Conv2d) and layer.kernel_size == (1, 1) != layer.stride
    ]
    assert not strided


TRAIN = """
import torch
from math import prod
from tacit import nets
for spec in {specs!r}:
    architecture = nets.get(spec)
    inputs = nets.Inputs(prod(architecture.image), image=architecture.image)
    for cut in range(1, architecture.depth + 1):
        model = architecture.build(parties=[inputs], cut=cut, classes=3, seed=5)
        for step in range(3):
            x = torch.randn(6, inputs.numeric, generator=torch.Generator().manual_seed(step))
            model([(x, None)])[:, 0].sum().backward()
        parts = (*model.bottoms, model.top)
        assert all(p.grad.isfinite().all() for part in parts for p in part.parameters())
print(torch.backends.cpu.get_cpu_capability())
"""


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the limits are those of x86-64")
@pytest.mark.parametrize(
    ("aten", "onednn", "shown"), [("avx2", "AVX2", "AVX2"), ("default", "SSE41", "DEFAULT")]
)
def test_training_on_a_processor_without_wide_registers(aten, onednn, shown):
    """With a strided 1 x 1 convolution the AVX2 run aborted: its heap was overwritten."""
    limits = {"ATEN_CPU_CAPABILITY": aten, "ONEDNN_MAX_CPU_ISA": onednn}
    done = subprocess.run(  # noqa: S603 - a script of this file
        [sys.executable, "-c", TRAIN.format(specs=SPECS)],
        env=os.environ | limits,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout.strip()) == (0, shown), done.stderr


def test_a_strided_shortcut_is_a_strided_convolution():
    """The shortcut of a block that halves the image, against torch's own stride."""
    architecture = nets.get("resnet(blocks_each=1, channels=8, size=9)")
    block = architecture.build(parties=[whole(architecture)], seed=2).bottoms[0].layers[2]
    x = torch.randn(4, 8, 9, 9, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        out = block.norms[0](block.first(x)).relu()
        out = block.norms[1](block.second(out)) + conv2d(x, block.way.weight, stride=2)
        assert torch.allclose(block(x), out.relu(), atol=1e-6)


def test_a_convolution_against_plain_functions():
    """Pool and ReLU change places without changing value or gradient."""
    architecture = nets.get("mnist_conv(channels=3, hidden=4, size=8)")
    model = architecture.build(parties=[Inputs(64)], cut=1, classes=10, seed=2)
    x = images(architecture)
    block = model.bottoms[0].layers[0]
    one, two = x.clone().requires_grad_(), x.clone().requires_grad_()
    z = conv2d(one.reshape(-1, 1, 8, 8), block.conv.weight, block.conv.bias, padding=1)
    z = max_pool2d(torch.relu(z), 2).flatten(1)
    found = model.bottoms[0](two)
    assert torch.allclose(z, found, atol=1e-6)
    z.square().sum().backward()
    found.square().sum().backward()
    assert torch.allclose(one.grad, two.grad, atol=1e-5)
    last = model.top.layers[-1].linear
    hidden = torch.randn(6, 4, 1, 1)
    assert torch.allclose(
        model.top.layers[-1](hidden).flatten(1), linear(hidden.flatten(1), last.weight, last.bias)
    )


def test_first_weights():
    glorot = nets.get("isic_conv").bottom(Inputs(21_168), cut=2, classes=2, seed=0).layers[1].conv
    assert 0.98 < float(glorot.weight.detach().abs().max()) / (6 / (2 * 576)) ** 0.5 <= 1
    assert not glorot.bias.any()
    plain = nets.get("mnist_conv").bottom(Inputs(784), cut=2, classes=2, seed=0).layers[1].conv
    assert 0.98 < float(plain.weight.detach().abs().max()) * 288**0.5 <= 1
    state = torch.get_rng_state()
    nets.get(SMALL["resnet"]).build(parties=[Inputs(192)], seed=3)
    assert torch.equal(torch.get_rng_state(), state)


def test_pieces_without_gradients_give_what_the_whole_gives():
    architecture = nets.get(SMALL["mnist_conv"])
    model = architecture.build(parties=[whole(architecture)], seed=0)
    x = images(architecture, 600)
    with torch.no_grad():
        pieces = model([(x, None)])
    assert torch.allclose(pieces, model([(x, None)]), atol=1e-6)


def test_an_image_that_is_cut_in_the_middle_or_of_another_size_is_refused():
    architecture = nets.get("mnist_conv")
    with pytest.raises(InputError, match=r"whole images of 1x28x28, party 1 has 392 columns: use"):
        architecture.build(parties=[Inputs(784), Inputs(392)], seed=0)
    with pytest.raises(InputError, match=r"has images of 3x32x32: set size= and colours="):
        architecture.build(parties=[Inputs(3072, image=(3, 32, 32))], seed=0)
    with pytest.raises(InputError, match="party 0 has 785 columns"):
        architecture.build(parties=[Inputs(784, (3,))], seed=0)
    bottom = architecture.bottom(Inputs(784), cut=None, classes=10, seed=0)
    with pytest.raises(InputError, match=r"\[batch, 784\], a pixel a column, got \(2, 700\)"):
        bottom(torch.zeros(2, 700))
    with pytest.raises(InputError, match=r"takes no categories, got \(2, 1\)"):
        bottom(torch.zeros(2, 784), torch.zeros(2, 1, dtype=torch.int64))
    model = architecture.build(parties=[Inputs(784)], seed=0)
    with pytest.raises(InputError, match="built without columns of the label party"):
        model.top(torch.zeros(2, 576), torch.zeros(2, 1))
    with pytest.raises(ParameterError, match="multiple of 3 x 3, got 577"):
        architecture.top(577, own=None, cut=None, classes=2, seed=0)


@pytest.mark.parametrize(
    ("spec", "match"),
    [
        ("isic_conv(size=63)", "size must be at least 64"),
        ("isic_conv(channels=0)", "channels must be at least 1"),
        ("mnist_conv(config=3)", "config must be 1 or 2, got 3"),
        ("mnist_conv(size=7)", "size must be at least 8"),
        ("resnet(config=0)", "config must be 1 or 2, got 0"),
        ("resnet(blocks_each=0)", "blocks_each must be at least 1"),
    ],
)
def test_parameters_that_are_refused(spec, match):
    with pytest.raises(ParameterError, match=match):
        nets.get(spec)


@pytest.mark.parametrize("spec", list(SMALL.values()))
def test_session_and_plain_loop_are_bitwise_equal(spec):
    architecture = nets.get(spec)
    x, y = images(architecture, 48), torch.arange(48) % 2
    batches = [torch.arange(at, at + 16) for at in (0, 16, 32)]

    def build():
        model = architecture.build(parties=[whole(architecture)], seed=0)
        return model, adam(model.bottoms[0], 1e-3), adam(model.top, 1e-3)

    model, below, above = build()
    features = [FeatureParty(model.bottoms[0], lambda rows: (x[rows], None), optimizer=below)]
    label = LabelParty(
        model.top,
        y,
        guard=Guard("marvell(s=4)", seed=7),
        objective=objective("bce"),
        optimizer=above,
    )
    losses = [step.loss for step in train(batches, features=features, label=label)]
    assert predict(torch.arange(48), features=features, label=label).shape == (48,)
    other, below, above = build()
    guard, plain = Guard("marvell(s=4)", seed=7), []
    for rows in batches:
        z = guard(other.bottoms[0](x[rows]), y[rows], ids=rows)
        loss = nn.functional.binary_cross_entropy_with_logits(other.top(z), y[rows].float())
        below.zero_grad()
        above.zero_grad()
        loss.backward()
        below.step()
        above.step()
        plain.append(float(loss.detach()))
    assert losses == plain
    assert same(weights(*model.bottoms, model.top), weights(*other.bottoms, other.top))


def test_an_image_is_shifted_or_mirrored_and_nothing_else():
    rng = torch.Generator().manual_seed(0)
    pixels = torch.rand(64, 2 * 9 * 9, generator=rng) + 1
    found = augmented(pixels, (2, 9, 9), 3, 5).reshape(64, 2, 9, 9)
    assert torch.equal(found.flatten(1), augmented(pixels, (2, 9, 9), 3, 5))
    assert not torch.equal(found.flatten(1), augmented(pixels, (2, 9, 9), 3, 6))
    seen = set()
    for before, after in zip(pixels.reshape(64, 2, 9, 9), found, strict=True):
        padded = nn.functional.pad(before, [4] * 4)
        places = [
            (down, right, mirrored)
            for mirrored in (False, True)
            for down in range(9)
            for right in range(9)
            for part in [padded[:, down : down + 9, right : right + 9]]
            if torch.equal(part.flip(2) if mirrored else part, after)
        ]
        assert len(places) == 1
        seen.update(places)
    assert {place[0] for place in seen} == {place[1] for place in seen} == set(range(9))
    assert {place[2] for place in seen} == {True, False}


def test_reading_ahead_keeps_the_order_and_hands_errors_on():
    begun = []

    def read(batch):
        begun.append(batch)
        if batch == 3:
            raise InputError("no such row")
        return -batch

    found = prefetch(range(5), read)
    assert [next(found) for _ in range(3)] == [(0, 0), (1, -1), (2, -2)]
    with pytest.raises(InputError, match="no such row"):
        next(found)
    assert begun[:4] == [0, 1, 2, 3]
    assert list(prefetch([], read)) == []
