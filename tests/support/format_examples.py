"""What the files in ``tests/golden`` were made of, and the forms of what the commands write.

Numbers that a processor may round in another way are not compared: the form of a JSON value is the
type at each of its paths, such as ``{"table[].leak_auc": "number"}``.
"""

import io
import json
import os
import re
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch
from safetensors import safe_open
from torch import nn

from parties import Pair, configure
from tacit.cli import main
from tacit.training.cut import RECORD_BYTES, Embedding, Gradient
from tacit.wire.protocol.messages import (
    Evaluate,
    Predict,
    Records,
    Upload,
)

GOLDEN = Path(__file__).parents[1] / "golden"
SECRET = bytes(range(64, 96))
RUN = "golden run"
RECORD = bytes(range(RECORD_BYTES))
PATIENCE = 120.0
ABSENT = object()
NAMES = {
    dict: "object",
    list: "list",
    str: "text",
    bool: "truth",
    int: "whole",
    float: "number",
    type(None): "null",
    object: "absent",
}


# --- wire ---


def values(*shape, dtype=torch.float32):
    """Return numbers that every type holds exactly."""
    return (torch.arange(torch.Size(shape).numel()).reshape(shape) / 4 - 1).to(dtype)


def _train(of):
    return Embedding(step=5, values=of)


def _release(of, record=None):
    return Gradient(step=5, values=of, record=record)


FRAMES = {
    "train, float64": (_train(values(2, 2, dtype=torch.float64)), False),
    "train, bfloat16": (_train(values(2, 2, dtype=torch.bfloat16)), False),
    "train, float16": (_train(values(2, 2, dtype=torch.float16)), False),
    "train, three dimensions": (_train(values(2, 3, 2)), False),
    "train, four dimensions": (_train(values(1, 2, 2, 3)), False),
    "release, float64": (_release(values(3, 1, dtype=torch.float64)), False),
    "release, recorded, four dimensions": (_release(values(1, 2, 2, 1), RECORD), False),
    "release, narrowed": (_release(values(2, 2)), True),
    "release, recorded, narrowed": (_release(values(2, 2), RECORD), True),
    "evaluate, narrowed": (Evaluate(part=2, values=values(2, 2)), True),
    "predict, narrowed": (Predict(part=4, values=values(2, 2)), True),
    "predict, float64, narrowing does nothing": (
        Predict(part=4, values=values(2, 2, dtype=torch.float64)),
        True,
    ),
    "upload, narrowed": (Upload(part=4, values=values(2, 2)), True),
    "upload, codes": (
        Upload(part=5, codes=torch.tensor([[0, 255], [16, 1]], dtype=torch.uint8)),
        True,
    ),
    "upload, bottom": (Upload(part=0, bottom="0123456789abcdef" * 4), False),
    "upload, answer": (Upload(part=6), False),
    "records, two": (
        Records(count=7, values=torch.frombuffer(bytearray(RECORD * 2), dtype=torch.uint8)),
        False,
    ),
}
"""Messages that ``test_frames.py`` has no bytes of, and whether they are narrowed."""


# --- tape ---

LAYERED = [
    (["b", "a"], values(2, 3), {"0": values(2, 2), "2": values(2, 1)}),
    (["a", "ü"], values(2, 3) + 8, {"0": values(2, 2) + 8, "2": values(2, 1) + 8}),
]
"""Steps of a tape with ids of text, layers and no embeddings."""


# --- checkpoint ---

CURSOR = {"epoch": 1, "batch": 2}
STATES = {
    "ledger": (
        {"counts": np.array([3, 0, 2], dtype=np.int64), "sums": np.array([0.5, 0.0, 0.25])},
        {"run": RUN, "epsilon": None, "names": ["a", "ü"]},
    ),
    "guard": ({}, {"step": 3}),
}


def made_model(*, trained):
    """Return a model and its optimiser, new or as they stand in the stored checkpoint."""
    model = nn.Sequential(nn.Linear(3, 2), nn.ReLU(), nn.Linear(2, 1, bias=False))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.125, weight_decay=0.5)
    held = list(model.parameters())
    with torch.no_grad():
        for number, weight in enumerate(held):
            weight.copy_(values(*weight.shape) + number if trained else torch.zeros_like(weight))
    if trained:
        state = {
            number: {
                "step": torch.tensor(3.0),
                "exp_avg": values(*weight.shape) + number + 0.5,
                "exp_avg_sq": values(*weight.shape).square() + number,
            }
            for number, weight in enumerate(held)
        }
        groups = optimizer.state_dict()["param_groups"]
        optimizer.load_state_dict({"state": state, "param_groups": groups})
    return model, optimizer


# --- journal ---


def mark(number):
    """Return 32 bytes that stand for something that came in or went out."""
    return bytes([number]) * 32


def fill(journal):
    """Record four releases, two evaluations, and a release that was allowed again."""
    for step in (0, 1, 2):
        journal.record(step, mark(step), mark(100 + step))
    journal.record_evaluation(2, mark(50), mark(51))
    journal.allow_again(1)
    journal.record(1, mark(11), mark(111))
    journal.record(5, mark(5), mark(105))
    journal.record_evaluation(5, mark(60), mark(61))
    journal.allow_again(5)


# --- what the commands write ---


def form(*found):
    """Return the types at every path of some JSON values, each path once."""
    types = {}

    def walk(path, here):
        types[path] = "|".join(sorted({NAMES[type(value)] for value in here}))
        objects = [value for value in here if isinstance(value, dict)]
        for key in dict.fromkeys(key for value in objects for key in value):
            walk(f"{path}.{key}".lstrip("."), [value.get(key, ABSENT) for value in objects])
        items = [item for value in here if isinstance(value, list) for item in value]
        if items:
            walk(f"{path}[]", items)

    walk("", list(found))
    return types


def packed(types):
    """Return the same, nested, with neighbours of one form under one name: small to store.

    >>> packed({"": "object", "a": "object", "a.x": "text", "a.y": "text"})
    {'': 'object', 'a': {'': 'object', 'x,y': 'text'}}
    """
    parts = {}
    for path, type_ in types.items():
        key, _, rest = path.partition(".")
        parts.setdefault(key, {})[rest] = type_
    own = parts.pop("", {})
    below = {key: packed(part) for key, part in parts.items()}
    return grouped(own | below) if below else own.get("", {})


def unpacked(node, path=""):
    """Undo :func:`packed`."""
    if isinstance(node, str):
        return {path: node}
    types = {}
    for key, part in ungrouped(node).items():
        types |= unpacked(part, f"{path}.{key}".strip("."))
    return types


def grouped(named):
    """Return the values, equal ones once, under all of their names."""
    groups = []
    for name, value in named.items():
        names = next((names for names, held in groups if held == value and names != [""]), None)
        if names is None:
            groups.append(([name], value))
        else:
            names.append(name)
    return {",".join(names): value for names, value in groups}


def ungrouped(groups):
    """Undo :func:`grouped`."""
    return {name: value for names, value in groups.items() for name in names.split(",")}


def write_forms(path, forms):
    """Store forms by name."""
    small = grouped({name: packed(types) for name, types in forms.items()})
    path.write_text(json.dumps(small, indent=1, ensure_ascii=False) + "\n")
    assert read_forms(path) == forms, f"{path}: a name has a comma or a dot"


def read_forms(path):
    """Return what :func:`write_forms` has stored."""
    stored = ungrouped(json.loads(path.read_text()))
    return {name: unpacked(node) for name, node in stored.items()}


def complaints(found, golden):
    """Return what is another form than the stored one, a line for each."""
    lines = [f"{name}: gone" for name in golden.keys() - found.keys()]
    lines += [f"{name}: new" for name in found.keys() - golden.keys()]
    for name in golden.keys() & found.keys():
        lines += [f"{name}: {line}" for line in _differing(found[name], golden[name])]
    return sorted(lines)


def _differing(found, golden):
    lines = [f"{path or 'all'}: gone" for path in golden.keys() - found.keys()]
    lines += [f"{path or 'all'}: new, {found[path]}" for path in found.keys() - golden.keys()]
    for path in golden.keys() & found.keys():
        if not set(found[path].split("|")) <= set(golden[path].split("|")):
            lines.append(f"{path or 'all'}: {found[path]}, was {golden[path]}")
    return lines


def command(*words):
    """Run a command in this process and return the JSON object that it prints."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = main([*map(str, words), "--json"])
    assert code == 0, err.getvalue()
    return json.loads(out.getvalue())


_SMALL = ("train", "--dataset", "ads", "--rows", 1000, "--batch-size", 128, "--threads", 1)
_RECORDED = ("--protect", "marvell(s=4)", "--epochs", 2, "--layers")
TRAININGS = {
    "noise": (*_RECORDED, "--record", "--monitor-every", 4),
    "labels": ("--labels", "rr(epsilon=0.575)", "--budget", "epsilon=0.6", "--epochs", 1),
    "budget": (
        "--protect",
        "marvell(sum_kl=0.05, covariance=full)",
        "--budget",
        "auc=0.7",
        "--epochs",
        1,
        "--parties",
        2,
    ),
    "gafm": (
        "--objective",
        "gafm(delta=0.1)",
        "--model",
        "gafm_net",
        "--epochs",
        1,
        "--hold-out",
        0.2,
    ),
    "silent": ("--protect", "silent", "--pretrain", "svd", "--width", 8, "--epochs", 2),
    "private head": ("--labels", "rr(epsilon=0.575)", "--private-head", "--epochs", 1),
    "beside silence": ("--compare-silent", "--pretrain", "svd", "--width", 8, "--epochs", 1),
}


def training_forms(folder, *, seed=0):
    """Train in each way, audit the recorded run; return the forms of all that is printed."""
    printed = {
        f"train {name}": form(
            command(*_SMALL, *words, "--seed", seed, "--out", folder / f"run-{name}")
        )
        for name, words in TRAININGS.items()
    }
    return printed | {"audit": form(command("audit", folder / "run-noise"))}


def folder_forms(folder):
    """Return the form of every file of a folder; digests in names are left out."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {_plain_name(path.relative_to(folder)): _file_form(path) for path in files}


def _plain_name(path):
    return re.sub("[0-9a-f]{16}", "DIGEST", path.as_posix())


def _file_form(path):
    if path.suffix == ".json":
        found = form(json.loads(path.read_text()))
        # What an optimiser has as settings is torch's, and grows with its versions.
        return {name: types for name, types in found.items() if ".groups[]." not in name}
    if path.suffix == ".jsonl":
        return form(*map(json.loads, path.read_text().splitlines()))
    if path.suffix == ".safetensors":
        with safe_open(path, framework="np") as file:
            slices = {name: file.get_slice(name) for name in sorted(file.keys())}
            return {name: f"{s.get_dtype()} {s.get_shape()}" for name, s in slices.items()}
    if path.suffix == ".arrows":
        with pa.OSFile(str(path)) as file:
            schema = pa.ipc.open_stream(file).schema
        version = {"tacit_tape": schema.metadata[b"tacit_tape"].decode()}
        return {field.name: str(field.type) for field in schema} | version
    if path.suffix == ".npy":
        held = np.load(path, allow_pickle=False)
        return {"": f"{held.dtype.str} with {held.ndim} dimensions"}
    if path.suffix == ".csv":
        return {"": path.read_text().partition("\n")[0]}
    return {"": path.read_text() if path.suffix == ".toml" else "bytes"}


def party_forms(folder):
    """Train with two processes; return the forms of what they print and of their state folders."""
    bank = {
        "protect": "marvell(s=4)",
        "labels": "rr(epsilon=1.0)",
        "write_truth": True,
        "monitor_every": 2,
    }
    pair = Pair(folder, rows=400, epochs=2, batch_size=64, save_every=4, bank=bank)
    configure(pair.platform, record=True)
    printed = _run_parties([pair.bank, pair.platform])
    forms = {}
    for name, found in zip(("bank", "platform"), printed, strict=True):
        state = {f"{name}/{file}": held for file, held in folder_forms(pair.state(name)).items()}
        forms |= {f"{name} printed": form(found)} | state
    return forms


def _run_parties(configs):
    env = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    started = [
        subprocess.Popen(  # noqa: S603
            [sys.executable, "-m", "tacit.cli", "party", str(config), "--json"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=env,
        )
        for config in configs
    ]
    try:
        ended = [
            (*process.communicate(timeout=PATIENCE), process.returncode) for process in started
        ]
    finally:
        for process in started:
            process.kill()
            process.communicate()
    assert [code for _, _, code in ended] == [0] * len(ended), [err for _, err, _ in ended]
    return [json.loads(out) for out, _, _ in ended]


LISTS = ("protections", "labels", "attacks", "models", "objectives", "pretrain", "heads")


def list_forms():
    """Return what each list names, with its parameters, and the form of the rest."""
    found = {kind: command("list", kind) for kind in LISTS}
    specs = {
        f"{kind} by name": {row["name"]: row["spec"] for row in listed[kind]}
        for kind, listed in found.items()
    }
    return {kind: form(listed) for kind, listed in found.items()} | specs


def recommend_forms():
    """Return the forms of recommendations for two classes and for many."""
    words = {"two": (), "many": ("--classes", 10), "proven": ("--proven", "--epochs", 5)}
    return {name: form(command("recommend", *more)) for name, more in words.items()}
