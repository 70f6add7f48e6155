"""Wide & Deep, the model of the Marvell papers on advertising data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from tacit.nets.base import MODELS
from tacit.nets.stack import Layer, Stack, Stacked
from tacit.spec import require


@final
@MODELS.register("wdl")
@dataclass(frozen=True)
class WideDeep(Stacked):
    """Wide & Deep: ReLU layers over embedded columns, plus a linear part at the label party.

    ``logit = h_(L+1)(relu_L(... relu_1([E_4(c), x]))) + w . [E_1(c'), x'] + b``

    where ``c, x`` are the feature party's categories and numbers, ``c', x'`` the label party's,
    and ``E_k`` looks up embeddings of size ``k``. In the papers both parties hold the same
    columns: pass them as ``own`` too. Without ``own`` there is no wide part.

    References:
        Li et al., ICLR 2022, appendix A.6.2: 6 layers of 128 units, embeddings of size 4 and 1,
        cut after layer 3, "the first half" (section 5). The 2021 version cuts the same stack
        after layer 4 (section 5.1), and one of 4 layers after layer 2 (Figure 1). Appendix A.7.3
        has 8 layers at the feature party and the rest as before: ``wdl(layers=11)`` with
        ``cut=8``.

    The papers leave the initial weights open; here, as in the authors' released code, they have
    Glorot's distribution, and biases start at zero.

    ``l2`` adds ``l2 ||E||^2`` for every embedding table E to the loss of the party that owns it: 0
    as in the text, 0.01 in that code.

    >>> from tacit.nets import Inputs
    >>> columns = Inputs(numeric=13, cardinalities=(10,) * 26)
    >>> model = MODELS.get("wdl").build(parties=[columns], own=columns, seed=0)
    >>> model.width, len(model.bottoms[0].layers), len(model.top.layers)
    (128, 3, 4)
    """

    uses_own: ClassVar[bool] = True
    layers: int = 6
    units: int = 128
    embedding: int = 4
    l2: float = 0.0

    def __post_init__(self) -> None:
        require(self.layers >= 1, "wdl: layers must be at least 1", self.layers)
        require(self.units >= 1, "wdl: units must be at least 1", self.units)
        require(self.embedding >= 1, "wdl: embedding must be at least 1", self.embedding)
        require(0 <= self.l2 <= 1, "wdl: l2 must be from 0 to 1", self.l2)

    def stack(self, classes: int) -> Stack:  # noqa: ARG002 - no hidden layer depends on it
        """Return equal ReLU layers, cut in the middle."""
        return Stack(
            hidden=(Layer(self.units),) * self.layers,
            published_cut=max(1, self.layers // 2),
            embedding=self.embedding,
            wide=True,
            init="glorot",
            l2=self.l2,
        )
