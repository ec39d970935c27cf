"""Certificates: who made them, whom they name, for how long."""

import datetime
from collections.abc import Iterator, Sequence
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from pfeddsh.errors import UserError
from pfeddsh.live.doctor.findings import Finding, ok, stop, warning
from pfeddsh.live.doctor.machine import private
from pfeddsh.live.security.certs import LOOPBACK, read_certificate

SOON = 30  # days before the end of a certificate from which on it is time


def of_coordinator(folder: Path, hosts: Sequence[str]) -> Iterator[Finding]:
    """CA, server certificate and its key; `hosts` are names by which sites will call."""
    tls = folder / "tls"
    missing = [name for name in ("ca.crt", "server.pem", "server.key") if not (tls / name).exists()]
    if missing:
        yield stop("certificate", f"{tls} has no {', '.join(missing)}: pfeddsh certs {folder} --host NAME")
        return
    authority, server = read_certificate(tls / "ca.crt"), read_certificate(tls / "server.pem")
    renewal = f"renew it: move server.pem and server.key away, then pfeddsh certs {folder} with all --host names"
    yield from dates(authority, "the CA", "make both certificates anew and give every site the new ca.crt")
    yield from dates(server, "the server's certificate", renewal)
    try:
        server.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        yield stop("certificate", f"server.pem was not made by ca.crt: {renewal}")
    if _public(tls / "server.key") != server.public_key():
        yield stop("certificate", f"server.key does not belong to server.pem: {renewal}")
    names = named(server)
    lacking = [host for host in hosts if host not in names]
    if lacking:
        yield stop("certificate", f"it does not name {', '.join(lacking)}, only {', '.join(names)}: {renewal}")
    elif set(names) <= set(LOOPBACK):
        yield warning("certificate", f"it names this machine only: sites elsewhere cannot connect; {renewal}")
    else:
        yield ok("certificate", f"names {', '.join(names)}")
    for name in ("server.key", "ca.key"):
        yield from private(tls / name)
    if (tls / "ca.key").exists():
        yield warning("certificate", f"{tls / 'ca.key'} lies on the server: move it off, it is needed only to renew")


def dates(certificate: x509.Certificate, what: str, renewal: str) -> Iterator[Finding]:
    now = datetime.datetime.now(datetime.UTC)
    left = (certificate.not_valid_after_utc - now).days
    if certificate.not_valid_before_utc > now:
        yield stop(
            "certificate", f"{what} is not valid before {certificate.not_valid_before_utc:%Y-%m-%d}: set the clock"
        )
    elif certificate.not_valid_after_utc <= now:
        yield stop("certificate", f"{what} ended on {certificate.not_valid_after_utc:%Y-%m-%d}: {renewal}")
    elif left < SOON:
        yield warning("certificate", f"{what} ends in {left} days: {renewal}")
    else:
        yield ok("certificate", f"{what} is valid for {left} days")


def named(certificate: x509.Certificate) -> list[str]:
    """The hosts and addresses of a certificate, sorted."""
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    hosts = names.get_values_for_type(x509.DNSName)
    return sorted([*hosts, *map(str, names.get_values_for_type(x509.IPAddress))])


def _public(key: Path) -> object:
    try:
        return load_pem_private_key(key.read_bytes(), None).public_key()
    except (ValueError, TypeError) as error:
        raise UserError(f"{key} is not a readable key ({error}): restore it") from error
