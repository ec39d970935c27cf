"""The pool's workers as actors on a Ray cluster: RAY_ADDRESS, or a Ray of this machine's own.

The calls and the bits are those of the pool. The images lie in Ray's object store, which brings them to a machine once,
however many work there. An actor that is lost, with its machine or alone, is replaced as a dead worker of the pool is,
and its call is done again. All machines have the same pfeddsh installed. Where clients train on GPUs, Ray deals them
out.
"""

import os
import sys
import warnings
from dataclasses import replace
from importlib import import_module
from typing import Any

import numpy as np
import torch

from pfeddsh.config import Config
from pfeddsh.data.datasets import Dataset
from pfeddsh.errors import UserError
from pfeddsh.federation.pool import Pool
from pfeddsh.federation.workbench import Call, Workbench
from pfeddsh.federation.workers import Reply, answer, pack, read, trouble_with
from pfeddsh.plugins import python_path

ROOM = 100_000_000  # bytes of a local object store besides the images: for calls and replies


class Actor:
    """A worker on some machine of the cluster."""

    def begin(self, config: str, data: Dataset, path: list[str]) -> str:
        """What prevents it from working, if anything does."""
        torch.set_num_threads(1)
        sys.path += [place for place in path if place not in sys.path]
        try:
            with warnings.catch_warnings(action="ignore"):  # the one who hires has said it all
                self._bench = Workbench(Config.model_validate_json(config), data)
        except Exception as error:
            return trouble_with(error)
        return ""

    def run(self, frames: list[bytes]) -> list[bytes]:
        return answer(self._bench, frames)


class RayWorker:
    """Our end of an actor."""

    def __init__(self, ray: Any, config: Config, data: Any, gpus: float = 0) -> None:
        self._ray, self._actor = ray, ray.remote(num_cpus=1, num_gpus=gpus)(Actor).remote()
        begun = self._actor.begin.remote(config.model_dump_json(), data, python_path().split(os.pathsep))
        if trouble := self._get(begun):
            self.close()
            raise UserError(f"a worker on Ray cannot begin: {trouble}")

    def run(self, call: Call) -> Reply:
        return read(call, self._get(self._actor.run.remote(pack(call))))

    def _get(self, reference: Any) -> Any:
        try:
            return self._ray.get(reference)
        except self._ray.exceptions.RayError as error:
            raise EOFError(str(error)) from error

    def close(self) -> None:
        self._ray.kill(self._actor)


class RayPool(Pool):
    """As many actors as workers are asked for, or as the cluster has CPUs."""

    def __init__(self, config: Config, dataset: Dataset) -> None:
        try:
            self._ray: Any = import_module("ray")
        except ImportError:
            raise UserError("engine = ray needs Ray: pip install 'pfeddsh[ray]'") from None
        mapped = ("x_train", "y_train", "x_test", "y_test")
        arrays: dict[str, Any] = {name: np.asarray(getattr(dataset, name)) for name in mapped}
        self._own = not self._ray.is_initialized()
        if self._own:
            self._begin(config.workers, sum(array.nbytes for array in arrays.values()))
        self._data = self._ray.put(replace(dataset, **arrays))
        there = self._ray.cluster_resources()
        count = config.workers or int(there.get("CPU", 1))
        self._gpus = 0.0
        if config.device.startswith("cuda"):
            if not there.get("GPU"):
                raise UserError(f"device = {config.device}: the Ray cluster has no GPU; use device = cpu")
            self._gpus = min(1.0, there["GPU"] / count)  # an actor's own, or its share of one
            config = config.model_copy(update={"device": "cuda"})  # Ray shows an actor no other
        super().__init__(config, count)

    def _begin(self, workers: int, size: int) -> None:
        given = os.environ.get("RAY_ADDRESS")
        room = {"object_store_memory": ROOM + size, "num_cpus": workers or None}
        os.environ.setdefault("RAY_worker_niceness", "0")  # a Ray of our own works for us alone, not in the background
        try:
            own = {} if given else {"address": "local", **room}
            self._ray.init(include_dashboard=False, log_to_driver=False, logging_level="ERROR", **own)
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise UserError(f"no Ray at {given or 'this machine'}: {error}") from None

    def _hire(self) -> RayWorker:
        return RayWorker(self._ray, self._config, self._data, self._gpus)

    def close(self) -> None:
        super().close()
        if self._own:
            self._ray.shutdown()
