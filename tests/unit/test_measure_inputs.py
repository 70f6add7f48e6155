"""Whatever holds the numbers is welcome; wrong content is refused by rule, value and way out."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import tacit.measure
from tacit.errors import InputError, ParameterError
from tacit.measure import (
    auc,
    best_threshold_accuracy,
    detection_error,
    leak_auc,
    pooled_leak,
    quantile_over_steps,
    top_fraction,
)

SCORES = [0.5, -1.0, 2.0, 0.25]
LABELS = [1, 0, 1, 0]
SCORED: list[Callable[[Any, Any], Any]] = [
    auc,
    leak_auc,
    detection_error,
    best_threshold_accuracy,
    lambda s, y: pooled_leak([(s, y)], rng=np.random.default_rng(0)),
]


@pytest.mark.parametrize(
    "dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64, torch.float8_e5m2]
)
def test_tensors_of_every_float_type(dtype: torch.dtype) -> None:
    scores = torch.tensor(SCORES).to(dtype)
    assert auc(scores, torch.tensor(LABELS)) == 1.0
    assert auc(scores, torch.tensor(LABELS, dtype=torch.bfloat16)) == 1.0


def test_tensors_with_gradients_strides_and_booleans() -> None:
    scores = torch.tensor([[s, 0.0] for s in SCORES], requires_grad=True)[:, 0]
    assert auc(scores, torch.tensor(LABELS).bool()) == 1.0


@pytest.mark.parametrize("dtype", ["?", "i1", "u8", "f2", "f4", "f8", "g"])
def test_arrays_and_lists_of_every_type(dtype: str) -> None:
    assert auc(tuple(SCORES), np.array(LABELS, dtype=dtype)) == 1.0
    assert auc(np.array(LABELS, dtype=dtype), LABELS) == 1.0


@pytest.mark.parametrize("measure", SCORED)
@pytest.mark.parametrize(
    ("scores", "labels", "rule"),
    [
        ([0.1, math.nan], [0, 1], "scores must be finite, got 1 of 2"),
        ([0.1, math.inf], [0, 1], "scores must be finite"),
        ([0.1, 0.2], [0, 2], "labels must be 0 or 1, got 2"),
        ([0.1, 0.2], [-1, 1], "labels must be 0 or 1, got -1"),
        ([0.1, 0.2], [0.0, math.nan], "labels must be 0 or 1, got nan"),
        ([0.1, 0.2, 0.3], [0, 1], "got 3 and 2"),
        ([[0.1], [0.2]], [0, 1], "scores must be one number per example, got shape"),
        ([0.1, 0.2], [[0, 1]], "labels must be one number per example"),
        ([], [], "non-empty"),
        (0.5, 1, "one number per example"),
        (["a", "b"], [0, 1], "real numbers"),
        ([[0.1], [0.2, 0.3]], [0, 1], "regular shape"),
        ([1j, 2j], [0, 1], "real numbers"),
    ],
)
def test_bad_scores_are_refused(
    measure: Callable[[Any, Any], Any], scores: Any, labels: Any, rule: str
) -> None:
    with pytest.raises(InputError, match=rule) as caught:
        measure(scores, labels)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("measure", SCORED[:-1])
@pytest.mark.parametrize("only", [0, 1])
def test_one_class_has_no_auc(measure: Callable[[Any, Any], Any], only: int) -> None:
    with pytest.raises(InputError, match=f"both classes, got only {only}"):
        measure([0.1, 0.2], [only, only])


@pytest.mark.parametrize("bad", [-0.1, 1.1, math.nan])
def test_fractions_out_of_range_are_refused(bad: float) -> None:
    with pytest.raises(ParameterError, match="p must lie in"):
        detection_error(SCORES, LABELS, p=bad)
    with pytest.raises(ParameterError, match="p must lie in"):
        top_fraction(SCORES, bad)
    with pytest.raises(ParameterError, match="q must lie in"):
        quantile_over_steps(SCORES, q=bad)


def test_every_public_name_is_exported() -> None:
    for name in tacit.measure.__all__:
        assert getattr(tacit.measure, name).__doc__
    assert sorted(tacit.measure.__all__) == tacit.measure.__all__


def test_measures_work_without_torch() -> None:
    program = (
        "import sys; import tacit.measure as m; "
        "m.tvd([0, 1], [2, 3]); m.leak_auc([0, 1], [0, 1]); m.sum_kl(0, 1, 0, 2); "
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0  # noqa: S603
