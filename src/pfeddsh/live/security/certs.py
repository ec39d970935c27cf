"""Who is who: a private certificate authority, the server's certificate, and a site's key pair.

`make` writes what is missing in DIR/tls and touches nothing that exists, so it may be run again. Keys are of the curve
P-384; private ones are readable by their owner alone from the moment they exist.
"""

import base64
import datetime
import hashlib
import ipaddress
import os
import re
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
    load_pem_public_key,
    load_ssh_private_key,
    load_ssh_public_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from pfeddsh.errors import UserError

LOOPBACK = ("localhost", "127.0.0.1")
CA_DAYS, SERVER_DAYS = 3650, 730
Key = ec.EllipticCurvePrivateKey


def make(folder: Path, hosts: Sequence[str] = ()) -> list[Path]:
    """Write CA and server certificate of a coordinator into `folder`/tls; return what was new.

    The server's certificate names `hosts` and the loopback, over which the proxy reaches the SuperLink. To renew it,
    move server.pem and server.key away and call this again: the CA stays, so no site has to change anything.
    """
    for host in hosts:  # a wrong one is refused before anything is written
        _alternative(host)
    tls = folder / "tls"
    tls.mkdir(parents=True, exist_ok=True)
    ca, server = tls / "ca.crt", tls / "server.pem"
    created = []
    if not ca.exists():
        if server.exists():
            raise UserError(
                f"{ca} is missing, but {server} exists: restore the CA, or move the server's files away too"
            )
        key = _key(tls / "ca.key")
        write_new(ca, _certificate(_name("pfeddsh CA"), key, None, key.public_key(), ()), 0o644)
        created.append(ca)
    if not server.exists():
        authority = _read_authority(ca, tls / "ca.key")
        names = tuple(dict.fromkeys((*hosts, *LOOPBACK)))
        public = _key(tls / "server.key").public_key()
        write_new(server, _certificate(_name(names[0]), *authority, public, names), 0o644)
        created.append(server)
    return created


def make_node_key(home: Path) -> str:
    """A site's key pair, as `ssh-keygen -t ecdsa -b 384` writes it; an existing one is kept. Returns the print."""
    home.mkdir(parents=True, exist_ok=True)
    private, public = home / "node.key", home / "node.key.pub"
    if not private.exists():
        key = ec.generate_private_key(ec.SECP384R1())
        write_new(private, key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()), 0o600)
    try:
        own = load_ssh_private_key(private.read_bytes(), None).public_key()
    except (ValueError, UnsupportedAlgorithm) as error:
        raise UserError(f"{private} is not a readable key ({error}); restore it from a backup") from error
    if not public.exists():
        write_new(public, own.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH) + b"\n", 0o644)
    if read_public(public.read_bytes()) != own:
        raise UserError(f"{public} does not belong to {private}; remove it, and it is made anew")
    return fingerprint(public.read_bytes())


def read_public(text: bytes) -> ec.EllipticCurvePublicKey:
    """A site's public key, in OpenSSH's form (a .pub file) or as PEM (how Flower keeps it)."""
    try:
        key = load_pem_public_key(text) if text.startswith(b"-----BEGIN") else load_ssh_public_key(text)
    except Exception as error:  # of whatever kind: keys come from outside, and there are more than OpenSSH's
        raise UserError(f"not a public key: {str(error)[:200] or type(error).__name__}") from error
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise UserError("not an ECDSA public key; make one with `pfeddsh keygen`")
    return key


def fingerprint(public: bytes) -> str:
    """The fingerprint `ssh-keygen -lf node.key.pub` prints, to be compared over the telephone."""
    blob = read_public(public).public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).split()[1]
    digest = hashlib.sha256(base64.b64decode(blob)).digest()
    return "SHA256:" + base64.b64encode(digest).decode().rstrip("=")


def write_new(path: Path, content: bytes, mode: int) -> None:
    """Write a file that must not exist yet: complete or not at all, and with its permissions from the start."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.link(temporary, path)
    except FileExistsError:
        raise UserError(f"{path} exists already and is not overwritten") from None
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        temporary.unlink(missing_ok=True)


def _key(path: Path) -> Key:
    """The private key at `path`, made if there is none. One without a certificate is left of an interrupted attempt."""
    if not path.exists():
        key = ec.generate_private_key(ec.SECP384R1())
        write_new(path, key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()), 0o600)
    try:
        stored = load_pem_private_key(path.read_bytes(), None)
    except (OSError, ValueError) as error:
        raise UserError(f"cannot use {path}: {error}; restore it, or move it away") from error
    if not isinstance(stored, Key):
        raise UserError(f"{path} is not an elliptic-curve key; move it away")
    return stored


def _read_authority(certificate: Path, key: Path) -> tuple[Key, x509.Certificate]:
    if not key.exists():
        raise UserError(f"{key} is needed to sign the server's certificate; put it back for as long as this takes")
    private, authority = _key(key), read_certificate(certificate)
    if private.public_key() != authority.public_key():
        raise UserError(f"{key} does not belong to {certificate}; restore the pair")
    return private, authority


def read_certificate(path: Path) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except (OSError, ValueError) as error:
        raise UserError(f"cannot use {path}: {error}; restore it") from error


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common[:64])])


def _alternative(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        pass
    try:
        name = host.encode("idna").decode()
    except UnicodeError:
        name = ""
    if not re.fullmatch(r"[\w.*-]+", name):
        raise UserError(f"'{host}' is neither a host name nor an address")
    return x509.DNSName(name)


def _certificate(
    subject: x509.Name,
    signer: Key,
    authority: x509.Certificate | None,
    public: ec.EllipticCurvePublicKey,
    names: Sequence[str],
) -> bytes:
    """A certificate for `public`; without an `authority` it is the CA itself. Extensions as RFC 5280 wants them."""
    now = datetime.datetime.now(datetime.UTC)
    is_ca = authority is None
    other = ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement", "encipher_only")
    usage = dict.fromkeys((*other, "decipher_only"), False)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject if authority is None else authority.subject)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))  # clocks differ
        .not_valid_after(now + datetime.timedelta(days=CA_DAYS if is_ca else SERVER_DAYS))
        .add_extension(x509.BasicConstraints(ca=is_ca, path_length=0 if is_ca else None), critical=True)
        .add_extension(
            x509.KeyUsage(digital_signature=not is_ca, key_cert_sign=is_ca, crl_sign=is_ca, **usage), critical=True
        )
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
    )
    if not is_ca:
        builder = builder.add_extension(x509.SubjectAlternativeName([_alternative(n) for n in names]), critical=False)
        builder = builder.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
    return builder.sign(signer, hashes.SHA384()).public_bytes(Encoding.PEM)
