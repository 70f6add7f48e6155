"""What adds up over epochs, watched live: the memory attack at the price of one product a step."""

from __future__ import annotations

import math
from typing import Any, final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tacit.attack.spectral import principal_direction
from tacit.errors import InputError
from tacit.measure import auc, bootstrap_auc, leak_auc
from tacit.measure.intervals import Interval
from tacit.measure.ledger import State
from tacit.rows import on_host
from tacit.spec import require
from tacit.types import Cut, Release

__all__ = ["MemoryMonitor"]

Arrays = dict[str, npt.NDArray[Any]]

_FORMAT = 1
_SMALL = 127  # classes that fit into a byte
_DENSE = 1 << 26  # ids below this are places in an array: half a gigabyte at most


@final
class MemoryMonitor:
    """Adds up the scores of each example over all the releases it is shown.

    The principal direction is found anew in every n-th release only and kept in between, so this
    is ``memory(of=principal)`` with directions that are a few steps old; an audit of a tape runs
    the attack itself. It lives at the label party and changes nothing.

    >>> from tacit import Guard, testing
    >>> from dataclasses import replace
    >>> monitor, cut = MemoryMonitor(), testing.low_rank_cut()
    >>> release = Guard("none", watch=monitor).release(
    ...     replace(cut, ids=torch.arange(len(cut.labels)))
    ... )
    >>> round(monitor.leak(), 2)
    1.0
    """

    def __init__(self, *, every: int = 32) -> None:
        require(every >= 1, "every must be at least 1", every)
        self._every = every
        self._seen = 0
        self._direction: Tensor | None = None
        self._sums = np.zeros(0)
        self._labels = np.zeros(0, dtype=np.int8)
        self._narrow: Tensor | None = None  # the direction in the type of the rows
        self._waiting: list[tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any]]] = []

    def __call__(self, cut: Cut, release: Release) -> None:
        """Score one release; cuts without ids or with very large ones cannot be followed."""
        if cut.ids is None or len(cut.ids) == 0:
            return
        ids = on_host(cut.ids)
        if int(ids.min()) < 0 or int(ids.max()) >= _DENSE:
            return
        rows = release.grads.flatten(1)
        if self._seen % self._every == 0:
            self._add_up()
            self._look(rows)
        self._seen += 1
        assert self._narrow is not None  # noqa: S101 - the first release sets it
        if self._narrow.dtype != rows.dtype or self._narrow.device != rows.device:
            self._narrow = self._narrow.to(rows)
        scores = on_host(torch.mv(rows, self._narrow))
        self._waiting.append((np.array(ids), scores, np.array(on_host(cut.labels))))

    def _add_up(self) -> None:
        """Count the releases that wait; one after the other they find warm code and memory."""
        for ids, found, labels in self._waiting:
            scores = found.astype(np.float64)
            scores -= scores.mean()
            spread = math.sqrt(np.square(scores).mean())
            self._grow(int(ids.max()) + 1)
            if self._labels.itemsize == 1 and labels.max() > _SMALL:
                self._labels = self._labels.astype(np.int32)
            self._labels[ids] = labels
            if 0 < spread < math.inf:
                np.add.at(self._sums, ids, scores / spread)
        self._waiting.clear()

    def leak(self) -> float | None:
        """Return the leak AUC of the sums, or None before two classes were seen."""
        self._add_up()
        known = self._labels >= 0
        labels = self._labels[known]
        both = len(labels) > 0 and labels.min() < labels.max()
        return leak_auc(self._sums[known], labels) if both else None

    def interval(self) -> Interval | None:
        """Return the 95% bootstrap interval of the leak AUC, None but for two classes."""
        self._add_up()
        known = self._labels >= 0
        labels, sums = self._labels[known], self._sums[known]
        if len(labels) == 0 or (labels.min(), labels.max()) != (0, 1):
            return None
        low, high = bootstrap_auc(sums, labels, rng=np.random.default_rng(0), resamples=200)
        return Interval(1 - high, 1 - low) if auc(sums, labels) < 0.5 else Interval(low, high)

    def to_state(self) -> State:
        """Return a copy of everything as a checkpoint takes it.

        The labels of all examples are in it as they were shown: it stays with the label party.
        """
        self._add_up()
        arrays: Arrays = {"sums": self._sums.copy(), "labels": self._labels.copy()}
        if self._direction is not None:
            arrays["direction"] = np.array(on_host(self._direction))
        return arrays, {"format": _FORMAT, "seen": self._seen}

    def load_state(self, arrays: Arrays, values: dict[str, Any]) -> None:
        """Go on where the monitor of the state was, or raise and change nothing."""
        seen = values.get("seen")
        kept = {"int8", "int32"} & {str(arrays["labels"].dtype) if "labels" in arrays else ""}
        forms = {"sums": "float64", "labels": min(kept, default="int8"), "direction": "float64"}
        if not seen:
            del forms["direction"]
        if (
            values.get("format") != _FORMAT
            or type(seen) is not int
            or {n: f"{a.dtype}" for n, a in arrays.items() if a.ndim == 1} != forms
            or len(arrays["sums"]) != len(arrays["labels"])
        ):
            raise InputError(
                f"this is not the state of a memory monitor, of format {_FORMAT}, got "
                f"{sorted(arrays)} and {sorted(values)}: pass what to_state returned"
            )
        self._seen = seen
        self._sums, self._labels = np.array(arrays["sums"]), np.array(arrays["labels"])
        self._direction = torch.from_numpy(np.array(arrays["direction"])).clone() if seen else None
        self._narrow = self._direction
        self._waiting.clear()

    def _look(self, rows: Tensor) -> None:
        found = principal_direction(rows.double())
        if self._direction is not None and float(found @ self._direction.to(found)) < 0:
            found = -found
        self._direction = self._narrow = found.contiguous()  # laid out as it is after a restart

    def _grow(self, size: int) -> None:
        if size > len(self._sums):
            more = max(size, 2 * len(self._sums)) - len(self._sums)
            self._sums = np.append(self._sums, np.zeros(more))
            self._labels = np.append(self._labels, np.full(more, -1, dtype=self._labels.dtype))
