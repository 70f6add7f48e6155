"""What an architecture is: how to build one bottom per feature party and one top.

A bottom maps ``(numeric [B, n], categorical [B, c])`` to an embedding ``[B, width]``. The top maps
the combined cut, and the label party's own columns if it has any, to logits: ``[B]`` for two
classes, ``[B, classes]`` for more.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, final

from torch import Tensor, nn

from tacit.errors import InputError
from tacit.nets.combine import Combine, combine, combined_width
from tacit.nets.initial_weights import Seed
from tacit.spec import Registry, Specified, require


@final
@dataclass(frozen=True)
class Inputs:
    """The columns of one party: how many numbers, and how many values each category takes.

    ``image`` is channels, height and width where the numbers are the pixels of an image.

    >>> Inputs(numeric=13, cardinalities=(1460, 583)).columns
    15
    """

    numeric: int
    cardinalities: tuple[int, ...] = ()
    image: tuple[int, int, int] | None = None

    def __post_init__(self) -> None:
        require(self.numeric >= 0, "the number of numeric columns must be 0 or more", self.numeric)
        for size in self.cardinalities:
            require(size >= 1, "every cardinality must be at least 1", size)

    @property
    def columns(self) -> int:
        """The number of columns of both kinds."""
        return self.numeric + len(self.cardinalities)


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class SplitModel:
    """A model in the parts that its owners hold.

    Attributes:
        bottoms: one per feature party, in the order of the parties.
        top: the label party's part.
        width: of the combined cut, as the top takes it.
        combine: how the embeddings become one cut.
    """

    bottoms: tuple[nn.Module, ...]
    top: nn.Module
    width: int
    combine: Combine

    def __call__(
        self,
        parties: Sequence[tuple[Tensor, Tensor | None]],
        own: tuple[Tensor | None, Tensor | None] = (None, None),
    ) -> Tensor:
        """Return the logits of the whole: ``(numeric, categorical)`` of each party, and the own."""
        if len(parties) != len(self.bottoms):
            raise InputError(
                f"this model has {len(self.bottoms)} feature parties, got columns of {len(parties)}"
            )
        embeddings = [f(*columns) for f, columns in zip(self.bottoms, parties, strict=True)]
        logits: Tensor = self.top(combine(embeddings, self.combine), *own)
        return logits


class Architecture(Specified, ABC):
    """A family of models that can be cut after any of its layers.

    Subclasses are frozen dataclasses registered in ``MODELS``; their fields are parameters. Weights
    depend on the seed and on a layer's position only: a party that builds its own part alone gets
    the weights that the same part has in the whole. They are drawn by
    ``tacit.nets.initial_weights``, never by torch's generators, whose 32 bits can be searched.
    Parts are built on the CPU.
    """

    uses_own: ClassVar[bool] = False
    """Whether the label party's part takes input columns of its own, as a wide part does."""

    @property
    @abstractmethod
    def depth(self) -> int:
        """How many layers there are before the one that makes logits: the largest cut."""

    @property
    @abstractmethod
    def published_cut(self) -> int:
        """The cut where nothing else is asked for."""

    @abstractmethod
    def cut_width(self, *, cut: int | None, classes: int) -> int:
        """Return the width of one party's embedding at this cut."""

    @abstractmethod
    def bottom(
        self, inputs: Inputs, *, cut: int | None, classes: int, seed: Seed, party: int = 0
    ) -> nn.Module:
        """Return the part of one feature party alone.

        Its seed is part of what both sides agree on: the label party may know these weights.
        """

    @abstractmethod
    def top(
        self, width: int, *, own: Inputs | None, cut: int | None, classes: int, seed: Seed
    ) -> nn.Module:
        """Return the label party's part alone, for a combined cut of this width.

        Whoever knows the seed knows these first weights: over a network, give the top a secret
        ``tacit.rng.Key`` in its place.
        """

    @final
    def resolve(self, cut: int | None) -> int:
        """Return the cut, or the published one for None; refuse one out of range."""
        if cut is None:
            return self.published_cut
        require(
            1 <= cut <= self.depth,
            f"{self}: cut must be 1 to {self.depth} (published: {self.published_cut})",
            cut,
        )
        return cut

    @final
    def build(
        self,
        *,
        parties: Sequence[Inputs],
        own: Inputs | None = None,
        cut: int | None = None,
        combine: Combine = "sum",
        classes: int = 2,
        seed: Seed,
    ) -> SplitModel:
        """Return one bottom per feature party and the top, with weights out of the seed.

        Args:
            parties: the columns of each feature party.
            own: the columns of the label party; None when it has only labels.
            cut: how many layers are at the feature parties; None takes the published cut.
            combine: how the embeddings become one cut.
            classes: two give one logit, more give one each.
            seed: of an experiment, or a key; the same one gives the same weights, bit for bit.
        """
        cut = self.resolve(cut)
        width = self.cut_width(cut=cut, classes=classes)
        total = combined_width([width] * len(parties), combine)
        bottoms = tuple(
            self.bottom(inputs, cut=cut, classes=classes, seed=seed, party=party)
            for party, inputs in enumerate(parties)
        )
        top = self.top(total, own=own, cut=cut, classes=classes, seed=seed)
        return SplitModel(bottoms=bottoms, top=top, width=total, combine=combine)


MODELS: Registry[Architecture] = Registry("model", base=Architecture)


def logit_count(classes: int) -> int:
    """Return how many logits tell so many classes apart: one for two, else one each.

    >>> logit_count(2), logit_count(10)
    (1, 10)
    """
    require(classes >= 2, "classes must be at least 2", classes)
    return 1 if classes == 2 else classes


def layers_of(module: nn.Module) -> list[nn.Module]:
    """Return the layers of a part: its ``layers``, else its children, else itself."""
    layers = getattr(module, "layers", None)
    if isinstance(layers, nn.ModuleList | nn.Sequential | list):
        return list(layers)
    return list(module.children()) or [module]


def layer_outputs(module: nn.Module) -> list[tuple[str, nn.Module]]:
    """Return each layer whose output can be captured, named ``layer1`` on, the first included.

    A forward hook on the module of a layer sees its activations; gradients with respect to them
    are what the papers call the leakage of that layer.

    References:
        Li et al., ICLR 2022, appendix A.7.3: the output of every ReLU at the feature party.

    >>> [name for name, _ in layer_outputs(nn.Sequential(nn.Linear(2, 3), nn.ReLU()))]
    ['layer1', 'layer2']
    """
    return [(f"layer{number}", layer) for number, layer in enumerate(layers_of(module), start=1)]
