"""Which examples an audit shows with their recovered labels, and the pictures on the page."""

import base64
import io
import re
import zlib

import numpy as np
import pytest
from PIL import Image

from tacit.audit import Images, run_audit
from tacit.audit.gallery import RecoveredLabels
from tacit.data import describe, load, load_pictures, names
from tacit.errors import InputError, UsageError
from tacit.measure import clustering_accuracy, clustering_confusion, clustering_names
from tacit.report.png import png, thumbnail
from tacit.tape import ColumnTape

CLASSES, ROWS = 4, 400
RNG = np.random.default_rng(0)
LABELS = RNG.integers(0, CLASSES, ROWS)
PIXELS = RNG.integers(0, 256, (ROWS, 3, 9, 7), dtype=np.uint8)
TEXTS = np.array([f"<patient {i}>" for i in range(ROWS)])


def decoded(content):
    """Return a PNG file as [channels, height, width], read by another program."""
    found = np.asarray(Image.open(io.BytesIO(content)))
    return found[None] if found.ndim == 2 else found.transpose(2, 0, 1)


def tape(*, noise=0.1, ids=None, seed=1):
    """Gradients of a class lie about a direction of its own."""
    rng = np.random.default_rng(seed)
    grads = np.eye(CLASSES)[LABELS] + noise * rng.normal(size=(ROWS, CLASSES))
    return ColumnTape.of({"grads": grads, **({} if ids is None else {"ids": ids})})


def audited(recording, images, **more):
    return run_audit(recording, LABELS, ["kmeans(by=direction)"], images=images, **more)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("kind", ["noise", "slope"])
def test_a_png_holds_exactly_its_pixels(channels, kind):
    slope = np.arange(13)[:, None] * 16 + np.arange(10)
    made = {
        "noise": RNG.integers(0, 256, (channels, 13, 10), dtype=np.uint8),
        "slope": np.stack([slope + c for c in range(channels)]).astype(np.uint8),
    }
    assert np.array_equal(decoded(png(made[kind])), made[kind])


def test_both_ways_to_store_a_picture_are_used():
    def way(pixels):
        content = png(pixels)
        at = content.index(b"IDAT")
        return zlib.decompress(content[at + 4 : at + 4 + int.from_bytes(content[at - 4 : at])])[0]

    start = RNG.integers(0, 256, (1, 1, 40), dtype=np.uint8)
    rise = np.arange(40, dtype=np.uint8)[None, :, None]
    assert way(start + rise) == 2  # every line is the one above and one more
    assert (
        way(RNG.permutation(np.repeat(np.arange(2, dtype=np.uint8), 800)).reshape(1, 40, 40)) == 0
    )


def test_large_pictures_shrink_to_the_means_of_squares():
    pixels = RNG.integers(0, 256, (3, 84, 85), dtype=np.uint8)
    small = thumbnail(pixels)
    assert small.shape == (3, 42, 42)
    assert small[1, 5, 7] == round(float(pixels[1, 10:12, 14:16].mean()))
    assert np.array_equal(thumbnail(PIXELS[0]), PIXELS[0])


@pytest.mark.parametrize("wrong", [PIXELS[0] / 255, PIXELS[0, :2], PIXELS[0, 0]])
def test_arrays_that_are_not_pictures_are_refused(wrong):
    with pytest.raises(InputError, match="a picture is bytes"):
        png(wrong)


def test_names_of_groups_agree_with_accuracy_and_confusion():
    groups = np.where(RNG.random(ROWS) < 0.7, LABELS, RNG.integers(0, 6, ROWS)) * 3 - 2
    found = clustering_names(groups, LABELS)
    assert float((found == LABELS).mean()) == clustering_accuracy(groups, LABELS) < 1
    table = clustering_confusion(groups, LABELS)
    assert table.shape == (CLASSES, CLASSES + 1)
    counted = [
        [int(((c == LABELS) & (k == found)).sum()) for k in (*range(CLASSES), -1)]
        for c in range(CLASSES)
    ]
    assert table.tolist() == counted


@pytest.mark.parametrize(("wrong", "more"), [(0, 0), (3, 0), (40, 12), (400, 0)])
def test_more_wrong_examples_are_shown_where_few_were_drawn(wrong, more):
    ids = np.arange(1000, 1400)[::-1]
    found = np.where(np.arange(ROWS) < wrong, (LABELS + 1) % CLASSES, LABELS)
    each = RecoveredLabels(ids, LABELS, found)
    drawn, extra = each.drawn(np.random.default_rng(0))
    assert len(set(drawn.tolist())) == 24
    assert len(extra) == more or wrong == 3
    assert not set(drawn.tolist()) & set(extra.tolist())
    assert (found[extra] != LABELS[extra]).all()
    assert (np.diff(LABELS[drawn]) >= 0).all()
    if wrong == 3:  # all of them are somewhere
        assert {0, 1, 2} <= {*drawn.tolist(), *extra.tolist()}
    # The draw knows nothing of what is right: another attack on the same examples shows the same.
    other, _ = RecoveredLabels(ids[::-1], LABELS[::-1], LABELS[::-1]).drawn(
        np.random.default_rng(0)
    )
    assert set(ids[::-1][other].tolist()) == set(ids[drawn].tolist())


def test_examples_are_drawn_uniformly():
    """Of 100 wrong in 400, 24 drawn hold 6 on average: 200 draws, five standard errors."""
    each = RecoveredLabels(np.arange(ROWS), LABELS, np.where(np.arange(ROWS) < 100, -1, LABELS))
    hits = [(each.drawn(np.random.default_rng(s))[0] < 100).sum() for s in range(200)]
    spread = np.sqrt(24 * 0.25 * 0.75 * (ROWS - 24) / (ROWS - 1) / 200)
    assert np.mean(hits) == pytest.approx(6, abs=5 * spread)


@pytest.mark.parametrize("ids", [None, TEXTS], ids=["rows", "texts"])
def test_the_page_shows_the_pictures_of_its_examples(tmp_path, ids):
    order = RNG.permutation(ROWS)  # of the pictures, where they have names
    images = Images(pixels=PIXELS, labels=LABELS, class_names=("a", "b", "<c>"), source="mine")
    if ids is not None:
        images = Images(pixels=PIXELS[order], labels=LABELS[order], ids=TEXTS[order])
    result = audited(tape(noise=0.5, ids=ids), images, seed=3)
    (name,) = result.record["pictures"]["attacks"]
    shown = result.record["pictures"]["attacks"][name]
    (row,) = result.table
    assert shown["examples"] == ROWS
    assert 1 - shown["wrong"] / ROWS == pytest.approx(row["clustering_accuracy"])
    assert 0 < shown["wrong"] < ROWS
    rows = shown["drawn"] + shown["more_wrong"]
    assert sum(one["label"] != one["recovered"] for one in shown["drawn"]) < 24
    result.to_html(tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text()
    tiles = re.findall(
        r'<li class="(\w+)"><img src="data:image/png;base64,([^"]*)" alt="([^"]*)"', text
    )
    assert len(tiles) == len(rows)
    for (judged, content, words), one in zip(tiles, rows, strict=True):
        place = int(re.findall(r"\d+", one["id"])[0])
        assert np.array_equal(decoded(base64.b64decode(content)), PIXELS[place])
        assert one["label"] == LABELS[place]
        assert judged == ("right" if one["label"] == one["recovered"] else "wrong")
        assert words.endswith(judged)
    assert text.count("✗ wrong") == sum(one["label"] != one["recovered"] for one in rows)
    assert ("<span>found a</span>" in text) == (ids is None)
    assert "<c>" not in text
    assert "<patient" not in text


def test_an_attack_that_knows_labels_names_classes_itself():
    result = run_audit(tape(noise=0.5), LABELS, ["supervised"], images=Images(pixels=PIXELS))
    shown = result.record["pictures"]["attacks"]["supervised"]
    right = 1 - shown["wrong"] / shown["examples"]
    assert right == pytest.approx(result.table[0]["clustering_accuracy"])
    assert 0.5 < right < 1
    assert all(one["label"] == LABELS[int(one["id"])] for one in shown["drawn"])


def test_two_classes_are_shown_if_clustered_and_not_if_ranked():
    labels = LABELS % 2
    recording = ColumnTape.of({"grads": np.eye(2)[labels] + 0.2 * RNG.normal(size=(ROWS, 2))})
    attacks = ["kmeans(by=direction)", "supervised"]
    result = run_audit(recording, labels, attacks, images=Images(pixels=PIXELS, labels=labels))
    assert list(result.record["pictures"]["attacks"]) == attacks[:1]


def test_an_attack_that_names_no_class_shows_nothing():
    result = run_audit(tape(), LABELS, ["principal"], images=Images(pixels=PIXELS))
    assert result.record["pictures"] is None
    assert not result.pictures


MISFITS = {
    "few": ({"pixels": PIXELS[:10], "source": "some"}, "some has 10 pictures, none for 390 of 400"),
    "labels": (
        {"pixels": PIXELS, "labels": (LABELS + 1) % CLASSES},
        "another label than the labels",
    ),
    "names": ({"pixels": PIXELS, "labels": LABELS}, "none for 400 of 400 ids"),
}


@pytest.mark.parametrize("which", MISFITS)
def test_pictures_that_do_not_fit_are_refused_or_left_out(tmp_path, which):
    given, message = MISFITS[which]
    recording = tape(ids=TEXTS if which == "names" else None)
    with pytest.raises(UsageError, match=message) as caught:
        audited(recording, Images(**given))
    assert "\n" not in str(caught.value)
    result = audited(recording, Images(**given, required=False))
    assert message in result.record["pictures"]["reason"]
    result.to_html(tmp_path / "page.html")
    assert (
        f"No pictures are shown: {result.record['pictures']['reason'][:10]}"
        in (tmp_path / "page.html").read_text()
    )


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"pixels": PIXELS / 255}, "pictures are bytes"),
        ({"pixels": PIXELS[:, 0]}, "pictures are bytes"),
        ({"pixels": PIXELS[:, :2]}, "1 or 3 channels"),
        ({"pixels": PIXELS, "labels": LABELS[:5]}, "has 5 labels for 400 pictures"),
        ({"pixels": PIXELS, "ids": TEXTS[:5]}, "has 5 ids for 400 pictures"),
    ],
)
def test_invalid_images_are_refused(given, message):
    with pytest.raises(UsageError, match=message):
        Images(**given)


def test_the_pictures_of_a_data_set_are_its_rows():
    found, table = load_pictures("digits", rows=200, seed=5), load("digits", rows=200, seed=5)
    assert np.array_equal(found.labels, table.labels)
    assert np.array_equal(np.rint(found.pixels.reshape(200, 64) / 255 * 16) / 16, table.numeric)
    with pytest.raises(InputError, match="credit is no data set of images: take one of digits, mn"):
        load_pictures("credit")
    entries = [describe(name) for name in names() if describe(name).picture]
    assert all(len(entry.class_names) in (0, entry.classes) for entry in entries)
