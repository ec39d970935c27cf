"""Which sites may connect: DIR/tls/nodes/NAME.pub is the truth, a running SuperLink is made to agree with it.

So an entry survives a lost SuperLink database, adding and revoking also work while nothing runs, and a backup of the
folder backs up the permissions. A revoked key goes to DIR/tls/revoked and never comes back: the site needs a new one.
Flower's command line lists nodes without their keys, so this uses its client, which is not part of its API.
"""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from flwr.proto.control_pb2 import ListNodesRequest, RegisterNodeRequest, UnregisterNodeRequest
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.interceptors.http.runtime_version import RuntimeVersionHttpInterceptor

from pfeddsh.errors import UserError
from pfeddsh.live.security.certs import fingerprint, read_public, write_new
from pfeddsh.live.security.listed import ListedSite, sites

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
GONE = "unregistered"  # Flower's status of a node that was taken away; its key stays occupied


class Unreachable(UserError):
    """No SuperLink runs that could be told; the folder is told, and the SuperLink at its next start."""


def add(folder: Path, name: str, public: Path) -> str:
    """Allow a site with this public key; returns the key's fingerprint, to be compared with what the site says."""
    if not NAME.fullmatch(name):
        raise UserError(f"'{name}' cannot be a site's name; use letters, digits, '.', '-' and '_', at most 64")
    try:
        key = read_public(public.read_bytes())
    except OSError as error:
        raise UserError(f"cannot read {public}: {error.strerror}") from error
    except UserError as error:
        raise UserError(f"{public}: {error}") from error
    line = key.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH) + f" {name}\n".encode()
    print_ = fingerprint(line)
    known = {site.key: site for site in sites(folder)}
    if print_ in known and known[print_].state == "revoked":
        raise UserError(f"the key {print_} was revoked; the site has to make a new one with `pfeddsh keygen`")
    if print_ in known:
        if known[print_].name == name:
            return print_
        raise UserError(f"the key {print_} is already that of site '{known[print_].name}'")
    target = folder / "tls" / "nodes" / f"{name}.pub"
    if target.exists():
        raise UserError(f"site '{name}' has another key; `pfeddsh nodes revoke {folder} {name}` it first")
    target.parent.mkdir(parents=True, exist_ok=True)
    write_new(target, line, 0o644)
    return print_


def revoke(folder: Path, name: str) -> str:
    """Take a site's permission away; returns its fingerprint."""
    source = folder / "tls" / "nodes" / f"{name}.pub"
    try:
        print_ = fingerprint(source.read_bytes())
    except OSError:
        names = ", ".join(site.name for site in sites(folder) if site.state != "revoked") or "none"
        raise UserError(f"no site '{name}' is registered in {folder}; there are: {names}") from None
    target = (
        folder / "tls" / "revoked" / f"{name}-{re.sub('[^A-Za-z0-9]', '', print_.removeprefix('SHA256:'))[:12]}.pub"
    )
    target.parent.mkdir(exist_ok=True)
    os.replace(source, target)
    return print_


def superlink_address(folder: Path) -> str:
    """Where the coordinator's SuperLink listens, as `pfeddsh serve` wrote it."""
    try:
        return (folder / "superlink.address").read_text().strip()
    except OSError:
        raise Unreachable(f"no SuperLink runs for {folder}: there is no superlink.address in it") from None


def synchronise(folder: Path, address: str) -> list[ListedSite]:
    """Make the SuperLink admit exactly the folder's sites; returns all of them with Flower's state."""
    allowed = {site.key: site for site in sites(folder) if site.state == "allowed"}
    with _control(folder, address) as client:
        nodes = _nodes(client)
        for key, node in nodes.items():
            if key not in allowed and node.status != GONE:
                client.UnregisterNode(UnregisterNodeRequest(node_id=node.node_id))
        for key, site in allowed.items():
            if key not in nodes:
                client.RegisterNode(RegisterNodeRequest(public_key=_pem(folder, site), name=site.name))
    return connected(folder, address)


def connected(folder: Path, address: str) -> list[ListedSite]:
    """The folder's sites with Flower's state of those it knows; changes nothing."""
    with _control(folder, address) as client:
        nodes = _nodes(client)
    return [
        ListedSite(site.name, site.key, nodes[site.key].status)
        if site.state == "allowed" and site.key in nodes
        else site
        for site in sites(folder)
    ]


def _nodes(client: Any) -> dict[str, Any]:
    return {fingerprint(node.public_key): node for node in client.ListNodes(ListNodesRequest()).nodes_info}


def _pem(folder: Path, site: ListedSite) -> bytes:
    key = read_public((folder / "tls" / "nodes" / f"{site.name}.pub").read_bytes())
    return key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


@contextmanager
def _control(folder: Path, address: str) -> Iterator[Any]:
    """The SuperLink's control interface, which only the coordinator's host can reach."""
    try:
        authority = (folder / "tls" / "ca.crt").read_bytes()
    except OSError:
        raise UserError(f"{folder / 'tls'} has no ca.crt; make it with `pfeddsh certs {folder}`") from None
    interceptors = [RuntimeVersionHttpInterceptor(component_name="flwr CLI")]
    try:
        with ControlHttpClient.from_server_address(address, False, authority, interceptors) as client:
            yield client
    except httpx.TransportError as error:
        raise Unreachable(f"no SuperLink answers at {address}: {error}") from error
    except httpx.HTTPStatusError as error:
        raise UserError(f"the SuperLink at {address} refused: {error.response.text[:200] or error}") from error
