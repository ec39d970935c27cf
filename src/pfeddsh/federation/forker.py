"""Processes that are there at once: forked from one that has imported PyTorch, which takes two seconds of a core.

That process does nothing else, so that there is no thread, lock or GPU to be torn by the fork, and what is imported
lies in memory once. A process is known by its end of a socket: it should leave when ours is closed, and when it is
gone, however it ended, ours says so.
"""

import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from pfeddsh.plugins import python_path


class Forker:
    """The parent's end of the process that forks others. It ends with this one, however that ends."""

    def __init__(self, pid: int, control: socket.socket, process: "subprocess.Popen[bytes] | None" = None) -> None:
        self.pid, self._control, self._process = pid, control, process

    @staticmethod
    def start() -> "Forker":
        control, theirs = socket.socketpair()
        with theirs:
            command = [sys.executable, "-m", "pfeddsh.federation.forker", str(theirs.fileno())]
            process = subprocess.Popen(command, pass_fds=[theirs.fileno()], env=_environment())
            return Forker(process.pid, control, process)

    def fork(self, pipe: socket.socket, role: str, output: Path | None, changes: Mapping[str, str]) -> int:
        """A process at the other end of this pipe, with our surroundings as they are now; its process id."""
        surroundings = {
            "role": role, "environment": {**_environment(), **changes}, "folder": os.getcwd(),
            "path": python_path().split(os.pathsep), "output": None if output is None else str(output.absolute()),
        }  # fmt: skip
        text = json.dumps(surroundings).encode()
        socket.send_fds(self._control, [len(text).to_bytes(8, "little")], [pipe.fileno()])
        self._control.sendall(text)
        return int.from_bytes(_exactly(self._control, 8), "little")

    def end(self) -> None:
        self._control.close()
        if self._process:
            self._process.wait()


_forkers: dict[int, Forker] = {}  # by the process that uses it: one that was forked has its own
_lock = threading.Lock()


def fork(role: str, output: Path | None = None, changes: Mapping[str, str] | None = None) -> tuple[int, socket.socket]:
    """A process that runs `role`, `module:function`, with its end of a socket, and our end of it.

    What it prints goes to `output`, or where ours goes. Its environment is ours with these changes.
    """
    ours, theirs = socket.socketpair()
    with theirs:
        try:
            return _ask(theirs, role, output, changes or {}), ours
        except BaseException:
            ours.close()
            raise


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def dismiss(pid: int) -> None:
    """Wait for a forked process whose pipe was closed; one that is stuck is killed."""
    deadline = time.monotonic() + 5
    while alive(pid):
        if time.monotonic() > deadline:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)


def _ask(pipe: socket.socket, role: str, output: Path | None, changes: Mapping[str, str]) -> int:
    """A forker that has died, as the kernel may have it when memory is short, is replaced."""
    with _lock:
        for attempt in (1, 2):
            try:
                if os.getpid() not in _forkers:
                    _forkers[os.getpid()] = Forker.start()
                return _forkers[os.getpid()].fork(pipe, role, output, changes)
            except (EOFError, OSError):
                if dead := _forkers.pop(os.getpid(), None):
                    dead.end()
                if attempt == 2:
                    raise
    raise AssertionError


def fork_own_forker(pipe: int) -> None:
    """For a process that was just forked and has done nothing yet: it can fork its own forker, and import nothing."""
    control, theirs = socket.socketpair()
    if (pid := os.fork()) == 0:
        control.close()
        os.close(pipe)  # its end must come when the one it belongs to ends
        _forking(theirs)
        os._exit(0)
    theirs.close()
    _forkers[os.getpid()] = Forker(pid, control)


def _environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "PYTHONPATH": python_path()}


def _exactly(pipe: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        data += (part := pipe.recv(count - len(data)))
        if not part:
            raise EOFError
    return data


# In the other processes


def _forking(control: socket.socket) -> None:
    """Fork a process for every pipe that comes, until the parent is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for them
    given = set(os.environ.get("PYTHONPATH", "").split(os.pathsep))
    installed = [place for place in sys.path[1:] if place not in given]
    while True:
        length, pipes, _, _ = socket.recv_fds(control, 8, 1)
        if not length:
            return
        surroundings = json.loads(_exactly(control, int.from_bytes(length, "little")))
        module, _, function = surroundings["role"].partition(":")
        importlib.import_module(module)  # once, for all that come after
        if (forked := os.fork()) == 0:
            control.close()
            _begin(surroundings, installed)
            _live(module, function, pipes[0])
        os.close(pipes[0])
        control.sendall(forked.to_bytes(8, "little"))


def _begin(surroundings: dict[str, Any], installed: list[str]) -> None:
    """Take on the surroundings of whoever asked."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.environ.clear()
    os.environ.update(surroundings["environment"])
    os.chdir(surroundings["folder"])
    sys.path[:] = [surroundings["folder"], *surroundings["path"], *installed]
    importlib.invalidate_caches()
    if surroundings["output"] is not None:
        output = os.open(surroundings["output"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.close(output)


def _live(module: str, function: str, pipe: int) -> None:
    """A forked process's life. It must not return to the loop of the process it came from."""
    code = 0
    try:
        getattr(sys.modules[module], function)(pipe)
    except (EOFError, ConnectionError):
        pass
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    _forking(socket.socket(fileno=int(sys.argv[1])))
