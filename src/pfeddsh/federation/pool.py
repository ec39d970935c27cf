"""A pool of workers, each of which does one call at a time; calls that wait are done in order, background ones last."""

import itertools
import os
import threading
from concurrent.futures import Future
from queue import PriorityQueue
from typing import Protocol

from pfeddsh.config import Config
from pfeddsh.errors import UserError
from pfeddsh.federation.workbench import Call
from pfeddsh.federation.workers import Reply, Worker, WorkerError


class PoolWorker(Protocol):
    """A process or actor that does one call at a time. One that is gone raises EOFError or OSError."""

    def run(self, call: Call) -> Reply: ...
    def close(self) -> None: ...


class Pool:
    """Persistent worker processes, one thread each, that share the images through the memory-mapped files."""

    def __init__(self, config: Config, count: int = 0) -> None:
        self._config = config
        self._queue: PriorityQueue[tuple[int, int, Call | None, Future[Reply] | None]] = PriorityQueue()
        self._order = itertools.count()
        count = count or config.workers or os.cpu_count() or 1
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

    def _hire(self) -> PoolWorker:
        return Worker(self._config)

    def _serve(self) -> None:
        """Feed one worker. A worker that dies is replaced once per call: calls are pure, so trying again is safe."""
        worker: PoolWorker | None = None
        while True:
            _, _, call, future = self._queue.get()
            if call is None or future is None:
                break
            for attempt in (1, 2):
                try:
                    worker = worker or self._hire()
                    future.set_result(worker.run(call))
                    break
                except (EOFError, OSError):
                    if worker:
                        worker.close()
                    worker = None
                    if attempt == 2:
                        trouble = f"the worker process died twice in {call}; out of memory? try --set workers=1"
                        future.set_exception(UserError(trouble))
                except WorkerError as error:
                    future.set_exception(error)
                    break
                except Exception as error:
                    future.set_exception(error)
                    if worker:  # stopped halfway through a message, it would take the next one for the rest
                        worker.close()
                    worker = None
                    break
        if worker:
            worker.close()
