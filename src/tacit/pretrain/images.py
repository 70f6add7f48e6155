"""Pixels as images, in a size that one core can learn from."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d

from tacit.errors import InputError
from tacit.nets import Inputs

LARGEST = 32
"""Pixels to a side; larger images are averaged down."""


def image_shape(inputs: Inputs) -> tuple[int, int, int]:
    """Return channels, height and width of the images that are learned from.

    >>> image_shape(Inputs(3 * 84 * 84, image=(3, 84, 84)))
    (3, 32, 32)
    """
    if inputs.image is None:
        raise InputError("these columns are not the pixels of an image")
    channels, height, width = inputs.image
    return channels, min(height, LARGEST), min(width, LARGEST)


def as_images(inputs: Inputs, numeric: Tensor) -> Tensor:
    """Return ``[B, channels, height, width]`` for pixels ``[B, n]``."""
    shape = image_shape(inputs)
    images = numeric.reshape(len(numeric), *(inputs.image or shape))
    return images if images.shape[1:] == shape else adaptive_avg_pool2d(images, shape[1:])
