"""What tests of the live federation share: sites with shards of the digits, the same in simulation, a network."""

import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from conftest import snapshot_tensors
from torch import Tensor

from pfeddsh.data.datasets import load
from pfeddsh.data.partition import partition
from pfeddsh.federation.clients import Simulated
from pfeddsh.federation.engines import Serial
from pfeddsh.federation.loop import Federation
from pfeddsh.federation.run import one_thread
from pfeddsh.federation.workbench import Call, Shard, Workbench
from pfeddsh.live.coordinator.clients import quorum
from pfeddsh.live.coordinator.config import LiveConfig, build, save
from pfeddsh.live.coordinator.run import coordinate
from pfeddsh.live.coordinator.schedule import LiveSchedule
from pfeddsh.live.site.calls import Site, SiteData
from pfeddsh.live.site.policy import OPEN, Policy
from pfeddsh.live.site.release import release
from pfeddsh.live.site.worker import reply
from pfeddsh.live.transport import Answer, Node, TransportError
from pfeddsh.live.wire import call_head, decode, encode
from pfeddsh.messages import Message
from pfeddsh.methods import registry
from pfeddsh.methods.local import Local
from pfeddsh.methods.options import Options
from pfeddsh.methods.task import Task
from pfeddsh.storage.checkpoint import Checkpoints

CLASSES = [str(digit) for digit in range(10)]
IMAGES = 64  # at most, of each kind at a site: what is tested does not depend on how many there are
TINY: dict[str, Any] = {
    "classes": CLASSES, "rounds_first": 3, "rounds_later": 2, "local_epochs": 1, "batch_min": 3, "batch_wait": 0.3,
    "steps": 2, "round_timeout": 60, "offline_after": 0.5, "mean": [0.3, 0.3, 0.3], "std": [0.4, 0.4, 0.4],
}  # fmt: skip


def federation(folder: Path, **changes: Any) -> LiveConfig:
    """A coordinator's folder; digits, two steps, a few rounds."""
    config = build({**TINY, **changes}, "test")
    folder.mkdir(parents=True, exist_ok=True)
    save(folder, config)
    return config


def encode_call(call: Call, settings: dict[str, Any]) -> bytes:
    """A call as a site gets it."""
    return call_head(call, settings) + call.message.encode()


def shards(folder: Path, count: int) -> list[Path]:
    """A small .npz per client, with classes missing here and there, as label skew has it."""
    data = load("digits", shape=(3, 32, 32))
    parts = partition(
        data.y_train, data.y_test, classes=10, clients=count, rule="dirichlet", alpha=0.5, seed=0
    )  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for k in range(count):
        train, test = parts.train[k][:IMAGES], parts.test[k][:IMAGES]
        paths.append(folder / f"shard-{k}.npz")
        np.savez(paths[-1], x_train=data.x_train[train], y_train=data.y_train[train], x_test=data.x_test[test],
                 y_test=data.y_test[test])  # fmt: skip
    return paths


class SimulatedSites(Workbench):
    """A workbench whose clients hold the shards that the sites hold."""

    def __init__(self, config: LiveConfig, batches: list[tuple[int, ...]], paths: list[Path]) -> None:
        self.config = config.training()
        self.plan = LiveSchedule.create(self.config, batches)
        self.task = Task.create(len(config.classes), config.seed)
        self.method = registry.create(config.method, self.config.options, self.task)
        self._local_only = Local(self.task, Options())
        mean, std = (np.array(values, dtype=np.float32) for values in (config.mean, config.std))
        self._data = [
            SiteData(replace(load(str(path), class_names=config.classes, shape=(3, 32, 32)), mean=mean, std=std))
            for path in paths
        ]

    def shard(self, client: int) -> Shard:
        return self._data[client]


def simulate(
    config: LiveConfig,
    batches: list[tuple[int, ...]],
    paths: list[Path],
    folder: Path,
    absent: set[tuple[int, int, int]] = frozenset(),
    policy: Policy = OPEN,
) -> Federation:
    """The same federation with the serial engine; `absent` names (step, round, client) whose uploads do not count.

    All sites have this policy.
    """

    class WithoutThose(Simulated):
        def ask(self, job, messages, memories, step, round):
            replies = list(super().ask(job, messages, memories, step, round))
            if job == "settle":
                bench.method.quorum = quorum(len(messages))
            lost = {k for k, _ in replies if job == "local" and (step, round, k) in absent}
            left = {k: release(policy, job, messages[k], reply, 1) for k, (reply, _) in replies}
            return [(k, (Message() if k in lost else left[k], memory)) for k, (_, memory) in replies]

    bench = SimulatedSites(config, batches, paths)
    engine = Serial(bench)
    run = Federation(bench, engine, Checkpoints(folder), [], WithoutThose(bench, engine))
    with one_thread():
        run.run()
    return run


def final_state(folder: Path) -> dict[str, Tensor]:
    """The coordinator's state in the last snapshot of a `state` folder."""
    tensors = snapshot_tensors(max(folder.glob("snapshot-*.safetensors")))
    return {name: tensor for name, tensor in tensors.items() if name.startswith("state:")}


class FakeNetwork:
    """A transport within this process: sites answer when asked for their replies. `fault` may alter or drop a reply."""

    def __init__(self) -> None:
        self.sites: dict[int, Site] = {}
        self.fault: Callable[[dict[str, Any], str, bytes], bytes | None] = lambda header, name, body: body
        self.calls: list[tuple[str, str, int, int]] = []
        self.stopped = False
        self._sent: dict[str, tuple[int, bytes]] = {}
        self._lock = threading.Lock()

    def add(self, node: int, home: Path, data: Path, name: str | None = None) -> Site:
        home.mkdir(parents=True, exist_ok=True)
        name = name or home.name
        site = Site(home, name, f"key of {name}", str(data))
        with self._lock:
            self.sites = {**self.sites, node: site}
        return site

    def remove(self, node: int) -> None:
        with self._lock:
            self.sites = {key: site for key, site in self.sites.items() if key != node}

    def stop(self) -> None:
        self.stopped = True

    def nodes(self) -> list[Node]:
        if self.stopped:
            raise ConnectionError("stopped")
        return [Node(node, site.key) for node, site in self.sites.items()]

    def push(self, bodies: Sequence[tuple[int, bytes]], ttl: float) -> list[str | None]:
        names = [f"message-{len(self._sent) + i}" for i in range(len(bodies))]
        self._sent |= dict(zip(names, bodies, strict=True))
        return list(names)

    def pull(self, messages: Iterable[str]) -> list[Answer]:
        answers = []
        for message in list(messages):
            node, body = self._sent[message]
            if body == b"" or node not in self.sites:
                continue
            self._sent[message] = (node, b"")
            site = self.sites[node]
            header, _ = decode(body)
            visit = header.get("visit") or {"step": 0, "round": 0}
            self.calls.append((header["job"], site.name, visit["step"], visit["round"]))
            answer = self.fault({**header, "visit": visit}, site.name, reply(site, body))
            if answer is not None:
                answers.append(Answer(message, answer))
        return answers


def tampered(body: bytes, change: Callable[[Message], None]) -> bytes:
    """A reply with something done to its message."""
    header, message = decode(body)
    change(message)
    return encode(header, message)


def run_in_process(folder: Path, network: FakeNetwork, seconds: float = 300) -> None:
    """The coordinator until it is done; one that never is fails the test, with what it last said of itself."""
    stopped = threading.Timer(seconds, network.stop)
    stopped.start()
    try:
        coordinate(folder, network, authenticated=False)
    except TransportError as error:
        if network.stopped:
            raise AssertionError((folder / "status.json").read_text()) from error
        raise
    finally:
        stopped.cancel()
