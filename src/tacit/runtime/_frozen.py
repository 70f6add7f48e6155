"""Graphs that outlive the weights that they were made with."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain

from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

__all__ = ["frozen"]


@contextmanager
def frozen(model: nn.Module) -> Iterator[None]:
    """Let what is computed here be differentiated after the model's weights have changed in place.

    A weight that the backward pass will need is copied when the graph keeps it; all else is kept as
    it is. An embedding table is not needed, only the rows that were looked up, so that large ones
    are never copied. The numbers are the same bit for bit.

    >>> import torch
    >>> model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    >>> before = [p.detach().clone() for p in model.parameters()]
    >>> x = torch.ones(1, 2, requires_grad=True)
    >>> with frozen(model):
    ...     y = model(x)
    >>> _ = [p.data.zero_() for p in model.parameters()]
    >>> y.backward()
    >>> torch.equal(x.grad, before[2] @ before[0])
    True
    """
    own = {_place(tensor) for tensor in chain(model.parameters(), model.buffers())}

    def keep(tensor: Tensor) -> Tensor:
        return tensor.detach().clone() if _place(tensor) in own else tensor

    with saved_tensors_hooks(keep, lambda tensor: tensor):
        yield


def _place(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
