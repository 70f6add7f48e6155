"""Leakage at every layer of a feature party, not only at the cut."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import final

import torch
from torch import Tensor, nn

from tacit.monitor import LeakMonitor
from tacit.nets import layer_outputs
from tacit.training import FeatureParty
from tacit.types import Cut, Release


@final
class LayerMonitor:
    """Attacks the gradients that a feature party computes at its own layers from the release.

    For study in one process only: judging takes the labels, and the cosine attack's one clean
    gradient is the clean release carried back to the same layer.

    References:
        Li et al., ICLR 2022, section 5.1 and A.7.3.
    """

    def __init__(
        self,
        party: FeatureParty,
        *,
        attacks: tuple[str, ...] = ("norm", "cosine"),
        every: int = 1,
    ) -> None:
        self._outputs: deque[dict[str, Tensor]] = deque()  # of steps under way, oldest first
        self._every = every
        self._seen = 0
        self.monitors: dict[str, LeakMonitor] = {}
        for name, layer in layer_outputs(party.bottom):
            self.monitors[name] = LeakMonitor(attacks)
            layer.register_forward_hook(self._keep(name))
        self._last = next(reversed(self.monitors), None)

    def _keep(self, name: str) -> Callable[[nn.Module, object, Tensor], None]:
        def hook(_module: nn.Module, _inputs: object, output: Tensor) -> None:
            if not output.requires_grad:
                return
            if not self._outputs or name in self._outputs[-1]:
                self._outputs.append({})
            self._outputs[-1][name] = output

        return hook

    def __call__(self, cut: Cut, release: Release) -> None:
        """Carry both the clean and the released gradient back to every layer, and attack there."""
        self._seen += 1
        step = self._outputs.popleft() if self._outputs else {}
        if (self._seen - 1) % self._every or self._last is None:
            return
        names, outputs = list(step), list(step.values())
        end = step[self._last]
        clean, released = (
            torch.autograd.grad(end, outputs, grads.reshape(end.shape), retain_graph=True)
            for grads in (cut.grads, release.grads)
        )
        for name, own, seen in zip(names, clean, released, strict=True):
            self.monitors[name](replace(cut, grads=own), replace(release, grads=seen))
