"""How the embeddings of several feature parties become one cut."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Literal, TypeAlias, get_args

import torch
from torch import Tensor

from tacit.errors import InputError, SpecError
from tacit.spec import nearest

Combine: TypeAlias = Literal["sum", "mean", "max", "product", "concat"]
COMBINES: tuple[Combine, ...] = get_args(Combine)


def combine(embeddings: Sequence[Tensor], how: Combine) -> Tensor:
    """Return one cut out of one embedding per party, element by element or side by side.

    ``sum_p z_p``, ``(1/P) sum_p z_p``, ``max_p z_p``, ``prod_p z_p`` or ``[z_1, ..., z_P]``

    Sums and products run in the order of the parties, so the same embeddings give the same bits.
    The gradient is autograd's; where several parties share the maximum (zeros after a ReLU often
    do), each gets an equal part of it. One party's embedding is returned as it is.

    References:
        Ceballos et al. 2020, as listed in GAFM (Han and Guan), section 2.

    >>> combine([torch.tensor([[1.0, 4.0]]), torch.tensor([[3.0, 2.0]])], "max").tolist()
    [[3.0, 4.0]]
    """
    check_combine(how)
    _check_shapes(embeddings, how)
    if len(embeddings) == 1:
        return embeddings[0]
    match how:
        case "sum":
            return reduce(torch.add, embeddings)
        case "mean":
            return reduce(torch.add, embeddings) / len(embeddings)
        case "product":
            return reduce(torch.mul, embeddings)
        case "max":
            return torch.stack(tuple(embeddings)).amax(dim=0)
        case "concat":
            return torch.cat(tuple(embeddings), dim=1)


def combined_width(widths: Sequence[int], how: Combine) -> int:
    """Return the width of the cut that embeddings of these widths combine to.

    >>> combined_width([8, 8], "mean"), combined_width([8, 4], "concat")
    (8, 12)
    """
    check_combine(how)
    if not widths:
        raise InputError("there must be at least one feature party, got none")
    if how == "concat":
        return sum(widths)
    if len(set(widths)) > 1:
        shown = ", ".join(map(str, widths))
        raise InputError(f"{how} needs equal widths, got {shown}: use concat or change the bottoms")
    return widths[0]


def check_combine(how: str) -> None:
    """Refuse an unknown way to combine, with the nearest known one."""
    if how not in COMBINES:
        raise SpecError(f"unknown combine {how!r}: {nearest(str(how), list(COMBINES))}")


def _check_shapes(embeddings: Sequence[Tensor], how: Combine) -> None:
    if not embeddings:
        raise InputError("there must be at least one embedding to combine, got none")
    shapes = [tuple(z.shape) for z in embeddings]
    compared = {(s[:1] + s[2:]) if how == "concat" else s for s in shapes}
    if len(shapes[0]) < 2 or len(compared) > 1:
        rule = "the same batch" if how == "concat" else "the same [batch, width]"
        raise InputError(f"{how} needs {rule} from every party, got {', '.join(map(str, shapes))}")
