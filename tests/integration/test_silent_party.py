"""Parties that send embeddings once: what is stored, what crosses, and what does not."""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from silent import WIDTH, Traffic, run_here, silent_pair, silent_quartet, stored
from tacit import nets, pretrain
from tacit.data import load_party
from tacit.errors import UsageError
from tacit.pretrain import Grid
from tacit.wire.protocol.codec import decode
from tacit.wire.protocol.messages import Align, Bye, Hello, Upload

ROWS = 400


def bottom_of(pair, party="platform"):
    """Return a feature party's table and its bottom, made from what it kept."""
    folder = pair.folder / party
    table = load_party(folder / "features.csv", role="feature", own_cache=pair.folder / "cache")
    facts = json.loads((pair.state(party) / "bottom.json").read_text())
    tensors = load_file(pair.state(party) / "bottom.safetensors")
    sent = {name: tensors.pop(name) for name in list(tensors) if name.startswith("sent.")}
    inputs = nets.Inputs(*table.inputs)
    return table, pretrain.get(facts["pretrain"]).bottom(inputs, tensors), sent


def common_rows(pair, table, party="platform"):
    """Return the embedded rows in their common order."""
    return table.take(np.load(pair.state(party) / "matching.npy"))


def uploads(traffic):
    """Return what the feature party uploaded, in order."""
    found = [decode(frame) for frame in traffic.frames["feature"]]
    return [message for message in found if isinstance(message, Upload)]


def test_all_common_rows_are_stored_as_they_are_and_a_head_is_trained_on_them(tmp_path):
    pair = silent_pair(tmp_path / "pair", rows=ROWS)
    found = run_here(pair)
    table, bottom, _ = bottom_of(pair)
    assert np.array_equal(stored(pair), bottom(*common_rows(pair, table)).numpy())
    bank = found["bank"]
    assert bank["common"] == found["platform"]["common"] == len(stored(pair))
    assert (bank["releases"], bank["ledger"], bank["leak"]) == (0, None, {})
    assert bank["certificate"]["assumption"] == "nothing that depends on labels is sent"
    assert len(bank["history"]) == bank["head"]["epochs"] == 3
    assert bank["history"][bank["head"]["epoch"] - 1]["test"] == bank["test"]
    assert (
        "nothing"
        in json.loads((pair.state("bank") / "results.json").read_text())["verdict"]["text"].lower()
    )
    assert pair.read("platform", "results.json")["ended"] == "finished"


def test_the_feature_party_sends_little_more_than_the_values_themselves(tmp_path):
    traffic, pair = Traffic(), silent_pair(tmp_path / "pair", rows=4000, width=32)
    run_here(pair, traffic=traffic)
    rows = pair.read("bank", "results.json")["common"]
    kinds = [type(decode(frame)) for frame in traffic.frames["feature"]]
    matched = len(kinds) - kinds[::-1].index(Align)
    sent = sum(map(len, traffic.frames["feature"][matched:]))
    assert rows * 32 * 4 < sent <= 1.05 * rows * 32 * 4


@pytest.mark.parametrize("bits", [8, 4])
def test_fewer_bits_are_sent_as_codes_and_stored_as_the_numbers_they_stand_for(tmp_path, bits):
    traffic = Traffic()
    pair = silent_pair(tmp_path / "pair", rows=ROWS, width=5, embed_bits=bits)
    run_here(pair, traffic=traffic)
    table, bottom, sent = bottom_of(pair)
    grid = Grid(sent["sent.low"], sent["sent.step"], bits)
    codes = grid.codes(bottom(*common_rows(pair, table)))
    assert np.array_equal(stored(pair, width=5), grid.values(codes).numpy())
    _, first, *rest = uploads(traffic)
    assert torch.equal(first.values, torch.stack([grid.low, grid.step]))
    assert [tuple(part.codes.shape) for part in rest] == [(len(codes), 5 if bits == 8 else 3)]


def test_half_the_bytes_of_rounded_values(tmp_path):
    pair = silent_pair(tmp_path / "pair", rows=ROWS, wire="bfloat16")
    run_here(pair)
    table, bottom, _ = bottom_of(pair)
    wanted = bottom(*common_rows(pair, table)).bfloat16().float()
    assert np.array_equal(stored(pair), wanted.numpy())


def test_noise_is_the_same_for_a_row_whenever_it_is_sent_and_the_key_stays(tmp_path):
    pair = silent_pair(
        tmp_path / "pair", rows=ROWS, platform={"pretrain": "pca", "embed_noise": 0.5}
    )
    again = pair.copy(tmp_path / "again")
    run_here(pair)
    (again.state("platform")).mkdir(mode=0o700)
    (again.state("platform") / "embedding.key").touch(mode=0o600)
    key = (pair.state("platform") / "embedding.key").read_bytes()
    (again.state("platform") / "embedding.key").write_bytes(key)
    run_here(again)
    assert np.array_equal(stored(pair), stored(again))
    table, bottom, _ = bottom_of(pair)
    added = stored(pair) - bottom(*common_rows(pair, table)).numpy()
    assert (np.abs(added) > 0).mean() > 0.99


def test_embeddings_of_several_feature_parties_lie_side_by_side_in_their_order(tmp_path):
    pair = silent_quartet(tmp_path / "four", rows=ROWS)
    found = run_here(pair)
    assert found["bank"]["width"] == 3 * WIDTH
    common = found["bank"]["common"]
    for party in pair.features:
        table, bottom, _ = bottom_of(pair, party)
        wanted = bottom(*common_rows(pair, table, party)).numpy()
        assert np.array_equal(stored(pair, party), wanted)
        assert len(wanted) == common


def labels_of(pair):
    return (pair.folder / "bank" / "labels.csv").read_text().splitlines()


def relabel(pair, positive):
    """Give the label party another label column."""
    header, *rows = labels_of(pair)
    at = header.split(",").index('"converted"' if '"' in header else "converted")
    lines = [header]
    for number, row in enumerate(rows):
        cells = row.split(",")
        cells[at] = "yes" if positive(number) else "no"
        lines.append(",".join(cells))
    (pair.folder / "bank" / "labels.csv").write_text("\n".join(lines) + "\n")


COLUMNS = {
    "balanced": lambda number: number % 2 == 0,
    "skewed": lambda number: number % 97 == 0,
    "many positives": lambda number: number % 50 != 0,
}


@pytest.mark.parametrize("matching", ["clear", "private"])
def test_everything_the_label_party_sends_is_the_same_for_any_labels(tmp_path, matching):
    """With keys and matching fixed, byte for byte, below TLS."""
    first = silent_pair(tmp_path / "first", rows=ROWS, matching=matching)
    for party in ("bank", *first.features):  # one key of matching for all
        state = first.state(party)
        state.mkdir(mode=0o700, exist_ok=True)
        (state / "matching.key").touch(mode=0o600)
        (state / "matching.key").write_bytes((party.encode() * 8)[:32])
    sent = {}
    for name, positive in COLUMNS.items():
        pair = first.copy(tmp_path / name.replace(" ", "-"))
        relabel(pair, positive)
        traffic = Traffic()
        run_here(pair, traffic=traffic)
        sent[name] = [bytes(frame) for frame in traffic.frames["label"]]
        assert not any(isinstance(decode(frame), Bye) for frame in sent[name])
    hello = [decode(frames[0]) for frames in sent.values()]
    assert all(isinstance(message, Hello) for message in hello)
    assert len(sent["balanced"]) > 4
    assert sent["balanced"] == sent["skewed"] == sent["many positives"]


def test_a_whole_column_of_one_class_is_refused_before_anybody_is_listened_to(tmp_path):
    pair = silent_pair(tmp_path / "pair", rows=ROWS)
    relabel(pair, lambda _: False)
    traffic = Traffic()
    with pytest.raises(UsageError, match="must have two classes"):
        run_here(pair, traffic=traffic)
    assert traffic.frames == {"label": [], "feature": []}


def test_labels_of_one_class_fail_when_the_peer_is_gone_and_it_sees_nothing_of_it(tmp_path):
    usual = silent_pair(tmp_path / "usual", rows=ROWS)
    pair = usual.copy(tmp_path / "one")
    features = (usual.folder / "platform" / "features.csv").read_text()
    theirs = {line.split(",")[0] for line in features.splitlines()}
    common = [line.split(",")[0] in theirs for line in labels_of(pair)[1:]]
    relabel(pair, lambda number: not common[number])
    traffic = {"one": Traffic(), "usual": Traffic()}
    with pytest.raises(UsageError, match="one class only"):
        run_here(pair, traffic=traffic["one"])
    run_here(usual, traffic=traffic["usual"])
    assert traffic["one"].frames["label"] == traffic["usual"].frames["label"]
    assert pair.read("platform", "results.json")["ended"] == "finished"
