"""Ports of this machine, and what answers at an address."""

import datetime
import hashlib
import http.client
import socket
import ssl
from contextlib import closing, suppress
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from pathlib import Path

from pfeddsh.errors import UserError
from pfeddsh.live.security.refusals import explain

PATIENCE = 10.0  # seconds for a connection


def split(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise UserError(f"'{address}' is not an address: give HOST:PORT")
    return host.strip("[]"), int(port)


def free(host: str, port: int) -> bool:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


def answers(host: str, port: int) -> bool:
    with suppress(OSError), socket.create_connection((host, port), timeout=2):
        return True
    return False


def outside() -> str | None:
    """The address under which others see this machine; no packet is sent to find out."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return None
        address = str(probe.getsockname()[0])
    return None if address.startswith(("127.", "0.")) else address


@dataclass(frozen=True)
class Greeted:
    """Who answered, with which certificate, and by how many seconds its clock is ahead of ours."""

    program: str
    status: int
    certificate: str
    ahead: float | None


def knock(address: str, authority: Path | None) -> Greeted:
    """Ask for a page that no federation has; `authority` is the CA to trust, None is for no TLS at all."""
    host, port = split(address)
    connection: http.client.HTTPConnection
    if authority is None:
        connection = http.client.HTTPConnection(host, port, timeout=PATIENCE)
    else:
        try:
            context = ssl.create_default_context(cafile=str(authority))
        except (ssl.SSLError, OSError) as error:
            raise UserError(f"{authority} is not a certificate ({error}): get the operator's ca.crt again") from error
        connection = http.client.HTTPSConnection(host, port, timeout=PATIENCE, context=context)
    with closing(connection):
        try:
            connection.request("GET", "/pfeddsh-doctor")
            answer = connection.getresponse()
            shown = connection.sock.getpeercert(binary_form=True) if isinstance(connection.sock, ssl.SSLSocket) else b""
        except ssl.SSLError as error:
            raise UserError(f"{address}: {explain(f'[SSL {error}') or error}") from error
        except (OSError, http.client.HTTPException) as error:
            why = f"{address} does not answer ({error}): is it the right address, and is the way to it open?"
            raise UserError(why) from error
    date = answer.headers.get("Date")
    ahead = None
    with suppress(TypeError, ValueError):
        ahead = (parsedate_to_datetime(date or "") - datetime.datetime.now(datetime.UTC)).total_seconds()
    return Greeted(answer.headers.get("Server", ""), answer.status, hashlib.sha256(shown or b"").hexdigest(), ahead)
