import lzma

import numpy as np
import pytest

from tacit.data import assign, load, split
from tacit.errors import InputError

TEXTS = [
    ("train", 1, "Good<br />film, it's GOOD"),
    ("train", 0, '"Bad" film'),
    ("test", 1, "good unseen"),
    ("test", 0, "film; don't"),
]


@pytest.fixture(autouse=True)
def directories(tmp_path, monkeypatch):
    monkeypatch.setenv("TACIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("TACIT_DATA", str(tmp_path))
    (tmp_path / "imdb").mkdir()


def write_csv(root, rows=TEXTS):
    quoted = (
        f'{half},{k},9,{label},"{text.replace(chr(34), chr(34) * 2)}"'
        for k, (half, label, text) in enumerate(rows)
    )
    content = "\n".join(["split,id,rating,label,text", *quoted])
    (root / "imdb" / "imdb_reviews.csv.xz").write_bytes(lzma.compress(content.encode()))


def test_words_of_the_training_half_are_marked(tmp_path):
    write_csv(tmp_path)
    table = load("imdb")
    # good 2 and film 2 (by the alphabet film first), then bad, it's
    assert table.numeric[:, :5].tolist() == [
        [1, 1, 0, 1, 0],
        [1, 0, 1, 0, 0],
        [0, 1, 0, 0, 0],
        [1, 0, 0, 0, 0],
    ]
    assert table.fixed_test.tolist() == [False, False, True, True]
    train, test = split(table, seed=0)
    assert (sorted(train), sorted(test)) == ([0, 1], [2, 3])


def test_gafm_draws_the_halves_by_the_seed_and_deals_the_words_to_three(tmp_path):
    write_csv(
        tmp_path,
        [(half, k % 2, f"film number {k}") for half in ("train", "test") for k in range(20)],
    )
    table = load("imdb_random")
    assert np.array_equal(table.numeric, load("imdb").numeric)
    drawn = {tuple(sorted(split(table, seed=seed)[1])) for seed in range(5)}
    assert {len(test) for test in drawn} == {20}
    assert len(drawn) == 5
    parties = assign(load("imdb_three"), 3)
    assert [len(columns) for columns in parties] == [200, 200, 100]
    assert sorted(at for columns in parties for at in columns.numeric) == list(range(500))
    with pytest.raises(InputError, match="names 3 parties, got 1"):
        assign(load("imdb_three"), 1)


def test_the_published_folder_gives_the_same_table(tmp_path):
    write_csv(tmp_path)
    first = np.array(load("imdb").numeric)
    (tmp_path / "imdb" / "imdb_reviews.csv.xz").unlink()
    for half, label, text in TEXTS:
        folder = tmp_path / "aclImdb" / half / ("pos" if label else "neg")
        folder.mkdir(parents=True)
        (folder / "0_9.txt").write_text(text)
    assert np.array_equal(load("imdb").numeric, first)


def test_the_ready_matrix_comes_first(tmp_path):
    write_csv(tmp_path)
    matrix = np.zeros((6, 500), dtype=np.uint8)
    matrix[:, 3] = 1
    labels = np.arange(6, dtype=np.uint8) % 2
    path = tmp_path / "imdb" / "imdb_bow500.npz"
    np.savez(path, X=matrix, y=labels, is_train=np.arange(6) < 4)
    table = load("imdb")
    assert len(table) == 6
    assert table.numeric[:, 3].tolist() == [1.0] * 6
    assert table.fixed_test.sum() == 2


@pytest.mark.parametrize(
    "arrays",
    [
        {"X": np.zeros((4, 500)), "y": np.arange(4) % 2},
        {"X": np.zeros((4, 9)), "y": np.arange(4) % 2, "is_train": np.ones(4, bool)},
        {"X": np.zeros((4, 500)), "y": np.arange(4), "is_train": np.ones(4, bool)},
        {"X": np.array([{}], dtype=object), "y": np.arange(1), "is_train": np.ones(1, bool)},
    ],
)
def test_other_matrices_and_objects_are_refused(tmp_path, arrays):
    np.savez(tmp_path / "imdb" / "imdb_bow500.npz", **arrays)
    with pytest.raises(InputError, match=r"imdb_bow500.npz needs"):
        load("imdb")


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([("dev", 1, "x")], "line 2: split must be train or test .* got 'dev' and '1'"),
        ([("train", 7, "x")], "line 2: .*got 'train' and '7'"),
        ([], "imdb has no rows"),
    ],
)
def test_wrong_reviews_are_refused(tmp_path, rows, message):
    write_csv(tmp_path, rows)
    with pytest.raises(InputError, match=message):
        load("imdb")


def test_a_damaged_file_and_a_wrong_header_are_refused(tmp_path):
    path = tmp_path / "imdb" / "imdb_reviews.csv.xz"
    path.write_bytes(lzma.compress(b"a,b\n1,2\n"))
    with pytest.raises(InputError, match="line 1: columns split, label, text are needed"):
        load("imdb")
    path.write_bytes(b"nothing of the kind")
    with pytest.raises(InputError, match=r"imdb_reviews.csv.xz cannot be read"):
        load("imdb")
