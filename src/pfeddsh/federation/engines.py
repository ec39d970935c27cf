"""How calls are run: one after the other in this process, or on a pool of single-threaded worker processes.

Both hand every call and reply through the same encoding, so they give the same bits; the serial engine is also the one
to debug with, since an error arises where the work was asked for.
"""

import itertools
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import asdict
from multiprocessing.connection import Connection
from queue import PriorityQueue
from typing import Any, Protocol

import torch

from pfeddsh.config import Config
from pfeddsh.errors import UserError
from pfeddsh.federation.workbench import Call, Workbench
from pfeddsh.messages import Memory, Message
from pfeddsh.methods.base import Visit
from pfeddsh.plugins import python_path

Reply = tuple[Message, Memory]


class Engine(Protocol):
    """Runs calls; `background` ones only when nothing else waits."""

    def submit(self, call: Call, background: bool = False) -> "Future[Reply]": ...
    def close(self) -> None: ...


def pack(call: Call) -> list[bytes]:
    header = json.dumps({"job": call.job, "visit": asdict(call.visit)}).encode()
    return [header, call.message.encode(), call.memory.encode()]


def unpack(frames: list[bytes]) -> Call:
    header = json.loads(frames[0])
    return Call(header["job"], Visit(**header["visit"]), Message.decode(frames[1]), Memory.decode(frames[2]))


class Serial:
    """Everything in this process, in the order it was asked for; background work at the moment it is needed."""

    def __init__(self, bench: Workbench) -> None:
        self._bench = bench

    def submit(self, call: Call, background: bool = False) -> "Future[Reply]":
        future = Lazy(lambda: self._run(call))
        if not background:
            future.compute()
        return future

    def _run(self, call: Call) -> Reply:
        try:
            message, memory = self._bench.run(unpack(pack(call)))
        except Exception as error:
            error.add_note(f"in {call}, given message ({call.message.describe()}), memory ({call.memory.describe()})")
            raise
        return Message.decode(message.encode()), Memory.decode(memory.encode())

    def close(self) -> None:
        pass


class Lazy(Future[Reply]):
    """A future that computes its value when first asked."""

    def __init__(self, work: Callable[[], Reply]) -> None:
        super().__init__()
        self._work = work

    def compute(self) -> None:
        if not self.done():
            self.set_result(self._work())

    def result(self, timeout: float | None = None) -> Reply:
        self.compute()
        return super().result(timeout)


class Pool:
    """Persistent worker processes, one thread each, that share the images through the memory-mapped files."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._queue: PriorityQueue[tuple[int, int, Call | None, Future[Reply] | None]] = PriorityQueue()
        self._order = itertools.count()
        count = config.workers or os.cpu_count() or 1
        self._threads = [threading.Thread(target=self._serve, daemon=True) for _ in range(count)]
        for thread in self._threads:
            thread.start()

    def submit(self, call: Call, background: bool = False) -> "Future[Reply]":
        future: Future[Reply] = Future()
        self._queue.put((int(background), next(self._order), call, future))
        return future

    def close(self) -> None:
        for _ in self._threads:
            self._queue.put((-1, next(self._order), None, None))
        for thread in self._threads:
            thread.join()

    def _serve(self) -> None:
        """Feed one worker. A worker that dies is replaced once per call: calls are pure, so trying again is safe."""
        worker: Worker | None = None
        while True:
            _, _, call, future = self._queue.get()
            if call is None or future is None:
                break
            for attempt in (1, 2):
                try:
                    worker = worker or Worker(self._config)
                    future.set_result(worker.run(call))
                    break
                except (EOFError, OSError):
                    if worker:
                        worker.close()
                    worker = None
                    if attempt == 2:
                        trouble = f"the worker process died twice in {call}; out of memory? try --set workers=1"
                        future.set_exception(UserError(trouble))
                except Exception as error:
                    future.set_exception(error)
                    break
        if worker:
            worker.close()


class Worker:
    """The parent's end of one worker process."""

    def __init__(self, config: Config) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
            environment["PYTHONPATH"] = python_path()
            command = [sys.executable, "-m", "pfeddsh.federation.engines", str(theirs.fileno())]
            self._process = subprocess.Popen(command, pass_fds=[theirs.fileno()], env=environment)
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
        if status:
            raise WorkerError(f"{call} failed in a worker:\n{status.decode()}")
        return Message.decode(self._pipe.recv_bytes()), Memory.decode(self._pipe.recv_bytes())

    def close(self) -> None:
        self._pipe.close()
        try:
            self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class WorkerError(Exception):
    """Work failed in a worker process; carries that process's traceback."""


def create(config: Config, bench: Workbench) -> Engine:
    return Serial(bench) if config.engine == "serial" else Pool(config)


def serve(pipe: Connection) -> None:
    """The worker's side: run calls until the parent is gone."""
    import signal
    import traceback
    import warnings

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    torch.set_num_threads(1)
    try:
        with warnings.catch_warnings(action="ignore"):  # the parent has said it all
            bench = Workbench(Config(**json.loads(pipe.recv_bytes())))
    except Exception as error:  # such as a method of the user's that cannot be imported here
        pipe.send_bytes((str(error) if isinstance(error, UserError) else traceback.format_exc()).encode())
        return
    pipe.send_bytes(b"")
    while True:
        call = unpack([pipe.recv_bytes() for _ in range(3)])
        try:
            frames: list[Any] = [b"", *(part.encode() for part in bench.run(call))]
        except Exception:
            frames = [traceback.format_exc().encode()]
        for frame in frames:
            pipe.send_bytes(frame)


if __name__ == "__main__":
    try:
        serve(Connection(int(sys.argv[1])))
    except (EOFError, ConnectionError):
        sys.exit(0)
