"""Identities for mutual TLS: a certificate authority for trials, one certificate per party.

A party is who its certificate says: the one DNS name ``<name>.tacit`` in it, whoever signed. The
authority made here is for trials, because whoever runs it holds every key that it hands out; in
production each party makes its own key and has its own authority sign.

A directory holds ``ca.key`` (it signs: only whoever signs needs it), ``ca.pem``, and per party
``<name>.key`` and ``<name>.pem``: these two and ``ca.pem`` are what that party needs.
"""

from __future__ import annotations

import ipaddress
import os
import re
import ssl
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TypeVar, final

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from tacit.atomic import place_file, sync_folder
from tacit.errors import UsageError

SUFFIX = ".tacit"
AUTHORITY = "ca"
_NAME = re.compile(r"(?!-|ca\Z)[a-z0-9-]{1,40}(?<!-)")
E = TypeVar("E", bound=x509.ExtensionType)


def check_name(name: str) -> str:
    """Return a party's name if it is one."""
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"party name {name!r}: use 1 to 40 of a-z, 0-9 and '-', no '-' at either end, and not "
            f"{AUTHORITY!r}; for example bank-1"
        )
    return name


def peer_name(certificate: bytes) -> str:
    """Return the name of the party that a certificate, PEM or DER, is for.

    Only says whose it is: that the right authority signed it is for TLS to check before.
    """
    # A PEM text inside a DER certificate must not be read instead: the first byte decides.
    der = certificate.startswith(b"0")
    pem = ssl.DER_cert_to_PEM_cert(certificate).encode() if der else certificate
    names = find_extension(read_pem(pem, "the certificate")[0], x509.SubjectAlternativeName)
    hosts = [name.lower() for name in names.get_values_for_type(x509.DNSName)] if names else []
    # A dot at the end is no other name for those who compare host names.
    own = [host for host in hosts if f".{host.rstrip('.')}".endswith(SUFFIX)]
    if len(own) != 1 or not _NAME.fullmatch(own[0].removesuffix(SUFFIX)):
        raise UsageError(
            f"the certificate names {', '.join(own) or 'nobody'} in {SUFFIX}: "
            f"a party's has one DNS name there, <name>{SUFFIX}"
        )
    patterns = [host for host in hosts if "*" in host]
    if patterns:
        raise UsageError(
            f"the certificate has a pattern for a name, {patterns[0]}: have one made with "
            f"<name>{SUFFIX} and, if needed, host names in full"
        )
    return own[0].removesuffix(SUFFIX)


def read_pem(pem: bytes, what: str) -> list[x509.Certificate]:
    """Return the certificates in a PEM text, which must all be readable."""
    try:
        found = x509.load_pem_x509_certificates(pem)
        _ = [(one.extensions, one.public_key()) for one in found]  # read late: damage shows here
    except (ValueError, UnsupportedAlgorithm, x509.InvalidVersion, x509.DuplicateExtension):
        raise UsageError(f"{what} is not a certificate: give one in PEM") from None
    return found


def find_extension(certificate: x509.Certificate, kind: type[E]) -> E | None:
    """Return what a certificate says of one kind, if anything."""
    try:
        return certificate.extensions.get_extension_for_class(kind).value
    except x509.ExtensionNotFound:
        return None


_LABEL = r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"
# The last label is never a number: 300.1.1.1 is a mistyped address, not a name.
_HOST = re.compile(rf"(?=.{{1,253}}\Z)({_LABEL}\.)*(?!\d+\Z){_LABEL}")
_BOTH_SIDES = (ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH)
_CLOCKS = timedelta(hours=1)  # a certificate made now must also hold where the clock is behind
_SHA = hashes.SHA256()
_TIME = "%Y-%m-%d %H:%M UTC"


@final
@dataclass(frozen=True)
class Files:
    """Where a party's certificate, its key and the certificates of its authority are."""

    certificate: Path
    key: Path
    ca: Path


@final
@dataclass(frozen=True)
class Identity:
    """Who a party is, as TLS needs it; ``key_mode`` is the mode of the file the key came from."""

    name: str
    certificate_pem: bytes = field(repr=False)
    key_pem: bytes = field(repr=False)
    ca_pem: bytes = field(repr=False)
    key_mode: int = 0o600


def make_ca(directory: Path, *, days: int = 730, now: datetime | None = None) -> Path:
    """Make a certificate authority for trials; return the file with its certificate."""
    _own(directory)
    key = ec.generate_private_key(ec.SECP256R1())
    now = now or datetime.now(UTC)
    draft = _draft("tacit trial CA", key, issuer=None, start=now, end=now + timedelta(days=days))
    return _write_pair(_files(directory, AUTHORITY), key, draft.sign(key, _SHA)).certificate


def make_party(
    directory: Path,
    name: str,
    *,
    hosts: Iterable[str] = (),
    days: int = 90,
    now: datetime | None = None,
) -> Files:
    """Make a party's key and certificate, signed by the directory's authority.

    It is for ``<name>.tacit`` and for the host names and IP addresses in `hosts`, from `now` on
    for that many days, but never longer than the authority's own.
    """
    names = [x509.DNSName(check_name(name) + SUFFIX), *dict.fromkeys(map(_host, hosts))]
    ca, ca_key = _signer(directory)
    now = now or datetime.now(UTC)
    _check_dates(ca, f"{directory / 'ca.pem'}: the CA's certificate", now=now)
    key = ec.generate_private_key(ec.SECP256R1())
    end = min(now + timedelta(days=days), ca.not_valid_after_utc)
    draft = _draft(name + SUFFIX, key, issuer=ca.subject, start=now, end=end)
    above = x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key())
    more = above, x509.ExtendedKeyUsage(_BOTH_SIDES), x509.SubjectAlternativeName(names)
    for extension in more:
        draft = draft.add_extension(extension, critical=False)
    return _write_pair(_files(directory, name), key, draft.sign(ca_key, _SHA))


def load_identity(source: Path | Files, *, name: str) -> Identity:
    """Read a party's files, from a directory that `make_party` filled or from where they are."""
    check_name(name)
    files = source if isinstance(source, Files) else _files(source, name)
    key, mode = _read(files.key)
    return Identity(name, _read(files.certificate)[0], key, _read(files.ca)[0], key_mode=mode)


def check_identity(identity: Identity, *, now: datetime | None = None) -> None:
    """Raise one plain sentence if others would not, or should not, accept this identity."""
    who, now = identity.name, now or datetime.now(UTC)
    _check_mode(identity.key_mode, f"party {who}: the key file")
    certificate = read_pem(identity.certificate_pem, f"party {who}: the certificate file")[0]
    authorities = read_pem(identity.ca_pem, f"party {who}: the CA file")
    key = _private_key(identity.key_pem, f"party {who}: the key file")
    if key.public_key() != certificate.public_key():
        raise UsageError(
            f"party {who}: the key and the certificate do not belong together: "
            f"give the two files that were made as a pair"
        )
    issuers = [ca for ca in authorities if _signed(certificate, ca)]
    if not issuers:
        raise UsageError(
            f"party {who}: the certificate was not signed by the CA in the CA file: "
            f"give the CA's own certificate, or let that CA sign"
        )
    latest = max(issuers, key=lambda ca: ca.not_valid_after_utc)  # a renewed CA is there twice
    _check_dates(certificate, f"party {who}: the certificate", now=now)
    _check_dates(latest, f"party {who}: the CA's certificate", now=now)
    bound = peer_name(identity.certificate_pem)
    if bound != who:
        raise UsageError(f"party {who}: the certificate is for party {bound}: give {who}'s own")
    usage = find_extension(certificate, x509.ExtendedKeyUsage)
    if usage is not None and not set(_BOTH_SIDES) <= set(usage):
        raise UsageError(
            f"party {who}: the certificate is not for both sides of TLS: let the CA "
            f"sign one with the extended key usages client and server"
        )


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host if "%" not in host else ""))
    except ValueError:
        name = host.lower()
    # A second name in .tacit would make the certificate another party's.
    if not _HOST.fullmatch(name) or f".{name}".endswith(SUFFIX):
        raise UsageError(
            f"host {host!r}: give a host name or an IP address, no port, no '*' and "
            f"not in {SUFFIX}; for example split.example.com"
        )
    return x509.DNSName(name)


def _draft(
    name: str,
    key: ec.EllipticCurvePrivateKey,
    *,
    issuer: x509.Name | None,
    start: datetime,
    end: datetime,
) -> x509.CertificateBuilder:
    """Return what every certificate says; without an issuer it is the authority's own."""
    signs, public = issuer is None, key.public_key()
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    # Of the nine usages an authority has one, signing certificates, and a party digital signatures.
    usage = x509.KeyUsage(not signs, False, False, False, False, signs, False, False, False)
    limits = x509.BasicConstraints(ca=signs, path_length=0 if signs else None)
    draft = x509.CertificateBuilder(issuer or subject, subject, public, x509.random_serial_number())
    draft = draft.not_valid_before(start - _CLOCKS).not_valid_after(end)
    draft = draft.add_extension(limits, critical=True).add_extension(usage, critical=True)
    return draft.add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)


def _signer(directory: Path) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    files = _files(directory, AUTHORITY)
    ca = read_pem(_read(files.certificate)[0], str(files.certificate))[0]
    pem, mode = _read(files.key)
    _check_mode(mode, str(files.key))
    key = _private_key(pem, str(files.key))
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != ca.public_key():
        raise UsageError(
            f"{files.key}: is not the key of {files.certificate}: give the two files "
            f"that `tacit keys init` made"
        )
    return ca, key


def _private_key(pem: bytes, what: str) -> PrivateKeyTypes:
    try:
        return serialization.load_pem_private_key(pem, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):  # TypeError: it has a password
        raise UsageError(f"{what} is no private key in PEM without password: give one") from None


def _signed(certificate: x509.Certificate, ca: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(ca)
    except (ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm):
        return False
    limits = find_extension(ca, x509.BasicConstraints)
    return limits is not None and limits.ca


def _check_dates(certificate: x509.Certificate, what: str, *, now: datetime) -> None:
    start, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if now < start:
        raise UsageError(f"{what} is not valid before {start:{_TIME}}: set the clock, or wait")
    if now > end:
        raise UsageError(f"{what} expired at {end:{_TIME}}: have a new one made")


def _check_mode(mode: int, what: str) -> None:
    if mode & 0o077:
        raise UsageError(
            f"{what} can be read by others (mode {mode:04o}): chmod 600 it, and make "
            f"a new key if others use the machine"
        )


def _files(directory: Path, name: str) -> Files:
    return Files(*(directory / file for file in (f"{name}.pem", f"{name}.key", "ca.pem")))


def _own(directory: Path) -> None:
    """Make a directory that only its owner can enter, or check that it is one."""
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{directory}: cannot be made: {error.strerror}") from None
    if directory.stat().st_mode & 0o077:
        raise UsageError(f"{directory}: others can enter: chmod 700 it, or name a new directory")


def _read(path: Path) -> tuple[bytes, int]:
    try:
        with path.open("rb") as file:
            return file.read(), os.fstat(file.fileno()).st_mode & 0o777
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error.strerror}): see tacit keys") from None


def _write_pair(files: Files, key: ec.EllipticCurvePrivateKey, made: x509.Certificate) -> Files:
    """Write a key and its certificate: both or neither, each whole, and never over another."""
    pem = serialization.Encoding.PEM
    secret = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    done: list[Path] = []
    path = files.key
    try:
        done.append(place_file(path, secret, replace=False))
        path = files.certificate
        done.append(place_file(path, made.public_bytes(pem), mode=0o644, replace=False))
        sync_folder(path.parent)
    except BaseException as error:
        for written in done:
            written.unlink(missing_ok=True)
        if isinstance(error, FileExistsError):
            raise UsageError(
                f"{path}: exists, and keys are never overwritten: move it away, "
                f"or choose another name or directory"
            ) from None
        raise
    return files
