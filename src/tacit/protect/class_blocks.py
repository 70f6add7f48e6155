"""Products by class in blocks of one size: the same work whatever the labels are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

_SIZE = 64  # rows; smaller ones multiply slowly, larger ones are emptier


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class ClassBlocks:
    """Rows sorted into blocks that hold one class each, filled up with zeros.

    There are as many blocks for any labels: enough for the worst case of ``classes`` last blocks
    that are nearly empty.

    Attributes:
        slots: ``[B]``, where each row lies among the rows of all blocks.
        owner: ``[N]``, the class of each block.
        classes: how many there are.
    """

    slots: Tensor
    owner: Tensor
    classes: int

    @classmethod
    def of(cls, owner: npt.NDArray[np.int64], *, classes: int) -> ClassBlocks:
        """Return the blocks for rows of these classes."""
        counts = np.bincount(owner, minlength=classes)
        ends = np.cumsum(-(-counts // _SIZE))
        order = np.argsort(owner, kind="stable")
        sorted_owner = owner[order]
        starts = np.concatenate([[0], ends[:-1]]) * _SIZE
        ranks = np.arange(len(owner)) - (np.cumsum(counts) - counts)[sorted_owner]
        slots = np.empty(len(owner), dtype=np.int64)
        slots[order] = starts[sorted_owner] + ranks
        places = np.arange(len(owner) // _SIZE + classes)
        blocks = np.searchsorted(ends, places, side="right").clip(max=classes - 1)
        return cls(slots=torch.from_numpy(slots), owner=torch.from_numpy(blocks), classes=classes)

    def squares(self, rows: Tensor) -> Tensor:
        """Return ``[classes, d, d]``: the sum of outer products of each class's rows.

        >>> rows = torch.tensor([[1.0], [2.0], [3.0]]).double()
        >>> ClassBlocks.of(np.array([0, 1, 0]), classes=2).squares(rows).flatten().tolist()
        [10.0, 4.0]
        """
        blocks = self._laid_out(rows)
        member = self.owner == torch.arange(self.classes).unsqueeze(1)
        width = rows.shape[1]
        products = (blocks.mT @ blocks).flatten(1)
        return (member.to(rows.dtype) @ products).view(self.classes, width, width)

    def times(self, rows: Tensor, matrices: Tensor) -> Tensor:
        """Return each row times the matrix of its class, ``[classes, d, r]``."""
        products = self._laid_out(rows) @ matrices[self.owner]
        return products.flatten(0, 1)[self.slots]

    def _laid_out(self, rows: Tensor) -> Tensor:
        room = rows.new_zeros(len(self.owner) * _SIZE, rows.shape[1])
        return room.index_copy_(0, self.slots, rows).view(len(self.owner), _SIZE, -1)
