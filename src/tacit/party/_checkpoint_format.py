"""The content of a checkpoint: models, optimisers and states as flat tensors, and back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar, final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from tacit.accounting.ledger import SavedState
from tacit.errors import InputError

"""Arrays and plain values, as ``to_state`` of ledgers and label guards returns them."""
Models = Mapping[str, nn.Module]
Optimizers = Mapping[str, torch.optim.Optimizer]
Facts = dict[str, Any]
Value = TypeVar("Value")


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class StoredCheckpoint:
    """What was stored of one party.

    ``step`` is how many steps are in it, so the number of the step that comes next; ``cursor``
    says where in the data to go on; ``states`` is what was saved under each name.
    """

    run: str
    step: int
    cursor: dict[str, Any]
    states: dict[str, SavedState]
    models: dict[str, dict[str, Tensor]]
    optimizers: dict[str, tuple[dict[str, Tensor], Facts]]

    def restore(self, *, models: Models, optimizers: Optimizers) -> None:
        """Load weights and optimisers into objects made like those that were saved.

        Guarantee: the weights are bitwise those that were saved, and the optimisers go on as if
        nothing had happened. If it raises, the objects are not to be used.
        """
        for kind, held, given in (
            ("models", set(self.models), set(models)),
            ("optimizers", set(self.optimizers), set(optimizers)),
        ):
            if held != given:
                raise InputError(f"the checkpoint has {kind} {sorted(held)}, got {sorted(given)}")
        name = ""
        try:
            for name, model in models.items():
                _load_model(model, self.models[name])
            for name, optimizer in optimizers.items():
                _load_optimizer(optimizer, *self.optimizers[name])
        except (RuntimeError, ValueError, KeyError) as error:
            raise InputError(
                f"the checkpoint of step {self.step} does not fit {name!r}: make it with the "
                f"settings of that run ({' '.join(str(error).split()):.200})"
            ) from error


def weights(model: nn.Module) -> dict[str, Tensor]:
    """Return copies of a model's parameters and buffers; tied ones come once for each name."""
    found = model.state_dict()
    for name, value in found.items():
        if not isinstance(value, Tensor):
            raise InputError(
                f"a checkpoint holds tensors, got {type(value).__name__} as {name!r} of a model: "
                "pass it among the states"
            )
    return {name: _copy(value) for name, value in found.items()}


def _load_model(model: nn.Module, saved: Mapping[str, Tensor]) -> None:
    """Load weights of the same names, shapes and types; others raise ``ValueError`` or so."""
    for name, value in model.state_dict().items():
        if name in saved and saved[name].dtype != value.dtype:
            raise ValueError(f"{name} is {value.dtype}, saved was {saved[name].dtype}")
    model.load_state_dict(saved, strict=True)


def settings(optimizer: torch.optim.Optimizer) -> tuple[dict[str, Tensor], Facts]:
    """Return an optimiser's tensors as ``NUMBER.KEY`` and everything else as plain values."""
    state = optimizer.state_dict()
    entries = [(f"{n}.{key}", v) for n, held in state["state"].items() for key, v in held.items()]
    groups = [
        {key: list(value) if isinstance(value, tuple) else value for key, value in group.items()}
        for group in state["param_groups"]
    ]
    return {key: _copy(value) for key, value in entries if isinstance(value, Tensor)}, {
        "kind": type(optimizer).__name__,
        "groups": groups,
        "values": {key: value for key, value in entries if not isinstance(value, Tensor)},
    }


def _load_optimizer(
    optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor], saved: Facts
) -> None:
    """Load what :func:`settings` returned into an optimiser over the same parameters."""
    if saved["kind"] != type(optimizer).__name__:
        raise ValueError(f"it is {type(optimizer).__name__}, saved was {saved['kind']}")
    state: dict[int, Facts] = {}
    # Copies: an optimiser works in place, and a checkpoint may be restored twice.
    clones = {key: value.clone() for key, value in tensors.items()}
    for path, value in {**clones, **saved["values"]}.items():
        number, _, key = path.partition(".")
        state.setdefault(int(number), {})[key] = value
    groups = [
        {k: tuple(v) if isinstance(v, list) and k != "params" else v for k, v in group.items()}
        for group in saved["groups"]
    ]
    optimizer.load_state_dict({"state": state, "param_groups": groups})


def copies(arrays: Mapping[str, npt.NDArray[Any]]) -> dict[str, npt.NDArray[Any]]:
    """Return arrays in the machine's byte order and in one piece, or refuse what has none."""
    for name, array in arrays.items():
        if array.dtype.kind not in "biuf" or array.dtype.itemsize > 8:
            raise InputError(f"a checkpoint holds numbers, got {array.dtype} as {name!r}")
    return {n: np.array(a, dtype=a.dtype.newbyteorder("="), order="C") for n, a in arrays.items()}


def joined(parts: Mapping[str, Mapping[str, Value]]) -> dict[str, Value]:
    """Return the content of named parts under ``NAME.KEY``."""
    for name in parts:
        if not name.isidentifier():
            raise InputError(f"names are letters, digits and _, got {name!r}: rename it")
    return {f"{name}.{key}": value for name, part in parts.items() for key, value in part.items()}


def parted(values: Mapping[str, Value]) -> dict[str, dict[str, Value]]:
    """Undo :func:`joined`; parts without content are gone."""
    parts: dict[str, dict[str, Value]] = {}
    for path, value in values.items():
        name, _, key = path.partition(".")
        parts.setdefault(name, {})[key] = value
    return parts


def plain_json(facts: Facts) -> str:
    """Return values as JSON text that gives the same values back, or refuse them."""
    try:
        text = json.dumps(facts, sort_keys=True)
        same = json.loads(text) == facts
    except (TypeError, ValueError) as error:
        raise InputError(f"a checkpoint holds plain values beside tensors: {error}") from None
    if not same:
        raise InputError(
            "a checkpoint holds values that JSON gives back as they were: use lists in place of "
            "tuples, text as keys, and no NaN"
        )
    return text


def _copy(tensor: Tensor) -> Tensor:
    return tensor.detach().to("cpu", copy=True).contiguous()
