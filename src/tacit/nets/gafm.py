"""The small networks of the GAFM paper, as its vanilla baseline trains them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from tacit.nets.base import MODELS, logit_count
from tacit.nets.stack import Layer, Stack, Stacked
from tacit.spec import require


@final
@MODELS.register("gafm_net")
@dataclass(frozen=True)
class GafmNet(Stacked):
    """GAFM's networks: a local model that sends one number in (0, 1), and a top of the same form.

    ``z = sigmoid(W_3 l(W_2 l(W_1 x)))``, ``logit = V_3 l(V_2 l(V_1 z))``, ``l`` = LeakyReLU, biases
    not shown. The sigmoid over the logit belongs to the loss.

    The top has the form of the paper's generator; trained by cross-entropy it is the vanilla
    baseline, trained by the GAFM objective the bottom is the same. With several feature parties
    the paper averages (appendix B.2): pass ``combine="mean"``.

    References:
        GAFM (Han and Guan), section 4.2: two hidden layers each, LeakyReLU inside, sigmoid at the
        end.

    The text gives no widths and refers to a drawing. Hidden layers have 16 units here, the number
    in the authors' released code for Spambase, where each network has one hidden layer; the slope
    is torch's 0.01. For IMDB that code has a local model of 256 and 128 units, with dropout:
    ``gafm_net(first=256, second=128)``. There is no dropout here: a party that is started again
    must send the same embeddings. The paper has two classes; for more, the local model sends one
    number for each. Categories, which the paper takes as numbers, get embeddings of size 4.

    ``first`` and ``second`` are the widths of the local model's hidden layers where they are not
    ``hidden``, which is that of all.

    >>> from tacit.nets import Inputs
    >>> model = MODELS.get("gafm_net").build(parties=[Inputs(57)], seed=0)
    >>> model.width, len(model.bottoms[0].layers), len(model.top.layers)
    (1, 3, 3)
    """

    hidden: int = 16
    embedding: int = 4
    first: int | None = None
    second: int | None = None

    def __post_init__(self) -> None:
        for name in ("hidden", "embedding", "first", "second"):
            width = getattr(self, name)
            require(width is None or width >= 1, f"gafm_net: {name} must be at least 1", width)

    def stack(self, classes: int) -> Stack:
        """Return the local model and the top as one stack, cut between them."""
        leaky = Layer(self.hidden, "leaky_relu")
        local = (Layer(width or self.hidden, "leaky_relu") for width in (self.first, self.second))
        sent = Layer(logit_count(classes), "sigmoid")
        return Stack(
            hidden=(*local, sent, leaky, leaky),
            published_cut=3,
            embedding=self.embedding,
        )
