"""State folders that are not what they were: refused in one plain line, never gone on with."""

import copy
import os
import resource
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from parties import KEY, SECRET, Pair, configure, differences, train_here
from party_processes import Training, wait_until
from tacit import Guard, data, objective
from tacit.accounting import Ledger
from tacit.cli import main
from tacit.data.schema import schema_path
from tacit.errors import PeerError
from tacit.party.journal import Journal
from tacit.party.journaled_label import JournaledLabelParty
from tacit.state_dir import StateFolder
from tacit.training.cut import Embedding
from tacit.training.party import LabelParty, adam

START, RECORD = 256, 112
ROWS = torch.arange(8)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run that has ended, to be copied and spoilt."""
    place = tmp_path_factory.mktemp("trained")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TACIT_CACHE", str(place / "cache"))
        bank = {"protect": "marvell(s=4)", "attacks": []}
        pair = Pair(place / "pair", rows=300, epochs=2, batch_size=32, save_every=5, bank=bank)
        train_here(pair, patch)
    return pair


@pytest.fixture
def pair(trained, tmp_path, monkeypatch):
    monkeypatch.setenv("TACIT_CACHE", str(tmp_path / "cache"))
    return trained.copy(tmp_path / "pair")


def content(folder):
    """Return every file of a folder; the lock and a journal that is begun are nothing yet.

    What was read of the table is no state: it is made again where it is missing.
    """
    files = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    return {
        path: data
        for path, data in files.items()
        if path.name != "lock" and len(data) != START and "tables" not in path.parts
    }


def refused(capsys, config, *parts, words=(), code=2):
    before = content(config.parent / "state")
    assert main(["party", str(config), *words]) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert "Traceback" not in err
    assert err.count("error: ") == 1
    last = err.splitlines()[-1]
    assert last.startswith("error: ")
    for part in parts:
        assert part in last
    assert content(config.parent / "state") == before


def test_the_state_of_another_run(pair, capsys):
    for config in (pair.bank, pair.platform):
        configure(config, peer="shop")
    refused(capsys, pair.bank, "of run 'bank with platform', not of 'bank with shop'")
    refused(capsys, pair.platform, "of run 'platform with bank', not of 'platform with shop'")


@pytest.mark.parametrize("party", ["bank", "platform"])
@pytest.mark.parametrize(("name", "value"), [("batch_size", 16), ("seed", 8), ("wire", "bfloat16")])
def test_the_state_of_another_plan(pair, capsys, party, name, value):
    config = getattr(pair, party)
    configure(config, **{name: value})
    refused(capsys, config, "a run is stored here, and the plans differ in", "go on with the same")


@pytest.mark.parametrize("party", ["bank", "platform"])
def test_a_second_process_on_one_state_folder(pair, capsys, party):
    with StateFolder(pair.state(party)):
        refused(capsys, getattr(pair, party), "another process uses it", "end that one first")


def test_labels_that_changed_between_two_starts(pair, capsys):
    """Two labels have changed places: the counts are the same, the labels are not."""
    table = pair.bank.parent / "labels.csv"
    head, *rows = table.read_text().splitlines()
    yes, no = (
        next(i for i, row in enumerate(rows) if f",{word}," in row) for word in ("yes", "no")
    )
    rows[yes], rows[no] = rows[yes].replace(",yes,", ",no,"), rows[no].replace(",no,", ",yes,")
    table.write_text("\n".join([head, *rows]) + "\n")
    refused(capsys, pair.bank, "this run began with another table than labels.csv is today")


def test_labels_in_another_order_are_the_same(pair, monkeypatch):
    table = pair.bank.parent / "labels.csv"
    head, *rows = table.read_text().splitlines()
    table.write_text("\n".join([head, *reversed(rows)]) + "\n")
    monkeypatch.setattr("tacit.party.acceptor.GOODBYE", 0.1)
    assert main(["party", str(pair.bank)]) == 0


def test_features_that_changed_between_two_starts(pair, capsys):
    table = pair.platform.parent / "features.csv"
    head, *rows = table.read_text().splitlines()
    table.write_text("\n".join([head, *rows[1:]]) + "\n")
    refused(capsys, pair.platform, "this run began with another table than features.csv is today")


@pytest.mark.parametrize("kept", [None, START, START + 3 * RECORD])
def test_a_journal_that_is_older_than_the_checkpoints(pair, capsys, kept):
    journal = pair.state("bank") / "journal"
    data = journal.read_bytes()
    journal.unlink()
    if kept is not None:
        journal.touch(mode=0o600)
        journal.write_bytes(data[:kept])
    refused(capsys, pair.bank, "ends before the checkpoint of step", "restore the journal")


def test_a_journal_that_is_damaged(pair, capsys):
    journal = pair.state("bank") / "journal"
    data = bytearray(journal.read_bytes())
    data[START + RECORD + 20] ^= 1
    journal.write_bytes(data)
    refused(capsys, pair.bank, "record 1 of", "is damaged", "restore the state folder", code=1)


def test_a_noise_key_that_is_gone_or_open(pair, capsys):
    key = pair.state("bank") / "noise.key"
    key.chmod(0o644)
    refused(capsys, pair.bank, "a secret that others can read", "chmod 600")
    key.chmod(0o600)
    key.write_bytes(KEY[:-1])
    refused(capsys, pair.bank, "a secret has 32 bytes, got 31", "restore it")
    key.unlink()
    refused(capsys, pair.bank, "the key of this run is gone", "restore it")
    assert not key.exists()


@pytest.fixture(scope="module")
def randomised(tmp_path_factory):
    """A run with randomised labels that has ended."""
    place = tmp_path_factory.mktemp("randomised")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TACIT_CACHE", str(place / "cache"))
        bank = {"protect": "none", "labels": "rr(epsilon=1.0)", "attacks": []}
        pair = Pair(place / "pair", rows=300, epochs=1, batch_size=32, save_every=5, bank=bank)
        train_here(pair, patch)
    return pair


@pytest.fixture
def labelled(randomised, tmp_path, monkeypatch):
    monkeypatch.setenv("TACIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("tacit.party.acceptor.GOODBYE", 0.1)
    return randomised.copy(tmp_path / "pair")


@pytest.mark.parametrize("saved", [True, False])
@pytest.mark.parametrize("labels", ["rr(epsilon=2)", "gaussian_labels(sigma=2)", None])
def test_another_randomisation_under_the_secret_of_a_run(labelled, capsys, labels, saved):
    """It is refused at the start, also where no checkpoint tells what the run began with."""
    if not saved:
        shutil.rmtree(labelled.state("bank") / "checkpoints")
    configure(labelled.bank, labels=labels)
    refused(
        capsys,
        labelled.bank,
        "this run began with labels rr(epsilon=1)",
        "a second release",
        "set it back, or name another state folder",
    )


def test_another_correction_goes_on_with_the_labels_of_a_run(labelled):
    configure(labelled.bank, labels="rr(epsilon=1.0, correction=forward)")
    assert main(["party", str(labelled.bank)]) == 0


def test_a_label_secret_that_is_gone_or_another(labelled, capsys):
    secret = labelled.bank.parent / "labels.csv.secret"
    secret.write_bytes(KEY)
    refused(
        capsys, labelled.bank, "this run began with another label secret", "bring that one back"
    )
    secret.unlink()
    refused(capsys, labelled.bank, "the label secret of this run is gone", "restore it")
    assert not secret.exists()


def test_a_run_with_labels_that_an_earlier_version_began(labelled, capsys):
    """Its coins depended on more than they do now; there is no note of what they did depend on."""
    (labelled.state("bank") / "randomisation.json").unlink()
    refused(
        capsys, labelled.bank, "this run was begun by another version", "end it with that version"
    )


def test_labels_of_a_run_that_began_without(pair, capsys):
    configure(pair.bank, labels="rr(epsilon=1)")
    refused(capsys, pair.bank, "this run began with labels as they are", "set it back")


@pytest.mark.parametrize("party", ["bank", "platform"])
def test_a_disk_that_is_full_at_a_checkpoint(tmp_path, monkeypatch, party):
    """The run ends with the checkpoint before, and goes on from it when there is room again."""
    monkeypatch.setenv("TACIT_CACHE", str(tmp_path / "cache"))
    bank = {"protect": "none", "attacks": []}
    pair = Pair(tmp_path / "full", rows=1000, epochs=2, batch_size=16, save_every=12, bank=bank)
    alone = pair.copy(tmp_path / "alone")
    store = pair.state(party) / "checkpoints"
    with Training(pair) as training:
        running = training.running[party]
        wait_until(lambda: any(store.glob("step-*")))
        resource.prlimit(running.process.pid, resource.RLIMIT_FSIZE, (4096, 4096))
        assert running.end() == 1
        # The other party dials again at once, and its coming may be the last line.
        errors = [line for line in running.said.splitlines() if line.startswith("error: ")]
        assert len(errors) == 1, running.said
        assert "File too large" in errors[0]
        assert "see to the disk" in errors[0]
        assert "Traceback" not in running.said
        assert any(store.glob("step-*"))
        assert not any(store.glob(".aside-*"))
        training.start(party)
        training.finish()
    train_here(alone, monkeypatch)
    assert not differences(pair, alone)


def modes(folder):
    return {p.stat().st_mode & 0o777 for p in folder.rglob("*") if p.is_dir()} | {
        p.stat().st_mode & 0o777 for p in folder.rglob("*") if p.is_file()
    }


def files_with_labels(folder):
    """Return every file below a folder that holds the labels of the table, one after another."""
    wanted = np.loadtxt(
        folder / "pair" / "bank" / "labels.csv", delimiter=",", skiprows=1, usecols=1, dtype=str
    )
    column = (wanted == "yes").astype(np.int64).tobytes()
    return [p for p in folder.rglob("*") if p.is_file() and column in p.read_bytes()]


def test_what_is_read_of_a_table_stays_in_the_state_folder_for_its_owner_alone(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.setenv("TACIT_CACHE", str(tmp_path / "cache"))
    before = os.umask(0o022)
    try:
        bank = {"protect": "none", "attacks": []}
        pair = Pair(tmp_path / "pair", rows=300, epochs=1, batch_size=32, bank=bank)
        train_here(pair, monkeypatch)
        monkeypatch.setattr("tacit.party.preflight.LIMIT", 0.1)
        assert main(["party", str(pair.bank), "--check"]) == 1
    finally:
        os.umask(before)
    assert not (tmp_path / "cache").exists()
    places = files_with_labels(tmp_path)
    assert len(places) == 1
    assert places[0].is_relative_to(pair.state("bank") / "tables")
    for party in ("bank", "platform"):
        assert modes(pair.state(party) / "tables") == {0o700, 0o600}
        assert pair.state(party).stat().st_mode & 0o777 == 0o700
    data.load_party(pair.bank.parent / "labels.csv", role="label")  # as earlier releases kept it
    assert len(files_with_labels(tmp_path)) == 2
    capsys.readouterr()
    assert main(["party", str(pair.bank), "--remove-tables"]) == 0
    assert str(pair.state("bank") / "tables") in capsys.readouterr().out
    assert files_with_labels(tmp_path) == []
    assert main(["party", str(pair.bank), "--remove-tables"]) == 0
    assert "nothing was there" in capsys.readouterr().out
    monkeypatch.setattr("tacit.party.acceptor.GOODBYE", 0.1)
    assert main(["party", str(pair.bank)]) == 0  # it is read again where it is needed
    assert files_with_labels(tmp_path) == places


def test_a_changed_table_leaves_nothing_of_the_last_one(tmp_path):
    path = tmp_path / "labels.csv"
    schema_path(path).write_text('id = "id"\nlabel = "y"\nnumeric = ["x"]\n')
    own = tmp_path / "own"
    own.mkdir(mode=0o700)
    for rows in (4, 6):
        lines = [f"{row},{row % 2},{row}.5" for row in range(rows)]
        path.write_text("\n".join(["id,y,x", *lines]) + "\n")
        assert len(data.load_party(path, role="label", own_cache=own)) == rows
        assert len(list(own.iterdir())) == 1


def test_only_the_label_party_allows_a_step_again_and_only_one_that_was(pair, capsys):
    words = ["--allow-again", "3"]
    refused(capsys, pair.platform, "the label party's decision", words=words)
    refused(capsys, pair.bank, "step 99 was never released", words=["--allow-again", "99"])
    assert main(["party", str(pair.bank), *words]) == 0
    assert "allowed_again: 3" in capsys.readouterr().out
    assert [record[:2] for record in pair.journal()][-1] == (2, 3)


def test_a_step_is_not_allowed_again_where_the_budget_has_no_room_for_it(pair, capsys):
    spec = "marvell(sum_kl=0.1, covariance=full)"
    configure(pair.bank, protect=spec, budget="sum_kl=0.2")  # for the two epochs
    before = pair.journal()
    said = "2 epochs and 1 step allowed again: set epochs = 1 on both sides"
    refused(capsys, pair.bank, said, words=["--allow-again", "3"])
    assert pair.journal() == before
    configure(pair.bank, budget="sum_kl=0.3")
    assert main(["party", str(pair.bank), "--allow-again", "3"]) == 0


class Restarted:
    """A label party as a process begins with it: from the state of a checkpoint."""

    def __init__(self, path, labels, states=None):
        torch.manual_seed(0)
        self.top = nn.Sequential(nn.Linear(4, 1), nn.Flatten(0))
        self.optimizer = adam(self.top, 0.01)
        secret = SECRET if labels else None
        guard = Guard(
            "marvell(s=4)", key=KEY, labels=labels, label_secret=secret, ledger=Ledger(run="r")
        )
        if states is not None:
            weights, moments, guarded, counted = states
            self.top.load_state_dict(weights)
            self.optimizer.load_state_dict(moments)
            guard.load_state(*guarded)
            guard.ledger = Ledger.from_state(*counted, run="r")
        truth = torch.tensor([0, 1] * 4)
        ids = [f"id-{row}" for row in ROWS.tolist()]
        y = guard.labels(ids, truth) if labels else truth
        party = LabelParty(
            self.top, y, guard=guard, objective=objective.get("bce"), optimizer=self.optimizer
        )
        self.guard, self.journal = guard, Journal.open(path, run="r", secret=SECRET)
        self.end = JournaledLabelParty(party, self.journal)

    def states(self):
        kept = self.top.state_dict(), self.optimizer.state_dict()
        return (*copy.deepcopy(kept), self.guard.to_state(), self.guard.ledger.to_state())

    def step(self, number, seed):
        values = torch.randn(8, 4, generator=torch.Generator().manual_seed(seed))
        (gradient,) = self.end.step(ROWS, [Embedding(step=number, values=values)])
        self.end.update()
        return gradient.values

    @property
    def releases(self):
        return self.guard.ledger.summary().releases


@pytest.mark.parametrize("labels", [None, "rr(epsilon=1.0)"])
def test_a_step_that_is_allowed_again_counts_twice_from_then_on(tmp_path, labels):
    first = Restarted(tmp_path / "journal", labels)
    first.step(0, seed=1)
    states = first.states()
    sent = first.step(1, seed=2)
    first.journal.close()

    again = Restarted(tmp_path / "journal", labels, states)
    with pytest.raises(PeerError, match=r"step 1 was released before with another embedding"):
        again.step(1, seed=3)
    assert torch.equal(again.step(1, seed=2), sent)
    assert again.releases == 2
    again.journal.close()

    allowed = Restarted(tmp_path / "journal", labels, states)
    allowed.journal.allow_again(1)
    other = allowed.step(1, seed=3)
    assert not torch.equal(other, sent)
    assert allowed.releases == 3
    allowed.journal.close()

    later = Restarted(tmp_path / "journal", labels, states)
    with pytest.raises(PeerError, match=r"with another embedding"):
        later.step(1, seed=4)
    assert torch.equal(later.step(1, seed=3), other)
    assert later.releases == 3, "the checkpoint is older than both releases, and both count"
    later.journal.close()


def test_no_checkpoint_outlives_the_journal_in_a_power_cut(tmp_path, monkeypatch):
    """The journal is on disk whenever a checkpoint of the label party gets its name."""
    monkeypatch.setenv("TACIT_CACHE", str(tmp_path / "cache"))
    pair = Pair(
        tmp_path / "pair",
        rows=300,
        epochs=1,
        batch_size=32,
        save_every=3,
        bank={"protect": "none", "attacks": []},
    )
    journal, synced, held = pair.state("bank") / "journal", [], []
    fsync, rename = os.fsync, Path.rename

    def synchronised(file):
        fsync(file)
        if journal.exists() and os.fstat(file).st_ino == journal.stat().st_ino:
            synced.append(os.fstat(file).st_size)

    def renamed(path, target):
        if path.name.startswith(".aside-") and "bank" in path.parts:
            held.append((synced[-1], journal.stat().st_size))
        return rename(path, target)

    monkeypatch.setattr(os, "fsync", synchronised)
    monkeypatch.setattr(Path, "rename", renamed)
    train_here(pair, monkeypatch)
    assert len(held) == 3
    assert all(safe == size for safe, size in held)
