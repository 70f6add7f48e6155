"""docs/deploy.md, followed on two machines that share nothing but a line, here two namespaces."""

import configparser
import re
import shutil
from pathlib import Path

import pytest

from parties import configure
from party_processes import Running, wait_until
from spaces import BANK, PLATFORM, namespaces
from tacit.cli import main

PAGE = (Path(__file__).parents[2] / "docs" / "deploy.md").read_text(encoding="utf-8")
SMALL = {"epochs": 6, "batch_size": 32, "save_every": 20}


@pytest.fixture
def spaces():
    try:
        with namespaces() as made:
            if made is None:
                pytest.skip("network namespaces are not permitted here")
            yield made
    except FileNotFoundError as missing:
        pytest.skip(f"no network namespaces here: {missing.filename} is not installed")


def follow(*words, folder):
    """Run one of the page's commands, with this test's folder and address in it."""
    command = " ".join(words)
    assert f"$ tacit {command}" in PAGE, f"the page does not say {command}"
    said = command.replace("bank.example", BANK).split()
    assert (
        main(
            [
                str(folder / w) if w in {"keys", "trial"} and at > 1 else w
                for at, w in enumerate(said)
            ]
        )
        == 0
    )


def hand_over(keys, party, place):
    """Bring a party's key and certificate, and the authority's, to its machine."""
    place.mkdir(exist_ok=True)
    for name in (f"{party}.pem", f"{party}.key", "ca.pem"):
        shutil.copy(keys / name, place / name)


def machines(folder):
    """Make a folder for each machine, after the steps 1 and 2."""
    follow("keys", "init", "keys", folder=folder)
    follow("keys", "add", "keys", "bank", "--host", "bank.example", folder=folder)
    follow("keys", "add", "keys", "platform", folder=folder)
    assert main(["init", str(folder / "trial"), "--rows", "1500"]) == 0
    assert "`tacit init trial`" in PAGE
    made = {}
    for party, address in (("bank", "0.0.0.0:7700"), ("platform", f"{BANK}:7700")):
        place = folder / f"machine of {party}"
        shutil.move(folder / "trial" / party, place)
        shutil.rmtree(place / "keys")
        hand_over(folder / "keys", party, place / "keys")
        configure(place / "party.toml", address=address, wait=60, **SMALL)
        made[party] = place / "party.toml"
    assert '`"0.0.0.0:7700"`' in PAGE
    configure(made["bank"], attacks=[])
    return made


@pytest.mark.slow
def test_two_machines_step_by_step(tmp_path, spaces, monkeypatch):
    monkeypatch.setenv("TACIT_CACHE", str(tmp_path / "cache"))
    made = machines(tmp_path)
    start = spaces.commands

    with Running(made["bank"], command=start["bank"]) as bank:
        wait_until(lambda: passes(made["platform"], "--check", command=start["platform"]))
        with Running(made["platform"], command=start["platform"]) as platform:
            bank.wait_for(f"platform connected from {PLATFORM}")
            bank.wait_for(r"step \d+ of")
            bank.kill()  # a reboot, and new certificates before it comes back
            hand_over_new(tmp_path, made)
            with Running(made["bank"], command=start["bank"]) as again:
                assert platform.end() == 0, platform.said
                assert again.end() == 0, again.said
                assert "steps to go" in again.said


def passes(*words, command):
    with Running(*words, command=command) as check:
        return check.end() == 0 and "plans_agree: True" in check.said


def hand_over_new(folder, made):
    for party, options in (("bank", ["--host", BANK]), ("platform", [])):
        for name in (f"{party}.pem", f"{party}.key"):
            (folder / "keys" / name).unlink()
        assert main(["keys", "add", str(folder / "keys"), party, *options]) == 0
        hand_over(folder / "keys", party, made[party].parent / "keys")


def test_the_unit_on_the_page_is_one():
    unit = configparser.ConfigParser()
    unit.optionxform = str
    unit.read_string(re.search(r"```ini\n(.*?)```", PAGE, re.DOTALL)[1])
    assert unit.sections() == ["Unit", "Service", "Install"]
    assert unit["Service"]["ExecStart"].split()[1:] == ["party", "party.toml"]
    assert unit["Service"]["RestartPreventExitStatus"] == "2"  # of a mistake, see the exit codes
