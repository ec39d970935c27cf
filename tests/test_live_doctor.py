"""`pfeddsh doctor`: what is well is ok, and every fault that can be made here is found, with what to do."""

import datetime
import importlib.metadata
import shutil
import socket
import ssl
import subprocess
import threading
from collections import namedtuple
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from conftest import lacking
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from edge_processes import until
from live_sites import TINY
from ports import free_port
from typer.testing import CliRunner

from pfeddsh.cli import app
from pfeddsh.errors import UserError
from pfeddsh.live.coordinator.config import build, save
from pfeddsh.live.doctor import certificates, coordinator, machine, network, site
from pfeddsh.live.doctor.findings import Finding
from pfeddsh.live.security import certs, nodes, proxy
from pfeddsh.live.security.trusted import trust
from pfeddsh.live.site.join import SiteConfig
from pfeddsh.messages import Record
from pfeddsh.storage.records import write_record


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A coordinator and a site that have never run, and lack nothing; tests work on copies."""
    place = tmp_path_factory.mktemp("made")
    server, home = place / "server", place / "north"
    certs.make(server, ["fed.example.org"])
    (server / "tls" / "ca.key").rename(place / "ca.key")
    save(server, build(TINY, "test"))
    certs.make_node_key(home)
    nodes.add(server, "north", home / "node.key.pub")
    line = Ed25519PrivateKey.generate().public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    (place / "publisher.pub").write_bytes(line)
    trust(home, place / "publisher.pub")
    images = np.random.default_rng(0).integers(0, 255, (40, 8, 8), dtype=np.uint8)
    np.savez(place / "data.npz", x_train=images, y_train=np.arange(40) % 2, x_test=images, y_test=np.arange(40) % 2)
    return place


@pytest.fixture
def place(made: Path, tmp_path: Path) -> Path:
    shutil.copytree(made, tmp_path / "place")
    home = tmp_path / "place" / "north"
    SiteConfig(name="north", data=str(tmp_path / "place" / "data.npz"), server="localhost:1").save(home)
    shutil.copy(tmp_path / "place" / "server" / "tls" / "ca.crt", home / "ca.crt")
    return tmp_path / "place"


def said(findings: Any, level: str, *ignored: str) -> list[str]:
    return [f"{f.what}: {f.said}" for f in findings if f.level == level and f.what not in ignored]


def examine(folder: Path, **changes: Any) -> list[Finding]:
    values = {"port": free_port(), "listen": f"127.0.0.1:{free_port()}", "hosts": [], "insecure": False} | changes
    return list(coordinator.examine(folder, **values))


def test_a_coordinator_that_lacks_nothing_is_well(place: Path) -> None:
    findings = examine(place / "server", hosts=["fed.example.org", "localhost"])
    assert said(findings, "stop", *(["proxy"] if shutil.which("nginx") is None else [])) == []
    assert said(findings, "warning", "clock", "disk") == []
    assert {f.what for f in findings} >= {
        "versions",
        "folder",
        "settings",
        "state",
        "SuperLink",
        "certificate",
        "sites",
    }


def test_what_is_wrong_with_a_coordinator_is_found(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = place / "server"
    assert "does not name other.example" in said(examine(server, hosts=["other.example"]), "stop")[0]
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        assert "in use by another program" in said(examine(server, port=taken.getsockname()[1]), "stop")[0]
    (server / "tls" / "server.key").chmod(0o644)
    shutil.copy(place / "ca.key", server / "tls" / "ca.key")
    warned = "\n".join(said(examine(server), "warning"))
    assert "chmod 600" in warned and "lies on the server" in warned
    nodes.revoke(server, "north")
    assert "nobody is admitted" in "\n".join(said(examine(server), "warning"))

    real = datetime.datetime.now
    for days, level, text in ((720, "warning", "ends in 9 days"), (740, "stop", "the server's certificate ended on")):
        later = SimpleNamespace(now=lambda tz, days=days: real(tz) + datetime.timedelta(days=days))
        monkeypatch.setattr(certificates, "datetime", SimpleNamespace(datetime=later, UTC=datetime.UTC))
        assert text in "\n".join(said(certificates.of_coordinator(server, []), level))


def test_files_that_cannot_be_used_are_found(place: Path) -> None:
    server, other = place / "server", place / "other"
    certs.make(other)
    (server / "federation.toml").write_text("classes = 3\n")
    (server / "state").mkdir()
    write_record(server / "state" / "snapshot-001-00001.safetensors", Record(facts={"a": 1}))
    (server / "state" / "snapshot-001-00002.safetensors").write_bytes(b"half")
    shutil.copy(other / "tls" / "server.pem", server / "tls" / "server.pem")
    findings = examine(server)
    assert "the one before it will be used" in "\n".join(said(findings, "warning"))
    stops = "\n".join(said(findings, "stop"))
    for part in ("settings: ", "was not made by ca.crt", "does not belong to server.pem"):
        assert part in stops
    (server / "state" / "snapshot-001-00001.safetensors").write_bytes(b"half")
    (server / "tls" / "ca.crt").unlink()
    stops = "\n".join(said(examine(server), "stop"))
    assert "there is no other: restore" in stops and "has no ca.crt" in stops


def test_a_full_disk_and_a_foreign_flower_stop_both_sides(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10**9, 10**9 - 1000, 1000))
    assert "only 1.0 kB are free" in said(machine.folder(place), "stop")[0]
    real = importlib.metadata.version
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "1.0" if name == "flwr" else real(name))
    assert "needs Flower 1.41.0" in said(machine.versions(), "stop")[0]


def test_a_site_is_told_what_keeps_it_away(place: Path) -> None:
    home = place / "north"
    assert said(site.examine(home), "stop") == [
        "server: localhost:1 does not answer ([Errno 111] Connection refused): is it the right address, and is the way "
        "to it open?"
    ]
    (home / "node.key").chmod(0o640)
    (home / "memory.safetensors").write_bytes(b"half")
    (home / "node.log").write_text("old\nStarting Flower SuperNode\nERROR [code: 2004] no\n")
    (place / "data.npz").unlink()
    findings = list(site.examine(home))
    assert {f.what for f in findings if f.level == "stop"} == {"data", "memory", "server"}
    warned = "\n".join(said(findings, "warning"))
    (home / "trusted.yaml").write_text("fpk_1: no key\n")
    assert "trusted.yaml is not a public key" in "\n".join(said(site.examine(home), "stop"))
    assert "chmod 600" in warned and "does not accept this site's key" in warned
    (home / "ca.crt").unlink()
    (home / "node.key").unlink()
    stops = "\n".join(said(site.examine(home), "stop"))
    assert "pfeddsh keygen" in stops and "copy tls/ca.crt" in stops


def test_both_sides_of_the_door(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """nginx as it is: a site gets through by the right name, and sees a wrong CA and a wrong clock."""
    if shutil.which("nginx") is None:
        lacking("needs Debian's package nginx-light")
    server, home = place / "server", place / "north"
    port = free_port()
    proxy.write(server, f"127.0.0.1:{port}")
    nginx = subprocess.Popen(proxy.command(server))
    try:
        until(lambda: network.answers("127.0.0.1", port))
        SiteConfig(name="north", data=str(place / "data.npz"), server=f"localhost:{port}").save(home)
        assert said(site.examine(home), "stop") == [] == said(site.examine(home), "warning", "clock", "disk")
        assert any("keeps the rest closed" in f.said for f in examine(server, listen=f"127.0.0.1:{port}"))

        real = network.knock

        def ahead(*arguments: Any) -> network.Greeted:
            door = real(*arguments)
            return network.Greeted(door.program, door.status, door.certificate, 400.0)

        monkeypatch.setattr(network, "knock", ahead)
        assert "this clock is 400 s behind the server's" in said(site.examine(home), "stop")[0]
        monkeypatch.undo()
        certs.make(place / "other")
        shutil.copy(place / "other" / "tls" / "ca.crt", home / "ca.crt")
        assert "was not made by the CA in ca.crt" in said(site.examine(home), "stop")[0]
    finally:
        nginx.terminate()
        nginx.wait()


@pytest.mark.parametrize(("days", "said"), [(2, "is not valid yet by this"), (-4000, "has expired by this")])
def test_a_clock_that_is_off_is_named_where_a_certificate_does_not_fit_it(
    place: Path, monkeypatch: pytest.MonkeyPatch, days: int, said: str
) -> None:
    """The certificate is of another time, which looks to a site as if its own clock were off."""
    real = datetime.datetime.now
    other = SimpleNamespace(now=lambda tz: real(tz) + datetime.timedelta(days=days))
    moved = SimpleNamespace(datetime=other, UTC=datetime.UTC, timedelta=datetime.timedelta)
    with monkeypatch.context() as patch:
        patch.setattr(certs, "datetime", moved)
        certs.make(place / "other")
    tls = place / "other" / "tls"
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(tls / "server.pem", tls / "server.key")
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer() -> None:
            with suppress(OSError), listening.accept()[0] as caller, context.wrap_socket(caller, server_side=True):
                pass

        server = threading.Thread(target=answer)
        server.start()
        with pytest.raises(UserError, match=f"{said} machine's clock, which says {real(datetime.UTC):%Y-%m-%d}"):
            network.knock(f"localhost:{listening.getsockname()[1]}", tls / "ca.crt")
        server.join()


def test_the_command_ends_with_one_if_something_would_stop_it(place: Path) -> None:
    run = CliRunner().invoke(app, ["doctor", str(place / "north")])
    assert run.exit_code == 1 and "\nstop     server " in run.output and run.output.startswith("ok       versions")
    assert (
        CliRunner().invoke(app, ["doctor", str(place / "server"), "--insecure", "--port", str(free_port())]).exit_code
        == 0
    )
