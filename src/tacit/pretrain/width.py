"""Which method a party's bottom is trained by, once its columns and its width are known."""

from __future__ import annotations

import dataclasses
from typing import Any, cast

from tacit.errors import SpecError, UsageError
from tacit.nets import Inputs
from tacit.pretrain.auto import Auto
from tacit.pretrain.base import PRETRAINERS, Pretrainer
from tacit.pretrain.concat import Concat


def resolved(spec: str | None, inputs: Inputs, *, width: int | None = None) -> Pretrainer:
    """Return the method of a spec for these columns: the one ``auto`` chooses, in this width.

    >>> str(resolved(None, Inputs(13), width=8))
    'masked(width=8)'
    >>> str(resolved("concat(pca(4), random(4))", Inputs(13), width=7))
    'concat(a=pca(width=4), b=random(width=3))'
    """
    method = PRETRAINERS.get(spec or "auto")
    if isinstance(method, Auto):
        method = method.choose(inputs)
    return method if width is None else _of_width(method, width)


def _of_width(method: Pretrainer, width: int) -> Pretrainer:
    if isinstance(method, Concat):
        if width < 2:
            raise UsageError(f"width {width}: {method} has two parts: take 2 or more")
        return Concat(_of_width(method.a, width - width // 2), _of_width(method.b, width // 2))
    if not hasattr(method, "width"):
        raise SpecError(f"width {width}: {method} has a width of its own: leave width out")
    changed: Pretrainer = dataclasses.replace(cast(Any, method), width=width)
    return changed
