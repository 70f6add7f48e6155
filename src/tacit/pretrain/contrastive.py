"""A small convolutional encoder that knows an image again after it was changed."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor, nn
from torch.nn.functional import affine_grid, cross_entropy, grid_sample, normalize

from tacit.nets import Inputs
from tacit.nets.initial_weights import convolution, draws_at, linear
from tacit.pretrain.base import (
    PRETRAINERS,
    FrozenBottom,
    Pretrainer,
)
from tacit.pretrain.epochs import Epochs
from tacit.pretrain.images import as_images, image_shape
from tacit.pretrain.progress import FitProgress, State
from tacit.pretrain.standardise import named
from tacit.rng import Key
from tacit.spec import require

_CHANNELS = (32, 64, 128)
_PROJECTION = 64
_TEMPERATURE = 0.2
_BATCH = 256
_RATE = 2e-3
_DECAY = 1e-4
_CHUNK = 512


@final
class ContrastiveBottom(FrozenBottom):
    """The encoder without the projection that it was trained with."""

    def __init__(self, inputs: Inputs, width: int) -> None:
        super().__init__(inputs, width)
        self.encoder = _encoder(image_shape(inputs)[0], width, Key.from_seed(0))

    def embed(self, numeric: Tensor, categorical: Tensor) -> Tensor:  # noqa: ARG002
        """Return the code of the images."""
        images = as_images(self.inputs, numeric)
        return torch.cat([self.encoder(chunk) for chunk in torch.split(images, _CHUNK)])


@final
@PRETRAINERS.register("contrastive")
@dataclass(frozen=True)
class Contrastive(Pretrainer):
    """Train an encoder to find, among all images of a batch, the other view of the same image.

    ``l(i, j) = -log( exp(s(z_i, z_j) / t) / sum_(k != i) exp(s(z_i, z_k) / t) )``, ``s`` the
    cosine, ``t = 0.2``, ``i`` and ``j`` two views of one image: cropped, mirrored (images in
    colour), brighter or darker, with more or less contrast.

    Guarantee: sees no labels. The embeddings show the inputs: what stays of an image when it is
    cropped and recoloured.

    References:
        Chen et al., "A Simple Framework for Contrastive Learning of Visual Representations"
        (ICML 2020), Eq. 1 and Algorithm 1.

    Departures: three convolutions in place of a ResNet, no blur, batches of 256.

    >>> x = torch.rand(8, 64, generator=torch.Generator().manual_seed(0))
    >>> method = Contrastive(width=4, epochs=1)
    >>> method.fit(Inputs(64, image=(1, 8, 8)), x, seed=0)(x).shape
    torch.Size([8, 4])
    """

    images: ClassVar[bool] = True

    width: int = 64
    epochs: int = 20

    def __post_init__(self) -> None:
        require(self.width >= 1, "contrastive: width must be at least 1", self.width)
        require(self.epochs >= 1, "contrastive: epochs must be at least 1", self.epochs)

    def embedding_width(self, inputs: Inputs) -> int:  # noqa: ARG002
        """Return the width."""
        return self.width

    def passes(self, inputs: Inputs) -> int:  # noqa: ARG002
        """Return the epochs."""
        return self.epochs

    def learn(
        self,
        inputs: Inputs,
        numeric: Tensor,
        categorical: Tensor,  # noqa: ARG002 - images have none
        *,
        key: Key,
        progress: FitProgress,
    ) -> State:
        """Return the weights of the encoder."""
        images = as_images(inputs, numeric)
        encoder = _encoder(images.shape[1], self.width, key)
        projection = linear(self.width, _PROJECTION, draws_at(key, "contrastive", "projection"))
        model = nn.Sequential(encoder, nn.ReLU(), projection)

        def loss(batch: Tensor, draws: torch.Generator) -> Tensor:
            views = [_changed(images[batch], draws) for _ in range(2)]
            return same_image_loss(model(torch.cat(views)))

        plan = Epochs(
            purpose="contrastive",
            epochs=self.epochs,
            steps=max(1, len(images) // _BATCH),
            rate=_RATE,
            weight_decay=_DECAY,
        )
        plan.train(model, loss, rows=len(images), key=key, progress=progress)
        return named("encoder", encoder)

    def bottom(self, inputs: Inputs, state: State) -> FrozenBottom:
        """Return the encoder."""
        return ContrastiveBottom(inputs, self.width).freeze(state)


def same_image_loss(views: Tensor) -> Tensor:
    """Return the mean loss of codes ``[2 B, d]``, in which row ``i`` and row ``B + i`` are one.

    >>> same_image_loss(torch.tensor([[1.0, 0], [0, 1], [1, 0], [0, 1]])).item() < 0.02
    True
    """
    unit = normalize(views, dim=1)
    alike = unit @ unit.T / _TEMPERATURE
    alike = alike.masked_fill(torch.eye(len(views), dtype=torch.bool), -math.inf)
    return cross_entropy(alike, torch.arange(len(views)).roll(len(views) // 2))


def _encoder(channels: int, width: int, key: Key) -> nn.Sequential:
    layers: list[nn.Module] = []
    for number, after in enumerate(_CHANNELS):
        draws = draws_at(key, "contrastive", number)
        before = channels if number == 0 else _CHANNELS[number - 1]
        layers.append(convolution(before, after, draws, stride=2, bias=False))
        layers += [nn.BatchNorm2d(after), nn.ReLU()]
    last = linear(_CHANNELS[-1], width, draws_at(key, "contrastive", len(_CHANNELS)))
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), last)


def _changed(images: Tensor, draws: torch.Generator) -> Tensor:
    """Return another view of every image."""
    rows, channels = images.shape[:2]

    def between(low: float, high: float, *shape: int) -> Tensor:
        return low + (high - low) * torch.rand(rows, *shape, generator=draws)

    size = between(0.3, 1.0).sqrt()
    affine = torch.zeros(rows, 2, 3)
    mirrored = torch.where(between(0, 1) < 0.5, -1.0, 1.0) if channels == 3 else torch.ones(rows)
    affine[:, 0, 0], affine[:, 1, 1] = size * mirrored, size
    affine[:, :, 2] = (1 - size[:, None]) * between(-1, 1, 2)
    grid = affine_grid(affine, list(images.shape), align_corners=False)
    cropped = grid_sample(images, grid, align_corners=False, padding_mode="border")
    grey = cropped.mean(1, keepdim=True)
    keep = (between(0, 1, 1, 1, 1) > 0.2).float() if channels == 3 else 1.0
    coloured = grey + (cropped - grey) * keep * between(0.6, 1.4, 1, 1, 1)
    shifted = coloured + between(-0.4, 0.4, channels, 1, 1)
    return shifted * between(0.6, 1.4, 1, 1, 1)
