"""Addresses as people write them: ``host:port``, with brackets around an IPv6 address."""

from __future__ import annotations

import errno
import re
import socket
from typing import TypeAlias

from tacit.errors import LostError, UsageError

SocketAddress: TypeAlias = tuple[socket.AddressFamily, tuple[str, int]]
_ADDRESS = re.compile(r"(?:\[(?P<six>[0-9a-fA-F:.%\w]+)\]|(?P<host>[\w.-]+)):(?P<port>\d{1,5})")


def parse_address(address: str) -> tuple[str, int]:
    """Return host and port.

    >>> parse_address("[::1]:7000")
    ('::1', 7000)
    """
    found = _ADDRESS.fullmatch(address)
    if found is None or int(found["port"]) > 65535:
        raise UsageError(
            f"address {address!r}: give host:port, for example split.example.com:7000 or [::1]:7000"
        )
    return found["six"] or found["host"], int(found["port"])


def resolve(address: str) -> list[SocketAddress]:
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
    return [(family, (at[0], at[1])) for family, _, _, _, at in found]  # type: ignore[misc]


def open_sockets(address: str) -> list[socket.socket]:
    """Return sockets that listen at an address, one per IP address of its host, all at one port."""
    opened: list[socket.socket] = []
    problem: OSError | None = None
    for family, (host, port) in resolve(address):
        endpoint = (host, opened[0].getsockname()[1] if opened else port)
        try:
            opened.append(_listening(family, endpoint))
        except OSError as error:
            if problem is None or problem.errno == errno.EADDRNOTAVAIL:
                problem = error
    if problem is None or (opened and problem.errno == errno.EADDRNOTAVAIL):
        return opened
    for each in opened:
        each.close()
    if problem.errno == errno.EADDRNOTAVAIL:
        raise UsageError(
            f"cannot listen at {address}: the host is not this machine: give one of its own "
            "addresses, or 0.0.0.0 for all"
        )
    raise UsageError(
        f"cannot listen at {address}: {(problem.strerror or str(problem)).lower()}: stop what "
        "listens there, or give another port"
    )


def _listening(family: socket.AddressFamily, endpoint: tuple[str, int]) -> socket.socket:
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(endpoint)
        made.listen(socket.SOMAXCONN)
    except OSError:
        made.close()
        raise
    return made
