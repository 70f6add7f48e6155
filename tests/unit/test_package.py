"""What is shipped: the files of the wheel, its version and its metadata."""

import json
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

import tacit

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def shipped():
    builders = pytest.importorskip("hatchling.builders.wheel")
    files = builders.WheelBuilder(str(ROOT)).recurse_included_files()
    return {file.distribution_path for file in files}


def test_the_wheel_has_every_file_of_the_package_and_nothing_else():
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "src"],  # noqa: S607
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if listed.returncode:
        pytest.skip("not a checkout")
    wanted = {name.removeprefix("src/") for name in listed.stdout.split()}
    assert {name for name in shipped() if not name.endswith((".nbi", ".nbc"))} == wanted
    kinds = {Path(name).suffix for name in wanted}
    assert kinds >= {".py", ".html", ".css", ".js", ".svg", ".csv", ".typed", ".LICENSE"}


def test_the_version_is_semantic_and_the_same_everywhere():
    assert re.fullmatch(r"\d+\.\d+\.\d+(-[0-9A-Za-z.]+)?", tacit.__version__)
    assert f"\nversion: {tacit.__version__}\n" in (ROOT / "CITATION.cff").read_text()
    assert f"## {tacit.__version__}" in (ROOT / "CHANGELOG.md").read_text()


def test_supported_versions_of_python_are_listed():
    listed = {
        line.rpartition(" ")[2]
        for line in PROJECT["project"]["classifiers"]
        if re.search(r":: 3\.\d+$", line)
    }
    assert listed == {"3.11", "3.12", "3.13"}
    assert PROJECT["project"]["requires-python"] == ">=3.11"


def test_every_dependency_has_an_exact_version_for_make():
    pinned = dict(
        line.lower().split("==")
        for line in (ROOT / "constraints.txt").read_text().splitlines()
        if not line.startswith("#")
    )
    extras = [
        name for names in PROJECT["project"]["optional-dependencies"].values() for name in names
    ]
    for wanted in [*PROJECT["project"]["dependencies"], *extras]:
        assert re.match(r"[\w-]+", wanted)[0].lower() in pinned


def test_the_package_runs_as_a_module():
    done = subprocess.run(
        [sys.executable, "-m", "tacit", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout == f"tacit {tacit.__version__}\n"


def test_the_example_plugin_installs_and_its_names_are_there(tmp_path):
    builders = pytest.importorskip("hatchling.builders.wheel")
    example = ROOT / "examples" / "plugin"
    (wheel,) = builders.WheelBuilder(str(example)).build(directory=str(tmp_path / "dist"))
    site = tmp_path / "site"
    with zipfile.ZipFile(wheel) as packed:  # what an installer does with a wheel of plain Python
        packed.extractall(site)
    path = os.pathsep.join([str(site), *filter(None, sys.path)])
    words = [sys.executable, "-m", "tacit"]
    for kind, name in (("protections", "median_noise"), ("attacks", "far")):
        done = subprocess.run(  # noqa: S603
            [*words, "list", kind, "--json"],
            capture_output=True,
            text=True,
            check=True,
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": path},
        )
        assert name in {row["name"] for row in json.loads(done.stdout)[kind]}
