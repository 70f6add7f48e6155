"""Pooled distances to the clusters of small patches of images."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d, unfold

from tacit.errors import InputError
from tacit.nets import Inputs
from tacit.pretrain.base import (
    PRETRAINERS,
    FrozenBottom,
    Pretrainer,
    generator,
)
from tacit.pretrain.images import as_images, image_shape
from tacit.pretrain.progress import FitProgress, State
from tacit.pretrain.standardise import empty_like, principal_directions
from tacit.rng import Key
from tacit.spec import require

_SIDE = 6
_SAMPLE = 40_000
_ROUNDS = 12
_CHUNK = 64
_FLOOR = 10.0 / 255 / 0.25  # the published 10 grey levels, for pixels of spread about 0.25
_ZCA = 0.1
_POOL = 2


@final
class PatchBottom(FrozenBottom):
    """Whitened patches, how near each is to every cluster, pooled in quarters, projected."""

    patch_mean: Tensor
    whitening: Tensor
    centres: Tensor
    mean: Tensor
    directions: Tensor

    def __init__(self, inputs: Inputs, state: State) -> None:
        super().__init__(inputs, empty_like(state, "directions").shape[1])
        for name in ("patch_mean", "whitening", "centres", "mean", "directions"):
            self.register_buffer(name, empty_like(state, name))

    def embed(self, numeric: Tensor, categorical: Tensor) -> Tensor:  # noqa: ARG002
        """Return the projected features of the images."""
        images = as_images(self.inputs, numeric)
        found = pooled(images, self.patch_mean, self.whitening, self.centres)
        return (found - self.mean) @ self.directions


@final
@PRETRAINERS.register("patches")
@dataclass(frozen=True)
class PatchClusters(Pretrainer):
    """Describe images by how near their patches are to clusters of patches, pooled, then PCA.

    ``f_k(p) = max(0, mean_j |p - c_j| - |p - c_k|)`` for whitened 6 x 6 patches ``p`` and the
    k-means centres ``c``; the mean of ``f`` over each quarter of the image; its ``width`` leading
    principal directions, scaled as a whole to mean square 1.

    Guarantee: sees no labels. The embeddings show the inputs: what is where in an image, coarsely.

    References:
        Coates, Ng and Lee, "An Analysis of Single-Layer Networks in Unsupervised Feature
        Learning" (2011), sections 3.1 and 3.2, Eq. 2.

    Departures: mean in place of sum pooling, and a projection at the end.

    >>> x = torch.rand(8, 100, generator=torch.Generator().manual_seed(0))
    >>> method = PatchClusters(width=4, centres=8)
    >>> method.fit(Inputs(100, image=(1, 10, 10)), x, seed=0)(x).shape
    torch.Size([8, 4])
    """

    images: ClassVar[bool] = True

    width: int = 128
    centres: int = 256

    def __post_init__(self) -> None:
        require(self.width >= 1, "patches: width must be at least 1", self.width)
        require(self.centres >= 2, "patches: centres must be at least 2", self.centres)

    def embedding_width(self, inputs: Inputs) -> int:  # noqa: ARG002
        """Return the width."""
        return self.width

    def passes(self, inputs: Inputs) -> int:  # noqa: ARG002
        """Return one for the clusters, and one for the projection."""
        return 2

    def learn(
        self,
        inputs: Inputs,
        numeric: Tensor,
        categorical: Tensor,  # noqa: ARG002 - images have none
        *,
        key: Key,
        progress: FitProgress,
    ) -> State:
        """Return whitening, clusters and the projection."""
        _, height, width = image_shape(inputs)
        if min(height, width) <= _SIDE:
            raise InputError(
                f"{self}: images must be larger than {_SIDE} x {_SIDE}, got {height} x {width}"
            )
        images = as_images(inputs, numeric)
        draws = generator(key, "patches")
        sample = _sample(images, draws)
        if len(sample) < self.centres:
            raise InputError(
                f"{self}: the images have {len(sample)} patches, fewer than centres: take fewer"
            )
        patch_mean, whitening = _whitening(sample)
        centres = _clusters((sample - patch_mean) @ whitening, self.centres, draws)
        progress(1, 2)
        found = pooled(images, patch_mean, whitening, centres)
        mean, directions = principal_directions(found, self.width, name=str(self))
        factor = ((found - mean) @ directions).square().mean().sqrt().clamp(min=1e-12)
        progress(2, 2)
        return {
            "patch_mean": patch_mean,
            "whitening": whitening,
            "centres": centres,
            "mean": mean,
            "directions": (directions / factor).contiguous(),
        }

    def bottom(self, inputs: Inputs, state: State) -> FrozenBottom:
        """Return the pooled features, projected."""
        return PatchBottom(inputs, state).freeze(state)


def _normalise(patches: Tensor) -> Tensor:
    """Return patches ``[P, d]`` without their own brightness and contrast."""
    centred = patches - patches.mean(1, keepdim=True)
    return centred / (centred.square().mean(1, keepdim=True) + _FLOOR).sqrt()


def _sample(images: Tensor, draws: torch.Generator) -> Tensor:
    """Return normalised patches ``[P, d]`` from random places of random images."""
    height, width = images.shape[2] - _SIDE + 1, images.shape[3] - _SIDE + 1
    count = min(_SAMPLE, len(images) * height * width)
    which, down, right = (
        torch.randint(bound, (count, 1, 1), generator=draws)
        for bound in (len(images), height, width)
    )
    side = torch.arange(_SIDE)
    # Indexed together, patches come first and channels last; channels go back in front.
    found = images[which, :, down + side[:, None], right + side]
    return _normalise(found.permute(0, 3, 1, 2).flatten(1))


def _whitening(patches: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean of patches, and ``V (l + 0.1)^(-1/2) V'`` of their covariance."""
    wide = patches.double()
    mean = wide.mean(0)
    values, vectors = torch.linalg.eigh((wide - mean).T @ (wide - mean) / len(wide))
    whitening = (vectors * (values.clamp(min=0) + _ZCA).rsqrt()) @ vectors.T
    return mean.float(), whitening.float()


def _clusters(patches: Tensor, count: int, draws: torch.Generator) -> Tensor:
    """Return the centres of Lloyd's k-means; a cluster without patches keeps its centre."""
    centres = patches[torch.randperm(len(patches), generator=draws)[:count]]
    for _ in range(_ROUNDS):
        nearest = (patches @ centres.T - centres.square().sum(1) / 2).argmax(1)
        sums = torch.zeros_like(centres).index_add_(0, nearest, patches)
        found = torch.bincount(nearest, minlength=count)[:, None]
        centres = torch.where(found > 0, sums / found.clamp(min=1), centres)
    return centres


def pooled(images: Tensor, mean: Tensor, whitening: Tensor, centres: Tensor) -> Tensor:
    """Return ``[B, 4 centres]``: for each quarter of an image, how near its patches are to each."""
    height, width = images.shape[2] - _SIDE + 1, images.shape[3] - _SIDE + 1
    out = []
    for chunk in torch.split(images, _CHUNK):
        patches = unfold(chunk, _SIDE).transpose(1, 2).flatten(0, 1)
        white = (_normalise(patches) - mean) @ whitening
        distances = torch.cdist(white, centres)
        near = (distances.mean(1, keepdim=True) - distances).clamp_(min=0)
        maps = near.reshape(len(chunk), height, width, -1).permute(0, 3, 1, 2)
        out.append(adaptive_avg_pool2d(maps, _POOL).flatten(1))
    return torch.cat(out)
