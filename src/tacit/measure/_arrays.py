"""Arguments of measures as checked numpy arrays.

Taken are tensors of any float type and any device, numpy arrays and plain sequences. A tensor is
recognised by its ``detach`` method, so nothing here loads torch. What is wrong raises
``InputError`` (content) or ``ParameterError`` (options).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from tacit.errors import InputError, ParameterError

Values = npt.ArrayLike
Floats = npt.NDArray[np.floating[Any]]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

_ROW_SUM_TOLERANCE = 5e-3  # probabilities that were rounded to bfloat16 miss 1 by up to 4e-3


def as_numpy(values: Values, *, name: str) -> npt.NDArray[Any]:
    """Return ``values`` as a numpy array of numbers or booleans, from any device."""
    if type(values) is np.ndarray:
        array = values
    elif hasattr(values, "detach"):
        array = _tensor_to_numpy(values)
    else:
        try:
            array = np.asarray(values)
        except (TypeError, ValueError) as error:
            raise InputError(
                f"{name} must be numbers in a regular shape, got {type(values).__name__} "
                f"({error}); pass a tensor, an array or a flat list"
            ) from None
    if array.dtype.kind not in "fiub":
        raise InputError(f"{name} must be real numbers, got type {array.dtype}; convert them first")
    return array


def _tensor_to_numpy(values: Any) -> npt.NDArray[Any]:  # noqa: ANN401 - any tensor library
    """Bring a tensor to the CPU; numpy has no bfloat16, so short floats become float32."""
    if values.is_floating_point() and values.element_size() < 4:
        values = values.detach().float()
    array: npt.NDArray[Any] = values.numpy(force=True)
    return array


def as_floats(values: Values, *, name: str) -> Floats:
    """Return finite float32 or float64 numbers; float32 stays float32."""
    array = as_numpy(values, name=name)
    if array.dtype.char not in "fd":
        short = array.dtype.kind == "f" and array.dtype.itemsize < 4
        array = array.astype(np.float32 if short else np.float64)
    if not np.isfinite(array).all():
        bad = int(np.count_nonzero(~np.isfinite(array)))
        raise InputError(
            f"{name} must be finite, got {bad} of {array.size} that are NaN or infinite; "
            f"remove those rows or fix what made them"
        )
    return array


def float_vector(values: Values, *, name: str) -> Floats:
    """Return finite floats ``[n]``, at least one."""
    return _require_vector(as_floats(values, name=name), name=name)


def row_matrix(values: Values, *, name: str) -> Floats:
    """Return finite float64 rows ``[n, d]``; trailing dimensions are one row, ``[n]`` is d = 1."""
    array = as_floats(values, name=name)
    if array.ndim == 0 or array.size == 0:
        raise InputError(f"{name} must hold rows, got shape {array.shape}; pass [n] or [n, ...]")
    return array.reshape(array.shape[0], -1).astype(np.float64)


def binary_labels(labels: Values) -> Bools:
    """Return labels ``[n]`` in {0, 1} (numbers or booleans) as a mask of the positives."""
    array = _require_vector(as_numpy(labels, name="labels"), name="labels")
    if array.dtype.kind == "b":
        return array
    mask: Bools = array != 0
    if not (array == mask).all():
        odd = array[array != mask][0]
        raise InputError(
            f"labels must be 0 or 1, got {odd}; map your two classes to 0 and 1, "
            f"or take one class against the rest"
        )
    return mask


def class_labels(labels: Values, *, classes: int) -> Ints:
    """Return labels ``[n]`` as class indices from 0 to ``classes - 1``."""
    array = whole_ids(labels, name="labels")
    low, high = int(array.min()), int(array.max())
    if low < 0 or high >= classes:
        raise InputError(
            f"labels must be from 0 to {classes - 1} for {classes} columns of probabilities, "
            f"got {low if low < 0 else high}; number the classes like the columns"
        )
    return array


def whole_ids(ids: Values, *, name: str) -> Ints:
    """Return whole numbers ``[n]``; floats are taken when they are whole."""
    array = _require_vector(as_numpy(ids, name=name), name=name)
    if array.dtype.kind == "f" and not (np.isfinite(array) & (array == np.round(array))).all():
        raise InputError(f"{name} must be whole numbers, got fractions; pass integer ids")
    return array.astype(np.int64)


def probabilities(probs: Values) -> Floats:
    """Return probabilities ``[n]`` of the positive class as two columns, ``[n, K]`` as they are."""
    array = as_floats(probs, name="probs")
    if array.ndim not in (1, 2) or array.size == 0 or (array.ndim == 2 and array.shape[1] < 2):
        raise InputError(
            f"probs must be [n], or [n, K] with K > 1, got {array.shape}; reshape them"
        )
    low, high = float(array.min()), float(array.max())
    if low < 0 or high > 1:
        worst = low if low < 0 else high
        raise InputError(
            f"probs must lie in [0, 1], got {worst:.6g}; apply sigmoid or softmax to logits first"
        )
    if array.ndim == 1:
        return np.stack([1 - array, array], axis=1)
    sums = array.sum(axis=1, dtype=np.float64)
    worst = float(sums[np.abs(sums - 1).argmax()])
    if abs(worst - 1) > _ROW_SUM_TOLERANCE:
        raise InputError(f"each row of probs must sum to 1, got {worst:.6g}; apply softmax first")
    return array


def require_same_length(first: npt.NDArray[Any], second: npt.NDArray[Any], *, names: str) -> None:
    """Refuse two arrays with different numbers of rows."""
    if len(first) != len(second):
        raise InputError(
            f"{names} must have one entry per example, got {len(first)} and {len(second)}; "
            f"pass matching rows"
        )


def fraction(value: float, *, name: str) -> float:
    """Return ``value`` if it lies in [0, 1]."""
    if not 0 <= value <= 1:
        raise ParameterError(f"{name} must lie in [0, 1], got {value}; pass a fraction")
    return float(value)


def open_fraction(value: float, *, name: str) -> float:
    """Return ``value`` if it lies strictly between 0 and 1."""
    if not 0 < value < 1:
        raise ParameterError(f"{name} must lie between 0 and 1, got {value}; 0.95 is usual")
    return float(value)


def positive_count(value: int, *, name: str) -> int:
    """Return ``value`` if it is a whole number above zero."""
    if isinstance(value, bool) or value != math.floor(value) or value < 1:
        raise ParameterError(f"{name} must be a whole number above 0, got {value}; pass an int")
    return int(value)


def as_generator(rng: np.random.Generator) -> np.random.Generator:
    """Return ``rng`` if it is a numpy generator: randomness is an argument, never a global."""
    if not isinstance(rng, np.random.Generator):
        raise ParameterError(
            f"rng must be a numpy.random.Generator, got {type(rng).__name__}; "
            f"pass numpy.random.default_rng(seed)"
        )
    return rng


def _require_vector(array: npt.NDArray[Any], *, name: str) -> npt.NDArray[Any]:
    if array.ndim != 1 or array.size == 0:
        raise InputError(
            f"{name} must be one number per example, got shape {array.shape}; "
            f"pass a non-empty one-dimensional {name}"
        )
    return array
