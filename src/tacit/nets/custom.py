"""A split model made of a user's own modules."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor, nn

from tacit.errors import InputError
from tacit.nets.base import Inputs, SplitModel, layers_of
from tacit.nets.combine import Combine, combined_width
from tacit.nets.combine import combine as combined

_BATCH = 3


@final
class CustomBottom(nn.Module):
    """A user's module behind the interface of a bottom; one that takes one tensor gets numbers."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module
        self.takes = _takes(module, 2)

    @property
    def layers(self) -> list[nn.Module]:
        """The layers of the user's module."""
        return layers_of(self.module)

    def forward(self, numeric: Tensor, categorical: Tensor | None = None) -> Tensor:
        """Return the embedding ``[B, width]``."""
        z: Tensor = self.module(*_fitting((numeric, categorical), self.takes))
        return z


@final
class CustomTop(nn.Module):
    """A user's module behind the interface of a top; logits ``[B, 1]`` become ``[B]``."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module
        self.takes = _takes(module, 3)

    @property
    def layers(self) -> list[nn.Module]:
        """The layers of the user's module."""
        return layers_of(self.module)

    def forward(
        self, z: Tensor, numeric: Tensor | None = None, categorical: Tensor | None = None
    ) -> Tensor:
        """Return logits, ``[B]`` for two classes and ``[B, classes]`` for more."""
        logits: Tensor = self.module(*_fitting((z, numeric, categorical), self.takes))
        return logits.squeeze(1) if logits.dim() == 2 and logits.shape[1] == 1 else logits


def from_modules(
    bottoms: Sequence[nn.Module],
    top: nn.Module,
    *,
    width: int,
    combine: Combine = "sum",
    parties: Sequence[Inputs] | None = None,
    own: Inputs | None = None,
) -> SplitModel:
    """Return a split model out of any modules, after a trial run on three rows of zeros.

    A bottom takes ``(numeric, categorical)`` or ``(numeric)``; the top takes ``(z, numeric,
    categorical)`` or ``(z)``. The modules are wrapped, not copied. The trial runs in evaluation
    mode without gradients, so it leaves batch statistics alone.

    Args:
        bottoms: one per feature party.
        top: the label party's part.
        width: of the combined cut.
        combine: how the embeddings become one cut.
        parties: the columns of each bottom; None reads them off bottoms that begin with a
            linear layer.
        own: the columns of the label party, when its part takes any.

    >>> model = from_modules([nn.Linear(5, 8)], nn.Linear(8, 1), width=8)
    >>> model([(torch.zeros(4, 5), None)]).shape
    torch.Size([4])
    """
    wrapped = tuple(CustomBottom(module) for module in bottoms)
    whole = CustomTop(top)
    columns = [_columns(b.module, p) for p, b in enumerate(wrapped)] if parties is None else parties
    if len(columns) != len(wrapped):
        raise InputError(f"there are {len(wrapped)} bottoms and columns of {len(columns)} parties")
    embeddings = [
        _embedding(bottom, inputs, party)
        for party, (bottom, inputs) in enumerate(zip(wrapped, columns, strict=True))
    ]
    total = combined_width([z.shape[1] for z in embeddings], combine)
    if total != width:
        raise InputError(f"the bottoms combine to a cut of width {total}, got width={width}")
    _check_logits(whole, combined(embeddings, combine), own)
    return SplitModel(bottoms=wrapped, top=whole, width=width, combine=combine)


def _takes(module: nn.Module, most: int) -> int:
    """Return how many tensors the module's forward takes by position."""
    parameters = inspect.signature(module.forward).parameters.values()
    if any(p.kind is p.VAR_POSITIONAL for p in parameters):
        return most
    return min(
        most, sum(p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in parameters)
    )


def _fitting(columns: tuple[Tensor | None, ...], takes: int) -> tuple[Tensor | None, ...]:
    """Return what the module takes; leaving out columns that hold something is refused."""
    for spare in columns[takes:]:
        if spare is not None and spare.shape[1:].numel():
            raise InputError(
                f"this module takes {takes} of {len(columns)} tensors, "
                f"it has no place for columns of shape {tuple(spare.shape)}"
            )
    return columns[:takes]


def _columns(module: nn.Module, party: int) -> Inputs:
    """Return the columns that the module's first layer takes, where it is linear."""
    inputs = getattr(module, "inputs", None)
    if isinstance(inputs, Inputs):
        return inputs
    first = next((m for m in module.modules() if list(m.parameters(recurse=False))), None)
    if isinstance(first, nn.Linear):
        return Inputs(first.in_features)
    raise InputError(
        f"the columns of bottom {party} cannot be read off it: pass parties=[Inputs(...)]"
    )


def _zeros(inputs: Inputs, like: Tensor) -> tuple[Tensor, Tensor]:
    numeric = like.new_zeros(_BATCH, inputs.numeric)
    shape = (_BATCH, len(inputs.cardinalities))
    return numeric, torch.zeros(shape, dtype=torch.int64, device=like.device)


def _like(module: nn.Module) -> Tensor:
    floats = (p.detach() for p in module.parameters() if p.is_floating_point())
    return next(floats, torch.zeros(()))


def _trial(name: str, module: nn.Module, columns: tuple[Tensor, ...]) -> Tensor:
    """Return what the module makes of zeros; its modes are put back."""
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        with torch.no_grad():
            out = module(*columns)
    except Exception as error:
        shapes = ", ".join(str(list(c.shape)) for c in columns)
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise InputError(f"{name} does not run on zeros of shape {shapes}: {reason}") from error
    finally:
        for part, mode in modes:
            part.training = mode
    if not isinstance(out, Tensor) or not out.is_floating_point():
        raise InputError(f"{name} must return one floating point tensor, got {_kind(out)}")
    return out


def _kind(out: object) -> str:
    return str(out.dtype) if isinstance(out, Tensor) else type(out).__name__


def _embedding(bottom: CustomBottom, inputs: Inputs, party: int) -> Tensor:
    z = _trial(f"bottom {party}", bottom, _zeros(inputs, _like(bottom)))
    if z.dim() != 2 or z.shape[0] != _BATCH:
        raise InputError(
            f"bottom {party} must return [{_BATCH}, width] for {_BATCH} rows, got {list(z.shape)}: "
            "flatten its output"
        )
    return z


def _check_logits(top: CustomTop, z: Tensor, own: Inputs | None) -> None:
    like = _like(top)
    columns = (z.to(like), *(() if own is None else _zeros(own, like)))
    logits = _trial("top", top, columns)
    if logits.shape[:1] != (_BATCH,) or logits.dim() > 2:
        raise InputError(
            f"top must return [{_BATCH}] or [{_BATCH}, classes], got {list(logits.shape)}"
        )
    if logits.dim() == 2 and logits.shape[1] == 2:
        raise InputError(
            "top must return one logit for two classes, got two: keep their difference"
        )
