import json
import subprocess
import sys
from pathlib import Path

import pytest

import tacit
from tacit.cli import main

TACIT = str(Path(sys.executable).parent / "tacit")


def run(capsys, *words):
    code = main(list(words))
    out, err = capsys.readouterr()
    return code, out, err


@pytest.mark.parametrize(
    ("kind", "names", "column"),
    [
        ("protections", tacit.list_protections(), "guarantee"),
        ("attacks", tacit.list_attacks(), "needs"),
    ],
)
def test_list(capsys, kind, names, column):
    code, out, err = run(capsys, "list", kind, "--json")
    rows = json.loads(out)[kind]
    assert (code, err) == (0, "")
    assert [row["name"] for row in rows] == names
    assert all(row["description"] and row[column] for row in rows)
    code, out, _ = run(capsys, "list", kind)
    assert code == 0
    assert all(name in out for name in names)


def test_version(capsys):
    assert run(capsys, "--version") == (0, f"tacit {tacit.__version__}\n", "")


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["list", "protection"], "protection"),
        (["lst"], "lst"),
        (["list", "attacks", "--jsn"], "--jsn"),
    ],
)
def test_mistakes_exit_2_with_one_line(capsys, words, part):
    code, out, err = run(capsys, *words)
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert part in err
    assert err.count("\n") == 1


def test_the_installed_command():
    done = subprocess.run(  # noqa: S603
        [TACIT, "list", "attacks", "--json"], capture_output=True, text=True, check=True
    )
    assert "energy" in done.stdout
