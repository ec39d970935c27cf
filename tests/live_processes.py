"""A coordinator and sites as real processes on this machine, for the tests that need Flower itself."""

import json
import os
import signal
import sys
import time
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from ports import free_port

from pfeddsh.live.processes import Child
from pfeddsh.live.security import certs, nodes, signing

ROOT = Path(__file__).parent


def let_everything_leave(home: Path) -> None:
    """A policy under which a live federation has the bits of a simulated one."""
    home.mkdir(parents=True, exist_ok=True)
    (home / "policy.toml").write_text('histogram = "exact"\nstatistics = true\n')


class Town:
    """Everything runs in its own process group and is ended with the test, whatever happens in it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.server, self.port = folder, folder / "server", free_port()
        self.page, self.health = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
        self.children: dict[str, Child] = {}
        self._tls: list[str] = []
        paths = [entry for entry in sys.path if entry and Path(entry) != ROOT]
        self._env = {**os.environ, "PYTHONPATH": os.pathsep.join([*paths, str(ROOT)])}

    def __enter__(self) -> "Town":
        return self

    def __exit__(self, *_: object) -> None:
        with ThreadPoolExecutor() as all_at_once:
            list(all_at_once.map(lambda child: child.stop(patience=15), self.children.values()))

    def start(self, name: str, *command: str) -> None:
        self.children[name] = Child([sys.executable, *command], self._env, self.folder / f"{name}.log")

    def secure(self, sites: list[str]) -> None:
        """TLS and node keys instead of --insecure; these sites are registered. The app is signed, and they insist."""
        certs.make(self.server)
        public = signing.sign(self.server, self.folder / "publisher")
        self._tls = [f"--ca={self.server / 'tls' / 'ca.crt'}", f"--trust={public}"]
        for name in sites:
            certs.make_node_key(self.folder / name)
            nodes.add(self.server, name, self.folder / name / "node.key.pub")

    def serve(self) -> None:
        command = ["serve", str(self.server), "--port", str(self.port), "--page", self.page, "--health", self.health]
        self.start("serve", "-m", "pfeddsh", *command, *([] if self._tls else ["--insecure"]))

    def join(self, name: str, data: Path, *options: str) -> None:
        let_everything_leave(self.folder / name)
        command = ["join", str(self.folder / name), "--data", str(data), "--server", f"127.0.0.1:{self.port}"]
        self.start(name, "-m", "pfeddsh", *command, *(self._tls or ["--insecure"]), *options)

    def status(self) -> dict[str, Any]:
        try:
            content: dict[str, Any] = json.loads((self.server / "status.json").read_text())
            return content
        except (OSError, ValueError):
            return {"phase": "starting", "step": 0, "round": 0, "queue": [], "clients": []}

    def ask(self, path: str) -> str:
        """What the coordinator's page says; an answer of 503 is an error."""
        with urllib.request.urlopen(f"http://{self.page}{path}", timeout=60) as answer:
            return str(answer.read().decode())

    def until(self, reached: Callable[[dict[str, Any]], bool], seconds: float) -> dict[str, Any]:
        deadline = time.monotonic() + seconds
        while not reached(status := self.status()):
            assert time.monotonic() < deadline, f"{json.dumps(status)}\n{self.logs()}"
            time.sleep(0.1)
        return status

    def until_done(self, seconds: float) -> dict[str, Any]:
        self.until(lambda _: (self.server / "results.json").exists(), seconds)
        content: dict[str, Any] = json.loads((self.server / "results.json").read_text())
        return content

    def logs(self) -> str:
        found = [*self.folder.glob("*.log"), *self.folder.glob("*/*.log")]
        return "\n".join(f"--- {path}\n{path.read_text(errors='replace')[-1500:]}" for path in sorted(found))

    def find(self, home: str, program: str) -> list[int]:
        """Processes of Flower's that belong to a folder, by their environment."""
        found = []
        for entry in Path("/proc").iterdir():
            try:
                command, env = (entry / "cmdline").read_bytes(), (entry / "environ").read_bytes()
            except (OSError, ValueError):
                continue
            flower_home = f"FLWR_HOME={self.folder / home / '.flwr'}\0".encode()
            if program.encode() in command and flower_home in env + b"\0":
                found.append(int(entry.name))
        return found

    def kill(self, home: str, program: str) -> None:
        """SIGKILL, as a power cut or the kernel would."""
        victims = self.find(home, program)
        assert victims, f"no {program} of {home}"
        for pid in victims:
            os.kill(pid, signal.SIGKILL)
