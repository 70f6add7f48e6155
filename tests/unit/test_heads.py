"""Heads: what every one must do, and what scikit-learn's estimators are refused for."""

import zipfile
from io import BytesIO

import numpy as np
import pytest
import torch

from tacit import heads, measure
from tacit.errors import InputError, ParameterError, SpecError
from tacit.heads import EmbeddedRows, HeadSettings
from tacit.nets import Inputs

ROWS, WIDTH = 240, 6
OWN = Inputs(numeric=2, cardinalities=(3, 40))
BY_EPOCHS = [*heads.names(), "net(first=16, second=8, dropout=0, patience=2)"]
ESTIMATORS = [
    "sklearn:LogisticRegression(max_iter=500)",
    "sklearn:HistGradientBoostingClassifier(max_iter=5, min_samples_leaf=5)",
    "sklearn:RandomForestClassifier(n_estimators=5)",
    "sklearn:KNeighborsClassifier",
    "sklearn:MLPClassifier(hidden_layer_sizes=(4,), max_iter=400, tol=0.01)",
    "sklearn:GaussianNB",
]
every = pytest.mark.parametrize("spec", [*BY_EPOCHS, *ESTIMATORS])
by_classes = pytest.mark.parametrize("classes", [2, 3])
SETTINGS = HeadSettings(epochs=6, batch_size=32, lr=1e-2, weight_decay=0.01, seed=4)


def examples(classes=2, *, own=False, told=0):
    """Return rows whose embeddings tell the label, or only the own column ``told`` - 1 does."""
    draws = torch.Generator().manual_seed(1)
    labels = torch.randint(classes, (ROWS,), generator=draws)
    z = torch.randn(ROWS, WIDTH, generator=draws)
    numeric = torch.randn(ROWS, 2, generator=draws)
    codes = torch.stack(
        [torch.randint(size, (ROWS,), generator=draws) for size in OWN.cardinalities], dim=1
    )
    if not told:
        z[:, 0] += 2.0 * labels
    elif told <= 2:
        numeric[:, told - 1] += 3.0 * labels
    else:
        codes[:, told - 3] = labels
    source = (lambda rows: (numeric[rows], codes[rows])) if own else None
    return EmbeddedRows(embeddings=z.numpy(), inputs=OWN if own else None, source=source), labels


def fitted(spec, classes=2, *, own=False, told=0, held=60, settings=SETTINGS, seen=None):
    rows, labels = examples(classes, own=own, told=told)
    order = torch.arange(ROWS)
    ends = [] if seen is None else seen
    head = heads.get(spec).fit(
        rows,
        labels,
        train=order[held:],
        held=order[:held],
        classes=classes,
        settings=settings,
        done=ends.append,
    )
    return rows, labels, head


@by_classes
@every
def test_predictions_are_probabilities_and_survive_a_round_trip(spec, classes):
    rows, _, head = fitted(spec, classes, own=True)
    order = torch.arange(ROWS)
    found = head.predict(rows, order)
    assert found.dtype == torch.float32
    assert found.shape == ((ROWS,) if classes == 2 else (ROWS, classes))
    assert bool(((found >= 0) & (found <= 1)).all())
    if classes > 2:
        assert torch.allclose(found.sum(1), torch.ones(ROWS), atol=1e-5)
    again = heads.get(spec).load(head.to_bytes(), width=WIDTH, inputs=OWN, classes=classes)
    assert torch.equal(again.predict(rows, order), found)
    assert again.fitted == head.fitted
    some = torch.tensor([7, 3])
    assert torch.allclose(again.predict(rows, some), found[some], atol=1e-6)


@every
def test_a_head_learns_and_tells_of_every_epoch(spec):
    ends = []
    rows, labels, head = fitted(spec, seen=ends)
    probs = head.predict(rows, torch.arange(60)).numpy()
    # 60 rows whose classes lie two standard deviations apart: an AUC of 0.92, give or take 0.04.
    assert measure.auc(probs, labels[:60].numpy()) > 0.72
    assert [end.number for end in ends] == list(range(1, head.fitted.epochs + 1))
    assert tuple(end.loss for end in ends) == head.fitted.losses
    assert {end.most for end in ends} == {6 if head.fitted.steps else 1}
    assert head.fitted.steps in (0, head.fitted.epochs * 6)
    assert (head.fitted.measure, head.fitted.score) == (
        "auc",
        pytest.approx(measure.auc(probs, labels[:60].numpy())),
    )


@every
def test_the_seed_decides_and_torchs_own_generator_is_as_it_was(spec):
    torch.manual_seed(11)
    state = torch.get_rng_state()
    rows, _, first = fitted(spec)
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(12)
    _, _, second = fitted(spec)
    order = torch.arange(ROWS)
    assert torch.equal(first.predict(rows, order), second.predict(rows, order))


@every
def test_test_rows_have_no_part_in_training(spec):
    """Labels of rows that are neither trained on nor held out may be anything."""
    rows, labels = examples()
    order = torch.arange(ROWS)
    found = []
    for changed in (labels, torch.where(order < 40, 1 - labels, labels)):
        head = heads.get(spec).fit(
            rows,
            changed,
            train=order[100:],
            held=order[40:100],
            classes=2,
            settings=SETTINGS,
            done=lambda _: None,
        )
        found.append(head.predict(rows, order))
    assert torch.equal(*found)


@pytest.mark.parametrize("told", [1, 2, 3, 4])
@pytest.mark.parametrize("spec", [BY_EPOCHS[1], *ESTIMATORS[1:3]])
def test_own_columns_are_used(spec, told):
    settings = HeadSettings(epochs=40, batch_size=16, lr=2e-2, weight_decay=0.0, seed=0)
    rows, labels, head = fitted(spec, own=True, told=told, settings=settings)
    probs = head.predict(rows, torch.arange(60)).numpy()
    assert measure.auc(probs, labels[:60].numpy()) > 0.85


def test_held_out_rows_choose_the_epoch_and_stop():
    """Held-out labels that are noise let training end early; without such rows it does not."""
    spec, settings = "net(patience=2)", HeadSettings(**{**vars(SETTINGS), "epochs": 30})
    rows, labels = examples()
    order = torch.arange(ROWS)
    arguments = {"classes": 2, "settings": settings}
    scores = []

    def look(end):
        scores.append(measure.auc(end.head.predict(rows, order[:60]).numpy(), labels[:60].numpy()))

    head = heads.get(spec).fit(
        rows, labels, train=order[60:], held=order[:60], done=look, **arguments
    )
    assert head.fitted.score == pytest.approx(max(scores))
    assert head.fitted.epoch == scores.index(max(scores)) + 1
    assert len(scores) == min(30, head.fitted.epoch + 2)
    probs = head.predict(rows, order[:60]).numpy()
    assert measure.auc(probs, labels[:60].numpy()) == pytest.approx(max(scores))
    ends = []
    free = heads.get(spec).fit(
        rows, labels, train=order[60:], held=order[:0], done=ends.append, **arguments
    )
    assert (free.fitted.epochs, free.fitted.epoch, free.fitted.score) == (30, None, None)


@every
def test_held_out_rows_of_one_class_judge_by_the_loss(spec):
    rows, labels = examples()
    held = torch.nonzero(labels == 0)[:30, 0]
    train = torch.arange(ROWS)[~torch.isin(torch.arange(ROWS), held)]
    head = heads.get(spec).fit(
        rows, labels, train=train, held=held, classes=2, settings=SETTINGS, done=lambda _: None
    )
    probs = head.predict(rows, held).numpy()
    assert head.fitted.measure == "loss"
    loss = measure.log_loss(probs, np.zeros(30, dtype=int))
    assert head.fitted.score == pytest.approx(-loss, rel=1e-4)


def test_a_memory_map_is_an_array_like_any_other(tmp_path):
    rows, _, head = fitted("net")
    np.save(tmp_path / "z.npy", rows.embeddings)
    mapped = EmbeddedRows(embeddings=np.load(tmp_path / "z.npy", mmap_mode="r"))
    order = torch.arange(ROWS)
    assert torch.equal(head.predict(mapped, order), head.predict(rows, order))


# --- scikit-learn ---


@pytest.mark.parametrize(
    ("spec", "same"),
    [
        ("sklearn:LogisticRegression()", "sklearn:LogisticRegression"),
        ("sklearn: SVC( probability = False ) ", None),
        (
            "sklearn:ensemble.RandomForestClassifier(n_estimators=3, max_features='sqrt')",
            "sklearn:ensemble.RandomForestClassifier(n_estimators=3, max_features='sqrt')",
        ),
        ("sklearn:sklearn.naive_bayes.GaussianNB", "sklearn:sklearn.naive_bayes.GaussianNB"),
        (
            "sklearn:MLPClassifier(hidden_layer_sizes=(8, 4), early_stopping=True)",
            "sklearn:MLPClassifier(hidden_layer_sizes=(8, 4), early_stopping=True)",
        ),
    ],
)
def test_a_spec_prints_back(spec, same):
    if same is None:
        with pytest.raises(SpecError, match="predicts no probabilities"):
            heads.get(spec)
        return
    assert str(heads.get(spec)) == same
    assert heads.get(same) == heads.get(spec)


@pytest.mark.parametrize(
    ("spec", "part"),
    [
        ("sklearn:HistGradientBostingClassifier", "did you mean 'HistGradientBoostingClassifier'"),
        ("sklearn:logisticregression", "did you mean 'LogisticRegression'"),
        ("sklearn:Xyz", "no such estimator"),
        ("sklearn:LinearRegression", "labels need a classifier"),
        ("sklearn:StandardScaler", "labels need a classifier"),
        ("sklearn:LinearSVC", "predicts no probabilities"),
        ("sklearn:LogisticRegression(c=1)", "did you mean 'C'"),
        ("sklearn:LogisticRegression(C=-1)", "'C' parameter"),
        ("sklearn:LogisticRegression(C='a', C=1)", "C is given twice"),
        ("sklearn:LogisticRegression(1.0)", "a parameter needs its name"),
        ("sklearn:LogisticRegression(**{'C': 1})", "a parameter needs its name"),
        ("sklearn:LogisticRegression(C=1+x)", "values are literals"),
        ("sklearn:LogisticRegression(C=__import__('os').getcwd())", "values are literals"),
        ("sklearn:VotingClassifier", "estimators"),
        ("sklearn:", "not written as a head"),
        ("sklearn:a b", "not written as a head"),
        ("sklearn:(lambda: 1)()", "has no name"),
        ("sklearn:os.path.Any", "no such estimator"),
        ("sklearn:utils.os.system", "no such estimator"),
        ("sklearn:base.BaseEstimator", "labels need a classifier"),
        ("nett", "did you mean 'net'"),
        ("net(first=0)", "at least 1 wide"),
        ("", "a head needs a name"),
    ],
)
def test_a_head_that_cannot_be_is_refused_in_one_line(spec, part):
    with pytest.raises((SpecError, ParameterError)) as caught:
        heads.get(spec)
    assert part in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_random_state_that_is_given_stays():
    assert (
        heads.get("sklearn:RandomForestClassifier(random_state=5)").make(seed=1).random_state == 5
    )
    assert heads.get("sklearn:RandomForestClassifier").make(seed=-1).random_state == 2**32 - 1


@pytest.mark.parametrize("spec", [*BY_EPOCHS, *ESTIMATORS, "sklearn:KNeighborsClassifier(90)"])
def test_a_head_that_can_be_saved_passes_before_there_are_rows(spec):
    heads.get(spec.replace("(90)", "(n_neighbors=90)")).check()


def test_an_estimator_that_could_not_be_read_back_is_refused_before_there_are_rows():
    spec = "sklearn:KNeighborsClassifier(metric='chebyshev', algorithm='ball_tree')"
    with pytest.raises(InputError, match="ChebyshevDistance64, which is not on the list") as caught:
        heads.get(spec).check()
    assert "\n" not in str(caught.value)


def test_an_estimator_that_fails_on_the_rows_says_so():
    rows, labels = examples()
    order = torch.arange(ROWS)
    with pytest.raises(
        InputError, match=r"LogisticRegression cannot be trained .* class"
    ) as caught:
        heads.get("sklearn:LogisticRegression").fit(
            rows,
            torch.zeros_like(labels),
            train=order,
            held=order[:0],
            classes=2,
            settings=SETTINGS,
            done=lambda _: None,
        )
    assert "\n" not in str(caught.value)


def test_a_class_without_training_rows_has_no_probability():
    rows, labels = examples(3)
    train = torch.nonzero(labels != 1)[:, 0]
    head = heads.get("sklearn:GaussianNB").fit(
        rows,
        labels,
        train=train,
        held=train[:0],
        classes=3,
        settings=SETTINGS,
        done=lambda _: None,
    )
    probs = head.predict(rows, torch.arange(ROWS))
    assert bool((probs[:, 1] == 0).all())
    assert torch.allclose(probs.sum(1), torch.ones(ROWS), atol=1e-5)


def changed(content, old, new):
    """Return a skops file whose description says something else."""
    out = BytesIO()
    with zipfile.ZipFile(BytesIO(content)) as before, zipfile.ZipFile(out, "w") as after:
        for name in before.namelist():
            after.writestr(name, before.read(name).replace(old, new))
    return out.getvalue()


def test_a_saved_head_holds_nothing_but_what_is_on_the_list():
    _, _, head = fitted("sklearn:GaussianNB")
    content = head.to_bytes()
    load = heads.get("sklearn:GaussianNB").load
    arguments = {"width": WIDTH, "inputs": None, "classes": 2}
    evil = changed(content, b'"GaussianNB"', b'"Popen"')
    evil = changed(evil, b'"sklearn.naive_bayes"', b'"subprocess"')
    for broken, part in (
        (evil, "subprocess.Popen"),
        (b"", "no saved head"),
        (content[: len(content) // 2], "no saved head"),
        (fitted("sklearn:LogisticRegression")[2].to_bytes(), "LogisticRegression, not"),
        (fitted("net")[2].to_bytes(), "no saved head"),
    ):
        with pytest.raises(InputError, match=part) as caught:
            load(broken, **arguments)
        assert "\n" not in str(caught.value)
    with pytest.raises(InputError, match="these rows have 5"):
        load(content, **{**arguments, "width": 5})


@pytest.mark.parametrize("content", [b"", b"{}", bytes(64), None])
def test_what_is_no_saved_net_is_refused(content):
    if content is None:
        content = fitted("sklearn:GaussianNB")[2].to_bytes()
    with pytest.raises(InputError, match="no saved head"):
        heads.get("net").load(content, width=WIDTH, inputs=None, classes=2)


def test_own_columns_need_both_what_they_are_and_the_way_to_them():
    with pytest.raises(InputError, match="both"):
        EmbeddedRows(embeddings=np.zeros((2, 2), dtype=np.float32), inputs=OWN)
