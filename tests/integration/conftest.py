"""Two parties that are made once for all tests of a file, and copied for each of them."""

import pytest

from peers import fresh_pair, surroundings, undisturbed


@pytest.fixture(scope="module")
def around(tmp_path_factory):
    """Short waits and a cache of its own; files ask for it with ``usefixtures``."""
    with surroundings(tmp_path_factory) as patch:
        yield patch


@pytest.fixture(scope="module")
def fresh(around, tmp_path_factory):
    return fresh_pair(tmp_path_factory.mktemp("fresh") / "pair")


@pytest.fixture(scope="module")
def wanted(fresh, tmp_path_factory):
    return undisturbed(fresh, tmp_path_factory.mktemp("wanted") / "pair")


@pytest.fixture
def pair(fresh, tmp_path):
    return fresh.copy(tmp_path / "pair")
