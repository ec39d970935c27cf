"""A site's side."""

from collections.abc import Iterator
from pathlib import Path

import yaml

from pfeddsh.data.datasets import load
from pfeddsh.errors import UserError
from pfeddsh.live.doctor import certificates, machine, network
from pfeddsh.live.doctor.findings import Finding, examined, ok, stop, warning
from pfeddsh.live.security.certs import make_node_key, read_certificate
from pfeddsh.live.security.refusals import explain
from pfeddsh.live.security.trusted import TRUSTED, read_signer
from pfeddsh.live.site.join import SiteConfig
from pfeddsh.live.site.model import FILE, read_model
from pfeddsh.storage.records import Damaged, read_record

WRONG, OFF = 300.0, 60.0  # seconds a clock may be off: Flower refuses signatures that are older; time to set it
FEW = 20  # training images


def examine(home: Path) -> Iterator[Finding]:
    yield from examined(
        [
            ("versions", machine.versions),
            ("folder", lambda: machine.folder(home)),
            ("clock", machine.clock),
            ("settings", lambda: _settings(home)),
            ("key", lambda: _key(home)),
            ("code", lambda: _code(home)),
            ("data", lambda: _data(home)),
            ("memory", lambda: _memory(home)),
            ("server", lambda: _server(home)),
            ("node", lambda: _node(home)),
        ]
    )


def _settings(home: Path) -> Iterator[Finding]:
    config = SiteConfig.load(home)
    yield ok("settings", f"{config.name}, joins {config.server}")


def _key(home: Path) -> Iterator[Finding]:
    if not (home / "node.key").exists():
        yield stop("key", f"there is none: pfeddsh keygen {home}, then send node.key.pub to the operator")
        return
    yield ok("key", make_node_key(home))
    yield from machine.private(home / "node.key")


def _code(home: Path) -> Iterator[Finding]:
    """Whose app this site runs."""
    path = home / TRUSTED
    if not path.exists():
        yield warning("code", "this site runs whatever app the coordinator sends: join with --trust KEY.pub")
        return
    try:
        keys = [read_signer(str(line).encode(), str(path)) for line in yaml.safe_load(path.read_text()).values()]
    except (yaml.YAMLError, AttributeError) as error:
        raise UserError(f"{path} cannot be read ({error!r}): join with --trust KEY.pub again") from error
    yield ok("code", f"only an app signed by {'one key' if len(keys) == 1 else f'{len(keys)} keys'} runs here")


def _data(home: Path) -> Iterator[Finding]:
    """As `join` reads them, so that what is wrong with them is found here."""
    data = load(SiteConfig.load(home).data)
    told = f"{len(data.y_train)} training and {len(data.y_test)} test images of {data.classes} classes"
    if len(data.y_train) < FEW:
        yield warning("data", f"{told}: too few to learn from")
    else:
        yield ok("data", told)
    if (home / FILE).exists() and not data.class_names[0].isdigit():
        unknown = set(data.class_names) - set(read_model(home).classes)
        if unknown:
            yield stop("data", f"the federation has no class {', '.join(sorted(unknown))}: rename or remove it")


def _memory(home: Path) -> Iterator[Finding]:
    """Its memory of its own training, and the model it uses."""
    path = home / "memory.safetensors"
    if not path.exists():
        yield ok("memory", "none yet: this site has not been onboarded")
        return
    try:
        read_record(path)
    except Damaged as error:
        yield stop("memory", f"{error}: restore it from a backup, or join under a new key in a new folder")
        return
    yield ok("memory", "whole")
    if (home / FILE).exists():
        yield ok("model", f"of step {read_model(home).facts.get('step', '?')}, whole")


def _server(home: Path) -> Iterator[Finding]:
    config, authority = SiteConfig.load(home), home / "ca.crt"
    if not config.insecure and not authority.exists():
        yield stop("certificate", f"{authority} is missing: copy tls/ca.crt of the coordinator there")
        return
    if not config.insecure:
        yield from certificates.dates(read_certificate(authority), "the CA", "get the operator's new ca.crt")
    door = network.knock(config.server, None if config.insecure else authority)
    if not config.insecure and "nginx" not in door.program:
        yield warning(
            "server", f"{config.server} is answered by {door.program or 'something'}, not by a proxy: ask why"
        )
    else:
        yield ok("server", f"{config.server} answers, and is who it should be" if not config.insecure else "answers")
    if door.ahead is not None and abs(door.ahead) > OFF:
        said = (
            f"this clock is {abs(door.ahead):.0f} s {'behind' if door.ahead > 0 else 'ahead of'} the server's: set it"
        )
        yield stop("clock", said) if abs(door.ahead) > WRONG else warning("clock", said)


def _node(home: Path) -> Iterator[Finding]:
    """What the SuperNode said last, if it ended with a complaint."""
    log = home / "node.log"
    if not log.exists():
        return
    last = log.read_bytes()[-20_000:].decode(errors="replace").rpartition("Starting Flower SuperNode")[2]
    meaning = explain(last)
    if meaning:
        yield warning("node", f"the last time it ended: {meaning}")
    else:
        yield ok("node", "no complaint in node.log")
