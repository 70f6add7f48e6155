"""Names of parties, and the rule by which a certificate carries one.

The name is in the subject alternative names and nowhere else: a common name is never read. It is
the only DNS name there under ``.tacit``, in full. Other host names and addresses may stand beside
it, but no pattern: whoever holds a certificate for a pattern would be several parties.
"""

from __future__ import annotations

import re
import ssl
from typing import TypeVar

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm

from tacit.errors import UsageError

__all__ = ["AUTHORITY", "SUFFIX", "check_name", "find_extension", "peer_name", "read_pem"]

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
    # A PEM text inside a DER certificate must not be read in its place: the first byte decides.
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
