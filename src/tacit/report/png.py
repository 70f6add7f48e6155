"""Small pictures inside a page: PNG files as data addresses.

References: W3C, Portable Network Graphics Specification, 5 (chunks) and 9 (filters).
"""

from __future__ import annotations

import base64
import struct
import zlib

import numpy as np
import numpy.typing as npt

from tacit.errors import InputError

Pixels = npt.NDArray[np.uint8]

_MAGIC = b"\x89PNG\r\n\x1a\n"
_COLOURS = {1: 0, 3: 2}  # channels: grey, or red, green and blue
_SIDE = 64  # larger pictures are shrunk: a page has hundreds


def data_address(pixels: Pixels) -> str:
    """Return a picture [channels, height, width] as an address that an ``img`` can show."""
    return f"data:image/png;base64,{base64.b64encode(png(thumbnail(pixels))).decode('ascii')}"


def thumbnail(pixels: Pixels) -> Pixels:
    """Return a picture of at most 64 x 64: each pixel is the mean of a square of them.

    >>> thumbnail(np.full((3, 84, 84), 7, dtype=np.uint8)).shape
    (3, 42, 42)
    """
    by = -(-max(pixels.shape[1:]) // _SIDE)
    if by <= 1:
        return pixels
    height, width = (max(1, side // by) for side in pixels.shape[1:])
    squares = pixels[:, : height * by, : width * by]
    means = squares.reshape(len(pixels), height, by, width, by).mean(axis=(2, 4))
    shrunk: Pixels = np.rint(means).astype(np.uint8)
    return shrunk


def png(pixels: Pixels) -> bytes:
    r"""Return a picture [1 or 3 channels, height, width] of bytes as a PNG file.

    >>> png(np.zeros((1, 2, 2), dtype=np.uint8))[:4]
    b'\x89PNG'
    """
    if pixels.dtype != np.uint8 or pixels.ndim != 3 or len(pixels) not in _COLOURS:
        raise InputError(
            f"a picture is bytes [1 or 3 channels, height, width], got {pixels.dtype} "
            f"{pixels.shape}"
        )
    channels, height, width = pixels.shape
    lines = pixels.transpose(1, 2, 0).reshape(height, width * channels)
    steps = lines - np.vstack([np.zeros_like(lines[:1]), lines[:-1]])  # from the line above
    # Drawings shrink more as they are, photographs as differences.
    body = min((_packed(lines, 0), _packed(steps, 2)), key=len)
    head = struct.pack(">IIBBBBB", width, height, 8, _COLOURS[channels], 0, 0, 0)
    return _MAGIC + _chunk(b"IHDR", head) + _chunk(b"IDAT", body) + _chunk(b"IEND", b"")


def _packed(lines: Pixels, way: int) -> bytes:
    marks = np.full((len(lines), 1), way, dtype=np.uint8)
    return zlib.compress(np.hstack([marks, lines]).tobytes(), 9)


def _chunk(kind: bytes, content: bytes) -> bytes:
    checked = kind + content
    return struct.pack(">I", len(content)) + checked + struct.pack(">I", zlib.crc32(checked))
