"""``tacit keys``: certificates for mutual TLS in a trial."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tacit.errors import UsageError

if TYPE_CHECKING:
    from cryptography.x509 import Certificate


SOON = 14  # days
app = typer.Typer(
    help="Make and check certificates for mutual TLS. This is a CA for trials: whoever runs it "
    "holds every party's key. In production use your own CA, with the DNS name NAME.tacit in each "
    "party's certificate, and give its files in the party's configuration.",
    no_args_is_help=True,
)
Directory = Annotated[Path, typer.Argument(metavar="DIR", help="The directory with the keys.")]
Name = Annotated[str, typer.Argument(help="The party's name: a-z, 0-9 and '-', at most 40.")]


@app.command()
def init(directory: Directory) -> None:
    """Make a CA for trials, in a directory that only you can enter.

    In production use your own CA and give its files in the party's configuration.
    """
    from tacit.wire.transport.tls import make_ca  # noqa: PLC0415 - loads only when used

    certificate = make_ca(directory)
    typer.echo(f"The CA's certificate is in {certificate}: every party needs it.")
    typer.echo(
        f"The CA's key is in {certificate.with_suffix('.key')}: only whoever signs needs it;"
    )
    typer.echo("whoever has it can be any party, so give it to nobody.")
    typer.echo("This is a CA for trials; in production use your own.")


@app.command()
def add(
    directory: Directory,
    name: Name,
    host: Annotated[
        list[str] | None,
        typer.Option(help="A host name or IP address of the party; may be repeated."),
    ] = None,
) -> None:
    """Make a party's key and certificate, signed by the CA for trials, for 90 days.

    In production use your own CA and give its files in the party's configuration.
    """
    from tacit.wire.transport.tls import make_party  # noqa: PLC0415 - loads only when used

    files = make_party(directory, name, hosts=host or ())
    typer.echo(
        f"{name} needs three files: {files.certificate}, {files.ca} and its key {files.key}."
    )
    typer.echo("Hand the key over in secret, to nobody else; the other two are public.")


@app.command()
def show(
    directory: Directory,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object and nothing else.")
    ] = False,
) -> None:
    """List every certificate: name, hosts, validity and fingerprint; warn before it expires."""
    if not directory.is_dir():
        raise UsageError(f"DIR {directory}: there is no such directory: `tacit keys init` makes it")
    rows = [_facts(path) for path in sorted(directory.glob("*.pem"))]
    for row in rows:
        if row["warning"]:
            typer.echo(f"warning: {row['file']} {row['warning']}", err=True)
    if as_json:
        typer.echo(json.dumps({"directory": str(directory), "certificates": rows}))
        return
    for row in rows:
        hosts = f", also {' '.join(row['hosts'])}" if row["hosts"] else ""
        typer.echo(f"{row['name']}{hosts}: until {row['valid_until']}, {row['days_left']} days")
        typer.echo(f"  sha256 {row['fingerprint']}")
    if not rows:
        typer.echo(f"no certificates in {directory}")


@app.command()
def check(directory: Directory, name: Name) -> None:
    """Check a party's files: exit 0 if they serve, 2 with the reason if they do not."""
    from tacit.wire.transport.tls import check_identity, load_identity  # noqa: PLC0415 - as above

    check_identity(load_identity(directory, name=name))
    facts = _facts(directory / f"{name}.pem")
    if facts["warning"]:
        typer.echo(f"warning: {facts['file']} {facts['warning']}", err=True)
    typer.echo(
        f"{name}: the key, the certificate and the CA belong together, "
        f"until {facts['valid_until']} ({facts['days_left']} days)"
    )


def _facts(path: Path) -> dict[str, Any]:
    """Return what a certificate says, the fingerprint as openssl writes it."""
    from cryptography import x509  # noqa: PLC0415 - loads only when used
    from cryptography.hazmat.primitives.hashes import SHA256  # noqa: PLC0415 - as above

    from tacit.wire.transport.tls import AUTHORITY, SUFFIX, peer_name  # noqa: PLC0415 - as above

    authority = path.stem == AUTHORITY
    try:
        pem = path.read_bytes()
        certificate = x509.load_pem_x509_certificate(pem)
        name = AUTHORITY if authority else peer_name(pem)
        hosts = [] if authority else _names(certificate)
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from None
    except ValueError as error:
        text = str(error) if isinstance(error, UsageError) else "is not a certificate in PEM"
        raise UsageError(f"{path}: {text}; move it out of the directory") from None
    start, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    return {
        "file": str(path),
        "name": name,
        "authority": authority,
        "hosts": [host for host in hosts if not host.lower().endswith(SUFFIX)],
        "valid_from": start.isoformat(),
        "valid_until": end.isoformat(),
        "days_left": (end - datetime.now(UTC)).days,
        "fingerprint": certificate.fingerprint(SHA256()).hex(":").upper(),
        "warning": _warning(start, end, now=datetime.now(UTC)),
    }


def _names(certificate: Certificate) -> list[str]:
    from cryptography.x509 import SubjectAlternativeName  # noqa: PLC0415 - loads only when used

    names = certificate.extensions.get_extension_for_class(SubjectAlternativeName).value
    return [str(name.value) for name in names]


def _warning(start: datetime, end: datetime, *, now: datetime) -> str | None:
    if now > end:
        return f"expired on {end:%Y-%m-%d}: have a new one made"
    if now < start:
        return f"is not valid before {start:%Y-%m-%d %H:%M} UTC: look at the clock"
    days = (end - now).days
    return f"expires in {days} days: have a new one made" if days < SOON else None
