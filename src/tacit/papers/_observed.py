"""A task: look at one batch at five moments of an unprotected training."""

from __future__ import annotations

from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from tacit.errors import UsageError
from tacit.experiment.config import TrainConfig
from tacit.experiment.run import Experiment
from tacit.measure import leak_auc
from tacit.training import FeatureEnd, predict, train
from tacit.training.cut import Embedding, Gradient

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
_LOOKS = 5
_PAIRS = 20_000


@final
class _Caught(FeatureEnd):
    """A feature party that shows the gradient it was last sent."""

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


def observed(config: TrainConfig) -> dict[str, Any]:
    """Return what a batch shows after ``monitor_every`` steps, after twice as many, and so on.

    Per class: confidence gap ``|p - y|``, ``|dh/dz|`` and ``|g|``, and cosines between gradients,
    all as quantiles; the leak AUC of norm and cosine. It ends after five looks.
    """
    trial = Experiment(config)
    if trial.steps <= _LOOKS * config.monitor_every:
        raise UsageError(
            f"monitor_every = {config.monitor_every}: five looks need more than "
            f"{_LOOKS * config.monitor_every} steps, there are {trial.steps}: give more epochs"
        )
    caught = _Caught(trial.features[0])
    looks: list[dict[str, Any]] = []
    step, rng = 0, np.random.default_rng(config.seed)
    for part in trial.schedule.parts(first=0):
        for rows in trial.reader.batches(part.batches):
            due = step and step % config.monitor_every == 0
            probs = predict(rows, features=[caught], label=trial.label) if due else None
            for _ in train([rows], features=[caught], label=trial.label, first=step):
                step += 1
            if probs is not None:
                truth = np.asarray(trial.table.labels)[rows.numpy()]
                looks.append(
                    {
                        "step": step - 1,
                        "epoch": (step - 1) / len(part.batches),
                        **_look(caught.gradient, probs, truth, rng),
                    }
                )
            if len(looks) == _LOOKS:
                return {"looks": looks}
    raise UsageError("the training ended before the fifth look")


def _look(gradient: Tensor, probs: Tensor, truth: Any, rng: np.random.Generator) -> dict[str, Any]:  # noqa: ANN401
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
    }


def _by_class(values: Any, truth: Any) -> dict[str, list[float] | None]:  # noqa: ANN401 - arrays
    return {
        name: _quantiles(values[truth == label])
        for name, label in (("negatives", 0), ("positives", 1))
    }


def _quantiles(values: Any) -> list[float] | None:  # noqa: ANN401 - an array
    return np.quantile(values, QUANTILES).tolist() if len(values) else None
