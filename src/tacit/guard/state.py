"""What a guard keeps over a restart: its key, its last release, what its stages remember.

Memory is stored by its structure: numbers, text and tuples as plain values, arrays and tensors
beside them, and the dataclasses that the protection declares by their names; nothing else is ever
made of a stored state.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, cast, final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tacit.errors import InputError, ParameterError
from tacit.rng import Key
from tacit.rows import on_host
from tacit.types import Certificate

Arrays = dict[str, npt.NDArray[Any]]
State = tuple[Arrays, dict[str, Any]]
"""Arrays and plain values, as checkpoints take them."""

_FORMAT = 2  # 1 drew other noise, and rounded to no grid


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Last:
    """What is stored of the last release: enough to compute it again, not its bytes.

    Attributes:
        step: its number.
        width: of the cut.
        tags: keyed digests of the content that its noise depends on.
        certificate: what was claimed of it.
        before: what each stage remembered when it was made; ``after`` what each does since.
    """

    step: int
    width: int
    tags: tuple[bytes, ...]
    certificate: Certificate
    before: tuple[object, ...] | None
    after: tuple[object, ...]


StateTypes = Mapping[str, type]
"""The dataclasses that a state may hold, by the names that they are stored under."""

_OWN: StateTypes = {kind.__name__: kind for kind in (Last, Certificate)}
_TAGS = ("float", "bytes", "array", "tensor", "tuple")


def state_types(declared: tuple[type, ...]) -> StateTypes:
    """Return what a state may hold where a protection remembers these dataclasses."""
    types = dict(_OWN)
    for kind in declared:
        name = kind.__name__
        if name in types or name in _TAGS or not is_dataclass(kind):
            raise ParameterError(
                f"memory_types has {name}: it must be a dataclass whose name no other type in a "
                "state has"
            )
        types[name] = kind
    return types


def noise_key(key: bytes | None, seed: int | None, *, label_secret: bytes | None = None) -> Key:
    """Return the key of the noise: given, from an experiment's seed, or fresh."""
    if key is None:
        return Key.fresh() if seed is None else Key.from_seed(seed)
    if seed is not None:
        raise ParameterError("a guard has one key, got key and seed: pass only one of them")
    if not isinstance(key, bytes) or len(key) != 32:
        got = f"{len(key)} bytes" if isinstance(key, bytes) else type(key).__name__
        raise ParameterError(
            f"key must be 32 bytes, got {got}: make one with secrets.token_bytes(32) and keep it "
            "in a file that only the label party can read"
        )
    if key == label_secret:
        raise ParameterError(
            "key and label_secret are two secrets, got one for both: make another with "
            "secrets.token_bytes(32)"
        )
    return Key(key)


def pack(
    last: Last | None, counts: Mapping[str, int], *, spec: str, key: Key, types: StateTypes
) -> State:
    """Return a copy as arrays and plain values, authenticated with the key."""
    held: list[Tensor | npt.NDArray[Any]] = []
    values = {
        "format": _FORMAT,
        "spec": spec,
        "counts": dict(counts),
        "last": _plain(last, held, types),
    }
    found = [on_host(one) if isinstance(one, Tensor) else one for one in held]
    arrays = {str(place): np.array(one, order="C") for place, one in enumerate(found)}
    return arrays, {**values, "seal": _seal(arrays, values, key)}


def unpack(
    arrays: Arrays, values: dict[str, Any], *, spec: str, key: Key, types: StateTypes
) -> tuple[Last | None, Counter[str]]:
    """Return what :func:`pack` was given, or refuse what it did not make for this spec and key.

    Under another key the last step would be released again with other noise.
    """
    facts = dict(values) if isinstance(values, dict) else {}
    if facts.get("format") != _FORMAT:
        raise InputError(
            f"a guard takes up states of format {_FORMAT}, got {facts.get('format')!r:.40}: "
            "another version draws other noise, so finish the run with the version that began it, "
            "or begin it anew with a new key"
        )
    if facts.get("spec") != spec:
        raise InputError(
            f"this state is of a guard with {facts.get('spec')!r:.200}, not {spec!r}: make the "
            "guard with the spec of its state"
        )
    seal = facts.pop("seal", None)
    try:
        whole = seal == _seal(arrays, facts, key)
    except (AttributeError, TypeError, ValueError):
        whole = False
    if not whole:
        raise InputError(
            f"this state of {spec} was changed or made under another key: make the guard with the "
            "key= of its run, or take up an earlier checkpoint"
        )
    last = cast("Last | None", _restored(facts["last"], arrays, types))  # sealed by pack
    return last, Counter(facts["counts"])


def _seal(arrays: Arrays, values: dict[str, Any], key: Key) -> str:
    """Return a message authentication code of the content."""
    forms = {name: [array.dtype.str, *array.shape] for name, array in arrays.items()}
    content = hashlib.sha256(json.dumps([values, forms], sort_keys=True).encode())
    for name in sorted(arrays):
        content.update(np.ascontiguousarray(arrays[name]).data)
    return key.digest(b"guard state" + content.digest()).hex()


def _plain(value: object, held: list[Tensor | npt.NDArray[Any]], types: StateTypes) -> Any:  # noqa: ANN401
    """Return a value as JSON can hold it, and collect arrays and tensors in ``held``, each once."""
    match value:
        case None | str() | bool() | int():
            return value
        case float():
            return ["float", value.hex()]
        case bytes():
            return ["bytes", value.hex()]
        case np.ndarray() | Tensor() if getattr(value, "dtype", None) != torch.bfloat16:
            place = next((n for n, one in enumerate(held) if one is value), len(held))
            held[place:] = held[place:] or [value]
            return ["tensor" if isinstance(value, Tensor) else "array", str(place)]
        case tuple():
            return ["tuple", [_plain(one, held, types) for one in value]]
    name = type(value).__name__
    if types.get(name) is not type(value):
        raise InputError(
            f"a protection remembers {name}, which has no place in a state: use None, numbers, "
            "text, arrays, tensors, tuples of them, and the dataclasses in its memory_types"
        )
    each = {field.name: getattr(value, field.name) for field in fields(types[name])}
    return [name, {field: _plain(one, held, types) for field, one in each.items()}]


def _restored(item: Any, arrays: Arrays, types: StateTypes) -> object:  # noqa: ANN401
    """Undo :func:`_plain`; everything is copied, tensors into memory that torch allocates."""
    match item:
        case ["float", text]:
            return float.fromhex(text)
        case ["bytes", text]:
            return bytes.fromhex(text)
        case ["array", place]:
            return np.array(arrays[place])
        case ["tensor", place]:
            return torch.from_numpy(np.array(arrays[place])).clone()
        case ["tuple", items]:
            return tuple(_restored(one, arrays, types) for one in items)
        case [name, each]:
            made = {key: _restored(one, arrays, types) for key, one in each.items()}
            return types[name](**made)
    return item
