"""The method that fits the kind of the columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from torch import Tensor

from tacit.nets import Inputs
from tacit.pretrain.base import PRETRAINERS, FrozenBottom, Pretrainer
from tacit.pretrain.concat import Concat
from tacit.pretrain.contrastive import Contrastive
from tacit.pretrain.masked import MaskedAutoencoder
from tacit.pretrain.patches import PatchClusters
from tacit.pretrain.pca import PrincipalComponents
from tacit.pretrain.progress import FitProgress, State
from tacit.pretrain.svd import SingularVectors
from tacit.rng import Key

_MANY_VALUES = 1024
_MANY_NUMBERS = 256


@final
@PRETRAINERS.register("auto")
@dataclass(frozen=True)
class Auto(Pretrainer):
    """Take the method for the kind of the columns: images, many categories, many words, numbers.

    Images: ``concat(patches(64), contrastive(64))``. Categories with 1,024 values or more:
    ``svd(256)``. 256 numbers or more, as counts of words are: ``pca(128)``. Else ``masked(32)``.
    The choice depends on the columns only, not on rows.

    Guarantee: sees no labels, as no method does. The embeddings show the inputs.

    References:
        docs/silent.md: what each reaches on each kind.

    >>> str(Auto().choose(Inputs(13, (1460, 583))))
    'svd'
    """

    def choose(self, inputs: Inputs) -> Pretrainer:
        """Return the method for these columns."""
        if inputs.image is not None:
            return Concat(PatchClusters(width=64), Contrastive(width=64))
        if sum(inputs.cardinalities) >= _MANY_VALUES:
            return SingularVectors()
        if inputs.numeric >= _MANY_NUMBERS:
            return PrincipalComponents()
        return MaskedAutoencoder()

    def embedding_width(self, inputs: Inputs) -> int:
        """Return the width of the chosen method."""
        return self.choose(inputs).embedding_width(inputs)

    def passes(self, inputs: Inputs) -> int:
        """Return the passes of the chosen method."""
        return self.choose(inputs).passes(inputs)

    def learn(
        self,
        inputs: Inputs,
        numeric: Tensor,
        categorical: Tensor,
        *,
        key: Key,
        progress: FitProgress,
    ) -> State:
        """Return the tensors of the chosen method."""
        return self.choose(inputs).learn(inputs, numeric, categorical, key=key, progress=progress)

    def bottom(self, inputs: Inputs, state: State) -> FrozenBottom:
        """Return the bottom of the chosen method."""
        return self.choose(inputs).bottom(inputs, state)
