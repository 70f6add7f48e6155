"""The rendezvous of one party's workers: a store at worker 0, inside the party's own network.

Every time the workers come together is a round with a number of its own. Worker 0 opens a round,
the others sign up for it, and worker 0 closes it when all have: who comes later, or was there
before, waits for the next round. Everything that is written is sealed with the party's key, under
names that are used in one round only: another process that can reach the store can disturb, but
neither pose as a worker nor say where one is. Nothing of it is encrypted: the address must be one
that only this party's own machines can reach.
"""

from __future__ import annotations

import hashlib
import hmac
import itertools
import json
import secrets
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from ipaddress import ip_address
from typing import Any, final

import torch.distributed as dist
from cryptography.hazmat.primitives import serialization

from tacit.errors import LostError, UsageError
from tacit.party.backoff import Backoff
from tacit.wire.address import parse_address
from tacit.wire.transport.tls import Identity

_stores: Any = dist  # its stores have no types
_Store: Any = _stores.Store
SIZE = hashlib.sha256().digest_size
_PURPOSE = b"tacit: the workers of one party, 1"


@final
class ForgedError(RuntimeError):
    """A value was not written by a worker of this party."""


def secret_of(identity: Identity) -> bytes:
    """Return what only those know who have the party's private key."""
    key = serialization.load_pem_private_key(identity.key_pem, password=None)
    plain = key.private_bytes(
        serialization.Encoding.DER,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    return hmac.digest(plain, _PURPOSE, "sha256")


def code(secret: bytes, *parts: bytes) -> bytes:
    """Return the authentication code of some parts, each told from its neighbours."""
    return hmac.digest(secret, b"".join(len(p).to_bytes(8, "big") + p for p in parts), "sha256")


@final
class SealedStore(_Store):  # type: ignore[misc]
    """A store in which only what was written with the secret is there.

    Guarantee: a value that is returned was written under this name by someone with the secret. It
    may be an older one of the same name: it is up to the caller to use each name once.

    Args:
        inner: the store underneath.
        secret: that all writers share.
        prefix: of all names.
    """

    def __init__(self, inner: Any, *, secret: bytes, prefix: str = "") -> None:  # noqa: ANN401
        super().__init__()
        self._inner = inner
        self._secret = secret
        self._prefix = prefix

    def under(self, prefix: str) -> SealedStore:
        """Return a view of the store in which all names have this prefix."""
        return SealedStore(self._inner, secret=self._secret, prefix=self._prefix + prefix)

    def set(self, key: str, value: str | bytes) -> None:
        """Write a value and its code."""
        content = value.encode() if isinstance(value, str) else bytes(value)
        name = self._prefix + key
        self._inner.set(name, code(self._secret, name.encode(), content) + content)

    def get(self, key: str) -> bytes:
        """Wait for a value and return it, or raise ``ForgedError``."""
        name = self._prefix + key
        found = bytes(self._inner.get(name))
        seal, content = found[:SIZE], found[SIZE:]
        if not hmac.compare_digest(seal, code(self._secret, name.encode(), content)):
            raise ForgedError(f"{name} was not written with the key of this party")
        return content

    def check(self, keys: list[str]) -> bool:
        """Whether all of these were written, and with the secret."""
        there = self._inner.check([self._prefix + key for key in keys])
        return there and not any(self.forged(key) for key in keys)

    def forged(self, key: str) -> bool:
        """Whether something was written under this name, without the secret."""
        if not self._inner.check([self._prefix + key]):
            return False
        try:
            self.get(key)
        except ForgedError:
            return True
        return False

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        """Wait until these were written, with or without the secret."""
        names = [self._prefix + key for key in keys]
        self._inner.wait(names, *([] if timeout is None else [timeout]))


_POLL = 0.02
_ANSWER = timedelta(seconds=10)


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Round:
    """One round: the store over which the workers exchange addresses, and the address here.

    Args:
        store: of this round.
        host: the address here.
        name: of this round, used once.
        secret: what only workers of this party know.
    """

    store: SealedStore
    host: str
    name: str
    secret: bytes = field(repr=False)

    def broken(self) -> bool:
        """Whether a worker has given the round up, or worker 0 is gone."""
        try:
            return self.store.check(["given up"])
        except RuntimeError:
            return True

    def give_up(self) -> None:
        """Let the others know that this worker needs another round."""
        with suppress(RuntimeError):
            self.store.set("given up", "")


@final
class Rendezvous:
    """How one worker finds the others.

    Args:
        address: where worker 0 listens for the others.
        party: name of the party.
        worker: number of this one.
        workers: how many there are.
        secret: what only workers of this party know.
        facts: what must be the same at all of them, by name.
        wait: give up after so many seconds.
        log: called with who is waited for and who was refused.
    """

    def __init__(
        self,
        address: str,
        *,
        party: str,
        worker: int,
        workers: int,
        secret: bytes,
        facts: Mapping[str, str],
        wait: float,
        log: Callable[[str], None],
    ) -> None:
        self._host, self._port = parse_address(address)
        self._address = address
        self.party, self.worker, self.workers = party, worker, workers
        self._facts = dict(facts)
        self._secret = secret
        self._wait = wait
        self._log = log
        self._warn()
        self._store: SealedStore | None = None
        self._number = ""
        self._told: set[str] = set()

    def _warn(self) -> None:
        """Say what is sent there in the clear, where others than this machine may see it."""
        with suppress(ValueError):
            if self.worker == 0 and not ip_address(self._host).is_loopback:
                self._log(
                    f"group {self._address} is not of this machine alone: gradients and weights "
                    "pass there unencrypted; let only machines of this party reach it"
                )

    def join(self, *, limit: float | None = None) -> Round:
        """Return when all workers are there, or raise ``LostError`` that says who is missing."""
        wait = Backoff(
            f"the workers of {self.party}",
            limit=self._wait if limit is None else limit,
            log=self._log,
            longest=_POLL,
        )
        return self._open_round(wait) if self.worker == 0 else self._sign_up(wait)

    def _open_round(self, wait: Backoff) -> Round:
        """Wait for the others and close the round, as worker 0."""
        store = self._store = self._store or self._listen()
        self._number = secrets.token_hex(16)  # so that nothing of another round fits
        store.set("round", self._number)
        self._called(store, wait)
        tokens = self._called(store, wait)  # once all are there: one may have gone meanwhile
        store.set(f"{self._number}/closed", json.dumps(tokens))
        return self._round(store, self._number, self._host)

    def _called(self, store: SealedStore, wait: Backoff) -> list[str]:
        """Return the tokens of the other workers once each has shown that it is alive."""
        tokens, seen = dict[int, str](), dict[int, str]()
        while len(tokens) < self.workers - 1:
            for worker in range(1, self.workers):
                self._hear(store, worker, tokens, seen)
            missing = [n for n in range(1, self.workers) if n not in tokens]
            if missing:
                wait.pause_for(
                    f"worker {', '.join(map(str, missing))} of {self.party}",
                    f"expected at {self._address}",
                    remedy=f"start it with --worker {missing[0]}",
                )
        return list(tokens.values())

    def _listen(self) -> SealedStore:
        """Open the store, on the one address that was given and on no other."""
        family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
        listening = socket.socket(family)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind((self._host, self._port))
            listening.listen()
        except OSError as error:
            listening.close()
            raise UsageError(
                f"group {self._address}: worker 0 of {self.party} cannot listen there "
                f"({error.strerror}): name a free address of this machine"
            ) from None
        opened = _stores.TCPStore(
            self._host,
            self._port,
            is_master=True,
            wait_for_workers=False,
            timeout=_ANSWER,
            master_listen_fd=listening.detach(),
        )
        return SealedStore(opened, secret=self._secret)

    def _hear(
        self, store: SealedStore, worker: int, tokens: dict[int, str], seen: dict[int, str]
    ) -> None:
        """Take a worker that has signed up and is alive, or say why it cannot be one of them."""
        key = f"{self._number}/worker-{worker}"
        if not store.check([key]):
            if store.forged(key):
                self._say_once(
                    f"what came for worker {worker} of {self.party} is not sealed with the key "
                    "of this party: give all its workers the same key file, and keep others from "
                    f"{self._address}"
                )
            return
        claim = json.loads(store.get(key))
        problem, beat = self._difference(claim, worker), f"{claim['token']} {claim['beat']}"
        if problem is None:
            if seen.setdefault(worker, beat) != beat:  # it has signed again since the last check
                tokens[worker] = claim["token"]
                seen[worker] = beat
        elif not store.check([f"{self._number}/refused-{claim['token']}"]):
            store.set(f"{self._number}/refused-{claim['token']}", problem)
            self._log(f"refused: {problem}")

    def _say_once(self, problem: str) -> None:
        if problem not in self._told:
            self._told.add(problem)
            self._log(f"refused: {problem}")

    def _difference(self, claim: Mapping[str, Any], worker: int) -> str | None:
        there = claim["facts"]
        for name, here in self._facts.items():
            if there.get(name) != here:
                return (
                    f"worker {worker} of {self.party} has {name} {there.get(name)}, worker 0 has "
                    f"{here}: give all workers of a party the same"
                )
        return None

    def _sign_up(self, wait: Backoff) -> Round:
        """Wait for a round that is open, sign up and wait for its end, as any other worker."""
        while True:
            why = f"no answer at {self._address}"
            try:
                store, host = self._call()
                number = store.get("round").decode() if store.check(["round"]) else None
                if number is None and store.forged("round"):
                    why = f"it has another key file, or another process listens at {self._address}"
                elif number is None:
                    pass  # worker 0 is about to open the first round
                elif store.check([f"{number}/closed"]):
                    why = "it has all its workers, or has not noticed that one was lost"
                elif self._signed(store, number, wait):
                    return self._round(store, number, host)
            except LostError:
                raise
            except (RuntimeError, OSError):  # worker 0 is gone, or not there yet
                pass
            wait.pause_for(f"worker 0 of {self.party}", why, remedy="start it with --worker 0")

    def _call(self) -> tuple[SealedStore, str]:
        """Return the store of worker 0, and the address under which it knows this machine."""
        with socket.create_connection((self._host, self._port), timeout=5) as tried:
            host = str(tried.getsockname()[0])
        opened = _stores.TCPStore(
            self._host, self._port, is_master=False, wait_for_workers=False, timeout=_ANSWER
        )
        return SealedStore(opened, secret=self._secret), host

    def _signed(self, store: SealedStore, number: str, wait: Backoff) -> bool:
        """Whether this worker is one of those of a round."""
        key, token = f"{number}/worker-{self.worker}", secrets.token_hex(8)
        claim = {"token": token, "facts": self._facts}
        store.set(key, json.dumps({**claim, "beat": 0}))
        for beat in itertools.count(1):
            if store.check([f"{number}/closed"]):
                break
            if store.check([f"{number}/refused-{token}"]):
                raise UsageError(store.get(f"{number}/refused-{token}").decode())
            self._check_own(json.loads(store.get(key))["token"] == token)
            wait.pause_for(
                f"another worker of {self.party}", "this one is there", remedy="start all of them"
            )
            store.set(key, json.dumps({**claim, "beat": beat}))
            if store.get("round").decode() != number:
                return False
        self._check_own(token in json.loads(store.get(f"{number}/closed")))
        return True

    def _round(self, store: SealedStore, number: str, host: str) -> Round:
        addresses = store.under(f"{number}/group/")
        return Round(store=addresses, host=host, name=number, secret=self._secret)

    def _check_own(self, own: bool) -> None:
        if not own:
            raise UsageError(
                f"worker {self.worker} of {self.party} came twice: every worker needs its own "
                f"number from 0 to {self.workers - 1}"
            )
