"""The records that the parts of tacit hand to each other. All of them are frozen.

The label party sees a :class:`Cut` and makes a :class:`Release` with a :class:`Certificate`.
The feature party sees a :class:`View` (or a whole :class:`Tape` of them), which has no field
for a label: what an attacker may know besides the release is listed in :class:`Known`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Protocol, final, runtime_checkable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tacit.errors import InputError


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Cut:
    """What the label party has before a release: one gradient and one label per example.

    Attributes:
        grads: ``[B, ...]``, the loss gradient at the cut; trailing dimensions are one row.
        labels: ``[B]`` class indices, also as a list or an array; binary protections take 0 and 1.
        probs: ``[B]`` predicted probabilities of the positive class, where a protection needs them.
        ids: ``[B]`` example ids, for accounting.
        embeddings: what the feature party sent for this step; it keys the noise (see ``Guard``).
        step: the number of the release; ``None`` takes the next one.
        weight: the factor of one example's loss in the loss that was differentiated, ``1 / B``
            under mean reduction; parameters in absolute units refer to the gradient of one
            example's own loss, ``grads / weight``.
    """

    grads: Tensor
    labels: Tensor
    probs: Tensor | None = None
    ids: Tensor | None = None
    embeddings: Tensor | None = None
    step: int | None = None
    weight: float = 1.0

    def __post_init__(self) -> None:
        for name in ("labels", "ids"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, as_tensor(getattr(self, name), name=name))


def as_tensor(values: Tensor | npt.ArrayLike, *, name: str) -> Tensor:
    """Return numbers as a tensor: a tensor as it is, a list, an array or a column of numbers.

    >>> as_tensor([0, 1, 1], name="labels")
    tensor([0, 1, 1])
    """
    if isinstance(values, Tensor):
        return values
    try:
        array = np.asarray(values)
    except (TypeError, ValueError) as error:
        raise InputError(f"{name} must be one number per example: {error}") from None
    if array.dtype.kind not in "biuf":
        raise InputError(
            f"{name} must be numbers, got {type(values).__name__} of {array.dtype}: number them, "
            f"such as 0 and 1"
        )
    whole = array.dtype.kind in "biu"
    return torch.from_numpy(array.astype(np.int64 if whole else np.float64))


@final
@dataclass(frozen=True, kw_only=True)
class Certificate:
    """What is claimed of one release, how it was obtained and under which assumption it holds.

    Attributes:
        spec: the protection that ran.
        how: where its parameters came from, e.g. this batch or the running class statistics.
        assumption: what must be true for the numbers to hold, or "empirical only".
        sum_kl: symmetrised KL divergence between the released gradients of the two classes,
            recomputed from the noise that was drawn; ``None`` where nothing is claimed.
        auc_bound: for honest batches, no score of one release has a higher AUC, by Theorem 1;
            ``None`` likewise.
        gaussian_auc: the AUC of the best score for two equal Gaussians at this ``sum_kl``.
            A reference value, not a bound.
        power: expected squared norm of the noise, averaged over the rows of the batch.
        measured_power: squared norm of the noise in the released bytes, averaged over the rows.
        measured_sum_kl: the same divergence as ``sum_kl``, estimated from the released gradients
            themselves; ``None`` where it was not. A ledger charges the larger of both.
    """

    spec: str
    how: str
    assumption: str
    sum_kl: float | None
    auc_bound: float | None
    gaussian_auc: float | None
    power: float
    measured_power: float
    measured_sum_kl: float | None = None


@final
@dataclass(frozen=True, kw_only=True)
class LabelCertificate:
    """What is claimed of labels that were randomised once, whatever is computed from them.

    Attributes:
        spec: the label mechanism.
        classes: how many classes there are.
        epsilon: no output is more than ``e^epsilon`` times as probable under one label as under
            another; ``None`` where that is not so (Gaussian noise).
        mu: telling two labels apart is as hard as telling N(0, 1) from N(mu, 1); ``None`` likewise.
        sum_kl: symmetrised KL divergence between the randomised labels of two classes, at most.
        auc: no score of one example's randomised label tells two classes apart better.
        baseline_auc: what features alone predict, as it was given; ``None`` without.
        combined_auc: no score of features and randomised label together has a higher AUC.
        assumption: what must be true for the numbers to hold.
    """

    spec: str
    classes: int
    epsilon: float | None
    mu: float | None
    sum_kl: float
    auc: float
    baseline_auc: float | None
    combined_auc: float | None
    assumption: str


@final
@dataclass(frozen=True, kw_only=True)
class Flips:
    """How labels were randomised: kept with probability ``keep``, else any other class alike.

    Public: it says nothing of any example. ``other`` is the probability of each other class.
    """

    keep: float
    other: float
    classes: int


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Release:
    """What the label party sends (``grads``) and what it keeps (everything else).

    The certificate is computed from labels: it stays at the label party.
    """

    grads: Tensor
    certificate: Certificate
    step: int


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Known:
    """What an attacker knows besides the release. Nothing by default.

    Attributes:
        positive: one clean gradient of a positive example.
        hints: rows of the batch known to be positive, as indices or as a mask ``[B]``.
        centres: ``[classes, ...]``, the centre of each class's gradients, class 0 first.
        labelled: ``(indices, classes)`` of the examples whose class is known.
        prior: ``[classes]``, how frequent each class is.
        classes: how many classes there are.
    """

    positive: Tensor | None = None
    hints: Tensor | None = None
    centres: Tensor | None = None
    labelled: tuple[Tensor, Tensor] | None = None
    prior: Tensor | None = None
    classes: int | None = None


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class View:
    """What the feature party sees of one step: no labels, by type."""

    grads: Tensor
    embeddings: Tensor | None = None
    ids: Tensor | None = None
    known: Known = field(default_factory=Known)
    step: int | None = None
    epoch: int | None = None


@runtime_checkable
class Tape(Protocol):
    """Everything the feature party saw, in order: an iterable of views with ids and epochs."""

    def __iter__(self) -> Iterator[View]:
        """Yield one view per release, oldest first, any number of times."""
        ...
