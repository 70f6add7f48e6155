"""Files that declare or unfold to more than they are, or are damaged: refused in one line."""

import json
import os
import struct
import subprocess
import sys
import zipfile

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from tacit.audit.truth import summarise
from tacit.cli import main
from tacit.errors import UsageError
from tacit.tape import TapeWriter, open_tape

LARGE = 1 << 30
ROWS = 64


def header(shape, *, descr="<f4", version=1):
    text = f"{{'descr': {descr!r}, 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    return raw(text, version=version)


def raw(text, *, version=1):
    size = struct.pack("<H" if version == 1 else "<I", len(text))
    return b"\x93NUMPY" + bytes([version, 0]) + size + text


def packed(path, *, method=zipfile.ZIP_DEFLATED, **members):
    """Write an archive of members that are each some bytes, then so many zeros."""
    with zipfile.ZipFile(path, "w", method, compresslevel=1) as archive:
        for name, (start, zeros) in members.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                file.write(start)
                for at in range(0, zeros, 1 << 20):
                    file.write(bytes(min(1 << 20, zeros - at)))
    return path


def npy(path, content):
    path.write_bytes(content)
    return path


def wide_parquet(path):
    """Write one row of very many equal numbers: a few hundred bytes."""
    count = LARGE // 4
    row = pa.ListArray.from_arrays(
        pa.array([0, count], pa.int32()), pa.array(np.zeros(count, "f4"))
    )
    pq.write_table(pa.table({"grads": row}), path, compression="zstd")
    return path


def lying_parquet(path):
    """Write the same with a footer that speaks of few values."""
    content = wide_parquet(path).read_bytes()
    count = varint(2 * (LARGE // 4))
    foot = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    assert count in content[foot:]
    path.write_bytes(content[:foot] + content[foot:].replace(count, varint(200, width=len(count))))
    return path


def varint(value, width=0):
    found = []
    while True:
        value, low = value >> 7, value & 127
        if not value and len(found) + 1 >= width:
            return bytes([*found, low])
        found.append(low | 128)


def long_ids(path):
    ids = pa.DictionaryArray.from_arrays(pa.array(np.zeros(ROWS * 32, "i4")), ["x" * (1 << 20)])
    grads = pa.FixedSizeListArray.from_arrays(pa.array(np.zeros(ROWS * 32 * 4, "f4")), 4)
    pq.write_table(pa.table({"grads": grads, "ids": ids}), path, compression="zstd")
    return path


def packed_tape(path):
    """Write a tape whose batch is compressed, which none is."""
    path.mkdir()
    rows = LARGE // 1024
    batch = pa.RecordBatch.from_pydict(
        {
            "id": pa.array(np.arange(rows)),
            "step": pa.array(np.zeros(rows, "i8")),
            "epoch": pa.array(np.zeros(rows, "i4")),
            "grad": pa.FixedSizeListArray.from_arrays(pa.array(np.zeros(rows * 256, "f4")), 256),
        },
        metadata={"tacit_tape": "1"},
    )
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_stream(str(path / "part-00000.arrows"), batch.schema, options=options) as out:
        out.write_batch(batch, custom_metadata={"sum64": "0"})
    return path


def packed_tensors(path):
    torch.save({"grads": torch.zeros(LARGE // 4)}, path.with_suffix(".whole"))
    with (
        zipfile.ZipFile(path.with_suffix(".whole")) as whole,
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as out,
    ):
        for info in whole.infolist():
            with whole.open(info) as file, out.open(info.filename, "w", force_zip64=True) as to:
                while piece := file.read(1 << 20):
                    to.write(piece)
    path.with_suffix(".whole").unlink()
    return path


def repeated_tensor(path):
    torch.save({"grads": torch.zeros(1).expand(10**6, 10**5)}, path)
    return path


def sparse_tensor(path):
    with torch.sparse.check_sparse_tensor_invariants():
        one = torch.sparse_coo_tensor(
            torch.zeros(2, 1, dtype=torch.int64), torch.ones(1), (10**6,) * 2
        )
    torch.save({"grads": one}, path)
    return path


UNFOLDING = {
    "an archive": (lambda p: packed(p / "x.npz", grads=(header((LARGE // 4,)), LARGE)), "unfold"),
    "a header": (
        lambda p: packed(p / "x.npz", grads=(b"\x93NUMPY\x02\x00\xff\xff\xff\xff", LARGE)),
        "unfold",
    ),
    "a row": (lambda p: wide_parquet(p / "x.parquet"), "unfold"),
    "a row in secret": (lambda p: lying_parquet(p / "x.parquet"), "values, not 100"),
    "ids": (lambda p: long_ids(p / "x.parquet"), "has 1048576 bytes, at most 4096 are read"),
    "a batch": (lambda p: packed_tape(p / "x.tape"), "holds no readable batch"),
    "tensors": (lambda p: packed_tensors(p / "x.pt"), "torch.save does not compress"),
    "a tensor that repeats": (lambda p: repeated_tensor(p / "x.pt"), "declares shape"),
    "a sparse tensor": (lambda p: sparse_tensor(p / "x.pt"), "declares shape"),
}
DECLARED = {
    "terabytes": header((10**12, 8)),
    "more than there is": header((2**62, 8)),
    "a little more": header((ROWS + 1, 8)) + bytes(ROWS * 32),
    "less than nothing": header((-5, 8)) + bytes(64),
    "a vast text": header((1,), descr="<U2000000000"),
    "objects": header((3,), descr="|O") + bytes(24),
    "a long header": b"\x93NUMPY\x02\x00\xff\xff\xff\xff" + bytes(100),
    "parentheses": raw(b"(" * 9000),
    "signs": raw(b"-" * 9000 + b"1"),
    "half a text": raw(b"{'descr': '''\n"),
    "no text": raw(b"\xff" * 40, version=3),
    "nothing": b"",
}


@pytest.fixture
def truth(tmp_path):
    np.save(tmp_path / "truth.npy", np.arange(ROWS) % 2)
    return tmp_path / "truth.npy"


@pytest.fixture
def good(tmp_path):
    np.savez(tmp_path / "good.npz", grads=np.random.default_rng(0).normal(size=(ROWS, 8)))
    return tmp_path / "good.npz"


def refused(capsys, *words):
    assert main(["audit", *map(str, words), "--attacks", "norm", "--json"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert len(err.splitlines()) == 1
    return err


@pytest.mark.parametrize("name", UNFOLDING)
def test_decompression_bombs_are_refused_without_taking_memory(tmp_path, truth, name):
    make, says = UNFOLDING[name]
    place = make(tmp_path)
    if place.is_file():
        assert place.stat().st_size < LARGE // 100
    code = (
        "import resource, sys\n"
        "import tacit.audit.run, tacit.tape.imports\n"
        "from tacit.cli import main\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "code = main(['audit', *sys.argv[1:], '--attacks', 'norm', '--json'])\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)\n"
        "sys.exit(code)\n"
    )
    done = subprocess.run(  # noqa: S603
        [sys.executable, "-c", code, str(place), "--truth", str(truth)],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 2, done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert says in done.stderr
    assert int(done.stdout) * 1024 < LARGE // 4


@pytest.mark.parametrize("name", DECLARED)
def test_arrays_with_false_headers_are_refused(tmp_path, truth, good, capsys, name):
    content = DECLARED[name]
    alone = npy(tmp_path / "x.npy", content)
    assert "not a readable .npy file" in refused(capsys, alone, "--truth", truth)
    assert "not a readable .npy file" in refused(capsys, good, "--truth", alone)
    assert "not a readable .npy file" in refused(
        capsys, good, "--truth", truth, "--features", alone
    )
    inside = packed(tmp_path / "x.npz", grads=(content, 0))
    assert "not a readable .npz file" in refused(capsys, inside, "--truth", truth)


def test_archives_that_numpy_does_not_write_are_refused(tmp_path, truth, capsys):
    good = header((ROWS, 8)) + bytes(ROWS * 32)
    strange = packed(tmp_path / "x.npz", method=zipfile.ZIP_BZIP2, grads=(good, 0))
    assert "packed by method 12" in refused(capsys, strange, "--truth", truth)
    content = bytearray(packed(tmp_path / "x.npz", grads=(good, 0)).read_bytes())
    at = content.rindex(b"PK\x01\x02")
    content[at + 24 : at + 28] = (len(good) - 4).to_bytes(4, "little")  # what it unfolds to
    (tmp_path / "x.npz").write_bytes(content)
    assert "not a readable .npz file" in refused(capsys, tmp_path / "x.npz", "--truth", truth)


def test_members_that_are_not_columns_are_not_read(tmp_path):
    place = packed(
        tmp_path / "x.npz",
        grads=(header((ROWS, 8)) + bytes(ROWS * 32), 0),
        junk=(header((LARGE // 4,)), LARGE),
    )
    assert len(summarise(open_tape(place)).rows) == ROWS


def test_arrays_of_all_types_and_both_orders_are_read_exactly(tmp_path):
    for dtype in ("f2", "f4", "f8", ">f4"):
        for order in "CF":
            grads = np.asarray(np.random.default_rng(0).normal(size=(ROWS, 3)), dtype, order=order)
            for save in (np.savez, np.savez_compressed):
                save(tmp_path / "x.npz", grads=grads, ids=np.array([f"é{n}" for n in range(ROWS)]))
                (view,) = open_tape(tmp_path / "x.npz")
                assert np.array_equal(view.grads.numpy(), grads)


def test_a_deeply_nested_certificate_is_refused(tmp_path, good, truth, capsys):
    (tmp_path / "deep.json").write_text("[" * 200_000)
    said = refused(capsys, good, "--truth", truth, "--certificate", tmp_path / "deep.json")
    assert "not a readable JSON file" in said


def saved(folder):
    """Return a good file of each kind."""
    rng = np.random.default_rng(0)
    grads, ids = rng.normal(size=(ROWS, 4)).astype("f4"), np.array([f"id-{n}" for n in range(ROWS)])
    np.savez(folder / "a.npz", grads=grads, ids=ids)
    np.savez_compressed(folder / "b.npz", grads=grads, step=np.arange(ROWS) // 16)
    np.save(folder / "c.npy", grads)
    pq.write_table(pa.table({"grads": grads.tolist(), "ids": ids}), folder / "d.parquet")
    torch.save({"grads": torch.from_numpy(grads)}, folder / "e.pt")
    with TapeWriter(folder / "f.tape") as tape:
        tape.append(ids, grads)
    return [
        *(folder / name for name in ("a.npz", "b.npz", "c.npy", "d.parquet", "e.pt")),
        folder / "f.tape" / "part-00000.arrows",
    ]


def mutated(content, rng):
    """Return bytes with some changed, left out, repeated or put elsewhere."""
    made = bytearray(content)
    for _ in range(int(rng.integers(1, 6))):
        at, size = int(rng.integers(len(made))), int(rng.integers(1, 9))
        match int(rng.integers(5)):
            case 0:
                made[at] ^= 1 << int(rng.integers(8))
            case 1:
                made[at : at + size] = rng.bytes(size)
            case 2:
                made[at : at + size] = b"\xff" * size
            case 3:
                del made[at : at + size]
            case _:
                made[at:at] = made[at : at + size]
        made = made or bytearray(1)
    return bytes(made)


FUZZ = """
import json, runpy, sys
from pathlib import Path
sys.path[:0] = json.loads(sys.argv[4])
fuzzed = runpy.run_path(sys.argv[5])["fuzzed"]
print(json.dumps(fuzzed(Path(sys.argv[1]), tries=int(sys.argv[2]), seed=int(sys.argv[3]))))
"""


def fuzzed(folder, *, tries, seed):
    """Read mutated files of every kind; return how many were refused and how many read."""
    counts = {"refused": 0, "read": 0, "unprintable": 0}
    rng = np.random.default_rng(seed)
    for place in saved(folder):
        content = place.read_bytes()
        tape = place.parent if place.suffix == ".arrows" else place
        for _ in range(tries):
            place.write_bytes(mutated(content, rng))
            try:
                summarise(open_tape(tape))
                counts["read"] += 1
            except UsageError as error:
                counts["refused" if str(error).isprintable() else "unprintable"] += 1
        place.write_bytes(content)
    return counts


def test_mutated_files_are_refused_or_read(tmp_path):
    """In a process of its own: what ends a process would end this one too."""
    done = subprocess.run(  # noqa: S603
        [sys.executable, "-c", FUZZ, str(tmp_path), "60", "1", json.dumps(sys.path), __file__],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    counts = json.loads(done.stdout.splitlines()[-1])
    assert sum(counts.values()) == 360
    assert counts["refused"] > 100
    assert counts["unprintable"] == 0
