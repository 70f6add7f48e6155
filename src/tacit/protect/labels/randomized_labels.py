"""A tensor of randomised labels that keeps the ids of their examples."""

from __future__ import annotations

from typing import Any, final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tacit.protect.labels.mechanisms import LabelMechanism

Ints = npt.NDArray[np.int64]


@final
class RandomizedLabels(Tensor):
    """Randomised labels as a tensor that keeps the ids of their examples.

    Its values are what the mechanism made of the labels. ``hard`` is one class per example,
    ``targets`` what the loss takes (computed when asked for), ``numbers`` the ids. Picking rows
    keeps all of it; whatever else is computed from it is an ordinary tensor.
    """

    numbers: Ints
    _mechanism: LabelMechanism
    _classes: int

    # Results of arithmetic are ordinary tensors: they are not labels of these examples any more.
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def of(
        cls, values: Tensor, *, numbers: Ints, mechanism: LabelMechanism, classes: int
    ) -> RandomizedLabels:
        """Return the tensor with its examples and its mechanism."""
        made = values.as_subclass(cls)
        made.numbers, made._mechanism, made._classes = numbers, mechanism, classes
        return made

    @property
    def plain(self) -> Tensor:
        """The same values as an ordinary tensor."""
        return self.as_subclass(Tensor)

    @property
    def hard(self) -> Tensor:
        """One class per example, for class statistics."""
        return self._mechanism.hard(self.plain)

    @property
    def targets(self) -> Tensor:
        """What the loss takes: classes, or soft targets that may leave [0, 1]."""
        return self._mechanism.targets(self.plain, classes=self._classes)

    def __getitem__(self, rows: Any) -> Tensor:  # noqa: ANN401 - whatever tensors take
        picked = self.plain[rows]
        if isinstance(rows, tuple) or picked.dim() < self.dim():
            return picked
        places = rows.cpu().numpy() if isinstance(rows, Tensor) else rows
        return RandomizedLabels.of(
            picked, numbers=self.numbers[places], mechanism=self._mechanism, classes=self._classes
        )
