"""What workers do with the configurations of the studies, beyond a plain training.

``follow_leaks`` follows leakage window by window, ``observe_batches`` looks into single batches,
``audit_briefly`` and ``audit_fully`` attack the tape of a training as an auditor does.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from tacit import attack
from tacit.attack import Exploit
from tacit.audit import run_audit
from tacit.errors import UsageError
from tacit.experiment.config import TrainConfig
from tacit.experiment.run import Experiment, run
from tacit.measure import PooledLeak, auc, leak_auc, pooled_leak
from tacit.monitor import LeakMonitor
from tacit.papers.trial_file import TrialFile
from tacit.training import FeatureEnd, predict, train
from tacit.training.cut import Embedding, Gradient
from tacit.training.metrics import leak_records, mean

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
_WINDOWS = 40
_BATCHES = 10  # a window has at least so many: below that, intervals cost more than training
_OBSERVATIONS = 5
_PAIRS = 20_000
_BRIEF, _FULL = 60.0, 10_000 * 3600.0  # seconds for each attack


def follow_leaks(config: TrainConfig) -> dict[str, Any]:
    """Train; return the leak AUC at the cut and at every layer for each window of steps.

    ``trace`` holds ``step``, ``loss``, ``cut`` and ``layers`` with the leak AUC of the window's
    batches, with its sign, as the papers' figures of a training's progress draw it.
    """
    trial = Experiment(config)
    window = max(-(-trial.steps // _WINDOWS), _BATCHES * config.monitor_every)
    losses: list[float] = []
    trace: list[dict[str, Any]] = []
    for part in trial.schedule.parts(first=0):
        rows = trial.reader.batches(part.batches)
        for done in train(rows, features=trial.ends, label=trial.label, first=len(losses)):
            losses.append(done.loss)
            if len(losses) % window == 0 or len(losses) == trial.steps:
                trace.append(_window(trial, losses[-window:], step=len(losses)))
    return {
        "steps": len(losses),
        "train": {"loss": mean(losses[-window:])},
        "test": trial.score(trial.test_rows),
        "leak": leak_records(trial.measures.report()),
        "layers": {n: leak_records(m.report()) for n, m in _layers(trial).items()},
        "trace": [found for found in trace if found["cut"]],
    }


def _layers(trial: Experiment) -> dict[str, LeakMonitor]:
    return {name: m for layer in trial.layers for name, m in layer.monitors.items()}


def _window(trial: Experiment, losses: list[float], *, step: int) -> dict[str, Any]:
    return {
        "step": step,
        "loss": mean(losses),
        "cut": _signed(trial.measures.recent()),
        "layers": {name: _signed(monitor.recent()) for name, monitor in _layers(trial).items()},
    }


def _signed(found: Mapping[str, PooledLeak]) -> dict[str, float]:
    return {name: leak.signed for name, leak in found.items()}


@final
class _Recording(FeatureEnd):
    """A feature party that keeps the gradient it was last sent."""

    def __init__(self, party: FeatureEnd) -> None:
        self._party = party
        self.gradient = torch.zeros(0)

    def forward(self, step: int, rows: Tensor) -> Embedding:
        """Pass the request on."""
        return self._party.forward(step, rows)

    def backward(self, gradient: Gradient) -> None:
        """Keep the gradient and pass it on."""
        self.gradient = gradient.values.detach().clone()
        self._party.backward(gradient)

    def embed(self, rows: Tensor) -> Tensor:
        """Pass the request on."""
        return self._party.embed(rows)


def observe_batches(config: TrainConfig) -> dict[str, Any]:
    """Return what a batch shows after ``monitor_every`` steps, after twice as many, and so on.

    Per class: confidence gap ``|p - y|``, ``|dh/dz|`` and ``|g|``, and cosines between gradients,
    all as quantiles; the leak AUC of norm and cosine without a sign (``norm_leak``) and with it
    (``norm_auc``), and what noise alone gives the former. It ends after five batches.
    """
    trial = Experiment(config)
    if trial.steps <= _OBSERVATIONS * config.monitor_every:
        raise UsageError(
            f"monitor_every = {config.monitor_every}: five looks need more than "
            f"{_OBSERVATIONS * config.monitor_every} steps, there are {trial.steps}: give more "
            "epochs"
        )
    feature = _Recording(trial.features[0])
    looks: list[dict[str, Any]] = []
    step, rng = 0, np.random.default_rng(config.seed)
    for part in trial.schedule.parts(first=0):
        for rows in trial.reader.batches(part.batches):
            due = step and step % config.monitor_every == 0
            probs = predict(rows, features=[feature], label=trial.label) if due else None
            for _ in train([rows], features=[feature], label=trial.label, first=step):
                step += 1
            if probs is not None:
                truth = np.asarray(trial.table.labels)[rows.numpy()]
                looks.append(
                    {
                        "step": step - 1,
                        "epoch": (step - 1) / len(part.batches),
                        **_observed(feature.gradient, probs, truth, rng),
                    }
                )
            if len(looks) == _OBSERVATIONS:
                return {"looks": looks}
    raise UsageError("the training ended before the fifth look")


def _observed(
    gradient: Tensor,
    probs: Tensor,
    truth: Any,  # noqa: ANN401 - an array
    rng: np.random.Generator,
) -> dict[str, Any]:
    g = gradient.flatten(1).double().numpy() * len(truth)  # of one example's loss
    signed = probs.double().numpy() - truth
    norms, gap = np.linalg.norm(g, axis=1), np.abs(signed)
    unit = g / np.maximum(norms, 1e-300)[:, None]
    of_h = unit * np.sign(signed)[:, None]
    pairs = rng.integers(len(g), size=(2, _PAIRS))
    cosines = (of_h[pairs[0]] * of_h[pairs[1]]).sum(axis=1)
    positives = np.flatnonzero(truth == 1)
    known = rng.choice(positives) if len(positives) else 0
    angle = unit @ unit[known]
    both = 0 < len(positives) < len(truth)
    return {
        "gap": _by_class(gap, truth),
        "norm_h": _by_class(norms / np.maximum(gap, 1e-12), truth),
        "norm_g": _by_class(norms, truth),
        "cosine_h": _quantiles(cosines),
        "acute": float((cosines > 0).mean()),
        "cosine_g": _by_class(angle, truth),
        "norm_leak": leak_auc(norms, truth) if both else None,
        "cosine_leak": leak_auc(angle, truth) if both else None,
        "norm_auc": auc(norms, truth) if both else None,
        "cosine_auc": auc(angle, truth) if both else None,
        "noise": _floor(norms, truth) if both else None,
    }


def _floor(scores: Any, truth: Any) -> float:  # noqa: ANN401 - arrays
    return pooled_leak([(scores, truth)], rng=np.random.default_rng(0)).null_mean


def _by_class(values: Any, truth: Any) -> dict[str, list[float] | None]:  # noqa: ANN401 - arrays
    return {
        name: _quantiles(values[truth == label])
        for name, label in (("negatives", 0), ("positives", 1))
    }


def _quantiles(values: Any) -> list[float] | None:  # noqa: ANN401 - an array
    return np.quantile(values, QUANTILES).tolist() if len(values) else None


def audit_briefly(config: TrainConfig) -> dict[str, Any]:
    """Give each attack a minute: one that needs longer is judged by what it had found."""
    return _audit(config, seconds=_BRIEF)


def audit_fully(config: TrainConfig, folder: Path | None = None) -> dict[str, Any]:
    """Give each attack all the time that its settings ask for.

    The losses of ``exploit``'s trials are kept in the folder: where the audit was interrupted, the
    model is trained again and the trials go on.
    """
    return _audit(config, seconds=_FULL, folder=folder)


def _audit(config: TrainConfig, *, seconds: float, folder: Path | None = None) -> dict[str, Any]:
    """Train with a tape; return the results and what each of the configuration's attacks found.

    The attacks read the tape of the first feature party, after training and not during it.
    """
    attacks = [attack.get(spec) for spec in config.attacks]
    if folder is not None:
        log = TrialFile(folder / "trials.txt")
        attacks = [a.resumable(log) if isinstance(a, Exploit) else a for a in attacks]
    with tempfile.TemporaryDirectory() as place:
        trial, results = run(config.model_copy(update={"attacks": ()}), record=Path(place))
        labels = torch.from_numpy(np.array(trial.table.labels))
        tape = Path(place) / "feature_party_0.tape"
        found = run_audit(tape, labels, attacks, seconds=seconds).record
    share = found["truth"]["positives"]
    counts = torch.bincount(labels.long())
    return {
        "test": results["test"],
        "train": results["train"],
        "largest_class": float(counts.max() / counts.sum()),
        "history": [{"part": p["part"], "test": p["test"]} for p in results["history"]],
        "attacks": {row["attack"]: _attack_record(row, found, share) for row in found["table"]},
        "baseline": found["baseline"],
        "skipped": found["skipped"],
    }


def _attack_record(
    row: Mapping[str, Any], found: Mapping[str, Any], share: float
) -> dict[str, Any]:
    name = row["attack"]
    accuracy = row["clustering_accuracy"]
    curve = found["curves"].get(name)
    if accuracy is None and curve is not None:
        accuracy = best_accuracy(curve, share)
    return {
        "leak": row["leak_auc"],
        "accuracy": accuracy,
        "stopped": "stopped" in str(row["verdict"]),
        "epochs": [
            {"epoch": e["epoch"], "leak": e["leak_auc"], "accuracy": e.get("clustering_accuracy")}
            for e in found["epochs"].get(name, [])
        ],
    }


def best_accuracy(curve: Mapping[str, Any], share: float) -> float:
    """Return the accuracy at the best threshold of a ROC curve, for a share of positives.

    >>> round(best_accuracy({"fpr": [0, 0.1, 1], "tpr": [0, 0.8, 1]}, 0.5), 3)
    0.85
    """
    fpr, tpr = (np.asarray(curve[name]) for name in ("fpr", "tpr"))
    return float(np.max(share * tpr + (1 - share) * (1 - fpr)))
