"""Addresses as people write them: ``host:port``, with brackets around an IPv6 address."""

from __future__ import annotations

import re
import socket
from typing import TypeAlias

from tacit.errors import LostError, UsageError

__all__ = ["parse_address", "resolve"]

Place: TypeAlias = tuple[socket.AddressFamily, tuple[str, int]]
_ADDRESS = re.compile(r"(?:\[(?P<six>[0-9a-fA-F:.%\w]+)\]|(?P<host>[\w.-]+)):(?P<port>\d{1,5})")


def parse_address(address: str) -> tuple[str, int]:
    """Return host and port.

    >>> parse_address("[::1]:7000")
    ('::1', 7000)
    """
    found = _ADDRESS.fullmatch(address)
    if found is None or int(found["port"]) > 65535:
        raise UsageError(f"address {address!r}: give host:port, for example split.example.com:7000 "
                         f"or [::1]:7000")  # fmt: skip
    return found["six"] or found["host"], int(found["port"])


def resolve(address: str) -> list[Place]:
    """Return where an address is; UsageError if its host is unknown."""
    host, port = parse_address(address)
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except socket.gaierror as error:
        if error.errno == socket.EAI_AGAIN:
            raise LostError(f"the host {host} cannot be looked up now: {error.strerror}") from None
        raise UsageError(f"the host {host} is unknown: check the address {address}") from None
    except UnicodeError:
        raise UsageError(f"the host {host} is no host name: check the address {address}") from None
    return [(family, (place[0], place[1])) for family, _, _, _, place in found]  # type: ignore[misc]
