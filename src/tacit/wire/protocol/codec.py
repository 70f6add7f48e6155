"""Messages as bytes and back: a fixed header, then a tensor's raw bytes or a small JSON body.

A message has exactly one encoding, and bytes that decode encode to the same bytes again. Every size
is checked before anything is allocated, and nothing in a frame can execute. The same rules hold on
both sides; whoever encodes something against them gets an InputError, and whoever sends it is
answered for by a PeerError at the other end.
"""

from __future__ import annotations

import json
import math
import re
import sys
from reprlib import repr as shown
from typing import Any, NoReturn, TypeAlias

import torch
from torch import Tensor

from tacit.errors import InputError, PeerError
from tacit.training.cut import Embedding, Gradient
from tacit.wire.protocol._header import (
    CODES,
    DEFAULTS,
    HEADER_BYTES,
    NARROWED,
    RECORDED,
    Header,
    Limits,
    check_header,
    read_header,
    require,
)
from tacit.wire.protocol.messages import (
    Align,
    Bye,
    CheckpointMessage,
    EmbeddingMessage,
    Evaluate,
    GradientMessage,
    Heartbeat,
    Hello,
    Kind,
    Message,
    Predict,
    Records,
    Refuse,
)

Fields: TypeAlias = dict[str, Any]
Body: TypeAlias = Tensor | Fields | None


def encode(message: Message, *, narrow: bool = False, limits: Limits = DEFAULTS) -> bytes:
    r"""Return a message's frame.

    With ``narrow``, float32 values travel as bfloat16: half the bytes and 8 bits of precision, so
    a run is no longer bit for bit the one in a single process.

    >>> encode(Bye())[:6]
    b'TACT\x02\x00'
    """
    _require_little_endian()
    step, body = _take_apart(message)
    if isinstance(body, Tensor):
        record = message.gradient.record if isinstance(message, GradientMessage) else None
        return _encode_tensor(message.kind, step, body, record, narrow=narrow, limits=limits)
    text = b"" if body is None else canonical(body)
    header = Header(kind=message.kind, step=step, length=len(text))
    check_header(header, limits)
    return header.pack() + text


def decode(data: bytes | bytearray | memoryview, *, limits: Limits = DEFAULTS) -> Message:
    """Return the message in a frame; anything but one well-formed frame raises PeerError.

    >>> decode(encode(Refuse(reason="another plan"))).reason
    'another plan'
    """
    _require_little_endian()
    view = memoryview(data).cast("B")
    try:
        header = read_header(view, limits)
        end = len(view) - header.trailer
        body = _read_body(header, view[HEADER_BYTES:end])
        return _put_together(header, body, record=bytes(view[end:]) or None)
    except InputError as error:
        raise PeerError(f"a frame was refused: {error}") from error


def canonical(fields: Fields) -> bytes:
    """Return the one JSON text of some fields: sorted keys, no spaces, UTF-8."""
    text = json.dumps(fields, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return text.encode()


def parse(text: bytes) -> Fields:
    """Return the fields of a canonical JSON object; any other spelling of them is refused."""
    try:
        fields = json.loads(
            text.decode(),
            object_pairs_hook=_unique,
            parse_float=_refuse_number,
            parse_constant=_refuse_number,
        )
        same = isinstance(fields, dict) and canonical(fields) == text
    except InputError:
        raise
    except (ValueError, RecursionError) as error:
        raise InputError(f"a body must be canonical JSON, got {shown(text)}") from error
    if not same:
        raise InputError(f"a body must be one canonical JSON object, got {shown(text)}")
    return dict(fields)


def _unique(pairs: list[tuple[str, Any]]) -> Fields:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise InputError(f"a JSON key must appear once, got {shown([key for key, _ in pairs])}")
    return fields


def _refuse_number(text: str) -> NoReturn:
    raise InputError(f"a number in a JSON body must be whole, got {shown(text)}")


def _require_little_endian() -> None:
    require(sys.byteorder == "little", "frames need a little-endian machine, this one is not")


def _encode_tensor(
    kind: Kind, step: int, values: Tensor, record: bytes | None, *, narrow: bool, limits: Limits
) -> bytes:
    require(values.dtype in CODES, f"values must be one of {list(CODES)}, got {values.dtype}")
    narrow = narrow and values.dtype == torch.float32
    flags = (NARROWED if narrow else 0) | (0 if record is None else RECORDED)
    wire = values.detach().cpu()
    wire = (wire.bfloat16() if narrow else wire).contiguous()
    trailer = record or b""
    header = Header(
        kind=kind,
        step=step,
        flags=flags,
        dtype=values.dtype,
        shape=tuple(values.shape),
        length=wire.numel() * wire.element_size() + len(trailer),
    )
    check_header(header, limits)
    _check_finite(wire)
    return b"".join((header.pack(), wire.view(-1).view(torch.uint8).numpy().data, trailer))


def _check_finite(values: Tensor) -> None:
    if values.is_floating_point():
        # One pass without a mask: a NaN anywhere becomes both extremes, an infinity one of them.
        low, high = torch.aminmax(values)
        finite = math.isfinite(low) and math.isfinite(high)
        require(finite, f"values must be finite, got {low:g} to {high:g}")


def _read_body(header: Header, view: memoryview) -> Body:
    dtype = header.wire_dtype
    if dtype is None:
        return parse(bytes(view)) if header.length else None
    # One copy: the tensor owns its memory, whatever the caller does with the frame afterwards.
    values = torch.frombuffer(bytearray(view), dtype=dtype).view(header.shape)
    _check_finite(values)
    return values.to(header.dtype)


def _take_apart(message: Message) -> tuple[int, Body]:
    """Return what a message puts into the header's step, and its body."""
    match message:
        case EmbeddingMessage():
            return message.step, message.embedding.values
        case GradientMessage():
            return message.step, message.gradient.values
        case Evaluate(values=None):
            return message.part, _receipt_body(message)
        case Evaluate() | Predict():
            return message.part, message.values
        case CheckpointMessage():
            return message.step, None
        case Records():
            return message.count, message.values
        case Align():
            return 0, _align_body(message)
        case Hello():
            return 0, {n: v for n, v in vars(message).items() if n != "number" or v}
        case Refuse():
            return 0, vars(message)
        case Heartbeat() | Bye():
            return 0, None


def _receipt_body(message: Evaluate) -> Body:
    fields = {"note": message.note, "record": message.record and message.record.hex()}
    return {name: text for name, text in fields.items() if text is not None} or None


def _align_body(message: Align) -> Body:
    if isinstance(message.ids, Tensor):
        return message.ids
    if message.sealed is not None:
        return message.sealed
    if message.held is not None:
        return {"held": message.held}
    return {"count": message.count} if message.ids is None else {"ids": message.ids}


def _put_together(header: Header, body: Body, *, record: bytes | None) -> Message:
    """Return the message of a checked header and its body; fields are checked by the message."""
    kind, step = header.kind, header.step
    if isinstance(body, Tensor):
        return _with_values(kind, step, body, record)
    if body is not None:
        return _with_fields(kind, step, body)
    match kind:
        case Kind.EVALUATE:
            return Evaluate(part=step)
        case Kind.PREDICT:
            return Predict(part=step)
        case Kind.CHECKPOINT:
            return CheckpointMessage(step=step)
        case Kind.RECORDS:
            return Records(count=step)
        case Kind.HEARTBEAT:
            return Heartbeat()
        case _:
            return Bye()


def _with_values(kind: Kind, step: int, values: Tensor, record: bytes | None) -> Message:
    match kind:
        case Kind.TRAIN:
            return EmbeddingMessage(Embedding(step=step, values=values))
        case Kind.RELEASE:
            return GradientMessage(Gradient(step=step, values=values, record=record))
        case Kind.EVALUATE:
            return Evaluate(part=step, values=values)
        case Kind.PREDICT:
            return Predict(part=step, values=values)
        case Kind.RECORDS:
            return Records(count=step, values=values)
        case _ if values.dtype == torch.uint8:
            return Align(sealed=values)
        case _:
            return Align(count=len(values), ids=values)


def _with_fields(kind: Kind, step: int, fields: Fields) -> Message:
    """Return a message of JSON fields, which must be exactly the ones that it has."""
    match kind:
        case Kind.HELLO:
            numbered = {"number"} & fields.keys()
            _check_keys(fields, {"party", "plan_digest", "resume_point", "versions"} | numbered)
            if fields.get("number") == 0:
                raise InputError("a hello leaves out a number that is 0, got it written")
            return Hello(**{**fields, "versions": _items(fields, "versions")})
        case Kind.REFUSE:
            _check_keys(fields, {"reason"})
            return Refuse(**fields)
        case Kind.EVALUATE:
            return _receipt(step, fields)
        case _ if "count" in fields:
            _check_keys(fields, {"count"})
            return Align(**fields)
        case _ if "held" in fields:
            _check_keys(fields, {"held"})
            return Align(**fields)
        case _:
            _check_keys(fields, {"ids"})
            ids = _items(fields, "ids")
            return Align(count=len(ids), ids=ids)


def _receipt(part: int, fields: Fields) -> Evaluate:
    _check_keys(fields, {"note", "record"} & fields.keys() or {"note"})
    for name, text in fields.items():
        require(isinstance(text, str), f"a {name} must be text, got {shown(text)}")
    record = fields.get("record")
    if record is not None:
        digits = re.fullmatch("(?:[0-9a-f]{2})+", record)
        require(digits is not None, f"a record must be hexadecimal digits, got {shown(record)}")
    held = None if record is None else bytes.fromhex(record)
    return Evaluate(part=part, note=fields.get("note"), record=held)


def _check_keys(fields: Fields, keys: set[str]) -> None:
    require(fields.keys() == keys, f"a body has the keys {sorted(keys)}, got {shown(list(fields))}")


def _items(fields: Fields, key: str) -> tuple[Any, ...]:
    value = fields[key]
    require(isinstance(value, list), f"{key} must be a list, got {shown(value)}")
    return tuple(value)
