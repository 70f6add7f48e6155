"""Tables that need no files: two of scikit-learn and the toy example of the Marvell paper."""

from __future__ import annotations

import numpy as np

from tacit.data.build import Scale, Scaler
from tacit.data.draws import Array, uniforms
from tacit.data.tables import Table
from tacit.errors import InputError


def breast_cancer() -> Table:
    """Return the Wisconsin diagnostic data: 569 tumours, 30 numbers, label 1 is malignant.

    scikit-learn gives 1 to the benign ones; here 1 is the rare and sensitive class. Features are
    standardised with the mean and variance of all rows.
    """
    from sklearn.datasets import load_breast_cancer  # noqa: PLC0415 - slow to import

    bunch = load_breast_cancer()
    names = tuple(str(name).replace(" ", "_") for name in bunch.feature_names)
    return _numbers("breast_cancer", bunch.data, 1 - bunch.target, names, scale="standard")


def digits() -> Table:
    """Return 1,797 handwritten digits of 8 x 8 pixels, 10 classes, pixels in [0, 1]."""
    from sklearn.datasets import load_digits  # noqa: PLC0415 - slow to import

    bunch = load_digits()
    names = tuple(str(name) for name in bunch.feature_names)
    return _numbers("digits", bunch.data / 16.0, bunch.target, names, scale="none")


def toy_balanced(*, rows: int = 10_000, seed: int = 0) -> Table:
    """Return one number: positives lie in [0, 1], nine of ten negatives in [1, 2].

    Half of the rows are positive. The best score is ``P(y = 1 | x)``, 10/11 below 1 and 0 above,
    so the Bayes AUC is ``0.9 + 0.1 / 2 = 0.95``: one negative of ten ties with every positive.

    References: Marvell (ICLR 2022), A.2.

    >>> table = toy_balanced(rows=1000)
    >>> bool((table.numeric[table.labels == 1] <= 1).all())
    True
    """
    if rows < 2:
        raise InputError(f"toy_balanced has at least 2 rows, got {rows}")
    place, label, side = uniforms(3 * rows, "toy_balanced", seed).reshape(3, rows)
    labels = (label < 0.5).astype(np.int64)
    values = place + ((labels == 0) & (side < 0.9))
    return _numbers("toy_balanced", values[:, None], labels, ("x",), scale="none")


def _numbers(
    name: str, values: Array, labels: Array, names: tuple[str, ...], *, scale: Scale
) -> Table:
    scaler = Scaler(scale, values.shape[1])
    scaler.update(values)
    return Table(
        name=name,
        numeric=scaler.apply(values),
        categorical=np.zeros((len(labels), 0), dtype=np.int32),
        cardinalities=(),
        labels=np.asarray(labels, dtype=np.int64),
        ids=np.arange(len(labels), dtype=np.int64),
        day=None,
        numeric_names=names,
        categorical_names=(),
        test_fraction=0.3,
        fixed_test=None,
        classes=int(labels.max()) + 1,
    )
