"""Messages as bytes and back: a fixed header, then a tensor's raw bytes or a small JSON body.

A message has exactly one encoding, and bytes that decode encode to the same bytes again. Every size
is checked before anything is allocated, and nothing in a frame can execute. The same rules hold on
both sides; encoding something against them raises InputError, and a peer that sends it is
refused with a PeerError by the receiver.
"""

from __future__ import annotations

import json
import math
import sys
from reprlib import repr as shown
from typing import Any, NoReturn, TypeAlias

import torch
from torch import Tensor

from tacit.errors import InputError, PeerError
from tacit.wire.protocol.forms import FORMS, Kind, TensorBody, kind_of
from tacit.wire.protocol.header import (
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
from tacit.wire.protocol.messages import Message

Fields: TypeAlias = dict[str, Any]
Body: TypeAlias = Tensor | Fields | None


def encode(message: Message, *, narrow: bool = False, limits: Limits = DEFAULTS) -> bytes:
    r"""Return a message's frame.

    With ``narrow``, float32 values travel as bfloat16: half the bytes and 8 bits of precision, so
    a run is no longer bit for bit the one in a single process.

    >>> from tacit.wire.protocol.messages import Bye
    >>> encode(Bye())[:6]
    b'TACT\x02\x00'
    """
    _require_little_endian()
    form = FORMS[kind_of(type(message))]
    number = 0 if form.number is None else getattr(message, form.number)
    body = form.body_of(message)
    if isinstance(body, TensorBody):
        values = getattr(message, body.field)
        record = None if body.record is None else getattr(message, body.record)
        return _encode_tensor(form.kind, number, values, record, narrow=narrow, limits=limits)
    text = b"" if body is None else canonical(body.write(message))
    header = Header(kind=form.kind, step=number, length=len(text))
    check_header(header, limits)
    return header.pack() + text


def decode(data: bytes | bytearray | memoryview, *, limits: Limits = DEFAULTS) -> Message:
    """Return the message in a frame; anything but one well-formed frame raises PeerError.

    >>> from tacit.wire.protocol.messages import Refuse
    >>> decode(encode(Refuse(reason="another plan"))).reason
    'another plan'
    """
    _require_little_endian()
    view = memoryview(data).cast("B")
    try:
        header = read_header(view, limits)
        end = len(view) - header.trailer
        body = _read_body(header, view[HEADER_BYTES:end])
        return _build(header, body, record=bytes(view[end:]) or None)
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


def _build(header: Header, body: Body, *, record: bytes | None) -> Message:
    """Return the message of a checked header and its body; fields are checked by the message."""
    form = FORMS[header.kind]
    given: Fields = {} if form.number is None else {form.number: header.step}
    if isinstance(body, Tensor):
        # The header's check has found one of this type.
        chosen = next(each for each in form.tensors if body.dtype in each.dtypes)
        given[chosen.field] = body
        if record is not None and chosen.record is not None:
            given[chosen.record] = record
    elif body is not None:
        text = next((each for each in form.texts if each.shares(body)), form.texts[0])
        given |= text.read(body, form.message)
    message: Message = form.message(**given)
    return message
