"""What the numbers of a table are when they are the pixels of images."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import final

import numpy as np

from tacit.data.draws import Array
from tacit.errors import InputError

__all__ = ["Image"]


@final
@dataclass(frozen=True)
class Image:
    """The form of images whose pixels are the numeric columns, one channel after the other.

    ``shape`` is channels, height and width. Pixels stay bytes on disk; a batch of them becomes
    ``(byte / 255 - mean) / spread`` with the statistics of its channel.

    >>> form = Image((1, 2, 2), mean=(0.5,), spread=(0.25,))
    >>> form.normalise(np.array([[0, 255, 0, 255]], dtype=np.uint8)).tolist()
    [[-2.0, 2.0, -2.0, 2.0]]
    """

    shape: tuple[int, int, int]
    mean: tuple[float, ...]
    spread: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.mean) != self.shape[0] or len(self.spread) != self.shape[0]:
            raise InputError(
                f"an image has a mean and a spread for each of its {self.shape[0]} channels, "
                f"got {len(self.mean)} and {len(self.spread)}"
            )

    def __str__(self) -> str:
        return "x".join(map(str, self.shape))

    @property
    def pixels(self) -> int:
        """How many columns an image fills."""
        return prod(self.shape)

    def normalise(self, block: Array) -> Array:
        """Return a block [B, pixels] of bytes as float32 of about mean 0 and variance 1."""
        spread = np.asarray(self.spread, dtype=np.float64)
        scale = (1.0 / (255.0 * np.where(spread > 0, spread, 1.0))).astype(np.float32)
        shift = (np.asarray(self.mean) * 255.0).astype(np.float32)
        channels = block.reshape(len(block), self.shape[0], -1).astype(np.float32)
        channels -= shift[:, None]
        channels *= scale[:, None]
        return channels.reshape(len(block), -1)
