"""HTTP/2 frames written by hand inside a real TLS connection, for whoever keeps no rules."""

import socket
import ssl
import struct
from contextlib import contextmanager, suppress

from tacit.wire.transport.grpc_client import METHOD, SERVICE
from transports import tls

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PING, WINDOW_UPDATE, CONTINUATION = (
    0,
    1,
    2,
    3,
    4,
    6,
    8,
    9,
)
END_STREAM, END_HEADERS, ACK = 1, 4, 1
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


def frame(kind, body=b"", *, flags=0, stream=0):
    return struct.pack(">I", len(body))[1:] + struct.pack(">BBI", kind, flags, stream) + body


def _length(size):
    """A number with a prefix of seven bits, as HPACK writes it."""
    if size < 127:
        return bytes([size])
    size, made = size - 127, [127]
    while size >= 128:
        made.append(size % 128 + 128)
        size //= 128
    return bytes([*made, size])


def field(name, value, *, kept=False):
    """One header as it is; kept, it enters the table that later headers refer to."""
    first = b"\x40" if kept else b"\x00"
    return first + _length(len(name)) + name + _length(len(value)) + value


REQUEST = b"".join(
    field(name, value)
    for name, value in (
        (b":method", b"POST"),
        (b":scheme", b"https"),
        (b":path", f"/{SERVICE}/{METHOD}".encode()),
        (b":authority", b"bank.tacit"),
        (b"te", b"trailers"),
        (b"content-type", b"application/grpc"),
    )
)


def call(stream, *, more=b""):
    return frame(HEADERS, REQUEST + more, flags=END_HEADERS, stream=stream)


@contextmanager
def speaking(world, port, name, *, source="127.0.0.1"):
    """A TLS connection with a party's certificate, or none, after the preface and settings."""
    plain = socket.socket()
    plain.settimeout(5)
    plain.bind((source, 0))
    plain.connect(("127.0.0.1", port))
    with plain, tls(world, name).wrap_socket(plain, server_hostname="bank.tacit") as secure:
        with suppress(OSError):
            secure.sendall(PREFACE + frame(SETTINGS))
        secure.settimeout(2)
        yield secure


def pour(secure, pieces):
    """Send as much as the other side takes; return how many pieces and bytes that was."""
    count = size = 0
    try:
        for piece in pieces:
            secure.sendall(piece)
            count, size = count + 1, size + len(piece)
    except (OSError, ssl.SSLError):
        pass
    return count, size
