"""Strangers among a party's workers: they can disturb, but not pose as a worker."""

import json
import os
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import replace
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from parties import free_port
from tacit.errors import LostError, TacitError
from tacit.party.workers import collectives
from tacit.party.workers.collectives import Collectives, WorkersLostError
from tacit.party.workers.rendezvous import ForgedError, Rendezvous, SealedStore, secret_of
from transports import make_world, who

SECONDS = 60
SECRET, OTHER = b"a" * 32, b"b" * 32
FACTS = {"lr": "0.1"}


def rendezvous(address, worker, *, workers=2, secret=SECRET, wait=SECONDS, log=lambda _: None):
    return Rendezvous(
        address,
        party="bank",
        worker=worker,
        workers=workers,
        secret=secret,
        facts=FACTS,
        wait=wait,
        log=log,
    )


@pytest.fixture
def address():
    return f"127.0.0.1:{free_port()}"


def store_at(address):
    """The store as it is for anyone who can reach it, when it is there."""
    host, port = address.split(":")
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        with suppress(OSError, RuntimeError):
            socket.create_connection((host, int(port)), timeout=1).close()
            return dist.TCPStore(
                host,
                int(port),
                is_master=False,
                wait_for_workers=False,
                timeout=timedelta(seconds=5),
            )
        time.sleep(0.02)
    raise AssertionError("nobody listens")


def round_of(store):
    """The name of the open round, which is no secret."""
    return store.get("round")[-32:].decode()


def outcome(call):
    try:
        return call()
    except TacitError as error:
        return error


def claim(beat):
    return json.dumps({"token": "stranger", "facts": FACTS, "beat": beat})


def test_a_stranger_that_signs_up_is_not_taken_for_a_worker(address):
    """It knows all that is no secret: the round, the facts, how a claim looks."""
    said = []
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(outcome, rendezvous(address, 0, log=said.append).join)
        store = store_at(address)
        number = round_of(store)
        for beat in range(50):
            store.set(f"{number}/worker-1", claim(beat))
            time.sleep(0.01)
        assert not first.done()
        assert not store.check([f"{number}/closed"])
        worker = pool.submit(outcome, rendezvous(address, 1).join)
        assert first.result(SECONDS).name == worker.result(SECONDS).name == number
    assert "what came for worker 1 of bank is not sealed with the key of this party" in said[0]


@pytest.mark.parametrize("content", ["", "{", "[]", "null", os.urandom(500).hex(), "9" * 2**20])
def test_what_is_malformed_or_large_is_as_good_as_not_there(address, content):
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(outcome, rendezvous(address, 0).join)
        store = store_at(address)
        number = round_of(store)
        names = ("worker-1", "closed", "refused-x", "group/given up", "group/0/0", "group/0/1")
        for name in names:
            store.set(f"{number}/{name}", content)
        worker = pool.submit(outcome, rendezvous(address, 1).join)
        joined = [first.result(SECONDS), worker.result(SECONDS)]
        assert [each.name for each in joined] == [number] * 2
        assert not any(each.broken() for each in joined)


def test_a_round_that_a_stranger_gives_up_goes_on(address):
    groups = [Collectives(rendezvous(address, n), log=lambda _: None) for n in range(2)]
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda each: each.form(), groups))
        store = store_at(address)
        store.set(f"{round_of(store)}/group/given up", "")
        time.sleep(3 * collectives.WATCH)
        for each in groups:
            each.check()
        sums = list(pool.map(lambda each: each.add(torch.ones(3)), groups))
    assert all(torch.equal(each, torch.full((3,), 2.0)) for each in sums)
    for each in groups:
        each.leave()


def test_a_worker_with_another_key_file_is_not_one_of_them(address):
    said = []
    calls = [
        rendezvous(address, 0, wait=2, log=said.append).join,
        rendezvous(address, 1, wait=2, secret=OTHER).join,
    ]
    with ThreadPoolExecutor(2) as pool:
        lost = list(pool.map(outcome, calls))
    assert all(isinstance(each, LostError) for each in lost)
    wanted = "worker 0 of bank did not come within 2 seconds (it has another key file, or another "
    assert wanted in str(lost[1])


def test_a_stranger_that_poses_as_worker_0_gets_nobody(address):
    host, port = address.split(":")
    store = dist.TCPStore(host, int(port), is_master=True, wait_for_workers=False)
    store.set("round", "1")
    lost = outcome(rendezvous(address, 1, wait=0.5).join)
    assert isinstance(lost, LostError)
    assert "another process listens at" in str(lost)
    assert not store.check(["1/worker-1"])


def test_whoever_poses_as_a_worker_at_its_port_is_found_out(address, monkeypatch):
    """The links are there, but one end does not know the secret."""
    monkeypatch.setattr(collectives, "_ATTEMPTS", 1)
    honest, posing = (Collectives(rendezvous(address, n), log=lambda _: None) for n in range(2))
    real = posing._rendezvous.join
    monkeypatch.setattr(
        posing._rendezvous, "join", lambda **limit: replace(real(**limit), secret=OTHER)
    )
    with ThreadPoolExecutor(2) as pool:
        lost = list(pool.map(outcome, [honest.form, posing.form]))
    assert isinstance(lost[0], LostError)
    assert "someone without the key of this party posed as a worker" in str(lost[0])
    with pytest.raises(WorkersLostError, match="not together"):
        honest.add(torch.ones(1))


def listening_ports():
    """All ports that this process listens at, on IPv4."""
    own = {
        os.readlink(f"/proc/self/fd/{fd}")
        for fd in os.listdir("/proc/self/fd")
        if os.path.exists(f"/proc/self/fd/{fd}")
    }
    with open("/proc/net/tcp") as file:
        rows = [line.split() for line in file.readlines()[1:]]
    return [
        int(row[1].split(":")[1], 16)
        for row in rows
        if row[3] == "0A" and f"socket:[{row[9]}]" in own
    ]


@pytest.mark.skipif(not os.path.exists("/proc/net/tcp"), reason="needs /proc to find the ports")
def test_noise_at_every_port_of_the_workers_does_not_stop_them(address):
    before = set(listening_ports())
    groups = [Collectives(rendezvous(address, n), log=lambda _: None) for n in range(2)]
    with ThreadPoolExecutor(2) as pool, ExitStack() as held:
        list(pool.map(lambda each: each.form(), groups))
        ports = set(listening_ports()) - before
        assert len(ports) >= 2, "the store's and gloo's"
        for port in ports:
            for said in (b"", b"x", bytes(16), os.urandom(4096), b"\xff" * 64):
                for _ in range(5):
                    plain = held.enter_context(socket.create_connection(("127.0.0.1", port)))
                    with suppress(OSError):
                        plain.sendall(said)
        for _ in range(20):
            sums = list(pool.map(lambda each: each.add(torch.ones(3)), groups))
            assert all(torch.equal(each, torch.full((3,), 2.0)) for each in sums)
    for each in groups:
        each.leave()


def test_what_was_sealed_for_one_round_is_nothing_in_another(address):
    with ThreadPoolExecutor(2) as pool:
        first, worker = rendezvous(address, 0), rendezvous(address, 1)
        joined = list(pool.map(lambda each: each.join(), [first, worker]))
        store = store_at(address)
        old = round_of(store)
        kept = {name: store.get(f"{old}/{name}") for name in ("worker-1", "closed")}
        again = pool.submit(outcome, first.join)
        deadline = time.monotonic() + SECONDS
        while round_of(store) == old and time.monotonic() < deadline:
            time.sleep(0.01)
        new = round_of(store)
        assert new != old
        for name, value in kept.items():
            store.set(f"{new}/{name}", value)
        time.sleep(0.3)
        assert not again.done()
        second = pool.submit(outcome, worker.join)
        assert again.result(SECONDS).name == second.result(SECONDS).name == new
    assert len(joined) == 2


def test_values_are_bound_to_their_name_and_to_the_secret():
    inner = dist.HashStore()
    store = SealedStore(inner, secret=SECRET)
    store.set("a", "content")
    assert store.get("a") == b"content"
    inner.set("b", inner.get("a"))
    inner.set("c", inner.get("a")[:-1])
    inner.set("d", "x")
    for name in "bcd":
        assert store.forged(name)
        assert not store.check([name])
        with pytest.raises(ForgedError):
            store.get(name)
    assert not store.forged("not there")
    assert not SealedStore(inner, secret=OTHER).check(["a"])
    part = store.under("p/")
    part.set("a", "other")
    assert store.get("p/a") == b"other"


def test_the_secret_follows_from_the_private_key_and_from_nothing_else(tmp_path):
    world = make_world(tmp_path)
    bank, clinic = who(world, "bank"), who(world, "clinic")
    assert secret_of(bank) == secret_of(replace(bank, certificate_pem=b"", ca_pem=b""))
    assert secret_of(bank) != secret_of(clinic)
    assert len(secret_of(bank)) == 32


def test_a_network_address_is_warned_about():
    said = []
    rendezvous("192.0.2.1:7790", 0, log=said.append)
    assert "gradients and weights pass there unencrypted" in said[0]
    rendezvous("127.0.0.1:7790", 0, log=said.append)
    rendezvous("[::1]:7790", 0, log=said.append)
    assert len(said) == 1
