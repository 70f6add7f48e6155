"""Parties that send embeddings once: what is stored, what crosses, and what does not."""

import json
import threading
from contextlib import closing

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from parties import PausedError, configure
from silent_parties import (
    WIDTH,
    Traffic,
    predicted_here,
    run_here,
    silent_pair,
    silent_quartet,
    stored,
)
from tacit import nets, pretrain
from tacit.cli import main
from tacit.data import load_party
from tacit.errors import PeerError, UsageError
from tacit.heads import EmbeddedRows
from tacit.party.acceptor import answer_hello, hear_hello
from tacit.party.config import read_party_config
from tacit.party.embeddings import StoredEmbeddings, UploadForm, rows_per_part
from tacit.party.greeting import greet
from tacit.party.label_head import read_head
from tacit.pretrain import Grid
from tacit.state_dir import StateFolder
from tacit.wire.protocol.codec import decode
from tacit.wire.protocol.connection import Connection, RefusedError, Timings
from tacit.wire.protocol.header import VERSION
from tacit.wire.protocol.messages import Align, Bye, Hello, Upload
from tacit.wire.protocol.state_machine import Role
from tacit.wire.transport.memory import memory_transports

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


@pytest.mark.parametrize("victim", ["bank", "platform"])
@pytest.mark.parametrize("after", [1, 2, 3])
def test_an_upload_goes_on_after_an_interruption_and_sends_nothing_twice(
    tmp_path, monkeypatch, victim, after
):
    """Parts of 50 rows; a party ends before it says its next word, and is started again."""
    monkeypatch.setattr("tacit.party.embeddings._VALUES", 50 * WIDTH)
    pair = silent_pair(tmp_path / "pair", rows=ROWS)
    whole = pair.copy(tmp_path / "whole")
    run_here(whole)
    interrupted = Traffic(stop=after, victim=victim)
    with pytest.raises(PausedError):
        run_here(pair, traffic=interrupted)
    rest = Traffic()
    run_here(pair, traffic=rest)
    assert np.array_equal(stored(pair), stored(whole))
    assert (pair.state("bank") / "head.safetensors").read_bytes() == (
        whole.state("bank") / "head.safetensors"
    ).read_bytes()
    parts = [part.part for t in (interrupted, rest) for part in uploads(t) if part.bottom is None]
    assert len(parts) - len(set(parts)) <= 1
    assert sorted(set(parts)) == list(range(8))


def test_a_label_party_starts_its_head_again_from_what_is_stored_without_a_peer(tmp_path):
    pair = silent_pair(tmp_path / "pair", rows=ROWS)
    first = run_here(pair)["bank"]
    head = pair.state("bank") / "head.safetensors"
    before = head.read_bytes()
    head.unlink()
    again = run_here(pair, names=["bank"])["bank"]
    assert (head.read_bytes(), again["test"]) == (before, first["test"])
    configure(pair.bank, head="sklearn:LogisticRegression()")
    other = run_here(pair, names=["bank"])["bank"]
    assert other["head"]["spec"].startswith("sklearn:LogisticRegression")


def test_a_further_version_has_its_own_matching_and_the_bottom_of_the_first(tmp_path):
    pair = silent_pair(tmp_path / "pair", rows=ROWS)
    run_here(pair)
    before = (pair.state("platform") / "bottom.safetensors").read_bytes()
    for party in ("bank", "platform"):
        configure(pair.folder / party / "party.toml", version=2)
    table = pair.folder / "platform" / "features.csv"
    table.write_text("".join(table.read_text().splitlines(keepends=True)[:-20]))
    found = run_here(pair)
    assert len(stored(pair, version=2)) == found["bank"]["common"] < len(stored(pair))
    later = pair.state("platform") / "version-2"
    assert (later / "bottom.safetensors").read_bytes() == before
    for party in ("bank", "platform"):
        configure(pair.folder / party / "party.toml", version=3)
    configure(pair.platform, refit=True)
    run_here(pair)
    assert (pair.state("platform") / "version-3" / "bottom.safetensors").read_bytes() != before


WRONG = {
    "a part out of order": (lambda size: [Upload(part=1, values=torch.zeros(size))], "was due"),
    "another shape": (lambda size: [Upload(part=0, values=torch.zeros(3, 2))], "by the plan"),
    "too large": (lambda size: [Upload(part=0, values=torch.full(size, 2e9))], "at most 1e"),
    "codes": (lambda size: [Upload(part=0, codes=torch.zeros(size).byte())], "by the plan"),
    "other bytes again": (
        lambda size: [Upload(part=0, values=torch.full(size, v)) for v in (1.0, 2.0)],
        "again .* with other",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_part_is_refused(tmp_path, name):
    make, reason = WRONG[name]
    folder = StateFolder(tmp_path / "state")
    rows = 2 * rows_per_part(512)
    form = UploadForm(rows=rows, width=512)
    held = StoredEmbeddings(folder, "platform", common="ab" * 32, form=form)
    assert held.begin("cd" * 32, anew=False) == 0
    *before, last = make((rows_per_part(512), 512))
    for upload in before:
        held.take(upload)
    with closing(folder), pytest.raises(PeerError, match=reason):
        held.take(last)


def test_another_bottom_is_refused_and_half_a_part_is_cut_off(tmp_path):
    size = rows_per_part(512)
    form = UploadForm(rows=size + 5, width=512)
    with closing(StateFolder(tmp_path / "state")) as folder:
        held = StoredEmbeddings(folder, "platform", common="ab" * 32, form=form)
        held.begin("cd" * 32, anew=False)
        held.take(Upload(part=0, values=torch.ones(size, 512)))
        path = folder.path / "embeddings" / "platform.f32"
        with path.open("ab") as file:
            file.write(bytes(3 * 512 * 4))
        again = StoredEmbeddings(folder, "platform", common="ab" * 32, form=form)
        assert again.begin("cd" * 32, anew=False) == 1
        assert path.stat().st_size == size * 512 * 4
        again.take(Upload(part=1, values=torch.zeros(5, 512)))
        assert again.complete
        assert path.stat().st_mode & 0o777 == 0o600
        with pytest.raises(PeerError, match="another bottom"):
            again.begin("ef" * 32, anew=False)


BAD = {
    "width is missing": ({"width": None}, "width is missing"),
    "workers": ({"workers": 2, "worker": 0, "batch_size": 2}, "by one process"),
    "labels": ({"labels": "rr(epsilon=1.0)"}, "no label is sent"),
    "shared metrics": ({"share_metrics": True}, "depend on labels"),
    "gafm": ({"objective": "gafm(delta=0.1)"}, "through gradients"),
    "version without silent": ({"protect": "none", "width": None, "version": 2}, "version is"),
    "width without silent": ({"protect": "none"}, "width = 6 is for embeddings"),
    "a private head": ({"private_head": True}, "private already"),
    "wire and codes": ({"wire": "bfloat16", "embed_bits": 8}, "whole codes"),
    "pretrain at the label party": ({"pretrain": "pca"}, "is for the feature party"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_wrong_configuration_is_refused_in_one_line(tmp_path, name):
    changes, reason = BAD[name]
    pair = silent_pair(tmp_path / "pair", rows=ROWS)
    configure(pair.bank, **changes)
    with pytest.raises(UsageError, match=reason) as refused:
        read_party_config(pair.bank)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"embed_bits": 8}, "plans differ in embed_bits: 32 here, 8 there"),
        ({"width": 5}, r"plans differ in cut: \(6,\) here, \(5,\) there"),
        ({"version": 2, "refit": True}, "plans differ in upload_version: 1 here, 2 there"),
        ({"protect": None, "width": None, "pretrain": None}, '"purpose":"upload"'),
    ],
)
def test_a_setting_that_differs_is_named_to_both(tmp_path, change, reason):
    pair = silent_pair(tmp_path / "pair", rows=ROWS)
    configure(pair.platform, **change)
    bank, platform = (read_party_config(p) for p in (pair.bank, pair.platform))
    ours, theirs = bank.plan(classes=2), platform.plan(classes=2)
    hello = Hello(versions=(VERSION,), party="platform", plan_digest=theirs.digest())
    here, _ = memory_transports()
    with (
        Connection(here, Role.LABEL, timings=Timings()) as connection,
        pytest.raises(PeerError, match=reason),
    ):
        answer_hello(connection, hello, name="bank", plan=ours, start=0)


def test_silent_on_one_side_only_is_said_in_one_line_with_the_way_out(tmp_path):
    pair = silent_pair(tmp_path / "pair", rows=ROWS)
    configure(pair.bank, protect="none", width=None)
    ours, theirs = (read_party_config(p).plan(classes=2) for p in (pair.bank, pair.platform))
    here, there = memory_transports()
    with Connection(there, Role.LABEL, timings=Timings()) as label:

        def answer():
            hello = hear_hello(label)
            with pytest.raises(PeerError) as wrong:
                answer_hello(label, hello, name="bank", plan=ours, start=0)
            label.refuse(str(wrong.value))

        answering = threading.Thread(target=answer)
        answering.start()
        with (
            Connection(here, Role.FEATURE, timings=Timings()) as connection,
            pytest.raises(UsageError, match='"silent" and width on both sides') as refused,
        ):
            greet(connection, name="platform", plan=theirs, offer=0)
        answering.join()
    assert "\n" not in str(refused.value)


def test_the_page_of_a_silent_run_can_be_written(tmp_path):
    pair = silent_pair(tmp_path / "pair", rows=ROWS)
    run_here(pair)
    page = tmp_path / "page.html"
    assert main(["report", str(pair.state("bank")), "--out", str(page)]) == 0
    assert "silent" in page.read_text()


def test_fewer_common_rows_than_the_width_are_refused_on_both_sides(tmp_path):
    pair = silent_pair(tmp_path / "pair", rows=ROWS, width=40, platform={"pretrain": "random"})
    features = pair.folder / "platform" / "features.csv"
    header, *rows = features.read_text().splitlines(keepends=True)
    theirs = {line.split(",")[0] for line in labels_of(pair)}
    common = [number for number, line in enumerate(rows) if line.split(",")[0] in theirs]
    for number in common[30:]:
        rows[number] = f"other-{rows[number]}"
    features.write_text("".join([header, *rows]))
    with pytest.raises(RefusedError, match="30 rows in common are fewer than width = 40"):
        run_here(pair)


def test_a_bottom_of_another_table_is_refused(tmp_path):
    pair, other = (silent_pair(tmp_path / name, rows=r) for name, r in (("a", ROWS), ("b", 600)))
    for each in (pair, other):
        run_here(each)
    for name in ("bottom.safetensors", "bottom.json"):
        content = (other.state("platform") / name).read_bytes()
        (pair.state("platform") / name).write_bytes(content)
    with pytest.raises(UsageError, match="another table or schema"):
        run_here(pair, names=["platform"])


def test_an_estimator_that_is_not_installed_is_refused_before_anybody_is_there(tmp_path):
    pair, traffic = silent_pair(tmp_path / "pair", rows=ROWS), Traffic()
    configure(pair.bank, head="sklearn:NoSuchClassifier()")
    with pytest.raises(UsageError, match="NoSuchClassifier"):
        run_here(pair, traffic=traffic)
    assert traffic.frames == {"label": [], "feature": []}


@pytest.mark.parametrize("bits", [32, 8])
def test_predictions_are_those_of_the_two_parts_in_one_process(tmp_path, bits):
    pair = silent_pair(tmp_path / "pair", rows=ROWS, embed_bits=bits)
    run_here(pair)
    out = predicted_here(pair, tmp_path / "scores.csv")
    common = np.load(pair.state("bank") / "matching.npy")
    table = load_party(pair.bank.parent / "labels.csv", role="label", own_cache=tmp_path / "cache")
    with closing(StateFolder(pair.state("bank"))) as folder:
        head = read_head(folder, nets.Inputs(*table.inputs))
    rows = EmbeddedRows(
        embeddings=stored(pair), inputs=nets.Inputs(*table.inputs), source=table.source(common)
    )
    wanted = head.predict(rows, torch.arange(len(common))).numpy()
    assert out == {
        str(table.ids[row]): f"{score:.9g}" for row, score in zip(common, wanted, strict=True)
    }
