"""Hostile peers at the real listener: TLS on a loopback address, while the honest party trains."""

import os
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress

import pytest

from anonymous_connections import ELSEWHERE, HERE, returning
from peers import (
    LONG,
    TIMINGS,
    Bank,
    Rogue,
    finished,
    honest,
    short,
    tensor,
    train,
)
from tacit.errors import LostError, PeerError, TacitError
from tacit.party.config import read_party_config
from tacit.wire.protocol.codec import encode
from tacit.wire.protocol.header import Limits
from tacit.wire.transport.grpc_client import dial
from tacit.wire.transport.tls import load_identity, make_party

pytestmark = pytest.mark.usefixtures("around")


def address_of(pair):
    host, port = read_party_config(pair.bank).address.split(":")
    return host, int(port)


def test_a_name_that_is_not_the_certificates(pair, wanted):
    with Bank(pair, tls=True) as bank:
        rogue = bank.rogue()
        rogue.say(rogue.hello(party="mallory"))
        assert "platform calls itself mallory: names are bound to certificates" in rogue.refused()
        bank.said("refused: platform calls itself mallory")
        finished(bank, wanted)


def test_frames_against_the_rules_over_tls(pair, wanted):
    with Bank(pair, tls=True) as bank:
        honest(bank, stop=5)
        before = bank.journal
        for make, says in (
            (lambda r: b"x" * 999, "a frame begins with"),
            (lambda r: encode(r.hello())[:-1], "the body must have"),
            (lambda r: r.hello(plan_digest="0" * 64), "the plans differ"),
            (lambda r: train(r.ready(4), tensor(*r.cut)), "step 4 was released before"),
            (lambda r: train(r.ready(4), tensor(7, 7)), "by the plan, got"),
        ):
            heard, rogue = len(bank.lines), bank.rogue()
            rogue.say(make(rogue))
            rogue.refused()
            bank.said(f"refused: .*{says}", since=heard)
        assert bank.journal == before
        finished(bank, wanted)


def test_a_frame_above_the_limit_ends_at_the_listener(pair, wanted):
    with Bank(pair, tls=True) as bank:
        config = read_party_config(pair.platform)
        identity = load_identity(config.keys, name="platform")
        transport = dial(
            config.address,
            identity=identity,
            peer="bank",
            timeout=LONG,
            limits=Limits(max_bytes=2**30),
        )
        transport.send(bytes(65 * 2**20), timeout=LONG)
        with pytest.raises(TacitError):
            transport.receive(timeout=LONG)
        transport.close()
        finished(bank, wanted)


def test_whoever_connects_and_says_nothing_is_dropped(pair, wanted):
    with Bank(pair, tls=True, timings=short(greeting=0.3)) as bank:
        rogue = bank.rogue()
        bank.said("connection lost: nothing came from platform for 0.3 s")
        assert rogue.refused() is None
        finished(bank, wanted)


def test_the_honest_party_connects_again(pair, wanted):
    """Whoever has its certificate can cut it off; it comes back and loses nothing."""
    left = {3, 7, 8}
    with Bank(pair, tls=True) as bank:

        def disturb(step, _):
            if step in left:
                left.remove(step)
                Rogue(bank.dial(), pair).say(b"garbage" * 99)

        finished(bank, wanted, done=disturb)
        assert not left
        assert sum("a newer one replaces it" in line for line in bank.lines) >= 3


def connect_again_and_again(pair, stop):
    """Knock without rest: raw bytes, connections that say nothing, and a party nobody knows."""
    authority = pair.folder / "authority"
    identity = load_identity(make_party(authority, "mallory"), name="mallory")
    config, idle, refused = read_party_config(pair.bank), [], 0
    while not stop.is_set():
        with suppress(OSError):
            idle.append(socket.create_connection(address_of(pair), timeout=1))
            if len(idle) % 2:
                idle[-1].sendall(b"\x16\x03\x01" + os.urandom(200))
        try:
            dial(config.address, identity=identity, peer="bank", limits=Limits(), timeout=2)
        except PeerError as error:
            refused += "not one of the peers" in str(error)
        except LostError:
            pass
    for each in idle:
        each.close()
    return refused


def test_endless_connections_do_not_disturb_the_training(pair, wanted, capfd):
    stop, found = threading.Event(), []
    with Bank(pair, tls=True) as bank:
        thread = threading.Thread(target=lambda: found.append(connect_again_and_again(pair, stop)))
        thread.start()
        honest(bank, stop=4, done=lambda *_: time.sleep(0.1))
        finished(bank, wanted, done=lambda *_: time.sleep(0.1))
        stop.set()
        thread.join()
    assert found[0] > 0
    assert any("mallory is not one of the peers" in line for line in bank.lines)
    capfd.readouterr()  # gRPC says on standard error why a handshake failed


@pytest.mark.parametrize("source", [ELSEWHERE, HERE])
def test_silent_connections_that_come_again_and_again_do_not_keep_the_party_out(
    pair, wanted, source
):
    with Bank(pair, tls=True) as bank, returning(address_of(pair)[1], source=source) as count:
        deadline = time.monotonic() + LONG
        while count[0] < 400 and time.monotonic() < deadline:
            time.sleep(0.01)
        honest(bank, stop=4)
        finished(bank, wanted)


def test_many_connections_at_once_leave_room_for_the_honest_one(pair, wanted):
    with Bank(pair, tls=True, timings=short(greeting=0.5)) as bank:
        threads = [threading.Thread(target=lambda: _try(bank)) for _ in range(24)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        finished(bank, wanted)


def _try(bank):
    with suppress(TacitError):
        rogue = bank.rogue()
        rogue.say(b"x" * 60)
        rogue.refused()


FLOOD = """
import sys
from tacit.errors import TacitError
from tacit.wire.protocol.codec import Limits
from tacit.wire.transport.grpc_client import dial
from tacit.party.config import read_party_config
from tacit.party.config import identity_of
from pathlib import Path

config = read_party_config(Path(sys.argv[1]))
sent = 0
for _ in range(4):
    try:
        transport = dial(config.address, identity=identity_of(config), peer=config.peer,
                    limits=Limits(), timeout=10)
        for _ in range(20):
            transport.send(b"TACT" + bytes(32 * 2**20), timeout=0.5)
            sent += 1
    except TacitError:
        pass
print(sent)
"""


def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.slow
def test_a_flood_of_large_frames_takes_bounded_memory(pair, wanted):
    """The label party does not even read: what waits for it must not pile up."""
    busy, reached = threading.Event(), threading.Event()

    def done(step, _):
        if step.step == 1 and not busy.is_set():
            reached.set()
            busy.wait(LONG)

    with Bank(pair, tls=True, done=done) as bank:
        training = threading.Thread(target=lambda: honest(bank, stop=2, timings=TIMINGS))
        training.start()
        assert reached.wait(LONG)
        before = peak = resident()
        with subprocess.Popen(  # noqa: S603
            [sys.executable, "-c", FLOOD, str(pair.platform)],
            stdout=subprocess.PIPE,
            text=True,
        ) as flood:
            while flood.poll() is None:
                peak = max(peak, resident())
                time.sleep(0.01)
            sent = int(flood.stdout.read())
        busy.set()
        training.join()
        assert 8 <= sent < 80, "the flood is held back at its source"
        assert peak - before < 640 * 2**20, "without a limit it would be 2560 MiB"
        finished(bank, wanted)
