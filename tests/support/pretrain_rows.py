"""Rows that the tests of label-free bottoms learn from."""

import torch

from tacit.nets import Inputs

MIXED = Inputs(numeric=5, cardinalities=(3, 7))
IMAGE = Inputs(numeric=100, image=(1, 10, 10))
ROWS = 48


def columns(inputs, rows=ROWS, seed=0):
    """Return numbers of several scales and uniform categories."""
    draws = torch.Generator().manual_seed(seed)
    numeric = torch.randn(rows, inputs.numeric, generator=draws)
    numeric = numeric * (1 + torch.arange(inputs.numeric) % 3)
    codes = [torch.randint(size, (rows,), generator=draws) for size in inputs.cardinalities]
    empty = torch.zeros(rows, 0, dtype=torch.int64)
    return numeric, torch.stack(codes, dim=1) if codes else empty
