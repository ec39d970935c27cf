"""The same tasks on a Ray cluster: RAY_ADDRESS, or a Ray of this machine's own.

A Ray task starts the very process that runs on one machine, so the bits are the same. All machines see the comparison's
folder and the cache under the same paths (a shared folder), and have the same pfeddsh installed.
"""

import os
import subprocess
from importlib import import_module
from typing import Any

from pfeddsh.compare.job import Job, start
from pfeddsh.errors import UserError

OBJECTS = 80_000_000  # bytes of a local Ray's object store: nothing but lines of JSON goes through it


def run_to_end(job: str) -> int:
    """On some machine of the cluster: run the job's process to its end."""
    process = start(Job.model_validate_json(job))
    try:
        return process.wait()
    finally:  # cancelled or not, the process does not stay behind
        if process.stdin:
            process.stdin.close()
        try:
            process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            process.kill()


class RayTask:
    """A task on the cluster."""

    def __init__(self, ray: Any, reference: Any, job: Job) -> None:
        self._ray, self._reference, self._job = ray, reference, job

    def poll(self) -> int | None:
        ready, _ = self._ray.wait([self._reference], timeout=0)
        if not ready:
            return None
        try:
            return int(self._ray.get(self._reference))
        except self._ray.exceptions.RayError as error:  # a machine that is gone, again and again
            self._job.log.parent.mkdir(parents=True, exist_ok=True)
            with self._job.log.open("a") as log:
                log.write(f"error: Ray: {error}\n")
            return 1

    def stop(self) -> None:
        self._ray.cancel(self._reference, force=True)


class RayMachines:
    """Slots are the cluster's CPUs. A task lost with its machine is started again, where it was."""

    pool = False

    def __init__(self, slots: int) -> None:
        try:
            self._ray: Any = import_module("ray")
        except ImportError:
            raise UserError("--engine ray needs Ray: pip install 'pfeddsh[ray]'") from None
        ray = self._ray
        given = os.environ.get("RAY_ADDRESS")
        own = {} if given else {"address": "local", "num_cpus": slots, "object_store_memory": OBJECTS}
        os.environ.setdefault("RAY_worker_niceness", "0")  # a Ray of our own works for us alone, not in the background
        try:
            ray.init(include_dashboard=False, log_to_driver=False, logging_level="ERROR", **own)
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise UserError(f"no Ray at {given or 'this machine'}: {error}") from None
        self._remote: Any = ray.remote(num_cpus=1, max_retries=3)(run_to_end)
        self.slots = int(ray.cluster_resources().get("CPU", 1))

    def start(self, job: Job) -> RayTask:
        return RayTask(self._ray, self._remote.remote(job.model_dump_json()), job)

    def close(self) -> None:
        self._ray.shutdown()
