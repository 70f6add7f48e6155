"""``tacit keys`` as someone who prepares a trial types it."""

import hashlib
import json
import ssl
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tacit.cli import main
from tacit.wire.transport.tls import make_ca, make_party

TACIT = str(Path(sys.executable).parent / "tacit")


def run(capsys, *words):
    code = main(["keys", *map(str, words)])
    out, err = capsys.readouterr()
    return code, out, err


def refused(result, part):
    code, out, err = result
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert part in err


@pytest.fixture
def keys(tmp_path):
    make_ca(tmp_path / "k")
    make_party(tmp_path / "k", "bank", hosts=["bank.example.com", "192.0.2.7"])
    return tmp_path / "k"


def test_from_nothing_to_a_checked_party(capsys, tmp_path):
    place = tmp_path / "trial"
    code, out, err = run(capsys, "init", place)
    assert (code, err) == (0, "")
    assert f"{place / 'ca.key'}: only whoever signs needs it" in out
    assert "in production use your own" in out
    code, out, err = run(capsys, "add", place, "bank", "--host", "localhost", "--host", "127.0.0.1")
    assert (code, err) == (0, "")
    assert all(str(place / name) in out for name in ("bank.pem", "bank.key", "ca.pem"))
    assert "ca.key" not in out
    code, out, err = run(capsys, "check", place, "bank")
    assert (code, err) == (0, "")
    assert out.startswith("bank: the key, the certificate and the CA belong together")
    secret = (place / "bank.key").read_text().splitlines()[1]
    assert secret not in out


def test_show_is_one_json_object(capsys, keys):
    code, out, err = run(capsys, "show", keys, "--json")
    assert (code, err) == (0, "")
    shown = json.loads(out)
    assert shown["directory"] == str(keys)
    bank, ca = shown["certificates"]
    assert (bank["name"], bank["authority"]) == ("bank", False)
    assert bank["hosts"] == ["bank.example.com", "192.0.2.7"]
    assert bank["days_left"] == 89
    assert bank["warning"] is None
    assert datetime.fromisoformat(bank["valid_until"]) > datetime.now(UTC)
    der = ssl.PEM_cert_to_DER_cert((keys / "bank.pem").read_text())
    digest = hashlib.sha256(der).hexdigest()
    assert bank["fingerprint"].replace(":", "").lower() == digest
    assert (ca["name"], ca["authority"], ca["hosts"]) == ("ca", True, [])
    code, text, err = run(capsys, "show", keys)
    assert (code, err) == (0, "")
    assert bank["fingerprint"] in text
    assert "bank, also bank.example.com 192.0.2.7: until" in text


@pytest.mark.parametrize(
    ("age", "warning"),
    [(100, "expired on"), (80, "expires in 9 days"), (-2, "is not valid before")],
)
def test_show_warns_apart_from_the_json(capsys, tmp_path, age, warning):
    then = datetime.now(UTC) - timedelta(days=age)
    make_ca(tmp_path / "k", now=then)
    make_party(tmp_path / "k", "bank", now=then)
    code, out, err = run(capsys, "show", tmp_path / "k", "--json")
    assert code == 0
    assert warning in json.loads(out)["certificates"][0]["warning"]
    assert err.startswith(f"warning: {tmp_path / 'k' / 'bank.pem'} {warning}")
    result = run(capsys, "check", tmp_path / "k", "bank")
    if age == 80:
        assert result[0] == 0
        assert "expires in 9 days" in result[2]
    else:
        refused(result, "expired at" if age == 100 else "not valid before")


def test_mistakes_exit_2_with_one_line(capsys, keys, tmp_path):
    refused(run(capsys, "init", keys), "ca.key: exists, and keys are never overwritten")
    refused(run(capsys, "add", keys, "bank"), "bank.key: exists")
    refused(run(capsys, "add", keys, "Bank"), "party name 'Bank'")
    refused(run(capsys, "add", keys, "ca"), "party name 'ca'")
    refused(run(capsys, "add", keys, "clinic", "--host", "bank.tacit"), "host 'bank.tacit'")
    refused(run(capsys, "add", tmp_path / "none", "bank"), "ca.pem: cannot be read")
    refused(run(capsys, "check", keys, "nobody"), "nobody.key: cannot be read")
    refused(run(capsys, "check", keys, "../k/bank"), "party name")
    refused(run(capsys, "show", tmp_path / "none"), "no such directory")
    refused(run(capsys, "show"), "DIR")
    (keys / "bank.key").chmod(0o644)
    refused(run(capsys, "check", keys, "bank"), "can be read by others (mode 0644)")
    (keys / "odd.pem").write_text("hello")
    refused(run(capsys, "show", keys, "--json"), "odd.pem: ")
    (keys / "odd.pem").write_bytes((keys / "ca.pem").read_bytes())
    refused(run(capsys, "show", keys, "--json"), "the certificate names nobody")


def test_an_empty_directory(capsys, tmp_path):
    assert run(capsys, "show", tmp_path) == (0, f"no certificates in {tmp_path}\n", "")
    code, out, _ = run(capsys, "show", tmp_path, "--json")
    assert (code, json.loads(out)["certificates"]) == (0, [])


@pytest.mark.parametrize("words", [["--help"], ["init", "--help"], ["add", "--help"]])
def test_help_says_what_it_is_for(capsys, words):
    code, out, _ = run(capsys, *words)
    text = " ".join(out.split())
    assert code == 0
    assert "CA for trials" in text
    assert "In production use your own CA" in text
    assert "the party's configuration" in text


def test_the_installed_command_in_processes_of_their_own(keys):
    good = subprocess.run([TACIT, "keys", "check", keys, "bank"], capture_output=True, timeout=120)  # noqa: S603, PLW1510
    assert (good.returncode, good.stderr) == (0, b"")
    (keys / "bank.key").write_bytes((keys / "ca.key").read_bytes())
    bad = subprocess.run([TACIT, "keys", "check", keys, "bank"], capture_output=True, timeout=120)  # noqa: S603, PLW1510
    assert (bad.returncode, bad.stdout) == (2, b"")
    assert b"do not belong together" in bad.stderr


def test_the_commands_load_nothing_heavy_before_they_run():
    code = (
        "import sys, tacit.cli; sys.exit(bool({'torch', 'numpy', 'cryptography'} & {*sys.modules}))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0  # noqa: S603
