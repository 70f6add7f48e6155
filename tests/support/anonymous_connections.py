"""Connections that do not say who they are, from addresses of this machine."""

import socket
import ssl
import threading
from contextlib import contextmanager, suppress

from transports import PATIENCE

ELSEWHERE, HERE = "127.0.0.2", "127.0.0.1"


def hello_of(context):
    """Return what a TLS client says first."""
    outgoing = ssl.MemoryBIO()
    client = context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="bank.tacit")
    with suppress(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


def echo(transport, other, count=3):
    for n in range(count):
        transport.send(b"%d" % n, timeout=PATIENCE)
        assert other.receive(timeout=PATIENCE) == b"%d" % n
        other.send(b"%d!" % n, timeout=PATIENCE)
        assert transport.receive(timeout=PATIENCE) == b"%d!" % n


def open_connection(port, *, source=ELSEWHERE, said=b""):
    """Open a connection from an address of this machine, and say this much."""
    made = socket.socket()
    made.settimeout(PATIENCE)
    try:
        made.bind((source, 0))
        made.connect((HERE, port))
        made.sendall(said)
    except OSError:
        made.close()
        raise
    return made


@contextmanager
def returning(port, *, source, said=b"", threads=4):
    """Threads that open connections again and again and hold the last hundred each."""
    stop, count = threading.Event(), [0]

    def run():
        held = []
        while not stop.wait(0.002):
            with suppress(OSError):
                held.append(open_connection(port, source=source, said=said))
                count[0] += 1
            if len(held) > 100:
                held.pop(0).close()
        for each in held:
            each.close()

    running = [threading.Thread(target=run) for _ in range(threads)]
    for each in running:
        each.start()
    try:
        yield count
    finally:
        stop.set()
        for each in running:
            each.join(PATIENCE)
