"""Images in each public format, written here byte by byte, and what is refused."""

import csv
import gzip
import io
import struct
import sys

import numpy as np
import pytest
from PIL import Image as Picture

from tacit.cli import main
from tacit.data import Image, Table, check, describe, find, load, split, subset, take
from tacit.errors import InputError

RNG = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def directories(tmp_path, monkeypatch):
    monkeypatch.setenv("TACIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("TACIT_DATA", str(tmp_path))


def put(path, content, *, compressed=True):
    path.parent.mkdir(parents=True, exist_ok=True)
    if compressed:
        path.with_name(path.name + ".gz").write_bytes(gzip.compress(content, 1))
    else:
        path.write_bytes(content)


def idx(array, magic=None):
    magic = magic or {1: 2049, 3: 2051}[array.ndim]
    return struct.pack(f">{1 + array.ndim}I", magic, *array.shape) + array.tobytes()


def write_idx(root, folder="mnist", sizes=(30, 12), **changed):
    parts = {}
    for part, size in zip(("train", "t10k"), sizes, strict=True):
        parts[f"{part}-images-idx3-ubyte"] = RNG.integers(0, 256, (size, 28, 28), dtype=np.uint8)
        parts[f"{part}-labels-idx1-ubyte"] = (np.arange(size) % 10).astype(np.uint8)
    for name, array in parts.items():
        put(root / folder / name, changed.get(name.split("-idx")[0].replace("-", "_"), idx(array)))
    return list(parts.values())


def cifar(labels, *, coarse=None):
    labels = np.asarray(labels, dtype=np.uint8)[:, None]
    heads = labels if coarse is None else np.hstack([np.asarray(coarse, np.uint8)[:, None], labels])
    pixels = RNG.integers(0, 256, (len(labels), 3072), dtype=np.uint8)
    return np.hstack([heads, pixels]).tobytes(), pixels


def write_ham(root, **changed):
    arrays = {
        "image": RNG.integers(0, 256, (80, 32, 32, 3), dtype=np.uint8),
        "melanoma": (np.arange(80) // 2 % 2).astype(np.uint8),
        "image_id": np.array([f"ISIC_{k:07d}" for k in range(80)]),
        "lesion_id": np.array([f"HAM_{k // 2}" for k in range(80)]),
    } | changed
    (root / "ham10000").mkdir(exist_ok=True)
    given = {name: array for name, array in arrays.items() if array is not None}
    np.savez(root / "ham10000" / "ham10000_80.npz", **given)
    return arrays


def write_isic(root, labels, colour=lambda k: (9 * k % 256, 100, 200), size=(120, 90)):
    folder = root / "isic" / "jpeg" / "train"
    folder.mkdir(parents=True)
    with (root / "isic" / "train.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["image_name", "patient_id", "target"])
        for k, label in enumerate(labels):
            rows.writerow([f"ISIC_{k}", "IP_1", label])
            Picture.new("RGB", size, colour(k)).save(folder / f"ISIC_{k}.jpg", quality=95)
    return folder


@pytest.mark.parametrize("name", ["mnist", "fashion_mnist"])
def test_idx_files_plain_or_compressed(tmp_path, name):
    folder = describe(name).places[0].split("/")[0]
    images, labels, test_images, _ = write_idx(tmp_path, folder)
    first = tmp_path / folder / "train-images-idx3-ubyte.gz"
    put(first.with_suffix(""), idx(images), compressed=False)
    first.unlink()
    assert len(find(name)) == 4
    table = load(name)
    assert (len(table), table.classes, table.image.shape) == (42, 10, (1, 28, 28))
    assert table.numeric.dtype == np.uint8
    assert isinstance(table.numeric, np.memmap)
    assert np.array_equal(table.numeric[:30], images.reshape(30, -1))
    assert np.array_equal(table.numeric[30:], test_images.reshape(12, -1))
    assert table.labels[:30].tolist() == labels.tolist()
    assert table.fixed_test.tolist() == [False] * 30 + [True] * 12
    train, test = split(table, seed=0)
    assert (sorted(train), sorted(test)) == (list(range(30)), list(range(30, 42)))
    assert repr(table) == f"Table('{name}', 42 rows, images of 1x28x28, 10 classes)"


def test_a_batch_is_scaled_by_the_statistics_of_each_channel(tmp_path):
    content, pixels = cifar(np.arange(50) % 10)
    put(tmp_path / "cifar-10-batches-bin" / "data_batch_1.bin", content)
    put(tmp_path / "cifar-10-batches-bin" / "test_batch.bin", cifar(np.arange(20) % 10)[0])
    table = load("cifar10")
    everything = table.numeric.reshape(70, 3, 1024) / 255
    mean, spread = everything.mean(axis=(0, 2)), everything.std(axis=(0, 2))
    assert table.image.mean == pytest.approx(mean, abs=1e-9)
    assert table.image.spread == pytest.approx(spread, abs=1e-9)
    rows = np.array([7, 3])
    found = take(table, rows).numeric
    expected = (pixels[rows].reshape(2, 3, 1024) / 255 - mean[:, None]) / spread[:, None]
    assert found.dtype.is_floating_point
    assert np.allclose(found.numpy(), expected.reshape(2, -1), atol=1e-5)
    part = take(subset(table, rows), np.array([1])).numeric
    assert np.array_equal(part[0], found[1])


def test_cifar_takes_the_batches_that_are_here(tmp_path):
    folder = tmp_path / "cifar-10-batches-bin"
    (two, pixels), (test, _) = cifar([3, 9]), cifar([1, 0, 2])
    put(folder / "data_batch_2.bin", two)
    put(folder / "data_batch_2.bin", two, compressed=False)  # the plain copy is not a second batch
    put(folder / "data_batch_5.bin", cifar([4])[0], compressed=False)
    put(folder / "test_batch_first3.bin", test)
    (folder / "batches.meta.txt").write_text("airplane")
    table = load("cifar10")
    assert table.labels.tolist() == [3, 9, 4, 1, 0, 2]
    assert table.fixed_test.tolist() == [False] * 3 + [True] * 3
    assert np.array_equal(table.numeric[:2], pixels)
    assert check("cifar10").published_rows == 60_000


def test_cifar100_by_fine_and_coarse_labels(tmp_path):
    folder = tmp_path / "cifar-100-binary"
    put(folder / "train.bin", cifar([99, 3, 50], coarse=[19, 0, 7])[0], compressed=False)
    put(folder / "test.bin", cifar([1, 2], coarse=[4, 5])[0], compressed=False)
    fine, coarse = load("cifar100"), load("cifar100", coarse=True)
    assert (fine.classes, sorted(fine.labels.tolist())) == (100, [1, 2, 3, 50, 99])
    assert (coarse.classes, sorted(coarse.labels.tolist())) == (20, [0, 4, 5, 7, 19])


def test_no_lesion_is_on_both_sides(tmp_path):
    arrays = write_ham(tmp_path)
    table = load("ham10000")
    assert (len(table), table.image.shape, table.classes) == (80, (3, 84, 84), 2)
    assert table.ids.tolist() == arrays["image_id"].tolist()
    assert table.labels.tolist() == arrays["melanoma"].tolist()
    splits = [split(table, seed=seed) for seed in range(8)]
    for train, test in splits:
        assert len(test) == 16  # a fifth of 40 lesions, two images each
        assert sorted([*train, *test]) == list(range(80))
        assert not set(arrays["lesion_id"][train]) & set(arrays["lesion_id"][test])
    assert len({tuple(sorted(test)) for _, test in splits}) > 1
    few = load("ham10000", rows=60)
    train, test = split(few, seed=0)
    assert not set(few.groups[train]) & set(few.groups[test])


def test_images_are_enlarged_between_their_pixels(tmp_path):
    """A colour stays, and a step from 0 to 252 becomes a ramp, symmetric about its middle."""
    step = np.zeros((80, 32, 32, 3), dtype=np.uint8)
    step[:, :, 16:] = (252, 100, 7)
    write_ham(tmp_path, image=step)
    found = np.array(load("ham10000").numeric[0]).reshape(3, 84, 84).astype(int)
    assert (found[:, :, :40] == 0).all()
    assert (found[:, :, 44:] == np.array([252, 100, 7])[:, None, None]).all()
    assert (np.abs(found[0] + found[0, :, ::-1] - 252) <= 1).all()


def test_isic_keeps_all_positives_and_nine_times_as_many_negatives(tmp_path):
    labels = [int(k % 25 == 3) for k in range(50)]
    write_isic(tmp_path, labels)
    table = load("isic")
    assert (len(table), table.image.shape) == (20, (3, 84, 84))
    numbers = [int(name.removeprefix("ISIC_")) for name in table.ids]
    assert [labels[k] for k in numbers] == table.labels.tolist()
    assert {3, 28} <= set(numbers)
    assert int(table.labels.sum()) == 2
    for row, number in enumerate(numbers):
        image = np.array(table.numeric[row]).reshape(3, -1).astype(int)
        # A constant colour survives JPEG within a few levels, in the right channel.
        wanted = np.array([9 * number % 256, 100, 200])[:, None]
        assert np.abs(image - wanted).max() <= 4
    assert table.test_fraction == 0.2


def test_images_are_read_once_and_read_anew_when_a_file_changes(tmp_path, monkeypatch):
    write_idx(tmp_path)
    before = load("mnist")
    monkeypatch.setattr("tacit.data.images.gzip.open", None)
    assert np.array_equal(load("mnist").numeric, before.numeric)
    monkeypatch.undo()
    monkeypatch.setenv("TACIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("TACIT_DATA", str(tmp_path))
    write_idx(tmp_path, sizes=(40, 12))
    assert len(load("mnist")) == 52


def test_the_commands_know_the_images(tmp_path, capsys):
    write_idx(tmp_path)
    assert main(["data", "check", "mnist"]) == 0
    assert "42 rows, positives 10 classes, images of 1x28x28" in capsys.readouterr().out
    assert main(["data", "describe", "isic"]) == 0
    assert "siim-isic-melanoma-classification/train.csv" in capsys.readouterr().out


def test_many_classes_train_from_images(tmp_path, capsys):
    write_idx(tmp_path, sizes=(120, 40))
    words = [
        "--dataset",
        "mnist",
        "--model",
        "mnist_conv(channels=2)",
        "--epochs",
        "1",
        "--batch-size",
        "40",
        "--threads",
        "1",
        "--json",
    ]
    assert main(["train", *words, "--record", "--out", str(tmp_path / "run")]) == 0
    plain = capsys.readouterr().out
    assert '"objective": "ce"' in plain
    assert '"steps": 3' in plain
    assert main(["train", *words, "--augment"]) == 0
    assert '"steps": 3' in capsys.readouterr().out
    for wrong, line in {
        ("--bins", "4"): "--bins 4: mnist has images, not numbers: leave it out",
        ("--parties", "2"): "takes whole images of 1x28x28, party 0 has 392 columns",
        ("--dataset", "digits", "--augment"): "--augment: digits has no images to change",
    }.items():
        assert main(["train", *words, *wrong]) == 2
        err = capsys.readouterr().err
        assert line in err
        assert err.count("\n") == 1


def refused(name, match):
    with pytest.raises(InputError, match=match) as caught:
        load(name)
    assert "\n" not in str(caught.value)


def test_idx_files_that_are_refused(tmp_path):
    images = RNG.integers(0, 256, (30, 28, 28), dtype=np.uint8)
    cases = {
        "begins with the magic number 2051, got 2049": {"train_images": idx(images, 2049)},
        "begins with the magic number 2049, got 1": {"t10k_labels": idx(np.zeros(12, np.uint8), 1)},
        "30 images fill 23520 bytes, got 23000: the file is cut short": {
            "train_images": idx(images)[: 16 + 23_000]
        },
        "the file is too long": {"train_images": idx(images) + b"1"},
        "has 5 bytes, less than its header": {"train_labels": b"\0\0\x08\1\0"},
        "must be 28 x 28, got 8 x 28": {"train_images": idx(images[:, :8])},
        "has 30 images and train-labels-idx1-ubyte.gz 29 labels": {
            "train_labels": idx(np.zeros(29, np.uint8))
        },
        "labels must be 0 to 9 for 10 classes, image 4 has 10": {
            "train_labels": idx(np.where(np.arange(30) == 4, 10, 1).astype(np.uint8))
        },
    }
    for match, changed in cases.items():
        write_idx(tmp_path, **changed)
        refused("mnist", match)
    write_idx(tmp_path)
    path = tmp_path / "mnist" / "train-images-idx3-ubyte.gz"
    path.write_bytes(path.read_bytes()[:2000])
    refused("mnist", "cannot be read .*: get it again")
    path.unlink()
    refused("mnist", "there is no train-images in .*: put it beside t10k-images")
    huge = struct.pack(">4I", 2051, 2**31, 2**31, 2**31)
    write_idx(tmp_path, train_images=huge)
    refused("mnist", "get it again")


def test_cifar_files_that_are_refused(tmp_path):
    folder = tmp_path / "cifar-10-batches-bin"
    good = cifar([1, 2])[0]
    put(folder / "data_batch_1.bin", good)
    refused("cifar10", "there is no test file in .*: put it beside data_batch_1.bin.gz")
    put(folder / "test_batch.bin", good[:-1])
    refused("cifar10", "records have 3073 bytes, got 6145 bytes, 3072 too many")
    put(folder / "test_batch.bin", b"")
    refused("cifar10", "records have 3073 bytes, got 0 bytes")
    put(folder / "test_batch.bin", cifar([0, 10])[0])
    refused("cifar10", "labels must be 0 to 9 for 10 classes, image 1 has 10")
    put(tmp_path / "cifar-100-binary" / "train.bin", cifar([100], coarse=[0])[0])
    refused("cifar100", "there is no test file")
    put(tmp_path / "cifar-100-binary" / "test.bin", cifar([1], coarse=[0])[0])
    refused("cifar100", "0 to 99 for 100 classes, image 0 has 100")


def test_npz_files_that_are_refused(tmp_path):
    write_ham(tmp_path, lesion_id=None)
    refused("ham10000", "needs arrays image, melanoma, image_id, lesion_id without objects")
    write_ham(tmp_path, lesion_id=np.array([None] * 80, dtype=object))
    refused("ham10000", "without objects")
    write_ham(tmp_path, image=np.zeros((40, 32, 32), np.uint8))
    refused("ham10000", r"must be bytes \[rows, height, width, 3\], got uint8 \(40, 32, 32\)")
    write_ham(tmp_path, melanoma=np.full(80, 2))
    refused("ham10000", "melanoma must be 0 or 1")
    write_ham(tmp_path, melanoma=np.zeros(79, np.uint8))
    refused("ham10000", "all arrays of one length, got 80 images, 79 labels")
    path = tmp_path / "ham10000" / "ham10000_80.npz"
    path.write_bytes(path.read_bytes()[:3000])
    refused("ham10000", "without objects")


def test_jpeg_folders_that_are_refused(tmp_path, monkeypatch):
    folder = write_isic(tmp_path, [1, 0, 0])
    table = folder.parents[1] / "train.csv"
    text = table.read_text()
    for wrong, match in {
        text.replace("target", "label"): "line 1: columns image_name and target are needed",
        text.replace("IP_1,1", "IP_1,malignant"): "line 2: image_name must be a name and target",
        text.replace("IP_1,1", "IP_1,0"): r"target must have both classes, got \[0\]",
    }.items():
        table.write_text(wrong)
        refused("isic", match)
    table.write_text(text)
    whole = (folder / "ISIC_1.jpg").read_bytes()
    (folder / "ISIC_1.jpg").write_bytes(whole[: len(whole) // 2])
    refused("isic", r"ISIC_1.jpg cannot be decoded .*: get it again")
    (folder / "ISIC_1.jpg").unlink()
    refused("isic", r"ISIC_1.jpg does not exist: get the image that the table names")
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "PIL", None)
        refused("isic", r"no JPEG support is installed.*pip install 'tacit\[images\]'")
    with monkeypatch.context() as patch:
        patch.setattr("PIL.features.check", lambda kind: kind != "jpg")
        refused("isic", "no JPEG support is installed")
    for path in folder.iterdir():
        path.unlink()
    refused("isic", "there are no .jpg images beside .*: put them in .*jpeg/train")


def test_missing_files_say_where_to_get_and_put_them(tmp_path):
    refused(
        "ham10000", r"get them from https://doi.org/.* put them there as ham10000/ham10000\*.npz"
    )


def test_a_form_that_does_not_fit_its_table_is_refused():
    with pytest.raises(InputError, match="for each of its 3 channels, got 1 and 3"):
        Image((3, 2, 2), (0.5,), (1.0,) * 3)
    labels = np.array([0, 1])
    with pytest.raises(InputError, match="images of 1x2x2 have 4 pixels, t has 5 columns"):
        Table(
            name="t",
            numeric=np.zeros((2, 5), np.uint8),
            categorical=np.zeros((2, 0), np.int32),
            cardinalities=(),
            labels=labels,
            ids=labels,
            day=None,
            numeric_names=tuple("abcde"),
            categorical_names=(),
            test_fraction=0.5,
            fixed_test=None,
            classes=2,
            image=Image((1, 2, 2), (0.0,), (1.0,)),
        )


def test_a_constant_channel_becomes_zero():
    form = Image((2, 1, 2), (0.2, 0.5), (0.0, 0.5))
    block = np.array([[51, 51, 0, 255]], dtype=np.uint8)
    assert np.allclose(form.normalise(block), [[0, 0, -1, 1]], atol=1e-6)


def test_image_decoding_holds_no_file_open(tmp_path):
    """The bytes of a picture decide, not its name: a PNG named .jpg decodes as what it is."""
    folder = write_isic(tmp_path, [1, 0])
    stream = io.BytesIO()
    Picture.new("L", (10, 10), 77).save(stream, "PNG")
    (folder / "ISIC_1.jpg").write_bytes(stream.getvalue())
    table = load("isic")
    assert (np.array(table.numeric[1]) == 77).all()
