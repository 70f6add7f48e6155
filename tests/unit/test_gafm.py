"""GAFM's label party: the formulas, what is taken back, and what a batch of one class shows."""

import pytest
import torch

from tacit import Guard
from tacit.errors import InputError, ParameterError, SpecError, UsageError
from tacit.nets import Inputs
from tacit.nets import get as get_model
from tacit.objective import Gafm, Setting, Turn, corrected, get
from tacit.party.build import fitting_objective
from tacit.rng import Key
from tacit.training import LabelParty, adam
from tacit.training.cut import Embedding
from tacit.types import Flips

ROWS = 64
KEY = Key.from_seed(5)


def labels(rows=ROWS):
    return (torch.rand(rows, generator=torch.Generator().manual_seed(1)) < 0.4).long()


def cut(rows=ROWS, seed=2):
    return 0.2 + 0.6 * torch.rand(rows, 1, generator=torch.Generator().manual_seed(seed))


def top():
    return get_model("gafm_net").build(parties=[Inputs(3)], seed=7).top


def at_work(spec="gafm", *, key=KEY, first_steps=0, model=None, y=None):
    model = model or top()
    setting = Setting(
        top=model,
        optimizer=adam(model, 1e-2),
        labels=labels() if y is None else y,
        width=1,
        key=key,
        first_steps=first_steps,
    )
    return get(spec).learner(setting), model


def turn(model, *, z=None, y=None, step=0):
    return Turn(
        cut=cut() if z is None else z, labels=labels() if y is None else y, step=step, outputs=model
    )


def state(learner, model):
    values = [*model.state_dict().values(), *learner.discriminator.state_dict().values()]
    return [value.clone() for value in values]


def same(one, other):
    return len(one) == len(other) and all(map(torch.equal, one, other))


def test_the_gradient_is_both_parts_at_norm_one():
    learner, model = at_work("gafm(gamma=0.5, delta=0.3)")
    signal = learner.begin(turn(model))
    for part in signal.parts.values():
        assert float(part.norm()) == pytest.approx(1, abs=1e-5)
    mixed = signal.parts["gan"] + 0.5 * signal.parts["penalty"]
    assert torch.allclose(signal.grads, mixed, atol=1e-7)


def test_the_gan_part_is_that_of_both_models_after_their_updates():
    learner, model = at_work()
    before = [weight.clone() for weight in model.parameters()]
    signal = learner.begin(turn(model))
    assert not same(before, list(model.parameters()))
    z = cut().requires_grad_()
    (-learner.discriminator(torch.sigmoid(model(z))).mean()).backward()
    assert torch.allclose(signal.parts["gan"], z.grad / z.grad.norm(), atol=1e-5)


def test_without_delta_the_penalty_pulls_to_a_half_whatever_the_labels():
    learner, model = at_work("gafm(delta=0)")
    found = learner.begin(turn(model)).parts["penalty"]
    z = cut()
    wanted = (z - 0.5) / (z * (1 - z))
    assert torch.allclose(found, wanted / wanted.norm(), atol=1e-6)


def test_the_softened_label_keeps_the_true_side_and_its_distance_is_uniform():
    rows = 4096
    y, z = labels(rows), torch.full((rows, 1), 0.5)
    learner, model = at_work("gafm(delta=0.2)", y=y)
    pull = learner.begin(turn(model, z=z, y=y)).parts["penalty"].flatten()
    assert bool((torch.sign(pull) == 1 - 2 * y).all())  # the reason for "empirical only"
    share = pull.abs() / pull.abs().max()
    error = 4 * (1 / 12 / rows) ** 0.5
    assert float(share.mean()) == pytest.approx(0.5, abs=error + 4 / rows)
    assert float(share.std()) == pytest.approx(12**-0.5, abs=error)


@pytest.mark.parametrize(("left_out", "kept"), [("gan", "penalty"), ("penalty", "gan")])
def test_ablation_leaves_one_part_out(left_out, kept):
    learner, model = at_work(f"gafm(ablate={left_out})")
    signal = learner.begin(turn(model))
    assert torch.allclose(signal.grads, signal.parts[kept], atol=1e-7)


def test_the_discriminator_learns_to_tell_labels_from_predictions_within_its_clip():
    learner, model = at_work("gafm(clip=0.1)")
    real, predicted = labels().float(), torch.sigmoid(model(cut()).detach())
    learner._discriminate(
        real, predicted, learn=True
    )  # the first update clips what it started with
    distances = [learner._discriminate(real, predicted, learn=True) for _ in range(60)]
    assert distances[-1] > 2 * abs(distances[0])
    weights = torch.cat([w.detach().flatten() for w in learner.discriminator.parameters()])
    assert float(weights.abs().max()) <= 0.1 + 1e-7
    assert float(weights.abs().max()) > 0.099  # it would go further if it could


def test_a_step_that_is_not_finished_changes_nothing():
    learner, model = at_work()
    learner.begin(turn(model))
    learner.update()
    before = state(learner, model)
    one = learner.begin(turn(model, step=1)).grads
    assert not same(before, state(learner, model))
    learner.undo()
    assert same(before, state(learner, model))
    assert torch.equal(one, learner.begin(turn(model, step=1)).grads)  # the optimisers too
    again = learner.begin(turn(model, step=1)).grads  # begun anew without an undo
    assert torch.equal(one, again)


def test_a_refused_release_trains_nothing_and_the_next_is_as_if_it_had_not_been():
    angry = []

    def watch(_cut, _release):
        if angry:
            raise RuntimeError("refused")

    def party():
        model = top()
        return LabelParty(
            model,
            labels(),
            guard=Guard("none", seed=1, watch=watch),
            key=KEY,
            objective=get("gafm"),
            optimizer=adam(model, 1e-2),
            width=1,
        )

    rows, disturbed, calm = torch.arange(ROWS), party(), party()
    sent = Embedding(step=0, values=cut())
    before = state(disturbed.learner, disturbed.top)
    angry.append(True)
    with pytest.raises(RuntimeError, match="refused"):
        disturbed.step(rows, [sent])
    assert same(before, state(disturbed.learner, disturbed.top))
    angry.clear()
    one, other = (p.step(rows, [sent])[0].values for p in (disturbed, calm))
    assert torch.equal(one, other)
    assert disturbed.update() == calm.update()


def test_a_batch_of_one_class_does_not_show_which():
    found = []
    for value in (0, 1):
        learner, model = at_work()
        learner.begin(turn(model))
        learner.update()
        judge = [weight.clone() for weight in learner.discriminator.parameters()]
        alone = torch.full((ROWS,), value)
        found.append(learner.begin(turn(model, y=alone, step=1)).grads)
        learner.update()
        assert same(judge, list(learner.discriminator.parameters()))
        assert learner.record()["fallback_batches"] == 1
    assert torch.equal(*found)


def test_the_first_pass_works_on_normal_draws():
    learner, model = at_work(first_steps=1)
    before = top()
    z = cut()
    draws = KEY.stream("gafm", 0, KEY.tag(z)).normal(ROWS, 1).float()
    assert torch.equal(learner.begin(turn(model, z=z)).outputs, before(draws))
    learner.update()
    assert float(learner.discriminator.lean) == 0  # predictions on draws tell no orientation
    later = learner.begin(turn(model, z=z, step=1))
    assert not torch.equal(later.outputs, before(draws))
    assert float(learner.discriminator.lean) != 0


def test_draws_depend_on_key_step_and_embedding():
    def penalty(key=KEY, step=0, z=None):
        learner, model = at_work(key=key)
        return learner.begin(turn(model, step=step, z=z)).parts["penalty"]

    same_z = cut()
    assert torch.equal(penalty(), penalty())
    assert not torch.equal(penalty(), penalty(key=Key.from_seed(6)))
    assert not torch.equal(penalty(), penalty(step=1))
    other = same_z.clone()
    other[0] += 1e-3
    assert not torch.allclose(penalty()[1:], penalty(z=other)[1:], rtol=1e-2)


def test_randomised_labels_are_all_that_is_seen_of_labels():
    guard = Guard("none", seed=3, labels="rr(epsilon=1.0)")
    randomised = guard.labels(torch.arange(ROWS), labels())
    rows = torch.arange(ROWS)
    releases = []
    for y, used in ((randomised, guard), (randomised.hard, Guard("none", seed=3))):
        model = top()
        party = LabelParty(
            model,
            y,
            guard=used,
            objective=get("gafm"),
            key=KEY,
            width=1,
            optimizer=adam(model, 1e-2),
        )
        releases.append(party.step(rows, [Embedding(step=0, values=cut())])[0].values)
    assert torch.equal(*releases)
    assert not torch.equal(randomised.hard, labels())


def test_predictions_are_turned_around_where_they_ran_against_the_labels():
    learner, model = at_work()
    outputs = model(cut()).detach()
    learner.discriminator.lean.fill_(-0.4)
    assert torch.allclose(learner.probabilities(outputs), 1 - torch.sigmoid(outputs))
    assert learner.record()["flipped"] is True
    learner.discriminator.lean.fill_(0.4)
    assert torch.equal(learner.probabilities(outputs), torch.sigmoid(outputs))
    plain, _ = at_work("gafm(orient=false)")
    plain.discriminator.lean.fill_(-0.4)
    assert torch.equal(plain.probabilities(outputs), torch.sigmoid(outputs))


def test_embeddings_at_and_beyond_the_edges_give_finite_gradients():
    z = cut()
    z[:4] = torch.tensor([[0.0], [1.0], [-3.0], [1e9]])
    learner, model = at_work()
    assert bool(learner.begin(turn(model, z=z)).grads.isfinite().all())


@pytest.mark.parametrize(
    ("spec", "error", "said"),
    [
        ("gafm(delta=0.6)", ParameterError, r"delta must be in \[0, 0.5\], or auto, got 0.6"),
        ("gafm(delta=-0.1)", ParameterError, "delta must be in"),
        ("gafm(delta=many)", SpecError, "delta takes a number or auto"),
        ("gafm(sigma=-1)", ParameterError, "sigma must be"),
        ("gafm(clip=0)", ParameterError, "clip must be"),
        ("gafm(ablate=both)", SpecError, "ablate takes none | gan | penalty"),
        ("gafm(ablate=gan, gamma=0)", ParameterError, "gamma must be above 0"),
        ("gafm(hidden=0)", ParameterError, "hidden must be"),
    ],
)
def test_bad_parameters_are_refused(spec, error, said):
    with pytest.raises(error, match=said):
        get(spec)


def test_labels_and_cuts_that_do_not_fit_are_refused():
    for wrong, said in ((torch.zeros(8), "both classes"), (torch.arange(8), "two classes")):
        with pytest.raises(InputError, match=said):
            at_work(y=wrong)
    model = top()
    wide = Setting(top=model, optimizer=adam(model, 1e-2), labels=labels(), width=16, key=KEY)
    with pytest.raises(InputError, match=r"one number wide.*gafm_net"):
        Gafm().learner(wide)
    with pytest.raises(InputError, match="tacit train"):
        at_work("gafm(delta=auto)")
    with pytest.raises(InputError, match="correction=debiased"):
        corrected(Gafm(), Flips(keep=0.7, other=0.3, classes=2))
    with pytest.raises(UsageError, match="10 classes and need ce"):
        fitting_objective("gafm", classes=10, parties=1, combine="sum")
    with pytest.raises(UsageError, match="combine them by mean"):
        fitting_objective("gafm", classes=2, parties=3, combine="sum")


def test_it_prints_as_it_is_read():
    text = "gafm(delta=0.1, sigma=0.25, ablate=gan, orient=false)"
    assert str(get(text)) == text
    assert str(get("gafm(0.05)")) == "gafm"
    assert get("gafm(delta=auto)").delta == "auto"
