"""A head of the label party's own, trained on embeddings of the trained bottom."""

import json

import numpy as np
import pytest
import torch

from parties import Pair, configure, train_here
from tacit.errors import UsageError
from tacit.party.config import read_party_config
from tacit.party.trained import trained_model
from tacit.state_dir import StateFolder


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Parties that trained with randomised labels, and the label party's own head on true ones."""
    folder = tmp_path_factory.mktemp("private") / "pair"
    bank = {"protect": "none", "labels": "rr(epsilon=1.0)", "attacks": ["norm"]}
    pair = Pair(folder, rows=600, bank=bank, epochs=2, batch_size=64, private_head=True)
    with pytest.MonkeyPatch.context() as patch:
        train_here(pair, patch)
    return pair


def embedded_here(pair):
    """Return embeddings of all common rows by the feature party's last checkpoint."""
    config = read_party_config(pair.platform)
    with StateFolder(pair.state("platform")) as folder:
        model = trained_model(
            config, folder, config.data, own_cache=folder.folder("predict-tables")
        )
    order = np.load(pair.state("platform") / "matching.npy")
    common = type("Common", (), {"order": order})
    return model.sender(common).embed(torch.arange(len(order)))


def test_the_label_party_has_embeddings_of_the_trained_bottom_and_a_head_on_them(trained):
    results = trained.read("bank", "results.json")
    held = np.fromfile(trained.state("bank") / "embeddings" / "platform.f32", dtype="<f4")
    wanted = embedded_here(trained)
    assert np.array_equal(held.reshape(wanted.shape), wanted.numpy())
    assert results["head"]["spec"].startswith("net")
    assert results["test"].keys() == results["public_test"].keys()
    last = list(trained.read("bank", "history.json").values())[-1]
    assert last["test"] == results["public_test"]  # epochs measure the model of the gradients
    assert results["steps"] > 0


def test_nothing_that_was_released_depends_on_the_head(trained, tmp_path, monkeypatch):
    """The same run without a head releases the same bytes."""
    bank = {"protect": "none", "labels": "rr(epsilon=1.0)", "attacks": ["norm"]}
    plain = Pair(tmp_path / "plain", rows=600, bank=bank, epochs=2, batch_size=64)
    train_here(plain, monkeypatch)
    assert [entry[:4] for entry in plain.journal()] == [e[:4] for e in trained.journal()]


def test_both_sides_must_say_so(tmp_path):
    pair = Pair(tmp_path / "pair", rows=600)
    configure(pair.bank, private_head=True)
    here, there = (read_party_config(path).plan(classes=2) for path in (pair.bank, pair.platform))
    assert here.difference(there) == "the plans differ in private_head: True here, False there"


def test_a_head_of_fewer_steps_than_the_bottoms_have_predicts_nothing(trained, tmp_path):
    """So it is where more epochs are asked for and the run has not come to its end again."""
    pair = trained.copy(tmp_path / "more")
    config, path = read_party_config(pair.bank), pair.state("bank") / "head.json"
    facts = json.loads(path.read_text())
    path.write_text(json.dumps({**facts, "steps": 4}))
    with StateFolder(pair.state("bank")) as folder:
        cache = folder.folder("predict-tables")
        with pytest.raises(UsageError, match="after 4 steps, and they have"):
            trained_model(config, folder, config.data, own_cache=cache)
