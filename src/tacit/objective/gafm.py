"""GAFM: a generator and a discriminator at the label party, and gradients mixed from two losses."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, final

import torch
from torch import Tensor

from tacit.errors import InputError
from tacit.objective.base import OBJECTIVES, Objective
from tacit.objective.gafm_game import Adversarial, GafmParameters
from tacit.objective.learner import Learner, Setting
from tacit.spec import require

CLAIM = (
    "empirical only: the penalty's target 0.5 +- u lies on the true label's side, so no number of "
    "steps is safe by proof; and the feature party's own output predicts labels (embedding_leak)"
)


@final
@OBJECTIVES.register("gafm")
@dataclass(frozen=True)
class Gafm(Objective):
    """GAFM: a GAN's gradient and that of a softened cross-entropy, each normalised, then added.

    With the combined cut z in (0, 1), the top model as generator, ``y^ = sigmoid(top(z))``, a
    discriminator D with weights clipped to ``[-clip, clip]``, ``e ~ N(0, sigma^2)`` and
    ``y' = 0.5 + u`` for positives and ``0.5 - u`` for negatives, ``u ~ U(0, delta)``::

        L_gan     = mean D(y + e) - mean D(y^)         D ascends it, then the top descends it
        L_penalty = -mean(y' log z + (1 - y') log(1 - z))
        g         = dL_gan/dz / |dL_gan/dz|  +  gamma * dL_penalty/dz / |dL_penalty/dz|

    Norms are of a whole batch. The cut must be one number wide: model ``gafm_net``.

    Guarantee: empirical only. ``0.5 +- u`` keeps the side of the true label, so the penalty is no
    randomised response in the sense of a label mechanism, and the two gradients cancel each other
    only as far as training happens to let them. A protection after it (``--protect``) has its own
    certificate. The feature party's own output predicts labels whatever the gradients show.

    References:
        Han and Guan, "GAN-based Federated Learning for Label Protection in Binary
        Classification" (2023), Algorithm 1, Eq. 4 to 6 and 8; defaults as in section 4.2.

    Where the text is silent or we depart: D has three hidden layers of ``hidden`` units (the text
    gives no widths, the authors' released code has 10) and no activation at its end, since a score
    needs none; draws are fresh in every step
    and keyed by step and embedding. In the first pass over the examples the label party works on
    draws of N(0, 1) in place of the embeddings (appendix D.2). A batch that lacks a class has
    ``y' = 0.5`` and leaves D as it is: nothing in its release tells which class it was.
    ``ablate`` names the part that is left out of g; the top and D learn as before. The generator
    can as well learn the flipped map; with ``orient`` the label party turns its predictions around
    where they ran against its training labels in the last steps, which sends nothing.

    >>> str(Gafm(delta=0.1))
    'gafm(delta=0.1)'
    """

    delta: float | Literal["auto"] = 0.05
    sigma: float = 0.01
    gamma: float = 1.0
    ablate: Literal["none", "gan", "penalty"] = "none"
    clip: float = 0.1
    hidden: int = 16
    orient: bool = True

    def __post_init__(self) -> None:
        if self.delta != "auto":
            require(0 <= self.delta <= 0.5, "gafm: delta must be in [0, 0.5], or auto", self.delta)
        for name, least in (("sigma", 0.0), ("gamma", 0.0), ("clip", 1e-6)):
            value = getattr(self, name)
            rule = f"gafm: {name} must be a number of at least {least:g}"
            require(math.isfinite(value) and value >= least, rule, value)
        require(1 <= self.hidden <= 4096, "gafm: hidden must be 1 to 4096", self.hidden)
        both = self.ablate == "gan" and self.gamma == 0
        require(not both, "gafm: without the GAN part gamma must be above 0", self.gamma)

    def learner(self, setting: Setting) -> Learner:
        """Return a game between the top model and a discriminator of its own."""
        if self.delta == "auto":
            raise InputError(
                "gafm: delta=auto is chosen by trial runs of `tacit train`; give a party the "
                "number that came out there, such as gafm(delta=0.05)"
            )
        if setting.key is None:
            raise InputError("gafm draws random numbers: pass key= to the label party")
        if setting.width not in (None, 1):
            raise InputError(
                f"gafm needs a cut one number wide, in (0, 1), got one of width {setting.width}: "
                "use the model gafm_net, and with several feature parties combine by mean"
            )
        _check_labels(setting.labels)
        parameters = GafmParameters(
            delta=self.delta,
            sigma=self.sigma,
            gamma=self.gamma,
            ablate=self.ablate,
            clip=self.clip,
            hidden=self.hidden,
            orient=self.orient,
        )
        return Adversarial(parameters, setting, key=setting.key, claim=CLAIM)

    def probabilities(self, outputs: Tensor) -> Tensor:
        """Return the generator's own probabilities, before they are oriented."""
        return torch.sigmoid(outputs)


def _check_labels(labels: Tensor) -> None:
    """Refuse labels of one class or of many."""
    found = torch.unique(getattr(labels, "hard", labels)).tolist()
    if any(value not in (0, 1) for value in found):
        raise InputError(
            f"gafm tells two classes apart, got labels {found[:12]}: use the objective ce"
        )
    if len(found) < 2:
        raise InputError(
            f"gafm needs examples of both classes, all labels are {found}: bring other rows"
        )
