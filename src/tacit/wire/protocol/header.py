"""The fixed header of a frame, held against the form of its kind and the limits on sizes.

48 bytes, little-endian::

    magic 4s | version u16 | kind u16 | flags u16 | dtype u8 | dims u8 | zero u32
    step i64 | shape 4 x i32 | body length i64
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from typing import final

import torch

from tacit.errors import InputError
from tacit.training.cut import RECORD_BYTES
from tacit.wire.protocol.forms import FORMS, MOST_DIMS, Form, Kind
from tacit.wire.protocol.messages import check_whole

VERSION = 2
MAGIC = b"TACT"
HEADER = struct.Struct("<4sHHHBBIq4iq")
HEADER_BYTES = HEADER.size
NARROWED = 1  # flag: float32 values travel as bfloat16
RECORDED = 2  # flag: after the values of a release comes its record in the journal
DTYPES = {
    1: torch.float32,
    2: torch.float64,
    3: torch.bfloat16,
    4: torch.float16,
    5: torch.int64,
    6: torch.uint8,
}
CODES = {dtype: code for code, dtype in DTYPES.items()}


@final
@dataclass(frozen=True, kw_only=True)
class Limits:
    """The largest frame that a party takes or makes.

    Args:
        max_bytes: of a whole frame.
        max_rows: of a tensor, or ids in one message.
        max_width: values per row.
        max_text: bytes of a JSON body; parsed JSON takes many times its size in memory.
    """

    max_bytes: int = 64 * 2**20
    max_rows: int = 2**20
    max_width: int = 2**16
    max_text: int = 2**20

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            check_whole(name, value, low=1, high=2**31 - 1)


DEFAULTS = Limits()


@final
@dataclass(frozen=True, kw_only=True)
class Header:
    """A frame's header, as far as it says something about the message."""

    kind: Kind
    step: int = 0
    flags: int = 0
    dtype: torch.dtype | None = None
    shape: tuple[int, ...] = ()
    length: int = 0

    @property
    def wire_dtype(self) -> torch.dtype | None:
        """The type of the values as they travel."""
        return torch.bfloat16 if self.flags & NARROWED else self.dtype

    @property
    def trailer(self) -> int:
        """How many bytes come after the values."""
        return RECORD_BYTES if self.flags & RECORDED else 0

    def pack(self) -> bytes:
        """Return the header's bytes."""
        shape = self.shape + (0,) * (MOST_DIMS - len(self.shape))
        code = 0 if self.dtype is None else CODES[self.dtype]
        return HEADER.pack(
            MAGIC,
            VERSION,
            self.kind,
            self.flags,
            code,
            len(self.shape),
            0,
            self.step,
            *shape,
            self.length,
        )


def require(holds: bool, rule: str) -> None:
    """Raise InputError with the rule unless it holds."""
    if not holds:
        raise InputError(rule)


def read_header(view: memoryview, limits: Limits) -> Header:
    """Return the checked header of a whole frame; the body is measured but not read."""
    require(
        len(view) >= HEADER_BYTES,
        f"a frame has at least {HEADER_BYTES} bytes, got {len(view)}: it was cut short",
    )
    magic, version, kind, flags, code, dims, zero, step, *rest = HEADER.unpack_from(view)
    *shape, length = rest
    require(magic == MAGIC, f"a frame begins with {MAGIC!r}, got {magic!r}")
    require(
        version == VERSION,
        f"the frame version must be {VERSION}, got {version}: run the same release",
    )
    require(kind in FORMS, f"the kind must be 1 to {len(FORMS)}, got {kind}")
    require(flags in range(4) and zero == 0, f"unknown flags {flags} or {zero}")
    require(code == 0 or code in DTYPES, f"the dtype code must be 0 to {len(DTYPES)}, got {code}")
    require(dims <= MOST_DIMS, f"a tensor has at most {MOST_DIMS} dimensions, got {dims}")
    require(not any(shape[dims:]), f"unused dimensions must be 0, got {shape} for {dims}")
    header = Header(
        kind=Kind(kind),
        step=step,
        flags=flags,
        dtype=DTYPES.get(code),
        shape=tuple(shape[:dims]),
        length=length,
    )
    check_header(header, limits)
    require(
        len(view) == HEADER_BYTES + length,
        f"the body must have {length} bytes, got {len(view) - HEADER_BYTES}",
    )
    return header


def check_header(header: Header, limits: Limits) -> None:
    """Hold a header against its kind's form and the limits; the body is not touched."""
    form, name, length = FORMS[header.kind], header.kind.word, header.length
    check_whole("a step", header.step, high=0 if form.number is None else 2**63 - 1)
    whole = HEADER_BYTES + length
    require(whole <= limits.max_bytes, f"a frame has at most {limits.max_bytes} bytes, got {whole}")
    if header.dtype is not None:
        _check_shape(header, form, limits)
        return
    require(not header.shape and not header.flags, f"{name} without a dtype has a shape or flags")
    if form.texts and not (form.empty and length == 0):
        require(
            1 <= length <= limits.max_text, f"text has 1 to {limits.max_text} bytes, got {length}"
        )
    else:
        require(
            form.empty and length == 0, f"{name} must carry a tensor or nothing, got {length} bytes"
        )


def _check_shape(header: Header, form: Form, limits: Limits) -> None:
    name, shape, wire = header.kind.word, header.shape, header.wire_dtype
    assert wire is not None  # noqa: S101 - the caller has seen the dtype
    bodies = [body for body in form.tensors if len(shape) in body.dims]
    require(bool(bodies), f"{name} cannot carry a tensor of shape {shape}")
    rule = ", ".join(f"{body.field} must be {_named(body.dtypes)}" for body in bodies)
    bodies = [body for body in bodies if header.dtype in body.dtypes]
    require(bool(bodies), f"in {name} {rule}, got {header.dtype}")
    narrowed, recorded = bool(header.flags & NARROWED), bool(header.flags & RECORDED)
    require(not narrowed or header.dtype == torch.float32, "only float32 can be narrowed")
    require(not recorded or bodies[0].record is not None, f"{name} carries no record of a release")
    rows, width = shape[0], math.prod(shape[1:])
    require(all(n >= 1 for n in shape), f"every dimension must be 1 or more, got {shape}")
    require(rows <= limits.max_rows, f"at most {limits.max_rows} rows, got {rows}")
    require(width <= limits.max_width, f"at most {limits.max_width} values per row, got {width}")
    wanted = rows * width * wire.itemsize + header.trailer
    require(header.length == wanted, f"the body length must be {wanted}, got {header.length}")


def _named(dtypes: tuple[torch.dtype, ...]) -> str:
    return " or ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
