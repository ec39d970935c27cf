"""Which task runs when: as many side by side as there are slots, and none that would repeat what another is doing."""

import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Protocol

from pfeddsh.compare.cache import StepCache
from pfeddsh.compare.job import Job
from pfeddsh.compare.tasks import ProcessTask
from pfeddsh.federation.forker import dismiss, fork

INTERVAL = 0.2  # seconds between two looks at the tasks


class Handle(Protocol):
    """A task that was started."""

    def poll(self) -> int | None: ...  # the exit code, once there is one
    def stop(self) -> None: ...


class Machines(Protocol):
    """Where tasks run; `pool` says whether a task may use several slots when there are fewer tasks than slots."""

    slots: int
    pool: bool

    def start(self, job: Job) -> Handle: ...
    def close(self) -> None: ...


class Process:
    """A task on this machine, forked: it begins at once."""

    def __init__(self, job: Job) -> None:
        job.log.parent.mkdir(parents=True, exist_ok=True)
        self._pid, self._pipe = fork("pfeddsh.compare.process:serve", job.log, job.environment)
        with suppress(ConnectionError):  # it died at once; its log says why
            self._pipe.sendall(f"{job.model_dump_json()}\n".encode())
        self._pipe.setblocking(False)

    def poll(self) -> int | None:
        """What it says at its end; one that ends without a word has failed."""
        try:
            told = self._pipe.recv(1)
        except BlockingIOError:
            return None
        except ConnectionError:
            told = b""
        self._pipe.close()
        return told[0] if told else 1

    def stop(self) -> None:
        """It leaves when its pipe ends; what it was computing is the round in progress."""
        self._pipe.close()
        dismiss(self._pid)


class ThisMachine:
    """This machine, a process a task."""

    pool = True

    def __init__(self, slots: int) -> None:
        self.slots = slots

    def start(self, job: Job) -> Handle:
        return Process(job)

    def close(self) -> None:
        pass


def execute(
    tasks: Sequence[ProcessTask],
    engine: Machines,
    cache: StepCache,
    finished: Callable[[ProcessTask, int], None],
    look: Callable[[Sequence[ProcessTask]], None],
) -> None:
    """Run all tasks. `finished` hears of each with its exit code, `look` sees those that run, a few times a second.

    A task that fails stops nobody: those that waited for its states compute them themselves.
    """
    waiting, running = list(tasks), dict[str, tuple[ProcessTask, Handle]]()
    try:
        while waiting or running:
            for name, (task, handle) in list(running.items()):
                if (status := handle.poll()) is not None:
                    del running[name]
                    finished(task, status)
            chosen = _choose(waiting, [task for task, _ in running.values()], engine.slots, cache)
            for task in chosen:
                waiting.remove(task)
                if engine.pool:
                    task.job.workers = max(1, engine.slots // (len(running) + len(chosen)))
            for task in chosen:
                try:
                    running[task.name] = task, engine.start(task.job)
                except OSError as error:  # such as a log on a full disk
                    warnings.warn(f"{task.name} cannot start: {error}", stacklevel=2)
                    finished(task, 1)
            look([task for task, _ in running.values()])
            if running:
                time.sleep(INTERVAL)
    finally:
        for _, handle in running.values():
            handle.stop()


def _choose(
    waiting: Sequence[ProcessTask], running: Sequence[ProcessTask], slots: int, cache: StepCache
) -> list[ProcessTask]:
    """The tasks to start now: in order, except those that had better wait for a state another is about to reach."""
    chosen: list[ProcessTask] = []
    for task in waiting:
        if len(running) + len(chosen) >= slots:
            break
        if not any(_about_to_help(task, other, cache) for other in [*running, *chosen]):
            chosen.append(task)
    return chosen


def _about_to_help(task: ProcessTask, other: ProcessTask, cache: StepCache) -> bool:
    """Whether `other` will come by a stop of `task` that lies before both of them and is not in the cache yet."""
    shared = {stop.key for stop in task.stops} & {stop.key for stop in other.stops}
    if all(cache.has(key) for key in shared):
        return False
    ours, theirs = task.seen(), other.seen()
    return any(stop.key in shared and not cache.has(stop.key) and ours < stop.rounds >= theirs for stop in task.stops)
