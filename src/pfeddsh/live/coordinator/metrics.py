"""What `/metrics` tells Prometheus: the status in numbers, and what an operator wants to be woken for."""

import shutil
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import get_args

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from pfeddsh.errors import UserError
from pfeddsh.live.coordinator.health import Health, look, restarts
from pfeddsh.live.coordinator.pulse import PHASES
from pfeddsh.live.coordinator.status import ClientStatus, Status
from pfeddsh.live.security.certs import read_certificate

STATES = get_args(ClientStatus.model_fields["state"].annotation)


def exposition(folder: Path, minutes: float) -> bytes:
    """All metrics of a coordinator's folder, in Prometheus' text format."""
    registry = CollectorRegistry()
    registry.register(_Folder(folder, minutes))
    return generate_latest(registry)


class _Folder(Collector):
    def __init__(self, folder: Path, minutes: float) -> None:
        self._folder, self._minutes = folder, minutes

    def collect(self) -> Iterable[Metric]:
        health = look(self._folder, self._minutes)
        yield from _alerts(health, self._folder)
        if health.status is not None:
            yield from _state(health.status)
            yield from _clients(health.status)


def _alerts(health: Health, folder: Path) -> Iterable[Metric]:
    yield _gauge("healthy", "1 if /health finds nothing wrong", not health.problems)
    yield _gauge("coordinator_running", "1 if the coordinator's process works in the folder", health.running)
    yield CounterMetricFamily(
        "pfeddsh_coordinator_restarts", "times that it ended before its work was done", value=restarts(folder)
    )
    yield _gauge("stalled", "1 if work is in progress but there was no progress for too long", bool(health.stalled))
    yield _gauge("disk_free_bytes", "room left on the disk of the folder", shutil.disk_usage(folder).free)
    ends = GaugeMetricFamily("pfeddsh_certificate_end_timestamp_seconds", "when a certificate ends", labels=["file"])
    for name in ("ca.crt", "server.pem"):
        try:
            ends.add_metric([name], read_certificate(folder / "tls" / name).not_valid_after_utc.timestamp())
        except (OSError, UserError):
            continue  # without TLS there is none
    yield ends


def _state(status: Status) -> Iterable[Metric]:
    phases = GaugeMetricFamily("pfeddsh_phase", "1 for what the federation does now", labels=["phase"])
    for phase in PHASES:
        phases.add_metric([phase], phase == status.phase)
    yield phases
    yield _gauge("step", "the current step", status.step)
    yield _gauge("round", "rounds done in the current step", status.round)
    yield _gauge("rounds", "rounds of the current step", status.rounds)
    yield _gauge("queue", "newcomers that wait", len(status.queue))
    yield _gauge("event_timestamp_seconds", "when the status was last written", status.time.timestamp())
    if status.moved:
        yield _gauge("progress_timestamp_seconds", "when the federation last moved", status.moved.time.timestamp())
    offers = CounterMetricFamily("pfeddsh_offers", "models offered to existing clients", labels=["answer"])
    for answer in ("accepted", "declined"):
        offers.add_metric([answer], getattr(status.offers, answer))
    yield offers
    yield _gauge("offers_pending", "offers that wait for their client", status.offers.pending)
    traffic = CounterMetricFamily("pfeddsh_payload_bytes", "payload of the rounds' messages", labels=["direction"])
    for direction in ("down", "up"):
        traffic.add_metric([direction], getattr(status.bytes, direction))
    yield traffic


def _clients(status: Status) -> Iterable[Metric]:
    """Sums only: a series for each of ten thousand sites would be a burden, and tell their names."""
    states = Counter(client.state for client in status.clients)
    clients = GaugeMetricFamily("pfeddsh_clients", "clients that have been taken in", labels=["state"])
    for state in STATES:
        clients.add_metric([state], states[state])
    yield clients
    yield _gauge("clients_online", "of them, connected now", sum(client.online for client in status.clients))
    yield CounterMetricFamily(
        "pfeddsh_refused_replies", "of clients that have been taken in", value=sum(c.refused for c in status.clients)
    )
    known = [client.accuracy for client in status.clients if client.accuracy is not None]
    if known:
        yield _gauge("accuracy_percent", "of everyone measured, with what it is served", sum(known) / len(known))
    for name, meaning, values in (
        ("pa_points", "proactive adaptation of the last step", status.pa),
        ("ri_points", "retroactive improvement of the last step", status.ri),
    ):
        if values and (last := values[-1]) is not None:
            yield _gauge(name, meaning, last)


def _gauge(name: str, meaning: str, value: float) -> Metric:
    return GaugeMetricFamily(f"pfeddsh_{name}", meaning, value=float(value))
