"""What goes wrong around a coordinator is said, and nothing is touched that belongs to somebody else."""

import json
import os
import shutil
import socket
import sys
import threading
from subprocess import TimeoutExpired

import pytest
from live_sites import TINY, FakeNetwork, federation, final_state, run_in_process, shards
from ports import free_port

from pfeddsh import cli
from pfeddsh.data.datasets import load
from pfeddsh.errors import UserError
from pfeddsh.live.coordinator.federation import LiveFederation
from pfeddsh.live.coordinator.health import restarts
from pfeddsh.live.coordinator.metrics import exposition
from pfeddsh.live.coordinator.orphan import end_without
from pfeddsh.live.coordinator.serve import Server
from pfeddsh.live.coordinator.status import read_status
from pfeddsh.live.processes import environment, listens
from pfeddsh.report.contract import Results
from pfeddsh.storage.files import in_use, locked


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A federation of two steps, and a copy of its folder between them."""
    folder = tmp_path_factory.mktemp("town")
    paths, network, server = shards(folder / "data", 2), FakeNetwork(), folder / "server"
    federation(server, batch_min=1, rounds_first=2, rounds_later=2)
    network.add(1, folder / "site-0", paths[0])

    def fault(header, name, body):
        if (header["job"], header["visit"]["step"]) == ("score", 1) and 2 not in network.sites:
            network.add(2, folder / "site-1", paths[1])
        if (header["job"], header["visit"]["step"]) == ("local", 2) and not (folder / "copy").exists():
            shutil.copytree(server, folder / "copy")
        return body

    network.fault = fault
    run_in_process(server, network)
    network.fault = lambda header, name, body: body
    return folder, network


@pytest.fixture
def server(finished, tmp_path):
    """A copy of the finished federation, to be spoilt."""
    shutil.copytree(finished[0] / "server", tmp_path / "server")
    return tmp_path / "server"


def test_a_live_results_file_is_one_of_schema_1(finished):
    results = Results.model_validate_json((finished[0] / "server" / "results.json").read_text())
    assert (results.schedule, results.dataset, results.batch) == ("1+1", "live", [1, 2])


def test_the_end_of_a_coordinator_is_told_with_its_traceback(server, finished, monkeypatch):
    def broken(self):
        raise ZeroDivisionError("a fault of ours")

    monkeypatch.setattr(LiveFederation, "run", broken)
    with pytest.raises(ZeroDivisionError):
        run_in_process(server, finished[1])
    text = (server / "coordinator.error").read_text()
    assert "Traceback" in text and "in broken" in text
    notice = read_status(server).notices[-1].text
    assert "ZeroDivisionError: a fault of ours" in notice and "coordinator.error" in notice
    said = []
    watching = Server(server, 1, True, said.append)
    watching._say_why(), watching._say_why()
    assert said == [text.strip()]  # once for each reason


SPOILT = {
    "every snapshot is damaged": lambda folder: [
        path.write_bytes(path.read_bytes()[:-9]) for path in (folder / "state").glob("snapshot-*")
    ],
    "has no snapshot": lambda folder: [path.unlink() for path in (folder / "state").glob("snapshot-*")],
    "has schema 2": lambda folder: (folder / "clients.json").write_text(
        (folder / "clients.json").read_text().replace('"schema": 1', '"schema": 2')
    ),
    "is damaged": lambda folder: (folder / "clients.json").write_text("{"),
    "of different federations": lambda folder: (folder / "clients.json").write_text(
        (folder / "clients.json").read_text().replace("key of site-0", "key of nobody")
    ),
}


@pytest.mark.filterwarnings("ignore:.*using the checkpoint before it")
@pytest.mark.parametrize("reason", SPOILT)
def test_a_state_that_is_spoilt_is_refused_and_never_begun_anew(server, reason):
    SPOILT[reason](server)
    before = sorted(path.name for path in (server / "state").iterdir())
    with pytest.raises(UserError, match=reason):
        run_in_process(server, FakeNetwork())
    assert sorted(path.name for path in (server / "state").iterdir()) == before
    assert reason in (server / "coordinator.error").read_text()


def test_a_copy_taken_at_any_time_can_be_continued(server, finished):
    """The list of clients is older than the state; and the state older than the list, in mid-step."""
    older = json.loads((server / "clients.json").read_text())
    older["clients"] = older["clients"][:1]
    (server / "clients.json").write_text(json.dumps(older))
    wanted = final_state(server / "state")
    run_in_process(server, finished[1])
    known = json.loads((server / "clients.json").read_text())["clients"]
    assert [client["name"] for client in known] == ["site-0", "site-1"]
    copy = finished[0] / "copy"
    run_in_process(copy, finished[1])
    assert final_state(copy / "state").keys() == wanted.keys()


def run_serve(folder, *arguments, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(sys, "argv", ["pfeddsh", "serve", str(folder), "--insecure", *arguments])
    with pytest.raises(SystemExit):
        cli.main()
    return capsys.readouterr().err


def test_a_changed_setting_is_said_before_anything_starts(server, monkeypatch, capsys):
    assert "seed cannot change" in run_serve(server, "--set", "seed=5", monkeypatch=monkeypatch, capsys=capsys)
    assert "seed = 5" not in (server / "federation.toml").read_text()


def test_a_second_serve_touches_nothing(server, monkeypatch, capsys):
    before = {path: path.stat().st_mtime_ns for path in server.rglob("*") if path.name != ".lock"}
    with locked(server):
        text = run_serve(server, "--rounds", "9", monkeypatch=monkeypatch, capsys=capsys)
    assert "in use by another process" in text
    assert {path: path.stat().st_mtime_ns for path in server.rglob("*") if path.name != ".lock"} == before


def test_a_port_in_use_is_said_and_nobody_elses_superlink_is_joined(tmp_path):
    federation(tmp_path / "server", **{key: TINY[key] for key in ("steps",)})
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(UserError, match=f"port {port} is in use"):
            Server(tmp_path / "server", port, True, print).run()
        assert listens(os.getpgid(0), port) and not listens(1, port)
    assert not listens(os.getpgid(0), free_port())


def test_a_coordinator_ends_with_its_serve(tmp_path):
    ended = threading.Event()
    with locked(tmp_path):
        assert in_use(tmp_path)
        watch = end_without(tmp_path, ended.set, look=0.02)
        assert not ended.wait(0.2)
    assert ended.wait(10)
    watch.join()
    assert not in_use(tmp_path)


def test_decoded_images_are_for_their_owner_alone(tmp_path, monkeypatch):
    monkeypatch.setenv("PFEDDSH_CACHE", str(tmp_path / "cache"))
    load(str(shards(tmp_path / "data", 2)[0]), class_names=tuple(map(str, range(10))), shape=(3, 32, 32))
    entries = [path for path in (tmp_path / "cache").rglob("x_train.npy")]
    assert entries and all(path.parent.stat().st_mode & 0o077 == 0 for path in entries)


def test_serve_goes_on_after_whatever_fails_once_it_has_begun(tmp_path, monkeypatch):
    """A disk that is full for a moment, a SuperLink that does not answer, results that cannot be read."""
    federation(tmp_path, steps=1)
    (tmp_path / "results.json").write_text("{half of")
    said: list[str] = []
    server = Server(tmp_path, free_port(), True, said.append)
    troubles = iter([None, UserError("cannot write superlink.address"), TimeoutExpired("flwr", 1), OSError("no room")])

    def start():
        if trouble := next(troubles, None):
            raise trouble

    def submit():
        if "starting it again" in "".join(said[-1:]) and len(said) > 6:
            (tmp_path / "results.json").write_text('{"steps": 1}')
        return "7"

    monkeypatch.setattr(server, "_start_superlink", start)
    monkeypatch.setattr(server, "_submit", submit)
    monkeypatch.setattr(server, "_superlink_alive", lambda: False)
    monkeypatch.setattr("pfeddsh.live.processes.Backoff.after", lambda self, lived: 0.0)
    server.run()
    for reason in ("cannot write superlink.address", "timed out", "no room"):
        assert any(reason in line for line in said), reason
    assert restarts(tmp_path) == 4 and b"pfeddsh_coordinator_restarts_total 4.0" in exposition(tmp_path, 30)


def test_serve_does_not_begin_with_what_cannot_work(tmp_path, monkeypatch):
    federation(tmp_path, steps=1)
    server = Server(tmp_path, free_port(), True, print)

    def start():
        raise UserError("port 1 is in use")

    monkeypatch.setattr(server, "_start_superlink", start)
    with pytest.raises(UserError, match="in use"):
        server.run()


def test_what_flower_starts_for_every_message_may_keep_what_it_compiles(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    assert "PYTHONDONTWRITEBYTECODE" not in environment(tmp_path)
