"""What people get wrong about ``tacit party``: one plain line each, and nothing half done."""

import shutil
import signal
import socket
import threading

import pytest
from pyarrow import csv, parquet

from parties import Pair, configure
from party_processes import Running, both_end
from tacit.cli import main
from tacit.party import preflight as party_check

SMALL = {"epochs": 1, "batch_size": 32, "save_every": 10}


@pytest.fixture
def pair(tmp_path, monkeypatch):
    monkeypatch.setenv("TACIT_CACHE", str(tmp_path / "cache"))
    bank = {"protect": "none", "attacks": []}
    return Pair(tmp_path / "pair", rows=200, wait=2, bank=bank, **SMALL)


@pytest.fixture
def refused(capsys, tmp_path):
    """Return a check that a command ends with one line that says all of this."""

    def check(config, *parts, words=(), code=2):
        assert main(["party", str(config), *words]) == code
        out, err = capsys.readouterr()
        assert out == ""
        assert "Traceback" not in err
        *before, last = err.splitlines()
        assert last.startswith("error: ")
        assert not any(line.startswith("error: ") for line in before)
        for part in parts:
            assert part in last
        drafts = [path for path in tmp_path.rglob(".*") if "cache" not in path.parts]
        assert not drafts

    return check


def test_a_port_that_is_taken(pair, refused):
    host, port = pair.address.split(":")
    with socket.socket() as other:
        other.bind((host, int(port)))
        other.listen()
        refused(pair.bank, f"cannot listen at {pair.address}", "give another port")
        refused(pair.bank, f"cannot listen at {pair.address}", words=["--check"])


@pytest.mark.parametrize("party", ["bank", "platform"])
def test_a_host_that_nobody_knows(pair, refused, monkeypatch, party):
    def unknown(*_, **__):
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    config = getattr(pair, party)
    configure(config, address="bank.invalid:7700")
    refused(config, "the host bank.invalid is unknown", "bank.invalid:7700")


@pytest.mark.parametrize("party", ["bank", "platform"])
@pytest.mark.parametrize("words", [[], ["--check"]])
def test_a_key_that_others_can_read(pair, refused, party, words):
    config = getattr(pair, party)
    (config.parent / "keys" / f"{party}.key").chmod(0o644)
    refused(config, f"party {party}", "mode 0644", "chmod 600", words=words)


@pytest.mark.parametrize(
    ("party", "change", "parts"),
    [
        ("platform", {"protect": "none"}, ["protect is for the label party"]),
        ("platform", {"labels": "rr(epsilon=1)"}, ["labels is for the label party"]),
        ("platform", {"budget": "auc=0.7"}, ["budget is for the label party"]),
        (
            "bank",
            {"share_metrics": True, "budget": "auc=0.7"},
            ["share_metrics = true", 'budget = "auc=0.7"', "set share_metrics = false"],
        ),
        ("bank", {"witness": "state/witness"}, ["witness must be outside state"]),
        ("platform", {"witness": "w"}, ["witness is for the label party"]),
        ("bank", {"record": True}, ["record is for the feature party"]),
        ("bank", {"protect": None}, ["protect is missing", 'protect = "marvell(sum_kl=']),
        ("bank", {"data": "../platform/features.csv"}, ["a label party has labels"]),
        ("platform", {"data": "../bank/labels.csv"}, ["a feature party has no labels"]),
        ("platform", {"data": "none.csv"}, ["none.csv"]),
        ("platform", {"epoch": 3}, ["unknown key 'epoch'", "did you mean 'epochs'?"]),
        ("bank", {"protekt": "none"}, ["unknown key 'protekt'", "'protect'"]),
        ("bank", {"protect": "marvel(s=4)"}, ["protect", "'marvell'"]),
        ("bank", {"batch_size": 1}, ["batch_size = 1"]),
        ("bank", {"peer": "bank"}, ["bank is there twice in name and peer"]),
        ("bank", {"address": "127.0.0.1"}, ["address '127.0.0.1'", "host:port"]),
        ("bank", {"keys": "elsewhere"}, ["elsewhere", "tacit keys"]),
        ("platform", {"keys": "../bank/keys"}, ["platform.key"]),
    ],
)
def test_a_configuration_that_does_not_fit(pair, refused, party, change, parts):
    config = getattr(pair, party)
    configure(config, **change)
    refused(config, *parts)


def test_a_configuration_that_is_none(pair, refused):
    refused(pair.folder / "nobody.toml", "nobody.toml", "no such file")
    pair.bank.write_text("role = label")
    refused(pair.bank, "not valid TOML")


def test_a_state_folder_that_others_can_enter(pair, refused):
    pair.state("bank").chmod(0o755)
    refused(pair.bank, "state", "chmod 700")


@pytest.mark.slow
def test_both_sides_are_told_who_does_not_come(tmp_path, monkeypatch):
    """A word after ten seconds, the end after twelve; each waits for somebody else."""
    monkeypatch.setenv("TACIT_CACHE", str(tmp_path / "cache"))
    bank = {"protect": "none", "attacks": []}
    alone, lonely = (
        Pair(tmp_path / name, rows=200, wait=12, bank=bank, **SMALL) for name in ("one", "other")
    )
    with Running(alone.bank) as label, Running(lonely.platform) as feature:
        for party, other in ((label, "platform"), (feature, f"bank at {lonely.address}")):
            party.wait_for(rf"waiting for {other} .*giving up in \d+ seconds")
            assert party.end() == 1
            last = party.said.splitlines()[-1]
            assert last.startswith(f"error: {other} did not come within 12 seconds")
            assert "tacit party --check" in last
            assert "Traceback" not in party.said


def test_another_plan_is_shown_and_the_label_party_waits_for_the_right_one(pair):
    configure(pair.platform, batch_size=16)
    for config in (pair.bank, pair.platform):
        configure(config, wait=60)
    with Running(pair.bank) as bank:
        with Running(pair.platform) as wrong:
            assert wrong.end() == 2
            last = wrong.said.splitlines()[-1]
            assert last.startswith("error: bank refused to go on: the plans differ")
            assert '"batch_size":32' in last
            assert '"batch_size":16' in last
            assert "Traceback" not in wrong.said
        bank.wait_for("refused: the plans differ")
        configure(pair.platform, batch_size=32)
        with Running(pair.platform) as right:
            both_end(bank, right)
    assert pair.read("bank", "results.json")["ended"] == "finished"


def test_the_check_says_that_both_fit(pair, capsys):
    checks = threading.Thread(target=main, args=(["party", str(pair.bank), "--check"],))
    checks.start()
    while main(["party", str(pair.platform), "--check"]) != 0:
        assert checks.is_alive()
    checks.join()
    out, _ = capsys.readouterr()
    assert out.count("plans_agree: True") == 2
    assert "peer: bank" in out
    assert "peer: platform" in out
    assert not (pair.platform.parent / "state").exists()


def test_the_check_finds_another_plan(pair, capsys):
    configure(pair.platform, epochs=9)
    found = []
    checks = threading.Thread(
        target=lambda: found.append(main(["party", str(pair.bank), "--check"]))
    )
    checks.start()
    while (code := main(["party", str(pair.platform), "--check"])) == 1:
        assert checks.is_alive()
    checks.join()
    _, err = capsys.readouterr()
    assert (code, found) == (2, [1])
    assert '"epochs":9' in err
    assert '"epochs":1' in err
    assert err.count("the plans differ") == 2


def test_the_check_finds_nobody(pair, refused, monkeypatch):
    words = ["--check"]
    assert party_check.LIMIT < 10
    monkeypatch.setattr(party_check, "LIMIT", 0.5)
    refused(pair.platform, f"nobody listens at {pair.address}", "start bank", words=words, code=1)
    refused(pair.bank, "platform did not connect", "within 0.5 seconds", words=words, code=1)


def change_ids(config, change):
    """Change the ids in a party's table; None removes the row."""
    table = next(config.parent.glob("*.csv"))
    header, *rows = table.read_text().splitlines()
    made = []
    for number, row in enumerate(rows):
        id_, rest = row.split(",", 1)
        if (id_ := change(number, id_)) is not None:
            made.append(f"{id_},{rest}")
    table.write_text("\n".join([header, *made]) + "\n")


def interrupted(party):
    """End a party that goes on waiting, as its user would."""
    assert party.ended() is None
    party.signal(signal.SIGINT)
    assert party.end() == 130
    assert "Traceback" not in party.said


@pytest.mark.parametrize("matching", ["private", "clear"])
@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda _, id_: f"other {id_}", "the tables have no id in common: compare the id columns"),
        (lambda number, id_: id_ if number < 20 else f"other {id_}", "fewer than one batch of 32"),
    ],
    ids=["nothing in common", "less than a batch"],
)
def test_ids_that_hardly_meet(pair, matching, change, words):
    for config in (pair.bank, pair.platform):
        configure(config, matching=matching, wait=60)
    change_ids(pair.platform, change)
    with Running(pair.bank) as bank, Running(pair.platform) as platform:
        assert platform.end() in (1, 2)
        last = platform.said.splitlines()[-1]
        assert last.startswith("error: ")
        assert words in last
        assert "Traceback" not in platform.said
        bank.wait_for(f"refused: .*{words}")
        interrupted(bank)


def test_ids_of_mixed_types(pair):
    """Numbers here and text there are the same ids in private; in the clear they are refused."""
    for config in (pair.bank, pair.platform):
        change_ids(config, lambda number, _: 1000 + number)
        configure(config, matching="clear", wait=60)
    table = pair.platform.parent / "features.csv"
    read = csv.read_csv(table)
    assert read["id"].type == "int64"
    parquet.write_table(read, table.with_suffix(".parquet"))
    shutil.copy(f"{table}.schema.toml", table.with_suffix(".parquet.schema.toml"))
    configure(pair.platform, data="features.parquet")
    with Running(pair.bank) as bank, Running(pair.platform) as platform:
        platform.end()
        last = platform.said.splitlines()[-1]
        assert last.startswith("error: ")
        assert "ids are numbers there and text" in last
        interrupted(bank)
    for config in (pair.bank, pair.platform):
        configure(config, matching="private", wait=60)
    with Running(pair.bank) as bank, Running(pair.platform) as platform:
        both_end(bank, platform)
    assert pair.read("bank", "results.json")["ended"] == "finished"


def test_a_test_part_of_one_class(pair):
    """Which examples are tested is drawn after all labels were seen to differ: it ends well."""
    table = next(pair.bank.parent.glob("*.csv"))
    table.write_text(table.read_text().replace(",yes,", ",no,").replace(",no,", ",yes,", 1))
    for config in (pair.bank, pair.platform):
        configure(config, wait=60)
    with Running(pair.bank) as bank, Running(pair.platform) as platform:
        both_end(bank, platform)
    found = pair.read("bank", "results.json")
    assert found["ended"] == "finished"
    assert set(found["test"]) == {"loss", "accuracy", "ace"}


def test_a_party_that_is_named_twice(pair, refused):
    configure(pair.bank, peer=["platform", "bureau", "platform"])
    refused(pair.bank, "platform is there twice in name and peer")
