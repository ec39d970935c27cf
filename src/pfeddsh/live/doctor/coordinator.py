"""The coordinator's side."""

import hashlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from cryptography.hazmat.primitives.serialization import Encoding

from pfeddsh.live.coordinator.config import load
from pfeddsh.live.coordinator.health import coordinator_runs, look
from pfeddsh.live.coordinator.pulse import MINUTES
from pfeddsh.live.coordinator.roster import Roster
from pfeddsh.live.doctor import certificates, machine, network
from pfeddsh.live.doctor.findings import Finding, examined, ok, stop, warning
from pfeddsh.live.security import proxy
from pfeddsh.live.security.certs import read_certificate
from pfeddsh.live.security.listed import sites
from pfeddsh.live.security.signing import signed
from pfeddsh.storage.records import Damaged, read_record


def examine(folder: Path, port: int, listen: str, hosts: Sequence[str], insecure: bool) -> Iterator[Finding]:
    """All checks, those first on which the others depend."""
    running = coordinator_runs(folder)
    yield from examined(
        [
            ("versions", machine.versions),
            ("folder", lambda: machine.folder(folder)),
            ("clock", machine.clock),
            ("settings", lambda: _settings(folder)),
            ("code", lambda: _code(folder)),
            ("state", lambda: _state(folder)),
            ("SuperLink", lambda: _superlink(folder, port)),
            *(
                []
                if insecure
                else [
                    ("certificate", lambda: certificates.of_coordinator(folder, hosts)),
                    ("sites", lambda: _sites(folder)),
                    ("proxy", lambda: _proxy(folder, listen, running)),
                ]
            ),
            ("coordinator", lambda: _health(folder, running)),
        ]
    )


def _settings(folder: Path) -> Iterator[Finding]:
    config = load(folder)
    yield ok("settings", f"{config.method}, {len(config.classes)} classes, {config.model}")


def _code(folder: Path) -> Iterator[Finding]:
    app = signed(folder)
    yield ok("code", f"the app is signed by {app.verification['public_key_id']}" if app else "the app is not signed")


def _state(folder: Path) -> Iterator[Finding]:
    """What a restart would read; a damaged snapshot is no harm while the one before it is whole."""
    members = Roster.load(folder / "clients.json").clients
    snapshots = sorted((folder / "state").glob("snapshot-*.safetensors"), reverse=True)
    if not snapshots:
        yield ok("state", "none yet" if not members else f"{len(members)} clients, no step is finished")
        return
    for number, path in enumerate(snapshots[:2]):
        try:
            read_record(path)
        except Damaged as error:
            if number + 1 == len(snapshots[:2]):
                yield stop("state", f"{error}, and there is no other: restore {folder} from a backup")
            else:
                yield warning("state", f"{error}; the one before it will be used, and its rounds repeated")
            continue
        yield ok("state", f"{len(members)} clients, {path.name} is whole")
        return


def _superlink(folder: Path, port: int) -> Iterator[Finding]:
    told = folder / "superlink.address"
    ours = told.exists() and network.answers(*network.split(told.read_text().strip()))
    if ours:
        port = network.split(told.read_text().strip())[1]
        yield ok("SuperLink", f"answers at {told.read_text().strip()}")
    elif network.free("127.0.0.1", port):
        yield ok("SuperLink", f"port {port} on the loopback is free")
    else:
        yield stop("SuperLink", f"port {port} is in use by another program: end it, or serve with another --port")
    address = network.outside()
    if ours and address and network.answers(address, port):
        yield stop("SuperLink", f"{address}:{port} answers too: whoever reaches it can run code on all sites; close it")


def _sites(folder: Path) -> Iterator[Finding]:
    listed = sites(folder)
    allowed = sum(site.state == "allowed" for site in listed)
    if allowed:
        yield ok("sites", f"{allowed} admitted, {len(listed) - allowed} revoked")
    else:
        yield warning("sites", f"nobody is admitted yet: pfeddsh nodes add {folder} NAME KEY.pub")


def _proxy(folder: Path, listen: str, running: bool) -> Iterator[Finding]:
    """The one door: nginx, with the certificate that lies in the folder, and closed but for the fleet's paths."""
    proxy.command(folder)
    host, port = network.split(listen)
    here = "127.0.0.1" if host in ("0.0.0.0", "::") else host
    if not network.answers(here, port):
        if running:
            yield stop("proxy", f"nothing answers at {listen}: start nginx -p {folder.resolve()} -c nginx.conf")
        elif port < 1024 and os.geteuid() != 0:
            yield warning("proxy", f"port {port} needs a right of its own for nginx (CAP_NET_BIND_SERVICE)")
        else:
            yield ok("proxy", f"nginx is installed, and {listen} is free")
        return
    door = network.knock(f"{here}:{port}", folder / "tls" / "ca.crt")
    own = read_certificate(folder / "tls" / "server.pem").public_bytes(Encoding.DER)
    if "nginx" not in door.program or door.status != 404:
        yield stop("proxy", f"{listen} is answered by {door.program or 'another program'}, not by the proxy: end it")
    elif door.certificate != hashlib.sha256(own).hexdigest():
        yield warning("proxy", "nginx still shows another certificate than server.pem: start it again")
    else:
        yield ok("proxy", f"nginx answers at {listen} and keeps the rest closed")


def _health(folder: Path, running: bool) -> Iterator[Finding]:
    found = look(folder, MINUTES)
    if found.stalled or found.unreadable:
        yield warning("coordinator", found.stalled or found.unreadable or "")
    elif found.status is None:
        yield ok("coordinator", "has not run here yet")
    else:
        state = "is running" if running else "is not running"
        yield ok("coordinator", f"{state}: {found.status.phase}, step {found.status.step}")
