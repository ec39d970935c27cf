"""Health, metrics and the alarm: they tell of a federation that stands still, and of nothing else."""

import datetime
import fcntl
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from status_sample import START, sample
from test_live_status import ask

from pfeddsh.live.coordinator.health import Alarm, look
from pfeddsh.live.coordinator.metrics import exposition
from pfeddsh.live.coordinator.page import serve_page
from pfeddsh.live.coordinator.pulse import Moved, Pulse, stalled
from pfeddsh.live.security import certs, listed, nodes


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder in which a coordinator seems to work."""
    (tmp_path / "state").mkdir()
    (tmp_path / "coordinator.pid").write_text(f"{os.getpid()}\n")
    with open(tmp_path / "state" / ".lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield tmp_path


def moved_ago(minutes: float, **changes: Any) -> str:
    then = datetime.datetime.now(datetime.UTC) - datetime.timedelta(minutes=minutes)
    return json.dumps(sample() | {"moved": sample()["moved"] | {"time": then.isoformat()}} | changes)


def test_health_tells_a_stall_from_waiting(folder: Path) -> None:
    for text, healthy in (
        (moved_ago(5), True),
        (moved_ago(45), False),
        (moved_ago(45, phase="waiting"), True),  # for newcomers, as long as it takes
        (moved_ago(45, phase="done"), True),
        ("{", False),
    ):
        (folder / "new.json").write_text(text)
        (folder / "new.json").replace(folder / "status.json")
        assert (not look(folder, 30).problems) == healthy, text
    (folder / "state" / ".lock").unlink()
    (folder / "status.json").write_text(moved_ago(5))
    assert look(folder, 30).problems == ["the coordinator is not running; `serve` starts it again"]


def test_the_endpoints_say_the_same_to_machines(folder: Path) -> None:
    (folder / "status.json").write_text(moved_ago(45))
    server = serve_page(folder, minutes=30)
    try:
        answer = ask(server, "GET", "/health")
        told = json.loads(answer.read())
        assert answer.status == 503 and "no progress for 45 min" in told["problems"][0]
        metrics = ask(server, "GET", "/metrics").read().decode()
        assert "pfeddsh_stalled 1.0" in metrics
        (folder / "status.json").write_text(moved_ago(1))
        assert ask(server, "GET", "/health").status == 200
    finally:
        server.shutdown()
        server.server_close()


def test_metrics_are_the_status_in_numbers(folder: Path) -> None:
    certs.make(folder)
    (folder / "status.json").write_text(moved_ago(1))
    found = {
        (point.name, *point.labels.values()): point.value
        for family in text_string_to_metric_families(exposition(folder, 30).decode())
        for point in family.samples
    }
    expected = {
        ("pfeddsh_healthy",): 1, ("pfeddsh_stalled",): 0, ("pfeddsh_coordinator_running",): 1, ("pfeddsh_step",): 2,
        ("pfeddsh_phase", "training"): 1, ("pfeddsh_phase", "waiting"): 0, ("pfeddsh_queue",): 2,
        ("pfeddsh_clients", "served"): 2, ("pfeddsh_clients", "revoked"): 1, ("pfeddsh_clients_online",): 4,
        ("pfeddsh_offers_total", "accepted"): 1, ("pfeddsh_offers_pending",): 1, ("pfeddsh_refused_replies_total",): 6,
        ("pfeddsh_payload_bytes_total", "down"): 48_230_111, ("pfeddsh_ri_points",): -0.26,
    }  # fmt: skip
    assert {name: found[name] for name in expected} == expected
    days = (found["pfeddsh_certificate_end_timestamp_seconds", "server.pem"] - START.timestamp()) / 86400
    assert days > 300 and not any("site" in str(name) or "north" in name for name in found)


def test_the_alarm_says_it_once_and_says_when_it_is_over(folder: Path) -> None:
    said: list[str] = []
    alarm = Alarm(folder, 30, said.append)
    for minutes in (1, 31, 32, 1, 2):
        (folder / "new.json").write_text(moved_ago(minutes))
        (folder / "new.json").replace(folder / "status.json")
        alarm.check()
    assert [text.split(":")[0] for text in said] == ["ALERT", "the federation moves again"]


def test_a_coordinator_that_dies_and_repeats_its_rounds_does_not_move(tmp_path: Path) -> None:
    path = tmp_path / "status.json"

    def life(*rounds: tuple[str, int]) -> dict[str, Any]:
        pulse = Pulse(path)
        for time, round in rounds:
            path.write_text(json.dumps({"moved": pulse.note(f"2026-01-01T{time}:00+00:00", 2, "training", round, 0)}))
        told: dict[str, Any] = json.loads(path.read_text())["moved"]
        return told

    assert life(("10:00", 1), ("10:05", 2))["time"].startswith("2026-01-01T10:05")
    assert life(("11:00", 0), ("11:01", 1), ("11:02", 2))["time"].startswith("2026-01-01T10:05")
    moved = Moved.model_validate(life(("12:00", 1), ("12:05", 3)))
    assert moved.round == 3 and moved.time.hour == 12
    assert stalled("training", moved, 30, moved.time + datetime.timedelta(minutes=29)) is None


def test_keys_are_read_once_and_again_when_the_folder_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("north", "south"):
        certs.make_node_key(tmp_path / name)
    nodes.add(tmp_path, "north", tmp_path / "north" / "node.key.pub")
    read: list[bytes] = []
    real = certs.fingerprint
    monkeypatch.setattr(listed, "fingerprint", lambda line: read.append(line) or real(line))
    monkeypatch.setattr(listed, "SETTLED", -1)
    listed._read.cache_clear()
    assert [site.name for site in listed.sites(tmp_path)] == ["north"]
    assert listed.sites(tmp_path) == listed.sites(tmp_path) and len(read) == 1
    nodes.add(tmp_path, "south", tmp_path / "south" / "node.key.pub")
    assert [site.name for site in listed.sites(tmp_path)] == ["north", "south"] and len(read) == 2
    nodes.revoke(tmp_path, "north")
    assert {site.name: site.state for site in listed.sites(tmp_path)} == {"south": "allowed", "north": "revoked"}
