"""Identities: real handshakes with the files, what is refused and why, and how files appear."""

import os
import socket
import ssl
import stat
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import FrozenInstanceError, replace
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID

from tacit.errors import UsageError
from tacit.wire.transport.tls import (
    Files,
    Identity,
    check_identity,
    load_identity,
    make_ca,
    make_party,
    peer_name,
)

PATIENCE = 60  # seconds; nothing here takes a tenth of one
NOW = datetime.now(UTC)
PAST = NOW - timedelta(days=100)
BOTH = [ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH]


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """Two authorities; the first has two parties and one whose certificate has expired."""
    folder = tmp_path_factory.mktemp("keys")
    make_ca(folder / "one", now=PAST)
    make_ca(folder / "two")
    make_party(folder / "one", "bank", hosts=["LocalHost", "127.0.0.1", "::1", "localhost"])
    make_party(folder / "one", "clinic")
    make_party(folder / "one", "late", now=PAST)
    make_party(folder / "two", "clinic")
    return folder


@pytest.fixture
def bank(world):
    return load_identity(world / "one", name="bank")


def files(directory, name):
    return Files(directory / f"{name}.pem", directory / f"{name}.key", directory / "ca.pem")


def certificate(directory, names, *, usages=BOTH, key=None):
    """Return a certificate that the directory's authority signed, with these DNS names."""
    ca = x509.load_pem_x509_certificate((directory / "ca.pem").read_bytes())
    signer = serialization.load_pem_private_key((directory / "ca.key").read_bytes(), None)
    public = (key or signer).public_key()
    builder = x509.CertificateBuilder(ca.subject, x509.Name([]), public, 7)
    builder = builder.not_valid_before(PAST).not_valid_after(NOW + timedelta(days=1))
    if names:
        names = x509.SubjectAlternativeName([x509.DNSName(name) for name in names])
        builder = builder.add_extension(names, critical=False)
    builder = builder.add_extension(x509.ExtendedKeyUsage(usages), critical=False)
    return builder.sign(signer, hashes.SHA256())


def pem(thing):
    return thing.public_bytes(serialization.Encoding.PEM)


# --- handshakes ---------------------------------------------------------------------------------


def context(side, ours):
    made = ssl.SSLContext(side)
    made.verify_mode = ssl.CERT_REQUIRED
    made.verify_flags |= ssl.VERIFY_X509_STRICT  # newer Pythons set it by default
    made.load_verify_locations(ours.ca)
    if ours.key:
        made.load_cert_chain(ours.certificate, ours.key)
    return made


def serve(listener, settings, seen):
    try:
        plain, _ = listener.accept()
        plain.settimeout(PATIENCE)
        with plain, settings.wrap_socket(plain, server_side=True) as line:
            seen.append(peer_name(line.getpeercert(binary_form=True)))
            line.sendall(b"hello")
    except OSError as error:  # ssl.SSLError is one
        seen.append(error)


def handshake(server, client, *, host="bank.tacit"):
    """Return what each side made of the other: a party's name and bytes, or an error."""
    seen = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(PATIENCE)
        settings = context(ssl.PROTOCOL_TLS_SERVER, server)
        thread = threading.Thread(target=serve, args=(listener, settings, seen))
        thread.start()
        try:
            ours = context(ssl.PROTOCOL_TLS_CLIENT, client)
            with (
                socket.create_connection(listener.getsockname(), timeout=PATIENCE) as plain,
                ours.wrap_socket(plain, server_hostname=host) as line,
            ):
                answer = line.recv(5)
        except OSError as error:
            answer = error
        finally:
            thread.join(PATIENCE)
        assert not thread.is_alive()
    return seen[0], answer


@pytest.mark.parametrize("host", ["bank.tacit", "localhost", "127.0.0.1"])
def test_both_sides_know_each_other(world, host):
    one = world / "one"
    assert handshake(files(one, "bank"), files(one, "clinic"), host=host) == ("clinic", b"hello")
    # Both usages are in every certificate: the parties may change roles.
    assert handshake(files(one, "clinic"), files(one, "bank"), host="clinic.tacit")[0] == "bank"


def refused(answer, reason=""):
    return isinstance(answer, ssl.SSLError) and reason in str(answer)


def test_a_party_of_another_authority_is_refused(world):
    ours, theirs = files(world / "one", "bank"), files(world / "two", "clinic")
    # The client trusts the server's authority, so that the server is the one to refuse.
    seen, answer = handshake(ours, replace(theirs, ca=ours.ca))
    assert refused(seen, "verify failed")
    assert isinstance(answer, OSError) or answer == b""
    _, answer = handshake(ours, theirs)
    assert refused(answer, "verify failed")


def test_a_client_without_certificate_is_refused(world):
    ours = files(world / "one", "bank")
    seen, _ = handshake(ours, Files(None, None, ours.ca))
    assert refused(seen, "did not return a certificate")


def test_an_expired_certificate_is_refused_on_either_side(world):
    one = world / "one"
    seen, _ = handshake(files(one, "bank"), files(one, "late"))
    assert refused(seen, "expired")
    _, answer = handshake(files(one, "late"), files(one, "bank"), host="late.tacit")
    assert refused(answer, "expired")


def test_a_server_with_another_name_is_refused(world):
    one = world / "one"
    _, answer = handshake(files(one, "bank"), files(one, "clinic"), host="clinic.tacit")
    assert refused(answer, "Hostname mismatch")


def test_a_party_cannot_sign_for_another(world, tmp_path):
    """A bank made up with the clinic's certificate as its authority is refused."""
    one = world / "one"
    tmp_path.chmod(0o700)
    for ending in ("pem", "key"):
        (tmp_path / f"ca.{ending}").write_bytes((one / f"clinic.{ending}").read_bytes())
    (tmp_path / "ca.key").chmod(0o600)
    forged = make_party(tmp_path, "bank")
    with pytest.raises(UsageError, match="not signed by the CA"):
        check_identity(load_identity(tmp_path, name="bank"))
    chain = forged.certificate.read_bytes() + (one / "clinic.pem").read_bytes()
    forged.certificate.write_bytes(chain)
    _, answer = handshake(replace(forged, ca=one / "ca.pem"), files(one, "clinic"))
    assert refused(answer, "verify failed")


# --- what the certificates say ------------------------------------------------------------------


def test_the_authority_signs_parties_and_nothing_else(world):
    ca = x509.load_pem_x509_certificate((world / "one" / "ca.pem").read_bytes())
    limits = ca.extensions.get_extension_for_class(x509.BasicConstraints)
    usage = ca.extensions.get_extension_for_class(x509.KeyUsage)
    assert (limits.critical, limits.value.ca, limits.value.path_length) == (True, True, 0)
    assert usage.critical
    assert usage.value.key_cert_sign
    assert not usage.value.digital_signature
    assert not usage.value.crl_sign
    assert isinstance(ca.public_key().curve, ec.SECP256R1)
    ca.verify_directly_issued_by(ca)


def test_a_party_has_its_name_its_hosts_and_90_days(bank):
    made = x509.load_pem_x509_certificate(bank.certificate_pem)
    names = made.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert [str(n.value) for n in names] == ["bank.tacit", "localhost", "127.0.0.1", "::1"]
    assert made.subject.rfc4514_string() == "CN=bank.tacit"
    assert isinstance(made.public_key().curve, ec.SECP256R1)
    assert made.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value == (
        x509.ExtendedKeyUsage(BOTH)
    )
    length = made.not_valid_after_utc - made.not_valid_before_utc
    assert length == timedelta(days=90, hours=1)  # an hour for clocks that are behind


def test_serials_differ_and_no_party_outlives_its_authority(tmp_path):
    make_ca(tmp_path / "k", days=30)
    made = [make_party(tmp_path / "k", name).certificate for name in ("a", "b")]
    read = [x509.load_pem_x509_certificate(path.read_bytes()) for path in made]
    ca = x509.load_pem_x509_certificate((tmp_path / "k" / "ca.pem").read_bytes())
    assert len({one.serial_number for one in (*read, ca)}) == 3
    assert {one.not_valid_after_utc for one in read} == {ca.not_valid_after_utc}
    with pytest.raises(UsageError, match="the CA's certificate expired at"):
        make_party(tmp_path / "k", "c", now=NOW + timedelta(days=31))


def test_peer_name_reads_pem_and_der(world, bank):
    assert peer_name(bank.certificate_pem) == "bank"
    assert peer_name(ssl.PEM_cert_to_DER_cert(bank.certificate_pem.decode())) == "bank"
    assert peer_name(pem(certificate(world / "one", ["x.example.com", "BANK.Tacit"]))) == "bank"


@pytest.mark.parametrize(
    "names",
    [
        [],
        ["example.com"],
        ["a.tacit", "b.tacit"],
        ["*.tacit"],
        ["a.b.tacit"],
        [".tacit"],
        ["ca.tacit"],
        ["-a.tacit"],
        [f"{'a' * 41}.tacit"],
        ["a.tacit", "*.tacit"],
    ],
)
def test_a_certificate_without_exactly_one_name_is_nobodys(world, names):
    with pytest.raises(UsageError, match=r"one DNS name there, <name>\.tacit"):
        peer_name(pem(certificate(world / "one", names)))


def test_a_certificate_inside_a_der_certificate_does_not_count(bank):
    with pytest.raises(UsageError, match="is not a certificate"):
        peer_name(b"0\x82\x01\x00" + bank.certificate_pem)


@pytest.mark.parametrize("content", [b"", b"hello", b"0", b"\xff" * 40, b"0\x82\xff\xff"])
def test_peer_name_of_something_else(content):
    with pytest.raises(UsageError, match="is not a certificate"):
        peer_name(content)


# --- check_identity -----------------------------------------------------------------------------


def test_good_identities_pass(world, bank):
    check_identity(bank)
    check_identity(load_identity(files(world / "one", "clinic"), name="clinic"))
    other = (world / "two" / "ca.pem").read_bytes()
    check_identity(replace(bank, ca_pem=other + bank.ca_pem))  # several authorities in a file


def locked(bank):
    key = serialization.load_pem_private_key(bank.key_pem, None)
    form, lock = serialization.PrivateFormat.PKCS8, serialization.BestAvailableEncryption(b"x")
    return key.private_bytes(serialization.Encoding.PEM, form, lock)


def client_only(world, bank):
    key = serialization.load_pem_private_key(bank.key_pem, None)
    return pem(certificate(world / "one", ["bank.tacit"], usages=BOTH[:1], key=key))


BROKEN = {
    "the key file can be read by others (mode 0640): chmod 600": lambda w, b: {"key_mode": 0o640},
    "the certificate file is not a certificate": lambda w, b: {"certificate_pem": b.key_pem},
    "the CA file is not a certificate": lambda w, b: {"ca_pem": b"hello"},
    "the key file is no private key": lambda w, b: {"key_pem": b.ca_pem},
    "the key file is no private key in PEM without password": lambda w, b: {"key_pem": locked(b)},
    "the key and the certificate do not belong together": lambda w, b: {
        "key_pem": (w / "one" / "clinic.key").read_bytes()
    },
    "not signed by the CA": lambda w, b: {"ca_pem": (w / "two" / "ca.pem").read_bytes()},
    "not signed by the CA in the CA file": lambda w, b: {"ca_pem": b.certificate_pem},
    "the certificate is for party bank: give clinic's own": lambda w, b: {"name": "clinic"},
    "not for both sides of TLS": lambda w, b: {"certificate_pem": client_only(w, b)},
}


@pytest.mark.parametrize("sentence", BROKEN)
def test_each_fault_has_its_sentence(world, bank, sentence):
    broken = replace(bank, **BROKEN[sentence](world, bank))
    with pytest.raises(UsageError) as caught:
        check_identity(broken)
    text = str(caught.value)
    assert sentence in text
    assert text.startswith(f"party {broken.name}: ")
    assert "\n" not in text
    assert ": " in text.removeprefix(f"party {broken.name}: ")  # the way out


def test_dates_count_from_the_time_that_is_given(world, bank):
    with pytest.raises(
        UsageError, match=r"the certificate expired at \d{4}-\d\d-\d\d \d\d:\d\d UTC"
    ):
        check_identity(bank, now=NOW + timedelta(days=91))
    with pytest.raises(UsageError, match=r"the certificate is not valid before .* set the clock"):
        check_identity(bank, now=NOW - timedelta(hours=2))
    with pytest.raises(UsageError, match="the certificate expired"):
        check_identity(load_identity(world / "one", name="late"))


def test_a_renewed_authority_counts_with_its_latest_certificate(world, bank):
    ca = x509.load_pem_x509_certificate(bank.ca_pem)
    key = serialization.load_pem_private_key((world / "one" / "ca.key").read_bytes(), None)
    builder = x509.CertificateBuilder(ca.subject, ca.subject, key.public_key(), 9)
    builder = builder.not_valid_before(PAST).not_valid_after(NOW - timedelta(days=1))
    builder = builder.add_extension(x509.BasicConstraints(True, 0), critical=True)
    old = pem(builder.sign(key, hashes.SHA256()))
    check_identity(replace(bank, ca_pem=old + bank.ca_pem))
    with pytest.raises(UsageError, match="the CA's certificate expired"):
        check_identity(replace(bank, ca_pem=old))


def test_a_key_file_that_others_can_read(tmp_path):
    make_ca(tmp_path / "k")
    made = make_party(tmp_path / "k", "bank")
    made.key.chmod(0o604)
    with pytest.raises(UsageError, match=r"read by others \(mode 0604\)"):
        check_identity(load_identity(tmp_path / "k", name="bank"))
    (tmp_path / "k" / "ca.key").chmod(0o640)
    with pytest.raises(UsageError, match=r"ca\.key can be read by others"):
        make_party(tmp_path / "k", "clinic")


def test_the_key_is_not_in_the_text_of_an_identity(bank):
    assert repr(bank) == "Identity(name='bank', key_mode=384)"
    with pytest.raises(FrozenInstanceError):
        bank.name = "clinic"
    assert Identity("a", b"", b"", b"").key_mode == 0o600


def test_missing_files_are_named(world, tmp_path):
    with pytest.raises(UsageError, match=r"nobody\.key: cannot be read \(No such file"):
        load_identity(world / "one", name="nobody")
    with pytest.raises(UsageError, match=r"ca\.pem: cannot be read"):
        make_party(tmp_path, "bank")
    assert not list(tmp_path.iterdir())


def test_a_key_of_another_authority_does_not_sign(world, tmp_path):
    for source, name in ((world / "one", "ca.pem"), (world / "two", "ca.key")):
        (tmp_path / name).write_bytes((source / name).read_bytes())
        (tmp_path / name).chmod(0o600)
    with pytest.raises(UsageError, match=r"ca\.key: is not the key of .*ca\.pem"):
        make_party(tmp_path, "bank")


# --- names and hosts ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["", "Bank", "a b", "../x", "a" * 41, "-a", "a-", "ca", "bänk", "a\n", "a.b", "a_b"]
)
def test_bad_names(world, name):
    before = sorted((world / "one").iterdir())
    for act in (make_party, lambda folder, name: load_identity(folder, name=name)):
        with pytest.raises(UsageError, match=r"party name .* use 1 to 40 of a-z"):
            act(world / "one", name)
    assert sorted((world / "one").iterdir()) == before


@pytest.mark.parametrize("name", ["a", "0", "a" * 40, "bank-1", "ca-1", "cab"])
def test_good_names(tmp_path, name):
    make_ca(tmp_path / "k")
    make_party(tmp_path / "k", name)
    check_identity(load_identity(tmp_path / "k", name=name))


@pytest.mark.parametrize(
    "host",
    [
        "",
        "a b",
        "*.example.com",
        "http://x.com",
        "x.com:443",
        "300.1.1.1",
        "10.0.0.0/8",
        "1.2.3",
        "clinic.tacit",
        "Clinic.TACIT",
        "tacit",
        "a.b.tacit",
        "fe80::1%eth0",
        "-x.com",
        "x..y",
        "x.com.",
        "a" * 64,
        ".".join(["a" * 60] * 5),
        "bücher.example",
        "a_b.com",
        "x.com\n",
    ],
)
def test_bad_hosts(world, host):
    before = sorted((world / "one").iterdir())
    with pytest.raises(UsageError, match=r"host .* give a host name or an IP address"):
        make_party(world / "one", "new", hosts=["fine.example.com", host])
    assert sorted((world / "one").iterdir()) == before


# --- files --------------------------------------------------------------------------------------


@pytest.fixture
def no_mask():
    old = os.umask(0)
    yield
    os.umask(old)


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def test_keys_are_private_from_the_moment_they_exist(tmp_path, monkeypatch, no_mask):
    folder, seen = tmp_path / "new" / "k", []
    real = os.open

    def watched(path, flags, *rest, **named):
        handle = real(path, flags, *rest, **named)
        if flags & os.O_CREAT:
            seen.append((str(path), stat.S_IMODE(os.fstat(handle).st_mode), flags & os.O_EXCL))
        return handle

    monkeypatch.setattr(os, "open", watched)
    make_ca(folder)
    make_party(folder, "bank")
    keys = [(made, own) for path, made, own in seen if ".key." in path]
    assert keys == [(0o600, os.O_EXCL)] * 2
    assert mode(folder) == 0o700
    found = {path.name: mode(path) for path in folder.iterdir()}
    assert found == {"ca.key": 0o600, "ca.pem": 0o644, "bank.key": 0o600, "bank.pem": 0o644}


def test_an_open_directory_is_refused_and_left_as_it_is(tmp_path):
    folder = tmp_path / "k"
    folder.mkdir(mode=0o755)
    with pytest.raises(UsageError, match="others can enter: chmod 700"):
        make_ca(folder)
    assert mode(folder) == 0o755
    assert not list(folder.iterdir())
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="file: cannot be made"):
        make_ca(tmp_path / "file")


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("kept", ["ca.pem", "ca.key", "bank.pem", "bank.key"])
def test_nothing_is_overwritten(tmp_path, kept):
    folder = tmp_path / "k"
    make_ca(folder)
    make_party(folder, "bank")
    name, ending = kept.split(".")
    (folder / f"{name}.{'key' if ending == 'pem' else 'pem'}").rename(tmp_path / "away")
    if name == "bank":
        with pytest.raises(UsageError, match=f"{kept}: exists, and keys are never overwritten"):
            make_party(folder, "bank")
    before = contents(folder)
    with pytest.raises(UsageError, match="exists, and keys are never overwritten: move it away"):
        make_ca(folder)
    assert contents(folder) == before


def test_a_link_that_leads_nowhere_is_not_followed(tmp_path):
    folder = tmp_path / "k"
    make_ca(folder)
    (folder / "bank.key").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UsageError, match=r"bank\.key: exists"):
        make_party(folder, "bank")
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize(
    ("call", "turn"), [("fsync", 1), ("fsync", 2), ("fsync", 3), ("link", 1), ("link", 2)]
)
@pytest.mark.parametrize("failure", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_failure_leaves_nothing_behind(tmp_path, monkeypatch, call, turn, failure):
    folder = tmp_path / "k"
    make_ca(folder)
    before = contents(folder)
    real, left = getattr(os, call), [turn]

    def fail(*words):
        left[0] -= 1
        if left[0] == 0:
            raise failure
        return real(*words)

    with monkeypatch.context() as patch:
        patch.setattr(os, call, fail)
        with pytest.raises(type(failure)):
            make_party(folder, "bank")
    assert left[0] == 0
    assert contents(folder) == before
    make_party(folder, "bank")
    check_identity(load_identity(folder, name="bank"))


def test_a_file_has_its_name_only_when_it_is_whole_and_on_disk(tmp_path, monkeypatch):
    steps, sync, link = [], os.fsync, os.link
    monkeypatch.setattr(os, "fsync", lambda handle: (steps.append("sync"), sync(handle)))

    def named(draft, path):
        assert draft.read_bytes().rstrip().endswith(b"-----")
        steps.append(path.name)
        link(draft, path)

    monkeypatch.setattr(os, "link", named)
    make_ca(tmp_path / "k")
    assert steps == ["sync", "ca.key", "sync", "ca.pem", "sync"]


def test_of_several_at_once_one_makes_the_pair(tmp_path):
    make_ca(tmp_path / "k")

    def attempt(_):
        try:
            return make_party(tmp_path / "k", "bank")
        except UsageError as error:
            return str(error)

    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(attempt, range(8)))
    assert sum(isinstance(result, Files) for result in results) == 1
    check_identity(load_identity(tmp_path / "k", name="bank"))
    assert len(contents(tmp_path / "k")) == 4
