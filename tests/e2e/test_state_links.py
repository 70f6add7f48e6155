"""Symbolic links, other owners and open modes in state folders: no other file is touched."""

import os
import shutil

import pytest

from parties import KEY, Pair, configure, train_here
from tacit.atomic import write_whole
from tacit.cli import main
from tacit.errors import UsageError
from tacit.party.checkpoint import CheckpointStore
from tacit.party.journal import Journal
from tacit.state_dir import StateFolder, kept_secret


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
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
    monkeypatch.setattr("tacit.party.acceptor.GOODBYE", 0.1)
    made = trained.copy(tmp_path / "pair")
    configure(made.platform, wait=0.5)
    return made


def everything(folder):
    """Return the content, mode and time of change of all that is in a folder."""
    return {
        path: (
            path.lstat().st_mode,
            path.lstat().st_mtime_ns,
            path.read_bytes() if path.is_file() else None,
        )
        for path in [folder, *folder.rglob("*")]
    }


def moved(place, elsewhere):
    """Put something of a state folder elsewhere, and a link to it in its place."""
    target = elsewhere / place.name
    shutil.move(place, target)
    place.symlink_to(target)


def run(capsys, config):
    code = main(["party", str(config)])
    return code, capsys.readouterr().err.splitlines()


FILES = (
    "journal",
    "noise.key",
    "lock",
    "encoding.json",
    "labels.json",
    "matching.rounds",
    "matching.key",
    "matching.npy",
    "matching.json",
    "checkpoints",
)


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_is_a_link_is_not_followed(pair, tmp_path, capsys, name):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    moved(pair.state("bank") / name, elsewhere)
    before = everything(elsewhere)
    code, said = run(capsys, pair.bank)
    assert code == 2
    assert "is a symbolic link" in said[-1]
    assert str(pair.state("bank") / name) in said[-1]
    assert everything(elsewhere) == before


@pytest.mark.parametrize("party", ["bank", "platform"])
def test_a_state_folder_that_is_a_link_is_not_entered(pair, tmp_path, capsys, party):
    moved(pair.state(party), tmp_path)
    before = everything(tmp_path / "state")
    code, said = run(capsys, getattr(pair, party))
    assert code == 2
    assert (
        said[-1] == f"error: state {pair.state(party)}: is a symbolic link: name the folder itself"
    )
    assert everything(tmp_path / "state") == before


@pytest.mark.parametrize("part", ["", "manifest.json", "model.safetensors", "state.safetensors"])
def test_a_checkpoint_that_leads_elsewhere_is_not_read(pair, tmp_path, capsys, part):
    last = max((pair.state("platform") / "checkpoints").glob("step-*"))
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    moved(last / part if part else last, elsewhere)
    before = everything(elsewhere)
    code, said = run(capsys, pair.platform)
    assert code == 2
    assert "is a symbolic link" in said[-1]
    assert everything(elsewhere) == before


def test_links_to_nowhere_are_not_filled(tmp_path):
    """What is opened to be made would be made where the link leads."""
    (tmp_path / "state").mkdir(mode=0o700)
    for name, opened in (
        ("journal", lambda path: Journal.open(path, run="r", secret=bytes(32))),
        ("noise.key", kept_secret),
        ("lock", lambda path: StateFolder(path.parent)),
    ):
        place = tmp_path / "state" / name
        place.symlink_to(tmp_path / f"made-by-{name}")
        with pytest.raises(UsageError, match="is a symbolic link"):
            opened(place)
        assert not (tmp_path / f"made-by-{name}").exists()
        place.unlink()
    place = tmp_path / "state" / "results.json"
    other = tmp_path / "other"
    other.write_text("theirs")
    place.symlink_to(other)
    write_whole(place, b"ours")  # replaces the link
    assert other.read_text() == "theirs"
    assert not place.is_symlink()


def test_a_store_of_checkpoints_removes_nothing_through_a_link(tmp_path):
    other = tmp_path / "other"
    (other / "step-000000001").mkdir(parents=True)
    (other / ".aside-x").mkdir()
    (tmp_path / "checkpoints").symlink_to(other)
    store = CheckpointStore(tmp_path / "checkpoints", run="r", keep=1)
    for act in (store.latest, store.steps, lambda: store.save(9, models={}, optimizers={})):
        with pytest.raises(UsageError, match="is a symbolic link"):
            act()
    assert sorted(path.name for path in other.iterdir()) == [".aside-x", "step-000000001"]
    (tmp_path / "checkpoints").unlink()
    store.save(9, models={}, optimizers={})
    (tmp_path / "checkpoints" / ".aside-link").symlink_to(other)
    store.save(10, models={}, optimizers={})
    assert not (tmp_path / "checkpoints" / ".aside-link").is_symlink()
    assert sorted(path.name for path in other.iterdir()) == [".aside-x", "step-000000001"]


@pytest.mark.parametrize("what", ["tables", "entry", "array"])
def test_what_was_read_of_a_table_is_neither_read_nor_written_through_a_link(
    pair, tmp_path, capsys, what
):
    assert run(capsys, pair.bank)[0] == 0  # the entry of this copy of the folder
    tables = pair.state("bank") / "tables"
    (entry,) = tables.iterdir()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    moved({"tables": tables, "entry": entry, "array": entry / "labels.npy"}[what], elsewhere)
    before = everything(elsewhere)
    code, said = run(capsys, pair.bank)
    if what == "tables":
        assert code == 2
        assert f"{tables}: is a symbolic link" in said[-1]
    else:  # it is made again in its place
        assert code == 0
        assert not any(path.is_symlink() for path in tables.rglob("*"))
    assert everything(elsewhere) == before
    assert main(["party", str(pair.bank), "--remove-tables"]) == 0
    assert not os.path.lexists(tables)
    assert everything(elsewhere) == before


def test_a_pipe_in_place_of_a_file_does_not_hold_the_party_up(pair, capsys):
    for name in ("noise.key", "journal", "matching.rounds", "lock"):
        place = pair.state("bank") / name
        place.rename(place.with_suffix(".kept"))
        os.mkfifo(place, 0o600)
        code, said = run(capsys, pair.bank)
        assert code == 2
        assert "is not a plain file" in said[-1]
        place.unlink()
        place.with_suffix(".kept").rename(place)


@pytest.mark.parametrize("mode", [0o770, 0o705, 0o711, 0o777])
def test_a_folder_that_others_can_enter(pair, capsys, mode):
    for party in ("bank", "platform"):
        pair.state(party).chmod(mode)
        code, said = run(capsys, getattr(pair, party))
        assert code == 2
        assert said[-1].endswith("others can enter: chmod 700 it")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
@pytest.mark.parametrize("name", ["", "journal", "noise.key", "matching.rounds", "encoding.json"])
def test_what_belongs_to_another_user_is_not_used(pair, capsys, name):
    place = pair.state("bank") / name if name else pair.state("bank")
    before = everything(pair.state("bank"))
    os.chown(place, 12345, 12345)
    code, said = run(capsys, pair.bank)
    assert code == 2
    assert "belongs to user 12345, this process runs as 0: chown it" in said[-1]
    os.chown(place, 0, 0)
    after = everything(pair.state("bank"))
    assert {path.name for path in after.keys() - before.keys()} <= {
        path.name for path in after if "tables" in path.parts
    }


def test_a_label_secret_that_is_a_link_is_not_followed(tmp_path):
    other = tmp_path / "theirs"
    write_whole(other, KEY)
    (tmp_path / "labels.csv.secret").symlink_to(other)
    with pytest.raises(UsageError, match="is a symbolic link"):
        kept_secret(tmp_path / "labels.csv.secret")


def test_what_a_finished_run_leaves_is_for_its_owner_alone(pair):
    for party in ("bank", "platform"):
        for path in pair.state(party).rglob("*"):
            assert path.stat().st_mode & 0o077 == 0, path
