"""Stored files of every format: what an earlier release wrote is read, and is written so today.

``tests/golden/make.py`` wrote them; a test that fails here has found a changed format. Frames of
most messages are in ``tests/integration/test_frames.py``, the first tape in ``test_tape.py``,
messages of private matching in ``tests/integration/test_psi.py``.
"""

import json
import shutil

import numpy as np
import pytest
import torch

from format_examples import (
    CURSOR,
    FRAMES,
    GOLDEN,
    LAYERED,
    RECORD,
    RUN,
    SECRET,
    STATES,
    complaints,
    fill,
    folder_forms,
    form,
    list_forms,
    made_model,
    mark,
    packed,
    party_forms,
    read_forms,
    recommend_forms,
    training_forms,
    unpacked,
)
from tacit.errors import ReleaseError, ReplayError, UsageError
from tacit.party.checkpoint import CheckpointStore
from tacit.party.journal import Journal
from tacit.party.record_exchange import RecordCopy
from tacit.tape import RecordedTape, TapeWriter
from tacit.wire.protocol.codec import decode, encode

STORED_FRAMES = json.loads((GOLDEN / "frames_v2.json").read_text())


@pytest.fixture(autouse=True)
def _one_thread_and_a_cache_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setenv("TACIT_CACHE", str(tmp_path / "cache"))
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def content(message):
    """Return what a message says, comparable: tensors as type, shape and numbers."""
    if isinstance(message, torch.Tensor):
        return message.dtype, message.tolist()
    if hasattr(message, "__dataclass_fields__"):
        return type(message), {name: content(value) for name, value in vars(message).items()}
    return message


# --- wire ---


def test_every_stored_frame_has_its_message():
    assert STORED_FRAMES.keys() == FRAMES.keys()


@pytest.mark.parametrize("name", FRAMES)
def test_frames(name):
    message, narrow = FRAMES[name]
    stored = bytes.fromhex(STORED_FRAMES[name])
    assert encode(message, narrow=narrow) == stored
    assert content(decode(stored)) == content(message)


# --- tape ---


@pytest.mark.parametrize("layer", [None, "0", "2"])
def test_a_tape_of_text_ids_and_layers(layer):
    tape = RecordedTape(GOLDEN / "tape_v1_layers.tape", layer=layer)
    views = list(tape)
    assert tape.damaged == 0
    assert tape.names == {"b": 0, "a": 1, "ü": 2}
    assert [(view.step, view.epoch, view.ids.tolist()) for view in views] == [
        (0, 0, [0, 1]),
        (1, 1, [1, 2]),
    ]
    for view, (_, grads, layers) in zip(views, LAYERED, strict=True):
        assert torch.equal(view.grads, grads if layer is None else layers[layer])
        assert view.embeddings is None


def test_a_tape_has_the_stored_columns(tmp_path):
    with TapeWriter(tmp_path / "new.tape") as tape:
        for ids, grads, layers in LAYERED:
            tape.append(ids, grads, layers=layers)
    assert folder_forms(tmp_path / "new.tape") == folder_forms(GOLDEN / "tape_v1_layers.tape")


# --- checkpoint ---


@pytest.fixture
def checkpoints(tmp_path):
    return shutil.copytree(GOLDEN / "checkpoints_v1", tmp_path / "checkpoints")


def test_a_checkpoint_is_read_and_restored(checkpoints):
    store = CheckpointStore(checkpoints, run=RUN)
    found = store.latest()
    assert (store.steps(), store.damaged) == ([3], ())
    assert (found.run, found.step, found.cursor) == (RUN, 3, CURSOR)
    assert {name: held for name, (_, held) in found.states.items()} == {
        name: held for name, (_, held) in STATES.items()
    }
    for name, (arrays, _) in STATES.items():
        held = found.states[name][0]
        assert held.keys() == arrays.keys()
        for key, array in arrays.items():
            assert held[key].dtype == array.dtype
            assert np.array_equal(held[key], array)
    (model, optimizer), (wanted, reference) = made_model(trained=False), made_model(trained=True)
    found.restore(models={"bottom": model}, optimizers={"bottom": optimizer})
    for steps in range(3):  # as it was stored, and going on from there
        assert all(map(torch.equal, model.parameters(), wanted.parameters())), steps
        for one, other in ((model, optimizer), (wanted, reference)):
            for weight in one.parameters():
                weight.grad = torch.ones_like(weight)
            other.step()


def test_a_checkpoint_is_written_as_the_stored_one(checkpoints, tmp_path):
    model, optimizer = made_model(trained=True)
    CheckpointStore(tmp_path / "new", run=RUN).save(
        3, models={"bottom": model}, optimizers={"bottom": optimizer}, cursor=CURSOR, states=STATES
    )
    assert not complaints(folder_forms(tmp_path / "new"), folder_forms(checkpoints))


def test_a_changed_checkpoint_is_not_taken(checkpoints):
    place = checkpoints / "step-000000003" / "model.safetensors"
    data = bytearray(place.read_bytes())
    data[-1] ^= 1
    place.write_bytes(data)
    store = CheckpointStore(checkpoints, run=RUN)
    assert store.latest() is None
    assert "model.safetensors" in store.damaged[0]
    with pytest.raises(UsageError, match="golden run"):
        CheckpointStore(checkpoints, run="another").latest()


# --- journal ---


@pytest.fixture
def journal(tmp_path):
    for stored, name in (("journal_v2", "journal"), ("witness_v1", "witness")):
        shutil.copyfile(GOLDEN / stored, tmp_path / name)
    return tmp_path / "journal"


def test_a_journal_is_read(journal):
    witness = journal.with_name("witness")
    with Journal.open(journal, run=RUN, secret=SECRET, witness=witness) as held:
        assert (held.count, held.cut, held.behind) == (9, 0, None)
        found = {step: held.find(step) for step in range(7)}
        assert {step: (e.embedding, e.release) for step, e in found.items() if e is not None} == {
            0: (mark(0), mark(100)),
            1: (mark(11), mark(111)),
            2: (mark(2), mark(102)),
            5: (mark(5), mark(105)),
        }
        assert held.last.step == 5
        asked = {step: held.evaluation(step) for step in (2, 5)}
        assert {step: (e.embedding, e.release) for step, e in asked.items()} == {
            2: (mark(50), mark(51)),
            5: (mark(60), mark(61)),
        }
        assert dict(held.allowed) == {1: 1, 5: 1}
        assert [held.repeats(step) for step in (0, 1, 2, 5)] == [0, 1, 0, 0]
        assert held.mark(b"content").hex() == (
            "272a91b5868fed7189b568e898ccf13d76ffa2861d1a6c20a4bf1aeaad97c3d9"
        )
        with pytest.raises(ReplayError):
            held.record(2, mark(3), mark(103))
        assert not held.record(2, mark(2), mark(102))
        assert held.record(5, mark(7), mark(107))  # it was allowed once more
        assert held.record(6, mark(6), mark(106))
        assert held.count == 11


def test_a_journal_is_written_byte_for_byte(tmp_path):
    place, witness = tmp_path / "journal", tmp_path / "witness"
    with Journal.open(place, run=RUN, secret=SECRET, witness=witness) as held:
        fill(held)
        records = held.read(0, held.count)
    assert place.read_bytes() == (GOLDEN / "journal_v2").read_bytes()
    assert witness.read_bytes() == (GOLDEN / "witness_v1").read_bytes()
    copy = RecordCopy.open(tmp_path / "records", run=RUN)
    copy.keep(records)
    copy.close()
    assert (tmp_path / "records").read_bytes() == (GOLDEN / "records_v2").read_bytes()


def test_a_copy_of_records_is_read_and_taken_back(tmp_path):
    shutil.copyfile(GOLDEN / "records_v2", tmp_path / "records")
    copy = RecordCopy.open(tmp_path / "records", run=RUN)
    assert copy.count == 9
    records = copy.read(0, copy.count)
    copy.close()
    assert len(records) == 9 * len(RECORD)
    with Journal.open(tmp_path / "journal", run=RUN, secret=SECRET) as held:
        held.take_back(records)
    assert (tmp_path / "journal").read_bytes() == (GOLDEN / "journal_v2").read_bytes()


@pytest.mark.parametrize("secret", [bytes(32), SECRET])
def test_a_changed_journal_is_refused(journal, secret):
    if secret == SECRET:
        data = bytearray(journal.read_bytes())
        data[-1] ^= 1
        journal.write_bytes(data)
    with pytest.raises(ReleaseError, match="damaged"):
        Journal.open(journal, run=RUN, secret=secret)


def test_a_witness_that_has_seen_more_holds_the_journal(journal):
    journal.write_bytes(journal.read_bytes()[: -len(RECORD)])
    witness = journal.with_name("witness")
    with Journal.open(journal, run=RUN, secret=SECRET, witness=witness) as held:
        assert "9 answers were recorded" in held.behind


# --- what the commands print and write ---


def test_the_form_of_a_value_tells_what_changed():
    first = {"a": {"x": 1, "y": 0.5}, "rows": [{"n": None}, {"n": "b", "m": True}], "none": []}
    golden = {"r": form(first)}
    assert golden["r"] == {
        "": "object",
        "a": "object",
        "a.x": "whole",
        "a.y": "number",
        "rows": "list",
        "rows[]": "object",
        "rows[].n": "null|text",
        "rows[].m": "absent|truth",
        "none": "list",
    }
    assert unpacked(packed(golden["r"])) == golden["r"]
    assert not complaints(golden, golden)
    other = {"r": form({"a": {"x": 1.0, "z": 0.5}, "rows": [{"n": "c", "m": False}], "none": []})}
    assert complaints(other, golden) == [
        "r: a.x: number, was whole",
        "r: a.y: gone",
        "r: a.z: new, number",
    ]
    assert complaints({"s": {}}, golden) == ["r: gone", "s: new"]


def test_what_train_and_audit_print_and_the_run_directory(tmp_path):
    found = training_forms(tmp_path)
    assert not complaints(found, read_forms(GOLDEN / "train_and_audit.json"))
    stored = read_forms(GOLDEN / "run_directory.json")
    assert not complaints(folder_forms(tmp_path / "run-noise"), stored)


def test_what_parties_print_and_their_state_folders(tmp_path):
    assert not complaints(party_forms(tmp_path / "pair"), read_forms(GOLDEN / "party.json"))


def test_what_list_prints():
    assert not complaints(list_forms(), read_forms(GOLDEN / "list.json"))


def test_what_recommend_prints():
    assert not complaints(recommend_forms(), read_forms(GOLDEN / "recommend.json"))
