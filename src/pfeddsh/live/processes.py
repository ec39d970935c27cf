"""Children of `serve` and `join`: started with a log file, ended with everything they started, never orphaned."""

import ctypes
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from pfeddsh.errors import UserError
from pfeddsh.plugins import python_path

PR_SET_PDEATHSIG = 1
LISTEN = "0A"  # the state of a socket in /proc/net/tcp


def flower(command: str) -> str:
    """The path of one of Flower's commands, those beside this Python first."""
    found = shutil.which(command, path=_path())
    if found is None:
        raise UserError(f"{command} is not installed; install pfeddsh[flower]")
    return found


def environment(home: Path) -> dict[str, str]:
    """Flower's surroundings: a home of its own, no calls home, quick hand-over, and our own Python first.

    It starts a process for every message, so what that imports must not be compiled each time.
    """
    home.mkdir(parents=True, exist_ok=True)
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {
        **inherited,
        "FLWR_HOME": str(home.resolve()),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.25",
        "OMP_NUM_THREADS": "1",
        "PATH": _path(),
        "PYTHONPATH": python_path(),
    }


def _path() -> str:
    return os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def port_taken(port: int) -> bool:
    """Whether some program listens on this port of the loopback already."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a port that was just closed is free
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return True
    return False


def listens(group: int, port: int) -> bool:
    """Whether it is this process group that listens on a port, and not somebody else; without /proc, we believe it."""
    try:
        table = Path("/proc/net/tcp").read_text().splitlines()[1:]
    except OSError:
        return True
    entries = [line.split() for line in table]
    wanted = {f"socket:[{e[9]}]" for e in entries if e[3] == LISTEN and int(e[1].rpartition(":")[2], 16) == port}
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if os.getpgid(int(process.name)) == group:
                for handle in (process / "fd").iterdir():
                    with suppress(OSError):
                        if os.readlink(handle) in wanted:
                            return True
    return False


class Child:
    """A process in a group of its own. It gets SIGTERM when this process dies, however it dies."""

    def __init__(self, command: Sequence[str], env: Mapping[str, str], log: Path) -> None:
        with log.open("ab") as file:
            self._process = subprocess.Popen(
                command, env=env, stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True,
                preexec_fn=_follow_parent,
            )  # fmt: skip
        self.pid = self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    @property
    def status(self) -> int | None:
        return self._process.poll()

    def stop(self, patience: float = 5.0) -> None:
        """Ask the process to end; then end its whole group."""
        if self.alive:
            self._process.terminate()
            deadline = time.monotonic() + patience
            while self.alive and time.monotonic() < deadline:
                time.sleep(0.05)
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()


def _follow_parent() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


class Backoff:
    """Wait longer after each failure, up to a limit; a child that lived a while is forgiven."""

    def __init__(self, first: float = 1.0, limit: float = 15.0) -> None:
        self._first, self._limit, self._next = first, limit, first

    def after(self, lived: float) -> float:
        self._next = self._first if lived > 60 else min(self._limit, self._next * 1.5)
        return self._next
