"""What a silent run's state folders hold: changed settings, restarts, later versions, removal."""

import json
from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest
import torch

from parties import PausedError, configure
from silent_parties import (
    WIDTH,
    Traffic,
    predicted_here,
    run_here,
    silent_differences,
    silent_pair,
    silent_quartet,
    stored,
)
from tacit import data
from tacit.cli import main
from tacit.errors import PeerError, UsageError
from tacit.heads.net import FittedNet
from tacit.party import predict, preflight
from tacit.party.bottom import kept_bottom
from tacit.party.config import read_party_config
from tacit.party.state_files import encoding_of
from tacit.pretrain.progress import SavedTraining
from tacit.state_dir import StateFolder

ROWS = 400


@pytest.mark.parametrize("change", [{"width": WIDTH - 3}, {"width": WIDTH + 1}, {"embed_bits": 8}])
def test_stored_embeddings_are_never_read_in_another_form(tmp_path, change):
    pair = silent_pair(tmp_path / "pair", rows=ROWS)
    run_here(pair)
    head = (pair.state("bank") / "head.safetensors").read_bytes()
    configure(pair.bank, **change)
    with pytest.raises(UsageError, match=r"was uploaded with other .* raise version") as refused:
        run_here(pair, names=["bank"])
    assert "\n" not in str(refused.value)
    assert (pair.state("bank") / "head.safetensors").read_bytes() == head


@pytest.mark.parametrize("missing", [2, 1])
def test_no_feature_party_leaves_before_the_embeddings_of_all_are_stored(
    tmp_path, monkeypatch, missing
):
    """The label party ends when parts of some are missing, and all are started again."""
    monkeypatch.setattr("tacit.party.embeddings._VALUES", 50 * WIDTH)
    pair = silent_quartet(tmp_path / "four", rows=ROWS)
    whole = pair.copy(tmp_path / "whole")
    run_here(whole)
    parts = sum(-(-len(stored(whole, party)) // 50) for party in whole.features)
    with pytest.raises(PausedError):
        run_here(pair, traffic=Traffic(stop=parts - missing, victim="bank"))
    assert not any((pair.state(party) / "upload.json").exists() for party in pair.features)
    run_here(pair)
    assert silent_differences(pair, whole) == []


def test_a_head_is_asked_for_predictions_when_every_feature_party_is_gone(tmp_path, monkeypatch):
    """How long it takes, and whether it fails, depends on labels."""
    pair, ended = silent_pair(tmp_path / "pair", rows=ROWS), []
    run_here(pair)

    def sent(*args, real=predict._send):
        ended.append(real(*args))
        return ended[-1]

    def failing(*_):
        raise UsageError("these rows cannot be predicted")

    monkeypatch.setattr(predict, "_send", sent)
    monkeypatch.setattr(FittedNet, "predict", failing)
    with pytest.raises(UsageError, match="cannot be predicted"):
        predicted_here(pair, tmp_path / "scores.csv")
    assert ended == [len(stored(pair))]


def test_what_is_removed_is_that_of_every_version(tmp_path):
    pair = silent_pair(tmp_path / "pair", rows=ROWS)
    run_here(pair)
    configure(pair.bank, version=2)
    assert (pair.state("bank") / "tables").is_dir()
    command = ["party", str(pair.bank), "--remove-tables", "--remove-embeddings"]
    assert main(command) == 0
    assert not (pair.state("bank") / "tables").exists()
    assert not (pair.state("bank") / "embeddings").exists()


def test_a_check_of_a_later_version_leaves_no_open_folder(tmp_path, monkeypatch):
    """A folder that is made on the way to another one would be open to others."""
    pair, seen = silent_pair(tmp_path / "pair", rows=ROWS), []
    configure(pair.bank, version=2, state="new")
    config = read_party_config(pair.bank)

    def look(*_):
        raise PeerError("nobody is there")

    def load(*args, real=data.load_party, **more):
        seen.append(config.state.stat().st_mode & 0o777)
        return real(*args, **more)

    monkeypatch.setattr(preflight, "_wait", look)
    monkeypatch.setattr(data, "load_party", load)
    with pytest.raises(PeerError):
        preflight.check_party(config)
    assert seen == [0o700]
    assert not config.state.exists()


def test_noise_on_a_row_is_the_same_where_its_id_is_read_as_text(tmp_path):
    """A file with one id that is no number has texts only; other noise could be averaged away."""
    pair = silent_pair(
        tmp_path / "pair", rows=ROWS, platform={"pretrain": "pca", "embed_noise": 0.5}
    )
    config = read_party_config(pair.platform)
    with closing(StateFolder(config.state)) as folder:
        table = data.load_party(config.data, role="feature", own_cache=folder.folder("tables"))
        numbered = replace(table, ids=np.arange(len(table)))
        encoding_of(folder, numbered)
        bottom = kept_bottom(config, folder, numbered, log=lambda _: None)
    rows = np.arange(9)
    as_text = replace(table, ids=np.arange(len(table)).astype(str))
    assert torch.equal(bottom.embed(numbered, rows), bottom.embed(as_text, rows))


def test_a_head_of_a_later_format_is_not_read(tmp_path):
    pair = silent_pair(tmp_path / "pair", rows=ROWS)
    run_here(pair)
    facts = pair.read("bank", "head.json")
    (pair.state("bank") / "head.json").write_text(json.dumps({**facts, "format": 2}))
    config = read_party_config(pair.bank)
    with pytest.raises(UsageError, match="format 2, this is format 1: use the version"):
        predict.predict_rows(config, config.data, tmp_path / "scores.csv", log=lambda _: None)


def test_an_unfinished_training_that_cannot_be_read_is_refused_by_name(tmp_path, monkeypatch):
    pair = silent_pair(tmp_path / "pair", rows=ROWS, platform={"pretrain": "masked(epochs=2)"})
    config = read_party_config(pair.platform)
    monkeypatch.setattr(SavedTraining, "due", lambda _: True)
    with closing(StateFolder(config.state)) as folder:
        table = data.load_party(config.data, role="feature", own_cache=folder.folder("tables"))
        encoding_of(folder, table)
        monkeypatch.setattr("tacit.party.bottom.remove_own", _stop)
        with pytest.raises(PausedError):
            kept_bottom(config, folder, table, log=lambda _: None)
        (folder.path / "bottom.json").unlink()
        (unfinished,) = folder.path.glob("pretraining-*")
        unfinished.write_bytes(unfinished.read_bytes()[:100])
        with pytest.raises(UsageError, match=r"cannot be read: .* remove it to train") as refused:
            kept_bottom(config, folder, table, log=lambda _: None)
    assert unfinished.name in str(refused.value)


def _stop(_):
    raise PausedError
