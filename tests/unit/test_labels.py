import math
import subprocess
import sys
from dataclasses import fields

import numpy as np
import pytest
import torch
from torch.nn import functional as nn

import tacit
from tacit import Cut, Guard
from tacit.accounting import Ledger
from tacit.errors import BudgetError, InputError, ParameterError, ReleaseError, SpecError
from tacit.measure import (
    auc,
    bayes_combined_auc,
    flip_for_epsilon,
    gaussian_auc,
    gaussian_combined_auc,
    gaussian_delta,
    label_sum_kl,
    randomized_label_auc,
)
from tacit.objective import Forward, corrected
from tacit.objective import get as get_objective
from tacit.protect import LABELS, RandomizedLabels, RandomizedResponse, get_labels
from tacit.protect.labels.rr_prior import likely_classes
from tacit.testing import low_rank_cut
from tacit.types import Flips

SECRET = bytes(range(32))
SPECS = [
    ("rr(epsilon=0.58)", 2),
    ("rr(epsilon=2, correction=forward)", 5),
    ("rr_prior(epsilon=1, stages=3)", 6),
    ("gaussian_labels(sigma=1.5)", 2),
    ("gaussian_labels(sigma=1.5)", 4),
]


def guard(spec="rr(epsilon=0.58)", *, classes=2, protect="none", secret=SECRET, **more):
    return Guard(protect, labels=spec, classes=classes, label_secret=secret, **more)


@pytest.mark.parametrize(("spec", "classes"), SPECS)
def test_the_same_id_has_the_same_label_in_any_order_guard_and_batch(spec, classes):
    rng = np.random.default_rng(0)
    ids, y = torch.arange(500), torch.from_numpy(rng.integers(0, classes, 500))
    whole = guard(spec, classes=classes).labels(ids, y)
    order = torch.from_numpy(rng.permutation(500))
    other = guard(spec, classes=classes)
    assert torch.equal(other.labels(ids[order], y[order]), whole[order])
    for batch in order.split(64):
        assert torch.equal(other.labels(ids[batch], y[batch]).plain, whole[batch].plain)
    fresh = guard(spec, classes=classes, secret=None).labels(ids, y)
    assert not torch.equal(fresh, whole)
    assert not torch.equal(guard(spec, classes=classes, secret=None).labels(ids, y), fresh)


def test_the_same_label_in_another_process():
    code = (
        "import torch; from tacit import Guard;"
        "g = Guard('none', labels='rr(epsilon=0.58)', label_secret=bytes(range(32)));"
        "print(''.join(map(str, g.labels(torch.arange(200), torch.arange(200) % 2).tolist())))"
    )
    out = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)  # noqa: S603
    here = guard().labels(torch.arange(200), torch.arange(200) % 2)
    assert out.stdout.strip() == "".join(map(str, here.tolist()))


def test_text_ids_and_all_kinds_of_numbers():
    y = torch.tensor([0, 1, 1, 0])
    for ids in (["ann", "bob", "cem", "dov"], np.array(["ann", "bob", "cem", "dov"])):
        assert guard().labels(ids, y).tolist() == guard().labels(ids, y).tolist()
    numbers = [3, -4, 2**40, 0]
    first = guard().labels(torch.tensor(numbers), y)
    assert guard().labels(np.array(numbers), y.bool()).tolist() == first.tolist()
    assert guard().labels(numbers, y.float()).tolist() == first.tolist()
    text, y = [str(i) for i in range(300)], torch.zeros(300)
    assert guard().labels(text, y).tolist() != guard().labels(torch.arange(300), y).tolist()


def test_seeds_are_not_cut_to_32_bits_and_are_not_the_noise_key():
    ids, y = torch.arange(300), torch.zeros(300)
    made = [Guard("none", labels="rr(epsilon=1)", seed=s).labels(ids, y) for s in (7, 7 + 2**32, 7)]
    assert torch.equal(made[0], made[2])
    assert not torch.equal(made[0], made[1])
    text = str(vars(guard().label_guard)) + repr(guard())
    assert "\\x01\\x02" not in text
    assert "hidden" in text


@pytest.mark.parametrize("classes", [2, 5])
def test_a_correction_is_post_processing_of_the_same_answers(classes):
    """Fresh flips for another correction would be a second release for the price of one."""
    ids, y = torch.arange(4000), torch.arange(4000) % classes
    ledger = Ledger(run="a", budget="epsilon=0.6")
    made = [
        guard(f"rr(epsilon=0.575{more})", classes=classes, ledger=ledger)
        for more in ("", ", correction=debiased", ", correction=forward")
    ]
    answers = [one.labels(ids, y).plain for one in made]
    assert all(torch.equal(answers[0], other) for other in answers[1:])
    assert not torch.equal(answers[0], y)
    assert len({one.label_guard.tag for one in made}) == 1
    assert ledger.summary().epsilon == 0.575
    made[2].label_guard.load_state(*made[0].label_guard.to_state())
    made[2].release(Cut(grads=torch.randn(4000, 2), labels=made[2].labels(ids, y)))


def agreement(one, other, count=20_000):
    """Return how often two mechanisms flip together, beside what chance would give, in sigmas."""
    ids, y = torch.arange(count), torch.zeros(count)
    a, b = (guard(spec).labels(ids, y).hard.bool() for spec in (one, other))
    both = float(a.float().mean() * b.float().mean())
    return (float((a & b).float().mean()) - both) / math.sqrt(both * (1 - both) / count)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("rr(epsilon=0.5)", "rr(epsilon=1)"),
        ("rr(epsilon=0.575)", "rr(epsilon=0.5750000000000001)"),
        ("rr(epsilon=0.5)", "rr(epsilon=1, correction=forward)"),
        ("rr(epsilon=1)", "gaussian_labels(sigma=1)"),
        ("gaussian_labels(sigma=1)", "gaussian_labels(sigma=2)"),
    ],
)
def test_other_privacy_parameters_under_the_same_secret_draw_anew(one, other):
    """A shared coin would give away every label on which two mechanisms disagree."""
    assert abs(agreement(one, other)) < 6
    assert agreement(one, one) > 20


def test_an_epsilon_is_its_value_and_not_how_it_is_written():
    narrow = np.float32(0.575)  # written as 0.575, and another number
    made = [LABELS.build(tacit.spec.Item("rr", (value,))) for value in (0.575, float(narrow))]
    assert RandomizedResponse(narrow).randomisation == made[1].randomisation
    assert made[1].randomisation != made[0].randomisation
    assert RandomizedResponse(1).randomisation == RandomizedResponse(1.0).randomisation
    for entry in LABELS:
        assert entry.cls.post_processing <= {field.name for field in fields(entry.cls)}


def test_one_secret_has_one_randomisation_wherever_the_first_is_on_record():
    ids, y = torch.arange(64), torch.arange(64) % 2
    ledger = Ledger(run="a")
    first = guard("rr(epsilon=0.5)", ledger=ledger)
    first.labels(ids, y)
    for spec in ("rr(epsilon=1)", "gaussian_labels(sigma=1)"):
        with pytest.raises(
            InputError, match=r"second release.*rr\(epsilon=0\.5\).*new label secret"
        ):
            guard(spec, ledger=ledger).labels(ids, y)
        with pytest.raises(InputError, match=r"but by rr\(epsilon=0\.5\) for 2.*a new secret"):
            guard(spec).label_guard.load_state(*first.label_guard.to_state())
    with pytest.raises(InputError, match="for 3 classes"):
        guard("rr(epsilon=0.5)", classes=3, ledger=ledger).labels(ids, y)
    guard("rr(epsilon=1)", ledger=ledger, secret=bytes(32)).labels(ids, y)
    assert ledger.summary().epsilon == 1.5


def test_records_of_the_version_before_are_refused():
    first = guard()
    first.labels([1, 2], torch.tensor([0, 1]))
    arrays, values = first.label_guard.to_state()
    old = {"format": 1, "tag": values["tag"], "plan": values["plan"]}
    with pytest.raises(InputError, match=r"format 2, got 1.*correction.*end the run with that"):
        guard().label_guard.load_state(arrays, old)
    with pytest.raises(InputError, match="was changed"):
        guard().label_guard.load_state(arrays, {**values, "tag": "0" * 32})


@pytest.mark.parametrize(
    ("ids", "y", "message"),
    [
        ([0, 1], [0, 2], "from 0 to 1, got 2"),
        ([0, 1], [0, -1], "got -1"),
        ([0, 1], [0, 0.5], "whole numbers from 0 to 1, got 0.5"),
        ([0, 1], [0, math.nan], "got nan"),
        ([0, 1], [[0], [1]], "one class per example"),
        ([0, 1], [0, 1, 1], "must match, got 2 and 3"),
        ([0.0, 1.0], [0, 1], "ids must be whole numbers or strings"),
        ([[0, 1]], [0, 1], "ids must be one per example"),
        ([], [], "ids must be one per example"),
        ([5, 5], [0, 1], "two different labels"),
    ],
)
def test_bad_labels_and_ids_are_refused_and_leave_no_trace(ids, y, message):
    made = guard()
    with pytest.raises(InputError, match=message):
        made.labels(np.array(ids), torch.tensor(y))
    assert made.label_guard.tag is None
    made.labels([0, 1, 5], torch.tensor([1, 1, 1]))
    with pytest.raises(InputError, match="two different labels"):
        made.labels([7, 5], torch.tensor([0, 0]))
    assert made.labels([5, 7], torch.tensor([1, 1])).shape == (2,)
    with pytest.raises(InputError, match="randomised already"):
        made.labels([5, 7], made.labels([5, 7], torch.tensor([1, 1])))


@pytest.mark.parametrize("epsilon", ["0", "-1", "nan", "inf", "31"])
def test_bad_epsilons_are_refused(epsilon):
    for name in ("rr", "rr_prior"):
        with pytest.raises((ParameterError, SpecError)):
            get_labels(f"{name}(epsilon={epsilon})")
        with pytest.raises(ParameterError, match="epsilon must be above 0"):
            LABELS.build(tacit.spec.Item(name, (float(epsilon),)))


def test_other_bad_parameters_are_refused():
    with pytest.raises(SpecError, match="did you mean 'rr'"):
        get_labels("rrr(1)")
    with pytest.raises(ParameterError, match="sigma must lie"):
        get_labels("gaussian_labels(0)")
    with pytest.raises(ParameterError, match="32 bytes"):
        guard(secret=b"short")
    with pytest.raises(ParameterError, match="label_secret needs labels"):
        Guard("none", label_secret=SECRET)
    with pytest.raises(InputError, match="no label mechanism"):
        Guard("none").labels([0], torch.tensor([0]))
    with pytest.raises(
        InputError, match=r"three classes or more.*nothing is left to learn; use rr"
    ):
        guard("rr_prior(epsilon=1)")
    with pytest.raises(InputError, match="2 to 65535 classes"):
        guard(classes=1)


def test_a_guard_takes_only_randomised_labels():
    made = guard()
    ids, y = torch.arange(256), torch.arange(256) % 2
    z = torch.randn(256, 4)
    with pytest.raises(ReleaseError, match="was not randomised"):
        made.release(Cut(grads=z, labels=y, ids=ids))
    noisy = made.labels(ids, y)
    assert isinstance(noisy, RandomizedLabels)
    with pytest.raises(ReleaseError, match=r"pass what guard\.labels"):
        made.release(Cut(grads=z, labels=y))
    with pytest.raises(ReleaseError, match="not the true labels"):
        made.release(Cut(grads=z, labels=y, ids=ids))
    with pytest.raises(ReleaseError, match="was not randomised"):
        made.release(Cut(grads=z, labels=noisy.plain, ids=ids + 1000))
    with pytest.raises(InputError, match="like labels"):
        made.release(Cut(grads=z, labels=noisy.plain, ids=ids[:9]))
    with pytest.raises(ReleaseError, match="not the true labels"):
        made.release(Cut(grads=z, labels=y.tolist(), ids=ids))
    assert made.counts.total() == 0
    for labels in (noisy, noisy.plain, noisy[torch.arange(256)]):
        assert made.release(Cut(grads=z, labels=labels, ids=ids)).grads.shape == z.shape
    tampered = made.labels(ids, y)
    tampered.plain[3] = 1 - tampered.plain[3]
    with pytest.raises(ReleaseError, match="not the labels"):
        made.release(Cut(grads=z, labels=tampered))


@pytest.mark.parametrize(("spec", "classes"), SPECS)
def test_a_loop_with_picked_rows(spec, classes):
    ids, y = torch.arange(300), torch.arange(300) % classes
    made = guard(spec, classes=classes, protect="gaussian(0.01)", seed=1)
    objective = corrected(get_objective("bce" if classes == 2 else "ce"), made.flips)
    noisy = made.labels(ids, y)
    weight = torch.zeros(6, classes if classes > 2 else 1, requires_grad=True)
    x = torch.randn(300, 6)
    for rows in torch.arange(300).split(100):
        z = x[rows].requires_grad_()
        labels = noisy[rows]
        outputs = made(z, labels) @ weight
        objective.loss(outputs.squeeze(1), labels.targets).backward()
        assert torch.isfinite(z.grad).all()
    assert made.counts.total() == 3


def test_what_is_not_picking_rows_is_an_ordinary_tensor():
    noisy = guard().labels(torch.arange(8), torch.arange(8) % 2)
    assert type(noisy + 1) is torch.Tensor
    assert type(noisy.float()) is torch.Tensor
    assert type(noisy[2]) is torch.Tensor
    assert type(torch.stack([noisy, noisy])) is torch.Tensor
    for rows in (slice(2, 5), [2, 3, 4], torch.tensor([2, 3, 4]), np.array([2, 3, 4])):
        part = noisy[rows]
        assert isinstance(part, RandomizedLabels)
        assert part.numbers.tolist() == [2, 3, 4]
        assert torch.equal(part.targets, noisy.targets[2:5])
    assert noisy[noisy == 1].sum() == noisy.sum()
    assert "tensor" in repr(noisy).lower() or "Randomized" in repr(noisy)


def test_protections_see_randomised_labels_only():
    cut = low_rank_cut(64, 8)
    seen = []
    made = guard(protect="marvell(s=4)", seed=1, watch=lambda cut, _: seen.append(cut.labels))
    noisy = made.labels(torch.arange(64), cut.labels)
    made.release(Cut(grads=cut.grads, labels=noisy, weight=cut.weight))
    plain = Guard("marvell(s=4)", seed=1)
    plain.release(Cut(grads=cut.grads, labels=noisy.hard, weight=cut.weight))
    assert torch.equal(seen[0], noisy.hard)
    assert made.last_certificate == plain.last_certificate
    many = guard("gaussian_labels(2)", protect="marvell(s=4)", seed=1)
    many.release(Cut(grads=cut.grads, labels=many.labels(torch.arange(64), cut.labels)))


def test_twenty_epochs_show_the_same_label_twenty_times():
    """Averaging over epochs gains nothing: there is no fresh noise to average away."""
    ids, y = torch.arange(5000), torch.arange(5000) % 2
    made = guard()
    epochs = torch.stack([made.labels(ids, y).plain for _ in range(20)]).float()
    assert auc(epochs.mean(dim=0), y) == auc(epochs[0], y)


def test_debiased_targets_are_exactly_unbiased():
    """The average over the mechanism's own probabilities is the clean label."""
    for classes in (2, 3, 10):
        for epsilon in (0.1, 0.58, 3.0):
            mechanism = get_labels(f"rr(epsilon={epsilon})")
            keep = 1 / (1 + (classes - 1) * math.exp(-epsilon))
            channel = torch.full((classes, classes), (1 - keep) / (classes - 1)).double()
            channel.fill_diagonal_(keep)
            targets = mechanism.targets(torch.arange(classes), classes=classes).double()
            wanted = torch.eye(classes).double() if classes > 2 else torch.tensor([0.0, 1.0])
            slack = 1e-6 * targets.abs().max()
            assert torch.allclose(channel @ targets, wanted.double(), atol=float(slack))
            if classes > 2:
                assert torch.allclose(targets.sum(dim=1), torch.ones(classes).double(), atol=1e-4)


@pytest.mark.parametrize("classes", [2, 4])
def test_the_debiased_gradient_is_the_clean_one_on_average(classes):
    torch.manual_seed(0)
    epsilon = 0.7
    keep = 1 / (1 + (classes - 1) * math.exp(-epsilon))
    mechanism = get_labels(f"rr(epsilon={epsilon})")
    objective = get_objective("bce" if classes == 2 else "ce")
    outputs = torch.randn(classes, *([] if classes == 2 else [classes]), requires_grad=True)
    y = torch.arange(classes)

    def gradient(labels):
        return torch.autograd.grad(objective.loss(outputs, labels), outputs)[0]

    average = 0
    for shift in range(classes):  # every label becomes every class, with its probability
        chance = keep if shift == 0 else (1 - keep) / (classes - 1)
        answers = (y + shift) % classes
        average = average + chance * gradient(mechanism.targets(answers, classes=classes))
    assert torch.allclose(average, gradient(y), atol=1e-6)


@pytest.mark.parametrize("classes", [2, 5])
def test_the_forward_correction_is_the_loss_of_flipped_predictions(classes):
    torch.manual_seed(0)
    made = guard("rr(epsilon=1, correction=forward)", classes=classes)
    objective = corrected(get_objective("bce" if classes == 2 else "ce"), made.flips)
    outputs = torch.randn(7, *([] if classes == 2 else [classes]), dtype=torch.float64)
    outputs.requires_grad_()
    y = torch.arange(7) % classes
    keep, other = made.flips.keep, made.flips.other
    assert keep + (classes - 1) * other == pytest.approx(1)
    assert math.log(keep / other) == pytest.approx(1)
    channel = torch.full((classes, classes), other, dtype=torch.float64).fill_diagonal_(keep)
    probs = objective.probabilities(outputs)
    both = torch.stack([1 - probs, probs], dim=1) if classes == 2 else probs
    slow = nn.nll_loss((both @ channel).log(), y)
    wanted = torch.autograd.grad(slow, outputs, retain_graph=True)[0]
    found = torch.autograd.grad(objective.loss(outputs, y), outputs)[0]
    assert torch.allclose(objective.loss(outputs, y), slow)
    assert torch.allclose(found, wanted, rtol=1e-10, atol=1e-14)
    assert torch.autograd.gradcheck(lambda o: objective.loss(o, y), outputs)
    far = outputs.detach() * 1e4
    assert float(objective.loss(far, y)) <= -math.log(other) + 1e-9
    assert str(objective).startswith("forward(of=")


def test_the_forward_correction_refuses_what_it_is_not_for():
    forward = Forward(get_objective("ce"), keep=0.6, other=0.2, classes=3)
    with pytest.raises(InputError, match="takes classes"):
        forward.loss(torch.zeros(2, 3), torch.zeros(2, 3))
    with pytest.raises(InputError, match="for 3 classes, the model has 4"):
        forward.loss(torch.zeros(2, 4), torch.zeros(2, dtype=torch.long))
    with pytest.raises(InputError, match="more often"):
        Forward(get_objective("ce"), keep=0.2, other=0.4, classes=3)
    with pytest.raises(InputError, match=r"soft targets must be \(2, 3\)"):
        get_objective("ce").loss(torch.zeros(2, 3), torch.zeros(2, 4))
    assert corrected(get_objective("ce"), None) == get_objective("ce")
    flips = Flips(keep=0.6, other=0.4, classes=2)
    assert isinstance(corrected(get_objective("bce"), flips), Forward)


def test_the_prior_needs_the_whole_data_set():
    rng = np.random.default_rng(0)
    y = torch.from_numpy(rng.choice(10, 4000, p=[0.4, 0.3, 0.2, *[0.1 / 7] * 7]))
    made = guard("rr_prior(epsilon=1, stages=3)", classes=10)
    noisy = made.labels(torch.arange(4000), y)
    assert torch.equal(made.labels(torch.arange(50), y[:50]), noisy[:50])
    with pytest.raises(InputError, match="pass all examples in the first call"):
        made.labels([4000], torch.tensor([0]))
    plan = made.label_guard._plan
    assert plan[0] == tuple(range(10))  # without a prior it is plain randomised response
    assert all(len(part) < 10 for part in plan[1:])
    assert (noisy == y).float().mean() > 1.3 * (
        guard("rr(epsilon=1)", classes=10).labels(torch.arange(4000), y) == y
    ).float().mean()
    half = guard("rr_prior(epsilon=1, stages=3)", classes=10)
    half.labels(torch.arange(100), y[:100] * 0 + 9)
    assert half.label_guard.tag != made.label_guard.tag  # a ledger counts another epsilon


def test_likely_classes_have_the_best_chance_by_brute_force():
    rng = np.random.default_rng(0)
    for _ in range(50):
        prior, epsilon = rng.dirichlet(np.full(6, 0.5)), rng.uniform(0.1, 3)
        order = np.argsort(-prior)
        chance = [
            math.exp(epsilon) / (math.exp(epsilon) + k - 1) * prior[order[:k]].sum()
            for k in range(1, 7)
        ]
        best = order[: int(np.argmax(chance)) + 1]
        assert likely_classes(prior, epsilon) == tuple(sorted(best))


def test_certificates_state_epsilon_and_the_best_combination():
    made = guard(f"rr(epsilon={math.log(64 / 36)})")
    certificate = made.label_certificate(baseline_auc=0.78)
    assert certificate.auc == pytest.approx(0.64)
    assert certificate.combined_auc == pytest.approx(0.81, abs=0.002)
    assert certificate.epsilon == pytest.approx(0.5754, abs=1e-4)
    assert made.label_certificate().combined_auc is None
    with pytest.raises(ParameterError, match="baseline_auc must lie"):
        made.label_certificate(baseline_auc=0.0)
    gauss = guard("gaussian_labels(2)").label_certificate(baseline_auc=0.78)
    assert (gauss.epsilon, gauss.mu) == (None, 0.5)
    assert gauss.auc == pytest.approx(gaussian_auc(gauss.sum_kl))
    prior = guard("rr_prior(1)", classes=3).label_certificate(baseline_auc=0.6)
    assert prior.auc == pytest.approx(1 / (1 + math.exp(-1)))
    many = guard("rr(1)", classes=3).label_certificate()
    assert 0.5 < many.auc < prior.auc


def test_the_two_numbers_and_the_limits():
    assert randomized_label_auc(0.36) == pytest.approx(0.64)
    assert round(bayes_combined_auc(0.78, flip=0.36), 2) == 0.81
    assert bayes_combined_auc(0.78, flip=0.5) == pytest.approx(0.78)
    assert bayes_combined_auc(0.5, flip=0.36) == pytest.approx(0.64)
    assert bayes_combined_auc(1.0, flip=0.36) == pytest.approx(1.0)
    assert bayes_combined_auc(0.7, flip=0.0) == 1.0
    assert bayes_combined_auc(0.5 + 1e-12, flip=0.3, classes=5) == pytest.approx(
        randomized_label_auc(0.3, classes=5), abs=1e-6
    )
    assert bayes_combined_auc(0.7, epsilon=1.0) == pytest.approx(
        bayes_combined_auc(0.7, flip=flip_for_epsilon(1.0))
    )
    assert gaussian_combined_auc(1.0, baseline_auc=1.0) == 1.0
    assert label_sum_kl(epsilon=1.0) == pytest.approx(2 * math.tanh(0.5))


def test_the_delta_of_gaussian_noise_by_quadrature():
    grid = np.linspace(-40, 40, 800_001)
    density = np.exp(-(grid**2) / 2) / math.sqrt(2 * math.pi)
    for mu in (0.3, 1.0, 2.5):
        moved = np.exp(-((grid - mu) ** 2) / 2) / math.sqrt(2 * math.pi)
        for epsilon in (0.0, 0.5, 2.0):
            slow = np.maximum(moved - math.exp(epsilon) * density, 0).sum() * (grid[1] - grid[0])
            assert gaussian_delta(mu, epsilon) == pytest.approx(slow, abs=1e-6)
    assert gaussian_delta(0.01, 700.0) == 0.0


@pytest.mark.parametrize(
    "call",
    [
        lambda: randomized_label_auc(0.6),
        lambda: randomized_label_auc(math.nan),
        lambda: randomized_label_auc(0.1, classes=1),
        lambda: bayes_combined_auc(0.4, flip=0.1),
        lambda: bayes_combined_auc(0.7),
        lambda: bayes_combined_auc(0.7, flip=0.1, epsilon=1.0),
        lambda: bayes_combined_auc(flip=0.1),
        lambda: bayes_combined_auc(flip=0.1, scores=[0.0, 1.0], labels=[0, 1]),
        lambda: bayes_combined_auc(0.7, flip=0.1, scores=[0.1, 0.9], labels=[0, 1]),
        lambda: flip_for_epsilon(-1.0),
        lambda: gaussian_delta(0.0, 1.0),
        label_sum_kl,
    ],
)
def test_bad_numbers_are_refused(call):
    with pytest.raises(ParameterError):
        call()


def test_a_ledger_counts_labels_once_and_refuses_before_anything_is_recorded():
    ids, y = torch.arange(64), torch.arange(64) % 2
    ledger = Ledger(run="a", budget="epsilon=1")
    made = guard(ledger=ledger)
    noisy = made.labels(ids, y)
    for _ in range(20):
        made.release(Cut(grads=torch.randn(64, 4), labels=made.labels(ids, y)))
    assert ledger.summary().epsilon == 0.58
    assert ledger.spent(ids).releases.tolist() == [20] * 64
    again = guard(ledger=ledger)  # the same secret, e.g. after a restart
    assert torch.equal(again.labels(ids, y), noisy)
    assert ledger.summary().epsilon == 0.58
    other = guard(ledger=ledger, secret=bytes(32))
    with pytest.raises(BudgetError, match=r"to 1\.16"):
        other.labels(ids, y)
    with pytest.raises(ReleaseError, match="was not randomised"):
        other.release(Cut(grads=torch.randn(64, 4), labels=noisy))
    with pytest.raises(BudgetError, match="epsilon"):
        guard("gaussian_labels(1)", ledger=ledger, secret=bytes(32)).labels(ids, y)


def test_a_text_id_is_one_example_for_ledger_and_guard():
    ledger = Ledger(run="a")
    made = guard(ledger=ledger)
    noisy = made.labels(["ann", "bob"], torch.tensor([0, 1]))
    made.release(Cut(grads=torch.randn(2, 4), labels=noisy))
    assert ledger.summary().examples == 2


def test_the_record_survives_a_restart():
    ids, y = torch.tensor([1, 2, 2**50]), torch.tensor([0, 1, 1])
    first = guard()
    noisy = first.labels(ids, y)
    arrays, values = first.label_guard.to_state()
    again = guard()
    again.label_guard.load_state(arrays, values)
    again.release(Cut(grads=torch.randn(3, 2), labels=noisy))
    with pytest.raises(InputError, match="two different labels"):
        again.labels(ids, 1 - y)
    with pytest.raises(InputError, match="another label secret"):
        guard(secret=bytes(32)).label_guard.load_state(arrays, values)
    with pytest.raises(InputError, match="not made by"):
        guard("rr(epsilon=2)").label_guard.load_state(arrays, values)
    prior = guard("rr_prior(1)", classes=3)
    noisy = prior.labels(torch.arange(90), torch.arange(90) % 3)
    moved = guard("rr_prior(1)", classes=3)
    moved.label_guard.load_state(*prior.label_guard.to_state())
    assert torch.equal(moved.labels([5], torch.tensor([2])), noisy[5:6])


def test_every_mechanism_prints_back_and_states_a_guarantee():
    for spec, _ in SPECS:
        assert get_labels(str(get_labels(spec))) == get_labels(spec)
    assert all(entry.guarantee and entry.summary for entry in LABELS)
    assert LABELS.names() == ["rr", "gaussian_labels", "rr_prior"]
