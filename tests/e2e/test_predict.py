"""``tacit predict``: new rows scored by both parties; the scores stay at the label party."""

import csv
import json
import os
import signal
import subprocess

import numpy as np
import pytest
import torch

from parties import Pair, configure, train_here
from party_processes import TACIT
from tacit import data, nets
from tacit.party.checkpoint import CheckpointStore
from tacit.party.config import read_party_config


@pytest.fixture
def trained(tmp_path, monkeypatch):
    monkeypatch.setenv("TACIT_CACHE", str(tmp_path / "cache"))
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    pair = Pair(
        tmp_path / "pair", epochs=2, batch_size=32, wait=30, bank={"protect": "none", "attacks": []}
    )
    train_here(pair, monkeypatch)
    yield pair
    torch.set_num_threads(before)


def new_rows(pair):
    """Write files of new rows: fewer of them, in another order."""
    files = {}
    for party, name in (("bank", "labels.csv"), ("platform", "features.csv")):
        header, *rows = (pair.folder / party / name).read_text().splitlines(keepends=True)
        files[party] = pair.folder / party / f"new-{name}"
        files[party].write_text(header + "".join(reversed(rows[:200])))
    return files


def predict(pair, files, *words, refused=False):
    """Run both sides at once; return what they printed, and the exit codes.

    A label party that has refused the other one goes on waiting: it is interrupted.
    """
    out = pair.folder / "scores.csv"
    commands = {
        party: [
            TACIT,
            "predict",
            str(pair.folder / party / "party.toml"),
            "--data",
            str(files[party]),
            "--out",
            str(out),
            "--json",
            *words,
        ]
        for party in ("bank", "platform")
    }
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    running = {
        party: subprocess.Popen(  # noqa: S603
            words,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=env,
        )
        for party, words in commands.items()
    }
    said = {"platform": running["platform"].communicate(timeout=90)}
    if refused:
        running["bank"].send_signal(signal.SIGINT)
    said["bank"] = running["bank"].communicate(timeout=90)
    return said, {party: process.returncode for party, process in running.items()}, out


def part(pair, party, name, model):
    config = read_party_config(pair.folder / party / "party.toml")
    held = CheckpointStore(
        pair.state(party) / "checkpoints", run=f"{config.name} with {config.peer}"
    ).latest()
    model.load_state_dict(held.models[name])
    return model


def encoding(pair, party):
    text = json.loads((pair.state(party) / "encoding.json").read_text())
    return data.Encoding.from_json(text)


def test_scores_are_those_of_the_whole_model(trained):
    files = new_rows(trained)
    said, codes, out = predict(trained, files)
    assert codes == {"bank": 0, "platform": 0}, said
    with out.open() as file:
        scores = {row["id"]: float(row["score"]) for row in csv.DictReader(file)}
    assert out.stat().st_mode & 0o077 == 0
    bank = data.load_party(files["bank"], role="label", encoding=encoding(trained, "bank"))
    platform = data.load_party(
        files["platform"], role="feature", encoding=encoding(trained, "platform")
    )
    net = nets.get(read_party_config(trained.bank).model)
    bottom = part(
        trained,
        "platform",
        "bottom",
        net.bottom(nets.Inputs(*platform.inputs), cut=None, classes=2, seed=0),
    )
    top = part(
        trained,
        "bank",
        "top",
        net.top(bottom.width, own=nets.Inputs(*bank.inputs), cut=None, classes=2, seed=0),
    )
    here, there = (
        {id_: row for row, id_ in enumerate(table.ids.tolist())} for table in (bank, platform)
    )
    assert scores.keys() == here.keys() & there.keys()
    ids = sorted(scores)
    with torch.no_grad():
        z = bottom(*platform.take(np.array([there[i] for i in ids])))
        wanted = top(z, *bank.take(np.array([here[i] for i in ids]))).sigmoid()
    assert np.allclose([scores[i] for i in ids], wanted.numpy(), atol=1e-6)
    results = json.loads(said["bank"][0])
    assert results["rows"] == len(ids)
    assert 0 <= results["test"]["auc"] <= 1
    assert "test" not in json.loads(said["platform"][0])


@pytest.mark.slow
def test_parties_with_models_of_different_steps_do_not_predict(trained, monkeypatch):
    other = trained.copy(trained.folder.parent / "longer")
    for config in (other.bank, other.platform):
        configure(config, epochs=3)
    train_here(other, monkeypatch)
    shorter = new_rows(trained)
    configure(trained.bank, epochs=3, wait=60)
    configure(
        trained.platform,
        address=trained.address,
        state=str(other.state("platform")),
        epochs=3,
        wait=60,
    )
    said, codes, out = predict(trained, shorter, refused=True)
    assert codes["platform"] in (1, 2), said
    assert "steps, here" in said["platform"][1] + said["bank"][1]
    assert not out.exists()
