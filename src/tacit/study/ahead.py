"""Read the next batch while this one trains, and change its images at random on the way."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import torch
from torch import Tensor
from torch.nn.functional import pad

from tacit.data.draws import uniforms

__all__ = ["ahead", "augmented"]

_Batch = TypeVar("_Batch")
_Read = TypeVar("_Read")
_SHIFT = 4


def ahead(
    batches: Iterable[_Batch], read: Callable[[_Batch], _Read]
) -> Iterator[tuple[_Batch, _Read]]:
    """Yield every batch with what was read of it, one batch ahead in a thread of its own.

    >>> list(ahead([1, 2, 3], lambda batch: batch * 10))
    [(1, 10), (2, 20), (3, 30)]
    """
    with ThreadPoolExecutor(1, thread_name_prefix="read-ahead") as pool:
        waiting: tuple[_Batch, Future[_Read]] | None = None
        for batch in batches:
            task = pool.submit(read, batch)
            if waiting is not None:
                yield waiting[0], waiting[1].result()
            waiting = batch, task
        if waiting is not None:
            yield waiting[0], waiting[1].result()


def augmented(pixels: Tensor, image: tuple[int, int, int], *key: int) -> Tensor:
    """Return images ``[B, n]``, each shifted by up to 4 pixels and, every other one, mirrored.

    What enters from outside is 0, the mean of scaled pixels. ``key`` decides about the draws.

    >>> augmented(torch.ones(2, 25), (1, 5, 5), 0, 7).shape
    torch.Size([2, 25])
    """
    rows, (_, height, width) = len(pixels), image
    drawn = torch.from_numpy(uniforms(3 * rows, "augment", *key)).reshape(3, rows, 1)
    down, right = (drawn[:2] * (2 * _SHIFT + 1)).long()
    ys = down + torch.arange(height)
    xs = torch.arange(width).expand(rows, -1)
    xs = right + torch.where(drawn[2] < 0.5, xs.flip(1), xs)
    padded = pad(pixels.reshape(-1, *image), [_SHIFT] * 4)
    # Indexed together, rows come first and channels last.
    chosen = padded[torch.arange(rows)[:, None, None], :, ys[:, :, None], xs[:, None, :]]
    return chosen.permute(0, 3, 1, 2).reshape(rows, -1)
