import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import tacit
from tacit.cli import main
from tacit.errors import InputError

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


@pytest.mark.parametrize(
    "words", [["--debug", "data", "check", "x.csv"], ["data", "check", "x.csv", "--debug"]]
)
def test_debug_stands_before_or_after_the_command(words):
    with pytest.raises(InputError, match=r"there is no file x.csv"):
        main(words)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shells_complete_commands(shell):
    asked = {"COMP_WORDS": "tacit re", "COMP_CWORD": "1", "_TYPER_COMPLETE_ARGS": "tacit re"}
    asked |= {"_TYPER_COMPLETE_FISH_ACTION": "get-args", "_TACIT_COMPLETE": f"complete_{shell}"}
    done = subprocess.run(  # noqa: S603
        [TACIT], env={**os.environ, **asked}, capture_output=True, text=True, check=False
    )
    found = set(re.findall(r"^\W*(\w+)", done.stdout, re.M))
    assert {"recommend", "report", "reproduce"} <= set(re.findall(r"\w+", done.stdout)), found
    assert "train" not in found
