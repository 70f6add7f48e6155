"""Recording: a feature party whose embeddings and releases are written to a tape."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import final

from torch import Tensor, nn

from tacit.errors import ReleaseError
from tacit.nets import layer_outputs
from tacit.tape.tape import TapeWriter
from tacit.training.cut import Embedding, Gradient
from tacit.training.party import FeatureEnd, Rows


@final
class RecordedFeatureParty(FeatureEnd):
    """A feature party that records every step: the embedding it sent and the release it got.

    The party works as before and training is bitwise the same. Examples are recorded by their
    position in the shared order.

    Args:
        party: the end that does the work.
        tape: where to write.
        layers: the bottom model, to record the gradient at each of its layers too.
    """

    def __init__(
        self, party: FeatureEnd, tape: TapeWriter, *, layers: nn.Module | None = None
    ) -> None:
        self._party = party
        self._tape = tape
        self._sent: deque[tuple[Rows, Embedding]] = deque()
        self._layers: dict[str, Tensor] = {}
        for name, layer in [] if layers is None else layer_outputs(layers):
            layer.register_forward_hook(self._watch(name))

    def forward(self, step: int, rows: Rows) -> Embedding:
        """Run the forward pass and keep the embedding until its gradient comes."""
        embedding = self._party.forward(step, rows)
        while self._sent and self._sent[-1][1].step >= step:  # begun again
            self._sent.pop()
        self._sent.append((rows, embedding))
        return embedding

    def backward(self, gradient: Gradient) -> None:
        """Run the backward pass, then write the step to the tape."""
        if not self._sent:
            raise ReleaseError(f"a gradient for step {gradient.step} came without its embedding")
        rows, embedding = self._sent.popleft()
        self._layers.clear()
        self._party.backward(gradient)
        self._tape.append(
            rows,
            gradient.values,
            embeddings=embedding.values,
            step=gradient.step,
            layers=dict(self._layers),
        )

    def embed(self, rows: Rows) -> Tensor:
        """Return embeddings for prediction, which are not recorded."""
        return self._party.embed(rows)

    def _watch(self, name: str) -> Callable[[nn.Module, object, Tensor], None]:
        def keep(_module: nn.Module, _inputs: object, output: Tensor) -> None:
            if output.requires_grad:
                output.register_hook(partial(self._layers.__setitem__, name))  # type: ignore[no-untyped-call]

        return keep
