"""Pictures in the report of an audit: the commands as an auditor types them, on real digits."""

import base64
import io
import json
import re
import shutil

import numpy as np
import pytest
from PIL import Image

from tacit.cli import main
from tacit.data import find, load

ROWS, SEED = 500, 4
TILE = re.compile(
    r'<img src="data:image/png;base64,([^"]*)" alt="example (\d+): (\d), found as (\d)'
)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Train on a sample, so that the ids are not the rows of the whole data set."""
    place = tmp_path_factory.mktemp("runs") / "digits"
    words = ["train", "--dataset", "digits", "--rows", str(ROWS), "--seed", str(SEED)]
    words += ["--model", "mlp(hidden=16)", "--epochs", "1", "--batch-size", "14", "--lr", "0.01"]
    words += ["--threads", "1", "--record", "--out", str(place), "--json"]
    assert main(words) == 0
    np.save(place / "one.npy", np.ones((ROWS, 1)))  # a baseline that is fitted at once
    return place


def audit(run, *words, attack="kmeans(by=both)"):
    return main(["audit", str(run), "--attack", attack, "--json", *map(str, words)])


def record_of(capsys):
    return json.loads(capsys.readouterr().out)


def test_a_run_on_images_shows_them_with_their_labels(run, tmp_path, capsys):
    page = tmp_path / "page.html"
    capsys.readouterr()
    assert audit(run, "--out", page) == 0
    record, table = record_of(capsys), load("digits", rows=ROWS, seed=SEED)
    (shown,) = record["pictures"]["attacks"].values()
    rows = shown["drawn"] + shown["more_wrong"]
    assert len(shown["drawn"]) == 24
    tiles = TILE.findall(page.read_text())
    assert [tile[1:] for tile in tiles] == [
        (one["id"], str(one["label"]), str(one["recovered"])) for one in rows
    ]
    for content, example, label, _ in tiles:
        pixels = np.asarray(Image.open(io.BytesIO(base64.b64decode(content))))
        assert np.array_equal(
            pixels, np.rint(255 * table.numeric[int(example)].reshape(8, 8)).astype(np.uint8)
        )
        assert int(label) == table.labels[int(example)]
    assert "base64" not in json.dumps(record)
    # A record by itself has no pixels, and says so.
    (tmp_path / "audit.json").write_text(json.dumps(record))
    assert main(["report", str(tmp_path / "audit.json"), "--out", str(page)]) == 0
    assert "No pictures are shown: a record has no pixels" in page.read_text()


def test_naming_the_data_set_or_the_tape_gives_the_same_pictures(run, tmp_path, capsys):
    capsys.readouterr()
    quick = ["--features", run / "one.npy"]
    assert audit(run, "--out", tmp_path / "a.html", *quick) == 0
    implied = record_of(capsys)["pictures"]
    assert audit(run / "feature_party_0.tape", "--images", "digits", *quick) == 0
    assert record_of(capsys)["pictures"] == implied
    assert audit(run, *quick) == 0  # no page, nothing to show
    assert record_of(capsys)["pictures"] is None


def test_a_run_whose_data_are_not_here_is_audited_all_the_same(run, tmp_path, capsys):
    moved = tmp_path / "moved"
    shutil.copytree(run, moved)
    config = moved / "config.toml"
    config.write_text(config.read_text().replace('dataset = "digits"', 'dataset = "mnist"'))
    words = ["--data-dir", tmp_path, "--out", tmp_path / "page.html"]
    words += ["--features", run / "one.npy"]
    capsys.readouterr()
    assert audit(moved, *words) == 0
    record = record_of(capsys)
    assert record["table"][0]["clustering_accuracy"] > 0
    assert f"the files of mnist are not in {tmp_path}" in record["pictures"]["reason"]
    text = (tmp_path / "page.html").read_text()
    assert "No pictures are shown: the files of mnist are not in" in text
    assert "<img" not in text
    assert audit(moved, *words, "--images", "mnist") == 2
    shown = capsys.readouterr().err
    assert shown.startswith("error: --images mnist: the files of mnist are not in")
    assert shown.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--images", "ads"], "--images ads: ads is no data set of images: take one of digits"),
        (["--images", "mnst"], "--images mnst: unknown data set 'mnst': did you mean 'mnist'"),
        (["--images", "digits", "--truth", "other.csv"], "digits has another label than other.csv"),
        (["--images", "digits", "--truth", "far.csv"], "none for 10 of 30 ids"),
    ],
)
def test_mistakes_get_one_line_and_exit_2(run, tmp_path, monkeypatch, capsys, words, message):
    monkeypatch.chdir(tmp_path)
    target = run
    lines = (run / "labels.csv").read_text().split()[1:]
    turned = [f"{i},{(int(y) + 1) % 10}" for i, y in (line.split(",") for line in lines)]
    (tmp_path / "other.csv").write_text("\n".join(["id,label", *turned]))
    attack = "kmeans(by=both)"
    if "far.csv" in words:  # the last 20 digits, and 10 that are not there
        ids = np.arange(1797 - 20, 1797 + 10)
        np.savez("bare.npz", grads=np.random.default_rng(0).normal(size=(30, 3)), ids=ids)
        (tmp_path / "far.csv").write_text("\n".join(["id,label", *(f"{i},{i % 2}" for i in ids)]))
        target, attack = tmp_path / "bare.npz", "kmeans(by=direction)"
    assert audit(target, *words, attack=attack) == 2
    shown = capsys.readouterr()
    assert message in shown.err
    assert shown.err.count("\n") == 1


@pytest.mark.skipif(not find("cifar10"), reason="CIFAR-10 is not here: set TACIT_DATA")
def test_photographs_keep_their_colours_and_names(tmp_path, capsys):
    table = load("cifar10")
    y = np.asarray(table.labels[:300])
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "x.npz", grads=np.eye(10)[y] + 0.4 * rng.normal(size=(300, 10)))
    np.save(tmp_path / "y.npy", y)
    words = ["--truth", tmp_path / "y.npy", "--images", "cifar10", "--out", tmp_path / "p.html"]
    assert audit(tmp_path / "x.npz", *words, attack="kmeans(by=direction)") == 0
    capsys.readouterr()
    text = (tmp_path / "p.html").read_text()
    found = re.findall(r'base64,([^"]*)" alt="example (\d+): (\w+), found', text)
    assert len(found) >= 24
    for content, example, name in found:
        pixels = np.asarray(Image.open(io.BytesIO(base64.b64decode(content))))
        whole = np.asarray(table.numeric[int(example)]).reshape(3, 32, 32).transpose(1, 2, 0)
        assert np.array_equal(pixels, whole)
        names = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship")
        assert name == (*names, "truck")[y[int(example)]]
