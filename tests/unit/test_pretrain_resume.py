import pytest
import torch
from safetensors.torch import load, save

from pretrain_rows import IMAGE, MIXED, columns
from tacit import pretrain
from tacit.errors import InputError


class SavedBytes:
    """Keeps a training as the bytes of a safetensors file."""

    def __init__(self):
        self.content, self.saves = None, []

    def load(self):
        return None if self.content is None else load(self.content)

    def save(self, tensors, done):
        self.content = save(tensors)
        self.saves.append(done)


def interrupt_after(passes):
    def progress(done, _total):
        if done == passes:
            raise KeyboardInterrupt

    return progress


INTERRUPTED = {
    "masked(width=4, epochs=4)": MIXED,
    "contrastive(width=4, epochs=4)": IMAGE,
    "concat(a=patches(width=4, centres=8), b=contrastive(width=4, epochs=3))": IMAGE,
    "concat(a=masked(width=2, epochs=2), b=concat(a=pca(width=2), b=masked(width=2, epochs=2)))": (
        MIXED
    ),
}


@pytest.mark.parametrize(("spec", "inputs"), INTERRUPTED.items())
def test_an_interrupted_training_goes_on_with_the_same_bits(spec, inputs):
    method, rows = pretrain.get(spec), columns(inputs, 300)  # two batches an epoch
    undisturbed = method.fit(inputs, *rows, seed=5).state_dict()
    total = method.passes(inputs)
    for stop in range(1, total):
        kept, told = SavedBytes(), []
        with pytest.raises(KeyboardInterrupt):
            method.fit(
                inputs, *rows, seed=5, kept=kept, save_seconds=0, progress=interrupt_after(stop)
            )
        torch.manual_seed(stop)  # torch's own generator has no part in it
        resumed = method.fit(
            inputs,
            *rows,
            seed=5,
            kept=kept,
            save_seconds=0,
            progress=lambda *now, told=told: told.append(now),
        ).state_dict()
        assert resumed.keys() == undisturbed.keys()
        assert all(torch.equal(resumed[name], undisturbed[name]) for name in resumed)
        assert told[-1] == (total, total)
        assert told == sorted(told)


@pytest.mark.parametrize("spec", ["masked(width=4, epochs=5)", "contrastive(width=4, epochs=5)"])
def test_no_epoch_that_was_saved_is_done_again(spec):
    inputs = IMAGE if pretrain.get(spec).images else MIXED
    kept, told = SavedBytes(), []
    given = {"seed": 0, "kept": kept, "save_seconds": 0}
    with pytest.raises(KeyboardInterrupt):
        pretrain.get(spec).fit(inputs, *columns(inputs), **given, progress=interrupt_after(3))
    assert kept.saves == [1, 2, 3]
    pretrain.get(spec).fit(
        inputs, *columns(inputs), **given, progress=lambda done, _total: told.append(done)
    )
    assert told == [3, 4, 5]
    assert kept.saves == [1, 2, 3, 4, 5]


def test_a_finished_part_is_not_learned_again():
    """The second part has not saved anything yet: what is left of the first one is its result."""
    method = pretrain.get("concat(masked(width=2, epochs=2), masked(width=2, epochs=2))")
    kept, told = SavedBytes(), []
    with pytest.raises(KeyboardInterrupt):
        method.fit(
            MIXED, *columns(MIXED), seed=0, kept=kept, save_seconds=1e9, progress=interrupt_after(3)
        )
    assert kept.saves == [2]
    method.fit(
        MIXED, *columns(MIXED), seed=0, kept=kept, progress=lambda done, _total: told.append(done)
    )
    assert told == [3, 4]


def test_saves_are_at_least_so_many_seconds_apart():
    kept = SavedBytes()
    pretrain.get("masked(4, 5)").fit(MIXED, *columns(MIXED), seed=0, kept=kept, save_seconds=1e9)
    assert kept.saves == []


def test_a_kept_training_is_refused_for_another_one():
    method, rows, kept = pretrain.get("masked(4, 3)"), columns(MIXED), SavedBytes()
    with pytest.raises(KeyboardInterrupt):
        method.fit(MIXED, *rows, seed=0, kept=kept, save_seconds=0, progress=interrupt_after(1))
    content = kept.content
    changed = rows[0].clone()
    changed[7, 2] += 1e-6
    others = [
        (method, rows, 1),
        (method, (changed, rows[1]), 0),
        (method, (rows[0][:-1], rows[1][:-1]), 0),
        (pretrain.get("masked(4, 4)"), rows, 0),
        (pretrain.get("pca(4)"), rows, 0),
    ]
    for other, given, seed in others:
        with pytest.raises(InputError, match="of another training"):
            other.fit(MIXED, *given, seed=seed, kept=kept)
    for part in ("model.0.0.weight", "optimizer.3.exp_avg", "epochs_done"):
        kept.content = save({k: v for k, v in load(content).items() if k != part})
        with pytest.raises(InputError, match="not complete"):
            method.fit(MIXED, *rows, seed=0, kept=kept)
    kept.content = content
    assert method.fit(MIXED, *rows, seed=0, kept=kept).width == 4
