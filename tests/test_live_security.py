"""Who gets in and who does not, with a real SuperLink, the real nginx and real SuperNodes."""

import http.client
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import httpx
import pytest

pytest.importorskip("flwr", reason="needs pfeddsh[flower]")
from conftest import lacking
from edge_processes import BIN, Deployment, until
from flwr.proto.control_pb2 import ListRunsRequest, RegisterNodeRequest, StartRunRequest, StopRunRequest
from flwr.supercore.control import ControlHttpClient

from pfeddsh.errors import UserError
from pfeddsh.live.security import certs, nodes, proxy
from pfeddsh.live.security.refusals import Tail, Watcher, explain

KEY = "--auth-supernode-private-key"
IDLE = ("--isolation", "process")  # a node that gets no work needs no process for it
TEN_MINUTES_LATE = """
import datetime
import flwr.supernode.node_auth_http_interceptor as signing
from flwr.supernode.cli import flower_supernode
now = signing.now
signing.now = lambda: now() - datetime.timedelta(minutes=10)
flower_supernode()
"""
PROJECT = """
[project]
name = "tiny"
version = "1.0.0"
dependencies = []
[tool.flwr.app]
publisher = "test"
[tool.flwr.app.components]
serverapp = "tiny.server:app"
clientapp = "tiny.client:app"
[tool.flwr.app.config]
out = ""
"""
SERVER = """
import time
from pathlib import Path
from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import ServerApp

app = ServerApp()

@app.main()
def main(grid, context):
    out = Path(str(context.run_config["out"]))
    try:
        out.write_text(str(ask(grid)))
    except Exception as error:
        out.write_text(repr(error))

def ask(grid):
    while not (ids := list(grid.get_node_ids())):
        time.sleep(0.2)
    content = RecordDict({"question": ConfigRecord({"number": 20})})
    message = Message(content, dst_node_id=ids[0], message_type=MessageType.QUERY, ttl=60)
    sent = list(grid.push_messages([message]))
    while not (replies := list(grid.pull_messages(sent))):
        time.sleep(0.2)
    return replies[0].content["answer"]["number"]
"""
CLIENT = """
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()

@app.query()
def query(message, context):
    number = message.content["question"]["number"]
    return Message(RecordDict({"answer": ConfigRecord({"number": number + 1})}), reply_to=message)
"""


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    try:
        proxy.command(Path())
    except UserError as error:
        lacking(str(error))
    deployment = Deployment(tmp_path_factory.mktemp("coordinator"))
    try:
        deployment.start()
        yield deployment
    finally:
        deployment.stop()


def test_a_round_works_through_the_proxy_until_the_key_is_revoked(deployment: Deployment, tmp_path: Path) -> None:
    folder, watcher = deployment.folder, Watcher(deployment.folder)
    certs.make_node_key(tmp_path / "north")
    nodes.add(folder, "north", tmp_path / "north" / "node.key.pub")
    nodes.synchronise(folder, deployment.superlink)
    node = deployment.supernode(tmp_path / "north", KEY, tmp_path / "north" / "node.key")

    assert play(deployment, tmp_path) == "21"
    assert [site.state for site in nodes.connected(folder, deployment.superlink)] == ["online"]
    twin = deployment.supernode(tmp_path / "twin", *IDLE, KEY, tmp_path / "north" / "node.key")  # the same key twice
    assert twin.wait(90) == 1 and node.poll() is None
    assert "another process uses" in str(explain((folder / "twin.log").read_text()))
    told = [(entry["client"], entry["reason"]) for entry in watcher.new()]
    assert ("north", "its key is in use by another process, or was until a minute ago") in told

    nodes.revoke(folder, "north")
    assert [site.state for site in nodes.synchronise(folder, deployment.superlink)] == ["revoked"]
    log = folder / "north.log"  # Flower's SuperNode may hang on its way out, if its heartbeat is refused as well
    until(lambda: node.poll() is not None or "401 Unauthorized" in log.read_text(), 300)
    assert "revoked" in str(explain(log.read_text()))
    told = []

    def is_told() -> bool:
        told.extend((entry["client"], entry["reason"].partition(" (")[0]) for entry in watcher.new())
        return ("north", "its key was revoked") in told

    until(is_told, 300)  # nginx answers first and writes its log then


def play(deployment: Deployment, tmp_path: Path) -> str:
    """Run the tiny app from the coordinator's host; its answer comes from the site."""
    app, out = tmp_path / "app", tmp_path / "answer"
    (app / "tiny").mkdir(parents=True)
    for name, text in (("pyproject.toml", PROJECT), ("tiny/server.py", SERVER), ("tiny/client.py", CLIENT)):
        (app / name).write_text(text)
    (app / "tiny" / "__init__.py").touch()
    home = deployment.folder / "flwr"
    home.mkdir(exist_ok=True)
    ca = deployment.folder / "tls" / "ca.crt"
    (home / "config.toml").write_text(
        f'[superlink.here]\naddress = "{deployment.superlink}"\nroot-certificates = "{ca}"\n'
    )
    command = [BIN / "flwr", "run", app, "here", "--format", "json", "-c", f'out="{out}"']
    done = subprocess.run(command, env=deployment.environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return str(until(lambda: out.exists() and out.read_text(), 300))


def test_strangers_are_refused_and_both_sides_are_told(deployment: Deployment, tmp_path: Path) -> None:
    watcher = Watcher(deployment.folder)
    stranger_key = certs.make_node_key(tmp_path / "stranger")
    certs.make(tmp_path / "elsewhere")
    refused = {
        "stranger": deployment.supernode(tmp_path / "stranger", *IDLE, KEY, tmp_path / "stranger" / "node.key"),
        "keyless": deployment.supernode(tmp_path / "keyless", *IDLE),
        "misled": deployment.supernode(tmp_path / "misled", *IDLE, ca=tmp_path / "elsewhere" / "tls" / "ca.crt"),
    }
    certs.make_node_key(tmp_path / "late")
    nodes.add(deployment.folder, "late", tmp_path / "late" / "node.key.pub")
    nodes.synchronise(deployment.folder, deployment.superlink)
    refused["late"] = deployment.supernode(
        tmp_path / "late", *IDLE, KEY, tmp_path / "late" / "node.key", program=(sys.executable, "-c", TEN_MINUTES_LATE)
    )
    for name, process in refused.items():
        assert process.wait(90) == (0 if name == "late" else 1)  # Flower tells a wrong clock from nothing at all
    said = {name: explain((deployment.folder / f"{name}.log").read_text()) for name in refused}
    assert "not registered" in str(said["stranger"])
    assert "no key was presented" in str(said["keyless"])
    assert "not made by the CA" in str(said["misled"])
    assert "this machine's clock, which says" in str(said["late"])
    seen = {(entry["client"], entry["reason"]) for entry in watcher.new()}
    assert (stranger_key, "its key is not registered") in seen
    assert any(reason == "came without a registered key" for _, reason in seen)
    assert ("127.0.0.1", "does not trust our certificate: it has another ca.crt") in seen
    assert ("late", "its signature was not accepted: another node's session, or its clock is wrong") in seen
    assert watcher.new() == []


def test_control_is_closed_outside_and_open_on_the_host(deployment: Deployment) -> None:
    watcher = Watcher(deployment.folder)
    authority = (deployment.folder / "tls" / "ca.crt").read_bytes()
    with ControlHttpClient.from_server_address(deployment.outside, False, authority, []) as outside:
        for attempt in (
            lambda: outside.RegisterNode(RegisterNodeRequest(public_key=b"key")),
            lambda: outside.StartRun(StartRunRequest()),
            lambda: outside.StopRun(StopRunRequest(run_id=1)),
            lambda: outside.ListRuns(ListRunsRequest()),
        ):
            with pytest.raises(httpx.HTTPStatusError, match="404"):
                attempt()
    with ControlHttpClient.from_server_address(deployment.superlink, False, authority, []) as inside:
        inside.ListRuns(ListRunsRequest())
    reasons = [entry["reason"] for entry in watcher.new()]
    assert "asked for /v1/control/start-run, which is not open to the outside" in reasons


@pytest.mark.parametrize(
    ("verb", "path", "status"),
    [
        ("POST", "/v1/fleet/../control/list-runs", 404),
        ("POST", "/v1/fleet/%2e%2e/control/list-runs", 404),
        ("POST", "/v1/fleet/..%2fcontrol/list-runs", 404),
        ("POST", "//v1/control/list-runs", 404),
        ("POST", "/v1/fleet/register-node", 404),
        ("POST", "/v1/fleet/get-run/../../control/list-runs", 404),
        ("POST", "/v1/runtime/get-nodes", 404),
        ("GET", "/health", 404),
        ("GET", "/docs", 404),
        ("GET", "/openapi.json", 404),
        ("GET", "/v1/fleet/get-run", 403),
        ("POST", "/v1/fleet/get-run", 401),  # the one that gets through, and is asked for a signature
    ],
)
def test_nothing_but_the_fleet_gets_through(deployment: Deployment, verb: str, path: str, status: int) -> None:
    assert ask(deployment, verb, path) == status


def test_what_is_too_large_is_refused(deployment: Deployment) -> None:
    headers = {"Content-Length": str(17 << 20), "Content-Type": "application/protobuf"}
    assert ask(deployment, "POST", "/v1/fleet/push-object", headers) == 413


def ask(deployment: Deployment, verb: str, path: str, headers: dict[str, str] | None = None) -> int:
    """One raw request from outside: unlike other clients this one sends the path as it is written."""
    context = ssl.create_default_context(cafile=str(deployment.folder / "tls" / "ca.crt"))
    host, port = deployment.outside.split(":")
    connection = http.client.HTTPSConnection(host, int(port), context=context, timeout=60)
    connection.request(verb, path, headers=headers or {"Content-Type": "application/protobuf"})
    status = connection.getresponse().status
    connection.close()
    return status


def test_an_address_without_a_key_cannot_hold_more_than_64_megabytes_of_the_proxy(deployment: Deployment) -> None:
    """As many bodies as it is let, each without its last byte, and connections that never finish their header."""
    start = b"POST /v1/fleet/push-object HTTP/1.1\r\nHost: x\r\nContent-Type: application/protobuf\r\n"
    header = start + b"".join(b"X-%d: %s\r\n" % (n, b"a" * 3900) for n in range(4))[:-9]
    size, half_open, before = int(proxy.MAX_BODY[:-1]) << 20, 40, private_memory(deployment.proxy)
    with ExitStack() as held:
        for _ in range(half_open):
            held.enter_context(connect(deployment)).sendall(header)
        waiting = private_memory(deployment.proxy) - before
        for _ in range(2 * proxy.CONNECTIONS):
            with suppress(OSError):  # refused in the middle of it
                held.enter_context(connect(deployment)).sendall(
                    start + b"Content-Length: %d\r\n\r\n" % size + bytes(size - 1)
                )
        bodies = private_memory(deployment.proxy) - before - waiting
    assert 0.9 * size < bodies < 1.1 * proxy.CONNECTIONS * size
    assert bodies + waiting / half_open * proxy.WAITING <= 64 << 20


def connect(deployment: Deployment) -> ssl.SSLSocket:
    context = ssl.create_default_context(cafile=str(deployment.folder / "tls" / "ca.crt"))
    host, port = deployment.outside.split(":")
    return context.wrap_socket(socket.create_connection((host, int(port)), timeout=60), server_hostname="localhost")


def private_memory(process: subprocess.Popen[bytes]) -> int:
    """Bytes that nginx and its worker have to themselves."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    maps = "".join(Path(f"/proc/{each}/smaps_rollup").read_text() for each in (process.pid, *children))
    return 1024 * sum(int(line.split()[1]) for line in maps.splitlines() if line.startswith("Private_"))


def test_a_log_that_is_rotated_away_at_this_moment_ends_nobody(tmp_path, monkeypatch):
    path = tmp_path / "log"
    path.write_text("one\n")
    tail = Tail(path)
    path.write_text("one\ntwo\n")
    real = open

    def gone(place, *arguments, **more):
        raise FileNotFoundError(place)

    monkeypatch.setattr("builtins.open", gone)
    assert tail.lines() == []
    monkeypatch.setattr("builtins.open", real)
    assert tail.lines() == ["two"]
