"""What our code costs on top of Flower: a round of the live federation beside a round of an empty app.

Same payload (one LeNet-5 each way), same machine, real SuperLink and SuperNodes; also the memory of our processes.

    python benchmarks/live.py --keep                                       # 4 nodes
    python benchmarks/live.py --keep --nodes 16 --rounds 2 --only ours

With --keep, what was measured goes to results/measured.csv and is told in docs/operations.md.
"""

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
from kept import keep

from pfeddsh.live.coordinator.config import build, save
from pfeddsh.live.processes import Child, environment, flower, free_port

APP = """
[project]
name = "empty"
version = "1.0.0"
description = "sends back what it gets"
license = "Apache-2.0"
[tool.flwr.app]
publisher = "pfeddsh"
[tool.flwr.app.components]
serverapp = "empty_app.server_app:app"
clientapp = "empty_app.client_app:app"
[tool.flwr.app.config]
out = ""
nodes = 1
rounds = 1
"""
CLIENT = """
{imports}
from flwr.app import ArrayRecord, Message, RecordDict
from flwr.clientapp import ClientApp
app = ClientApp()
@app.query()
def query(message, context):
    return Message(RecordDict({{"reply": message.content["call"]}}), reply_to=message)
"""
QUICK_SERVER = """
import json, time
from flwr.serverapp import ServerApp
from pfeddsh.live.exchange import Exchange
from pfeddsh.live.transport import FlowerTransport
app = ServerApp()
@app.main()
def main(grid, context):
    c = context.run_config
    exchange = Exchange(FlowerTransport(grid))
    exchange.start()
    while len(exchange.online) < c["nodes"]:
        time.sleep(0.2)
    body, seconds = bytes(248_024), []
    for _ in range(c["rounds"] + 1):
        began = time.perf_counter()
        for future in [exchange.ask(lambda n=n: n, (body,), 300, 300, 1 << 20) for n in exchange.online]:
            future.result()
        seconds.append(time.perf_counter() - began)
    open(c["out"], "w").write(json.dumps(seconds[1:]))
    exchange.close()
"""
DEFAULT_SERVER = """
import json, time
from flwr.app import Array, ArrayRecord, Message, MessageType, RecordDict
from flwr.serverapp import ServerApp
app = ServerApp()
@app.main()
def main(grid, context):
    c = context.run_config
    while len(list(grid.get_node_ids())) < c["nodes"]:
        time.sleep(0.2)
    body, seconds = bytes(248_024), []
    for _ in range(c["rounds"] + 1):
        began = time.perf_counter()
        record = lambda: RecordDict({"call": ArrayRecord({"body": Array("uint8", (len(body),), "bytes", body)})})
        ask = lambda n: Message(record(), dst_node_id=n, message_type=MessageType.QUERY, ttl=300)
        messages = [ask(n) for n in grid.get_node_ids()]
        grid.send_and_receive(messages, timeout=300)
        seconds.append(time.perf_counter() - began)
    open(c["out"], "w").write(json.dumps(seconds[1:]))
"""


def plain(place: Path, server: str, imports: str, nodes: int, rounds: int, quick: bool) -> list[float]:
    """Seconds of each round of an app without us; `quick` gives it our setting of Flower's polling."""
    app = place / "app"
    (app / "empty_app").mkdir(parents=True)
    (app / "pyproject.toml").write_text(APP)
    (app / "empty_app" / "__init__.py").write_text("")
    (app / "empty_app" / "server_app.py").write_text(server)
    (app / "empty_app" / "client_app.py").write_text(CLIENT.format(imports=imports))
    env = environment(place / ".flwr")
    if not quick:
        env.pop("FLWR_SUPEREXEC_TASK_POLL_INTERVAL")
    address, out = f"127.0.0.1:{free_port()}", place / "seconds.json"
    (place / ".flwr" / "config.toml").write_text(f"[superlink.bench]\naddress = '{address}'\ninsecure = true\n")
    port = address.split(":")[1]
    command = [flower("flower-superlink"), "--insecure", "--host", "127.0.0.1", "--port", port, "--database",
               str(place / "s.db"), "--disable-runtime-dependency-installation"]  # fmt: skip
    children = [Child(command, env, place / "superlink.log")]
    try:
        for k in range(nodes):
            node = [flower("flower-supernode"), "--insecure", "--superlink", address, "--port", str(free_port())]
            children.append(Child(node, env, place / f"node-{k}.log"))
        _await_port(int(port))
        settings = f"out='{out}' nodes={nodes} rounds={rounds}"
        run = [flower("flwr"), "run", str(app), "bench", "--format", "json", "-c", settings]
        answer = subprocess.run(run, env=env, capture_output=True, text=True)
        if "run-id" not in answer.stdout:
            raise SystemExit(f"Flower did not take the run: {answer.stdout}{answer.stderr}")
        return _await(out)
    finally:
        for child in reversed(children):
            child.stop()


def ours(place: Path, nodes: int, rounds: int) -> tuple[list[float], dict[str, list[float]]]:
    """Seconds of each round of a federation whose sites have next to nothing to train, and resident MB of it."""
    rng = np.random.default_rng(0)
    server, port = place / "server", free_port()
    server.mkdir()
    values = {"classes": ["a", "b"], "method": "fedavg", "rounds_first": rounds + 1, "local_epochs": 1, "steps": 1,
              "batch_min": nodes, "batch_wait": 600, "min_cohort": nodes, "round_timeout": 300}  # fmt: skip
    save(server, build(values, "benchmark"))
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)}
    command = [sys.executable, "-m", "pfeddsh"]
    children = [Child([*command, "serve", str(server), "--port", str(port), "--insecure"], env, place / "serve.log")]
    memory: dict[str, list[float]] = {}
    try:
        for k in range(nodes):
            data = place / f"{k}.npz"
            x = rng.integers(0, 255, (4, 32, 32, 3), dtype=np.uint8)
            np.savez(data, x_train=x, y_train=np.array([0, 1, 0, 1]), x_test=x[:2], y_test=np.array([0, 1]))
            join = [*command, "join", str(place / f"site-{k}"), "--data", str(data), "--server", f"127.0.0.1:{port}"]
            children.append(Child([*join, "--insecure"], env, place / f"site-{k}.log"))
        _await_rounds(server / "events.jsonl", rounds)
        memory = _memory(place)
        _await(server / "results.json")
        lines = [json.loads(line) for line in (server / "events.jsonl").read_text().splitlines()]
        return [line["seconds"] for line in lines if line["event"] == "round"][1:], memory
    finally:
        for child in reversed(children):
            child.stop(patience=15)


def _await_port(port: int, seconds: float = 180) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(0.2)
    raise SystemExit("the SuperLink does not come up")


def _await(path: Path, seconds: float = 1800) -> list[float]:
    deadline = time.monotonic() + seconds
    while not path.exists() or not path.read_text().strip():
        if time.monotonic() > deadline:
            raise SystemExit(f"nothing came; see the logs in {path.parent}")
        time.sleep(0.2)
    content = json.loads(path.read_text())
    return content if isinstance(content, list) else []


def _await_rounds(path: Path, rounds: int, seconds: float = 1800) -> None:
    deadline = time.monotonic() + seconds
    while not path.exists() or path.read_text().count('"event": "round"') < rounds:
        if time.monotonic() > deadline:
            raise SystemExit(f"the rounds do not get on; see the logs in {path.parent.parent}")
        time.sleep(0.5)


def _memory(place: Path) -> dict[str, list[float]]:
    """Resident MB of each process that runs for this benchmark, by its kind."""
    kinds = {"worker": "pfeddsh.live.site.worker", "join": "pfeddsh\0join", "SuperNode": "flower-supernode",
             "SuperExec of a node": "flower-superexec", "SuperLink": "flower-superlink",
             "coordinator": "flwr-serverapp"}  # fmt: skip
    found: dict[str, list[float]] = {}
    for entry in Path("/proc").iterdir():
        try:
            command, env = (entry / "cmdline").read_text(), (entry / "environ").read_text()
            pages = int((entry / "statm").read_text().split()[1])
        except (OSError, ValueError):
            continue
        for kind, word in kinds.items():
            if word in command and (str(place) in env or str(place) in command):
                found.setdefault(kind, []).append(pages * 4096 / 1e6)
                break
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=15)  # single rounds differ by half
    parser.add_argument("--only", choices=["ours", "empty", "defaults"])
    parser.add_argument("--keep", action="store_true", help="add the numbers to results/measured.csv")
    options = parser.parse_args()
    nodes, rounds = options.nodes, options.rounds
    medians = {}
    with tempfile.TemporaryDirectory(prefix="pfeddsh-bench-") as folder:
        for name in ("empty", "ours", "defaults"):
            place = Path(folder) / name
            place.mkdir()
            if options.only not in (None, name):
                continue
            memory: dict[str, list[float]] = {}
            if name == "ours":
                seconds, memory = ours(place, nodes, rounds)
            elif name == "empty":
                seconds = plain(place, QUICK_SERVER, "", nodes, rounds, quick=True)
            else:
                seconds = plain(place, DEFAULT_SERVER, "import torch", nodes, rounds, quick=False)
            medians[name] = statistics.median(seconds)
            spread = f"{min(seconds):.2f} to {max(seconds):.2f}"
            print(f"{name:9} {nodes} nodes: {medians[name]:.2f} s a round ({spread}, {rounds} rounds)", flush=True)
            for kind, megabytes in memory.items():
                print(f"          {kind}: {statistics.median(megabytes):.0f} MB each")
            if options.keep:
                sizes = {f"{kind} MB": megabytes for kind, megabytes in memory.items()}
                keep("live", f"{name}, {nodes} sites", seconds=seconds, **sizes)
    if {"ours", "empty"} <= medians.keys():
        print(
            f"overhead over an empty app: {100 * (medians['ours'] / medians['empty'] - 1):+.0f} % (wanted: at most 15)"
        )
    if {"ours", "defaults"} <= medians.keys():
        print(
            f"Flower's defaults with torch in the ClientApp take {medians['defaults'] / medians['ours']:.1f} times ours"
        )


if __name__ == "__main__":
    main()
