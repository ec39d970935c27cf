"""Worker processes of the pool: how they are started, what goes over their pipes, and their side of it.

Importing PyTorch takes two seconds of a core. One process does it, once for all pools of a program, and forks a worker
whenever one is wanted: it is there at once, and shares the memory of what is imported. That process does nothing else,
so that there is no thread, lock or GPU to be torn by the fork.
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
import warnings
from contextlib import suppress
from dataclasses import asdict
from multiprocessing.connection import Connection

import torch

from pfeddsh.config import Config
from pfeddsh.errors import UserError
from pfeddsh.federation.workbench import Call, Workbench
from pfeddsh.messages import Memory, Message
from pfeddsh.methods.task import Visit
from pfeddsh.plugins import python_path

Reply = tuple[Message, Memory]


def pack(call: Call) -> list[bytes]:
    header = json.dumps({"job": call.job, "visit": asdict(call.visit)}).encode()
    return [header, call.message.encode(), call.memory.encode()]


def unpack(frames: list[bytes]) -> Call:
    header = json.loads(frames[0])
    return Call(header["job"], Visit(**header["visit"]), Message.decode(frames[1]), Memory.decode(frames[2]))


class WorkerError(Exception):
    """Work failed in a worker process; carries that process's traceback."""


class Worker:
    """The parent's end of one worker process."""

    def __init__(self, config: Config) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            self.pid = _fork(theirs)
        self._pipe = Connection(ours.detach())
        try:
            self._pipe.send_bytes(config.model_dump_json().encode())
            if trouble := self._pipe.recv_bytes():
                raise UserError(f"a worker process cannot begin: {trouble.decode()}")
        except Exception:
            self.close()
            raise

    def run(self, call: Call) -> Reply:
        for frame in pack(call):
            self._pipe.send_bytes(frame)
        status = self._pipe.recv_bytes()
        return read(call, [status] if status else [status, self._pipe.recv_bytes(), self._pipe.recv_bytes()])

    @property
    def alive(self) -> bool:
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        return True

    def close(self) -> None:
        """Without its pipe a worker leaves by itself; one that is stuck is killed."""
        self._pipe.close()
        deadline = time.monotonic() + 5
        while self.alive:
            if time.monotonic() > deadline:
                with suppress(ProcessLookupError):
                    os.kill(self.pid, signal.SIGKILL)
            time.sleep(0.01)


class Forker:
    """The parent's end of the process that forks workers. It ends with this one, however that ends."""

    def __init__(self) -> None:
        self._control, theirs = socket.socketpair()
        with theirs:
            command = [sys.executable, "-m", "pfeddsh.federation.workers", str(theirs.fileno())]
            self._process = subprocess.Popen(command, pass_fds=[theirs.fileno()], env=_environment())

    def fork(self, pipe: socket.socket) -> int:
        """A worker at the other end of this pipe, with our surroundings as they are now; its process id."""
        surroundings = {"environment": _environment(), "folder": os.getcwd(), "path": python_path().split(os.pathsep)}
        text = json.dumps(surroundings).encode()
        socket.send_fds(self._control, [len(text).to_bytes(8, "little")], [pipe.fileno()])
        self._control.sendall(text)
        return int.from_bytes(_exactly(self._control, 8), "little")


_forkers: dict[int, Forker] = {}  # by the process that uses it: a program that forks itself has its own
_lock = threading.Lock()


def _fork(pipe: socket.socket) -> int:
    """Ask the forker; one that has died, as the kernel may have it when memory is short, is replaced."""
    with _lock:
        for attempt in (1, 2):
            try:
                if os.getpid() not in _forkers:
                    _forkers[os.getpid()] = Forker()
                return _forkers[os.getpid()].fork(pipe)
            except (EOFError, OSError):
                _forkers.pop(os.getpid(), None)
                if attempt == 2:
                    raise
    raise AssertionError


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
    """Fork a worker for every pipe that comes, until the parent is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for workers
    given = set(os.environ.get("PYTHONPATH", "").split(os.pathsep))
    installed = [place for place in sys.path[1:] if place not in given]
    while True:
        length, pipes, _, _ = socket.recv_fds(control, 8, 1)
        if not length:
            return
        surroundings = json.loads(_exactly(control, int.from_bytes(length, "little")))
        if (worker := os.fork()) == 0:
            control.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            os.environ.clear()
            os.environ.update(surroundings["environment"])
            os.chdir(surroundings["folder"])
            sys.path[:] = [surroundings["folder"], *surroundings["path"], *installed]
            importlib.invalidate_caches()
            with Connection(pipes[0]) as pipe:
                _serving(pipe)
        os.close(pipes[0])
        control.sendall(worker.to_bytes(8, "little"))


def _serving(pipe: Connection) -> None:
    """A worker's life. It must not return to the loop of the process it came from."""
    try:
        serve(pipe)
        os._exit(0)
    except (EOFError, ConnectionError):
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        os._exit(1)


def serve(pipe: Connection) -> None:
    """The worker's side: run calls until the parent is gone."""
    torch.set_num_threads(1)
    try:
        with warnings.catch_warnings(action="ignore"):  # the parent has said it all
            bench = Workbench(Config(**json.loads(pipe.recv_bytes())))
    except Exception as error:
        pipe.send_bytes(trouble_with(error).encode())
        return
    pipe.send_bytes(b"")
    while True:
        for frame in answer(bench, [pipe.recv_bytes() for _ in range(3)]):
            pipe.send_bytes(frame)


def answer(bench: Workbench, frames: list[bytes]) -> list[bytes]:
    """The reply to a packed call: an empty frame, message and memory; or why there is none."""
    try:
        return [b"", *(part.encode() for part in bench.run(unpack(frames)))]
    except Exception:
        return [traceback.format_exc().encode()]


def read(call: Call, frames: list[bytes]) -> Reply:
    """What an answer says."""
    if frames[0]:
        raise WorkerError(f"{call} failed in a worker:\n{frames[0].decode()}")
    return Message.decode(frames[1]), Memory.decode(frames[2])


def trouble_with(error: Exception) -> str:
    """Why a worker cannot begin, such as a method of the user's that cannot be imported there."""
    return str(error) if isinstance(error, UserError) else traceback.format_exc()


if __name__ == "__main__":
    _forking(socket.socket(fileno=int(sys.argv[1])))
