"""How calls are run: one after the other in this process, on a pool of worker processes, or on a Ray cluster.

All hand every call and reply through the same encoding, so they give the same bits; the serial engine is also the one
to debug with, since an error arises where the work was asked for.
"""

from collections.abc import Callable
from concurrent.futures import Future
from typing import Protocol

from pfeddsh.config import Config
from pfeddsh.federation.pool import Pool
from pfeddsh.federation.ray_pool import RayPool
from pfeddsh.federation.workbench import Call, Workbench
from pfeddsh.federation.workers import Reply as Reply
from pfeddsh.federation.workers import pack, unpack
from pfeddsh.messages import Memory, Message


class Engine(Protocol):
    """Runs calls; `background` ones only when nothing else waits."""

    def submit(self, call: Call, background: bool = False) -> "Future[Reply]": ...
    def close(self) -> None: ...


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


def create(config: Config, bench: Workbench) -> Engine:
    if config.engine == "serial":
        return Serial(bench)
    return RayPool(config, bench.dataset) if config.engine == "ray" else Pool(config)
