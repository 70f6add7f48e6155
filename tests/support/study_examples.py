"""Every study as plain data: what it runs, what the paper states, and what it reads from records.

The records are made up: each number follows from its name and the trial's configuration alone.
"""

import hashlib
import json
from dataclasses import asdict

from tacit.experiment.sweep_store import TrialRecord
from tacit.papers import studies

OPEN = "ours/beyond"  # its trials come from the registries: whatever is registered joins it
LAYERS = ("layer1", "layer2", "layer3")
CLASSES = ("negatives", "positives")
LOOKED = ("acute", "norm_leak", "cosine_leak", "norm_auc", "cosine_auc", "noise")
LEAKS = (
    "mean",
    "q95",
    "pooled",
    "null_mean",
    "null_q95",
    "signed",
    "signed_q95",
    "null_signed_q95",
)
SHAPES = {"criteo": (1024, 128), "avazu": (32768, 128)}


def dump(*, every=False):
    """Return all studies in their order; with ``every``, the open study and full findings too."""
    return {study.full_name: described(study, every=every) for study in studies()}


def study_text(found):
    """Return the studies as JSON with one field to a line."""
    parts = (
        f"{json.dumps(name)}: {{\n"
        + ",\n".join(f" {json.dumps(key)}: {json.dumps(value)}" for key, value in one.items())
        + "\n}"
        for name, one in found.items()
    )
    return "{\n" + ",\n".join(parts) + "\n}\n"


def described(study, *, every):
    fixed = every or study.full_name != OPEN
    found = {
        "title": study.title,
        "place": study.place,
        "scaled": list(study.scaled),
        "departs": list(study.departs),
        "published": [asdict(one) for one in study.published],
        "alone": study.alone,
    }
    if fixed:
        found["quick"], found["full"] = (plan(study.plan(full)) for full in (False, True))
        found["finding"] = finding(study, full=False)
    if every:
        found["full_finding"] = finding(study, full=True)
    return json.loads(json.dumps(found))


def plan(trials):
    """Return the fields that all trials share, and the others of each."""
    (first, *_) = trials
    shared = {
        key: value for key, value in first.items() if all(t.get(key) == value for t in trials)
    }
    each = [{key: v for key, v in trial.items() if key not in shared} for trial in trials]
    return {"shared": shared, "each": each}


def finding(study, *, full):
    found = study.read([record(trial, study.task) for trial in study.trials(full)])
    return rounded(
        {
            "tables": [
                [t.title, list(t.header), [list(map(str, row)) for row in cells(t.rows)], t.note]
                for t in found.tables
            ],
            "claims": [asdict(claim) for claim in found.claims],
            "figures": [plot.title for plot in found.figures],
            "tradeoffs": [list(pair) for pair in found.tradeoffs],
            "left_out": list(found.left_out),
        }
    )


def cells(rows):
    return [[f"{c:.5g}" if isinstance(c, float) else c for c in row] for row in rows]


def rounded(value):
    if isinstance(value, dict):
        return {key: rounded(part) for key, part in value.items()}
    if isinstance(value, list):
        return [rounded(part) for part in value]
    return round(value, 5) if isinstance(value, float) else value


def record(trial, task):
    config = json.loads(json.dumps({**trial, "data_dir": None}))
    return TrialRecord(
        key=json.dumps(config, sort_keys=True),
        task=task,
        config=config,
        state="done",
        results=results(config),
        error=None,
        run={},
    )


def results(config):
    seed = json.dumps(config, sort_keys=True)

    def number(*words, low=0.5, high=1.0):
        digest = hashlib.sha256("/".join((seed, *map(str, words))).encode()).digest()
        return low + (high - low) * int.from_bytes(digest[:6], "big") / 2**48

    def leak(*words):
        return {kind: number(*words, kind) for kind in LEAKS}

    def measured(*words):
        return {name: number(*words, name) for name in ("auc", "loss", "accuracy", "nce", "ace")}

    def quantiles(*words):
        return {c: sorted(number(*words, c, i) for i in range(5)) for c in CLASSES}

    attacks = config["attacks"]
    batch, width = SHAPES.get(config["dataset"], (128, 1600))
    return {
        "train": {"loss": number("train")},
        "test": measured("test"),
        "leak": {a: leak("leak", a) for a in attacks},
        "layers": {layer: {a: leak(layer, a) for a in attacks} for layer in LAYERS},
        "trace": [
            {
                "step": 10 * (i + 1),
                "loss": number("trace", i),
                "cut": {a: number("trace", i, a) for a in attacks},
                "layers": {n: {a: number("trace", i, n, a) for a in attacks} for n in LAYERS},
            }
            for i in range(12)
        ],
        "history": [
            {
                "part": i,
                "loss": number("history", i),
                "test": measured("history", i) if i else None,
                "leak": {a: leak("history", i, a) for a in attacks},
            }
            for i in range(3)
        ],
        "looks": [
            {
                "step": 100 * (i + 1),
                "epoch": float(i),
                **{n: quantiles(i, n) for n in ("gap", "norm_h", "norm_g", "cosine_g")},
                **{n: number(i, n) for n in LOOKED},
            }
            for i in range(5)
        ],
        "attacks": {
            a: {
                "leak": number("found", a),
                "accuracy": number("found", a, "accuracy"),
                "stopped": False,
                "epochs": [
                    {"epoch": i, "leak": number(a, i), "accuracy": number(a, i, "accuracy")}
                    for i in range(3)
                ],
            }
            for a in attacks
        },
        "train_auc": number("train_auc"),
        "test_auc": number("test_auc"),
        "late": {a: number("late", a) for a in attacks},
        "tvd": number("tvd"),
        "components": {
            "prediction": [number("prediction", i) for i in range(8)],
            "label": [i % 2 for i in range(8)],
            "gradients": {
                part: [number(part, i, low=-1.0) for i in range(8)]
                for part in ("whole", "gan", "penalty")
            },
            "tvd": {part: number("tvd", part) for part in ("whole", "gan", "penalty")},
        },
        "memory_leak": number("memory"),
        "rows_without_noise": {"share": number("bare", low=0.0), "most": 8},
        "batch": batch,
        "width": width,
        "updates": [number("update", i) for i in range(6)],
        "releases": [number("release", i, low=0.01, high=0.05) for i in range(6)],
        "noise": [number("noise", i, low=0.001, high=0.01) for i in range(6)],
        "solver_ms": number("solver"),
    }
