"""What ``tacit report`` makes of the state folder of a label party that has trained."""

import json
import re
from dataclasses import replace
from html import escape

import pytest
import torch

from parties import Pair, train_here
from tacit import Guard
from tacit.cli import main
from tacit.party.config import read_party_config
from tacit.party.metrics import LabelMeasures
from tacit.state_dir import StateFolder
from tacit.testing import low_rank_cut

ATTACKS = ["norm", "cosine", "memory(of=norm)"]
EPOCHS = 3


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    place = tmp_path_factory.mktemp("trained")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TACIT_CACHE", str(place / "cache"))
        bank = {"protect": "marvell(s=4)", "attacks": ATTACKS, "monitor_every": 1}
        pair = Pair(place / "pair", rows=600, epochs=EPOCHS, batch_size=64, bank=bank)
        train_here(pair, patch)
    return pair


def figures(page):
    """Return the lines of each figure by its title, with what they are drawn through."""
    found = {}
    for box in re.findall(r"<figure.*?</figure>", page, re.S):
        title = re.search(r"<figcaption[^>]*>(.*?)</figcaption>", box, re.S)
        drawn = json.loads(re.search(r"<script[^>]*>(.*?)</script>", box, re.S)[1])["data"]
        found[re.sub(r"<.*?>", "", title[1]).strip()] = {t.get("name"): t for t in drawn}
    return found


def test_the_page_of_a_party_has_its_data_its_epochs_and_its_memory(pair, tmp_path, capsys):
    out = tmp_path / "page.html"
    assert main(["report", str(pair.state("bank")), "--out", str(out)]) == 0
    capsys.readouterr()
    page, results = out.read_text(), pair.read("bank", "results.json")
    assert "unnamed data" not in page
    assert escape(results["verdict"]["text"]) in page
    assert "mlp(hidden=32) on labels.csv." in page
    assert "Training run: bank" in page
    drawn, history, epochs = figures(page), results["history"], [1, 2, 3]
    test = drawn["Test AUC after each epoch"]["bank"]
    assert test["x"] == epochs
    assert test["y"] == pytest.approx([part["test"]["auc"] for part in history])
    leaks = drawn["Leak AUC in each epoch"]
    for attack in ATTACKS:
        assert leaks[attack]["x"] == epochs
        wanted = [part["leak"][attack]["pooled"] for part in history]
        assert leaks[attack]["y"] == pytest.approx(wanted)
    assert leaks["memory"]["x"] == epochs
    assert leaks["memory"]["y"] == pytest.approx([part["memory_leak"] for part in history])
    assert results["memory_leak"] == history[-1]["memory_leak"] >= 0.5
    assert f'data-value="{results["memory_leak"]!r}"' in page


def test_a_feature_party_has_nothing_to_report(pair, tmp_path, capsys):
    out = str(tmp_path / "page.html")
    assert main(["report", str(pair.state("platform")), "--out", out]) == 2
    assert "name the state folder of the label party" in capsys.readouterr().err


def test_what_adds_up_is_left_out_of_a_run_that_goes_on(pair, tmp_path):
    """Of the releases after a checkpoint alone it would find too little."""
    config, cut = read_party_config(pair.bank), low_rank_cut(256, 16)
    cut = replace(cut, ids=torch.arange(256))
    with StateFolder(tmp_path / "state") as folder:
        first = LabelMeasures(config, folder, classes=2)
        Guard("none", watch=first.watcher(cut.labels, None)).release(cut)
        later = LabelMeasures(config, folder, classes=2)
        watch = later.watcher(cut.labels, first.states()["memory"])
        Guard("none", watch=watch).release(cut)
    assert list(first.record()["leak"]) == ATTACKS
    assert list(later.record()["leak"]) == ["norm", "cosine"]
    assert later.record()["memory_leak"] > 0.9
