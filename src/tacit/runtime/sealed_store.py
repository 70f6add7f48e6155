"""What the workers of one party write for each other, sealed with the party's key.

The store that they meet at takes what anyone writes who can reach it. Here every value carries a
message authentication code over its name and content, by a secret that follows from the party's
private key: what a stranger wrote is as good as not there.
"""

from __future__ import annotations

import hashlib
import hmac
from datetime import timedelta
from typing import Any, final

import torch.distributed as dist
from cryptography.hazmat.primitives import serialization

from tacit.runtime.identity import Identity

__all__ = ["ForgedError", "SealedStore", "code", "secret_of"]

_Store: Any = dist.Store  # type: ignore[attr-defined]
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
    may be an older one of the same name: names that are used once are for whoever uses this.

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
        """Return the part of it in which all names begin so."""
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
        """Wait until these were written, by whomever."""
        names = [self._prefix + key for key in keys]
        self._inner.wait(names, *([] if timeout is None else [timeout]))
