import dataclasses
import inspect
import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load, save
from scipy import stats
from sklearn.decomposition import PCA

from pretrain_rows import IMAGE, MIXED, ROWS, columns
from tacit import pretrain
from tacit.cli import main
from tacit.errors import InputError, ParameterError, SpecError
from tacit.nets import Inputs
from tacit.pretrain import PRETRAINERS, FrozenBottom
from tacit.pretrain.contrastive import same_image_loss
from tacit.pretrain.masked import Ranks
from tacit.pretrain.patches import pooled
from tacit.pretrain.standardise import Standardiser
from tacit.pretrain.svd import bin_curves, quantile_edges, value_places
from tacit.rng import Key

CASES = {
    "svd(width=4, least=2)": MIXED,
    "pca(width=4)": MIXED,
    "masked(width=4, epochs=2)": MIXED,
    "random(width=4)": MIXED,
    "concat(a=pca(width=3), b=random(width=1))": MIXED,
    "auto": MIXED,
    "patches(width=4, centres=8)": IMAGE,
    "contrastive(width=4, epochs=2)": IMAGE,
}
every = pytest.mark.parametrize(("spec", "inputs"), CASES.items(), ids=CASES)
DOCS = Path(__file__).parents[2] / "docs" / "silent.md"


@pytest.fixture(scope="module")
def fitted():
    """Return each method with a bottom that it fitted, once for all tests."""
    return {
        spec: (pretrain.get(spec), pretrain.get(spec).fit(inputs, *columns(inputs), seed=3))
        for spec, inputs in CASES.items()
    }


def test_every_registered_method_is_tested_here():
    assert {spec.split("(")[0] for spec in CASES} == set(pretrain.names())


@every
def test_the_spec_prints_back(spec, inputs):
    assert str(pretrain.get(spec)) == spec
    assert pretrain.get(pretrain.get(spec)) == pretrain.get(spec)


@every
def test_the_embedding_has_the_right_form(fitted, spec, inputs):
    method, bottom = fitted[spec]
    for rows in (1, 7):
        z = bottom(*columns(inputs, rows, seed=1))
        assert z.shape == (rows, bottom.width) == (rows, method.embedding_width(inputs))
        assert z.dtype == torch.float32
        assert z.isfinite().all()
        assert not z.requires_grad
    assert bottom(*columns(inputs)).std(0).max() > 0


@every
def test_a_bottom_is_frozen(fitted, spec, inputs):
    _, bottom = fitted[spec]
    assert not any(weight.requires_grad for weight in bottom.parameters())
    given = columns(inputs)
    before, state = bottom(*given), {k: v.clone() for k, v in bottom.state_dict().items()}
    bottom.train()
    assert not any(module.training for module in bottom.modules())
    assert torch.equal(bottom(*given), before)
    assert all(torch.equal(tensor, state[name]) for name, tensor in bottom.state_dict().items())


@every
def test_a_row_does_not_depend_on_its_batch(fitted, spec, inputs):
    _, bottom = fitted[spec]
    numeric, categorical = columns(inputs)
    alone = bottom(numeric[5:6], categorical[5:6])
    assert torch.allclose(bottom(numeric, categorical)[5:6], alone, atol=1e-4)


@every
def test_the_same_seed_gives_the_same_bottom(fitted, spec, inputs):
    method, bottom = fitted[spec]
    torch.manual_seed(99)  # torch's own generator has no part in it
    again = method.fit(inputs, *columns(inputs), seed=Key.from_seed(3)).state_dict()
    state = bottom.state_dict()
    assert again.keys() == state.keys()
    assert all(torch.equal(again[name], state[name]) for name in state)


@pytest.mark.parametrize(
    "spec", ["random(4)", "masked(4, 1)", "patches(4, 8)", "contrastive(4, 1)"]
)
def test_another_seed_gives_another_bottom(spec):
    inputs = IMAGE if PRETRAINERS.get(spec).images else MIXED
    given = columns(inputs)
    a, b = (pretrain.get(spec).fit(inputs, *given, seed=seed)(*given) for seed in (0, 2**32))
    assert not torch.allclose(a, b)


@every
def test_a_bottom_can_be_saved_and_loaded(fitted, spec, inputs):
    method, bottom = fitted[spec]
    loaded = method.bottom(inputs, load(save(bottom.state_dict())))
    given = columns(inputs, seed=2)
    assert torch.equal(loaded(*given), bottom(*given))
    assert not any(weight.requires_grad for weight in loaded.parameters())
    bottom.load_state_dict(loaded.state_dict())


@every
def test_a_saved_bottom_is_refused_for_other_columns(fitted, spec, inputs):
    method, bottom = fitted[spec]
    state = bottom.state_dict()
    state = {
        name: tensor + 1 if name.endswith("fitted_on") else tensor for name, tensor in state.items()
    }
    with pytest.raises(InputError, match="fitted on other columns"):
        method.bottom(inputs, state)
    with pytest.raises(InputError, match="saved tensors"):
        method.bottom(inputs, {"something": torch.zeros(1)})


@every
def test_labels_have_no_way_in(spec, inputs):
    method = pretrain.get(spec)
    words = ("label", "target", "truth", "y")
    for name in ("fit", "learn", "learn_checked", "bottom"):
        for parameter in inspect.signature(getattr(method, name)).parameters:
            assert not any(word == parameter or word + "s" == parameter for word in words)
    assert not any("label" in field.name for field in dataclasses.fields(method))


@every
def test_progress_is_told(spec, inputs):
    told = []
    pretrain.get(spec).fit(inputs, *columns(inputs), seed=0, progress=lambda *now: told.append(now))
    passes = pretrain.get(spec).passes(inputs)
    assert told == [(done, passes) for done in range(1, passes + 1)]


@every
def test_too_few_rows_are_refused(spec, inputs):
    method = pretrain.get(spec)
    few = method.embedding_width(inputs) - 1
    with pytest.raises(InputError, match=rf"needs {few + 1} rows or more, got {few}"):
        method.fit(inputs, *columns(inputs, few), seed=0)


@every
def test_constant_columns(spec, inputs):
    """One is handled, all are refused."""
    numeric, categorical = columns(inputs)
    numeric[:, 0] = 4.0
    categorical = categorical.clone()
    categorical[:, :1] = 1
    bottom = pretrain.get(spec).fit(inputs, numeric, categorical, seed=0)
    assert bottom(numeric, categorical).isfinite().all()
    with pytest.raises(InputError, match="every column is constant"):
        pretrain.get(spec).fit(inputs, numeric[:1].expand(ROWS, -1), 0 * categorical, seed=0)


@every
def test_wrong_columns_are_refused_in_one_line(fitted, spec, inputs):
    _, bottom = fitted[spec]
    numeric, categorical = columns(inputs)
    nan = numeric.clone()
    nan[3, 2] = torch.nan
    wrong = [
        ((numeric[:, 1:], categorical), "numeric must be"),
        ((numeric[:5], categorical), "categorical must be"),
        ((numeric, torch.zeros(ROWS, 9, dtype=torch.int64)), "categorical must be"),
        ((nan, categorical), "finite, got nan in row 3 of numeric column 2"),
        ((numeric.long(), categorical), "floats"),
        ((None, None), "got neither"),
    ]
    if inputs.cardinalities:
        unknown = categorical.clone()
        unknown[4, 1] = 7
        wrong += [
            ((numeric, unknown), "column 1 go from 0 to 6, got 7 in row 4: map unknown values"),
            ((numeric, categorical.float()), "whole codes"),
            ((numeric, None), "categorical must be"),
        ]
    for given, part in wrong:
        for call in (bottom, lambda *c: pretrain.get(spec).fit(inputs, *c, seed=0)):
            with pytest.raises(InputError, match=re.escape(part)) as caught:
                call(*given)
            assert "\n" not in str(caught.value)


@pytest.mark.parametrize("spec", ["patches(4)", "contrastive(4)", "concat(patches(4), pca(4))"])
def test_images_are_not_made_of_tables(spec):
    with pytest.raises(InputError, match="needs images"):
        pretrain.get(spec).fit(MIXED, *columns(MIXED), seed=0)


@pytest.mark.parametrize(
    ("spec", "part"),
    [
        ("pca(width=0)", "width must be at least 1"),
        ("svd(scale=2)", "scale must be 0 to 1"),
        ("svd(least=0)", "least must be at least 1"),
        ("masked(epochs=0)", "epochs must be at least 1"),
        ("patches(centres=1)", "centres must be at least 2"),
        ("contrastive(epochs=0)", "epochs must be at least 1"),
        ("pcaa", "did you mean 'pca'"),
        ("concat(pca)", "concat needs b"),
    ],
)
def test_wrong_parameters_are_refused(spec, part):
    with pytest.raises((ParameterError, SpecError), match=re.escape(part)):
        pretrain.get(spec)


def test_more_directions_than_there_are_say_how_many():
    with pytest.raises(InputError, match="take width=15"):
        pretrain.get("pca(20)").fit(MIXED, *columns(MIXED), seed=0)
    with pytest.raises(InputError, match=r"take svd\(width=40\)"):
        pretrain.get("svd(41, least=1)").fit(MIXED, *columns(MIXED), seed=0)
    small = Inputs(16, image=(1, 4, 4))
    with pytest.raises(InputError, match="larger than 6 x 6"):
        pretrain.get("patches(2)").fit(small, *columns(small), seed=0)
    wide = Inputs(0, (5000,))
    for spec in ("pca(4)", "masked(4)", "random(4)"):
        with pytest.raises(InputError, match="take svd"):
            pretrain.get(spec).fit(wide, *columns(wide), seed=0)


@pytest.mark.parametrize(
    ("inputs", "choice"),
    [
        (Inputs(23), "masked"),
        (Inputs(5, (3, 7)), "masked"),
        (Inputs(500), "pca"),
        (Inputs(13, (1460, 583)), "svd"),
        (Inputs(3072, image=(3, 32, 32)), "concat(a=patches(width=64), b=contrastive)"),
    ],
)
def test_auto_chooses_by_the_columns(inputs, choice):
    assert str(pretrain.Auto().choose(inputs)) == choice


def test_pca_agrees_with_scikit_learn():
    numeric, categorical = columns(MIXED, 200)
    ours = pretrain.get("pca(4)").fit(MIXED, numeric, categorical, seed=0)(numeric, categorical)
    hot = [np.eye(size)[categorical[:, at]] for at, size in enumerate(MIXED.cardinalities)]
    dense = np.hstack([numeric.numpy().astype(np.float64), *hot])
    dense = (dense - dense.mean(0)) / dense.std(0)
    theirs = PCA(4, svd_solver="full").fit_transform(dense)
    signs = np.sign((ours.numpy() * theirs).sum(0))
    np.testing.assert_allclose(ours.numpy(), theirs * signs, atol=1e-3)


def test_long_tails_are_taken_by_their_logs_whatever_the_scale_of_the_counts():
    draws = torch.Generator().manual_seed(0)
    counts = torch.poisson(torch.rand(400, 1, generator=draws) ** 12 * 20, generator=draws)
    plain = torch.randn(400, 1, generator=draws)
    none = torch.zeros(400, 0, dtype=torch.int64)
    results = []
    for scale, shift in ((1.0, 0.0), (0.01, -3.0)):
        columns = Standardiser(Inputs(2))
        results.append(columns.learn(torch.cat([counts * scale + shift, plain], dim=1), none))
        assert columns.long_tail.tolist() == [True, False]
    assert torch.allclose(*results, atol=1e-3)
    expected = (counts / counts.std(correction=0)).log1p()
    expected = (expected - expected.mean()) / expected.std(correction=0)
    assert torch.allclose(results[0][:, :1], expected, atol=1e-4)


@pytest.mark.parametrize("scale", [0.0, 0.25, 0.5])
def test_svd_agrees_with_a_dense_one(scale):
    rows, width = 300, 5
    numeric, categorical = columns(MIXED, rows)
    categorical[0, 1] = 6
    categorical[1:, 1].clamp_(max=5)  # one value is too rare to be kept
    method = pretrain.SingularVectors(width=width, least=2, scale=scale)
    z = method.fit(MIXED, numeric, categorical, seed=0)(numeric, categorical).numpy()

    places = value_places(MIXED, quantile_edges(numeric), numeric, categorical)
    curves = bin_curves(places[:, :5], 5)[places[:, :5]].flatten(1).numpy()
    hot = np.hstack([np.eye(3)[categorical[:, 0]], np.eye(7)[categorical[:, 1]][:, :6]])
    matrix = np.hstack([curves, hot * hot.mean(0) ** -scale]).astype(np.float64)
    _, _, right = np.linalg.svd(matrix, full_matrices=False)
    scores = matrix @ right[:width].T
    scores -= scores.mean(0)
    scores /= np.sqrt((scores**2).mean())
    signs = np.sign((scores * z).sum(0))
    np.testing.assert_allclose(z, scores * signs, atol=0.02)  # four rounds are nearly exact


def test_bins_of_a_number_hold_equal_shares_and_their_curves_are_centred():
    numeric = torch.randn(3200, 2, generator=torch.Generator().manual_seed(0))
    none = torch.zeros(3200, 0, dtype=torch.int64)
    places = value_places(Inputs(2), quantile_edges(numeric), numeric, none)
    shares = torch.bincount(places.flatten(), minlength=64) / 3200
    assert (shares - 1 / 32).abs().max() < 0.002
    curves = bin_curves(places, 2)[places]
    assert curves.mean(0).abs().max() < 1e-5
    # Cosines of the rank are orthogonal, so their covariance is diagonal: 0.64 / k^2.
    one = curves[:, 0].double()
    expected = torch.diag(0.64 / torch.arange(1, 7).double() ** 2)
    assert (one.T @ one / len(one) - expected).abs().max() < 0.01


def test_rare_and_unseen_values_have_no_vector():
    inputs = Inputs(0, (4, 2))
    codes = torch.tensor([[0, 0], [0, 1], [1, 0], [1, 1]] * 5 + [[2, 0]])
    bottom = pretrain.SingularVectors(width=2, least=2).fit(inputs, None, codes, seed=0)
    rare, unseen = bottom(None, torch.tensor([[2, 0], [3, 0]]))
    assert torch.equal(rare, unseen)
    assert not torch.equal(bottom(None, codes[:1])[0], unseen)


def test_the_random_control_has_normal_directions():
    inputs = Inputs(60)
    bottom = pretrain.RandomProjection(width=50).fit(inputs, *columns(inputs, 60), seed=1)
    directions = bottom.state_dict()["directions"].flatten().double() * 60**0.5
    assert stats.kstest(directions.numpy(), "norm").pvalue > 1e-6


def test_ranks_are_normal_quantiles_and_end_at_the_outer_knots():
    numeric = torch.arange(1.0, 1002.0)[:, None].square()
    ranks = Ranks(1)
    ranks.learn(numeric)
    found = ranks(numeric)[:, 0]
    assert (found.diff() >= 0).all()
    inner = slice(50, -50)
    expected = torch.special.ndtri(torch.linspace(0, 1, 1001).double())[inner]
    assert (found[inner] - expected).abs().max() < 0.02
    far = ranks(torch.tensor([[-1e9], [1e9]]))
    assert far.flatten().tolist() == [found[0], found[-1]]


def test_equal_numbers_have_their_middle_rank():
    numeric = torch.tensor([[0.0]] * 50 + [[1.0]] * 50)
    ranks = Ranks(1)
    ranks.learn(numeric)
    low, high = ranks(torch.tensor([[0.0], [1.0]])).flatten().tolist()
    assert low == pytest.approx(-0.674, abs=0.02)  # the normal quantiles of 1/4 and 3/4
    assert high == pytest.approx(0.674, abs=0.02)


def test_the_contrastive_loss_is_that_of_the_paper():
    views = torch.randn(6, 4, generator=torch.Generator().manual_seed(0)).double()
    total = 0.0
    for i in range(6):
        alike = torch.cosine_similarity(views[i], views, dim=1) / 0.2
        others = [k for k in range(6) if k != i]
        total -= float(alike[(i + 3) % 6] - torch.logsumexp(alike[others], 0))
    assert float(same_image_loss(views)) == pytest.approx(total / 6)


def test_patches_are_near_to_their_own_cluster():
    """An image of one patch repeated is described by that patch's cluster alone."""
    draws = torch.Generator().manual_seed(0)
    image = torch.randn(1, 1, 7, 7, generator=draws)
    corner = image[0, 0, :6, :6].flatten()
    centred = corner - corner.mean()
    floor = 10.0 / 255 / 0.25
    own = centred / (centred.square().mean() + floor).sqrt()
    centres = torch.stack([own, torch.randn(36, generator=draws) * 3])
    found = pooled(image, torch.zeros(36), torch.eye(36), centres)
    assert found.shape == (1, 8)
    distance = (own - centres[1]).norm() / 2
    assert found[0, 0] == pytest.approx(float(distance), abs=1e-3)  # the first quarter, own cluster
    assert found[0, 4] == pytest.approx(0.0, abs=1e-3)  # the same quarter, the other cluster


def test_bottoms_are_of_one_kind_with_one_way_to_call_them(fitted):
    for _, bottom in fitted.values():
        assert isinstance(bottom, FrozenBottom)
        assert list(inspect.signature(bottom.forward).parameters) == ["numeric", "categorical"]


def test_what_list_pretrain_prints(capsys):
    assert main(["list", "pretrain", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["pretrain"]
    assert [row["name"] for row in rows] == pretrain.names()
    for row in rows:
        assert "sees no labels" in row["guarantee"]
        assert "inputs" in row["guarantee"]
    assert all("References:" in (entry.cls.__doc__ or "") for entry in PRETRAINERS)


def test_the_example_of_the_documentation_runs(capsys):
    (code,) = re.findall(r"```python\n(.*?)```", DOCS.read_text(), re.S)
    exec(compile(code, str(DOCS), "exec"), {})  # noqa: S102 - our own page
    assert re.fullmatch(r"test AUC 0\.\d+\n", capsys.readouterr().out)
