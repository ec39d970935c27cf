"""Where work is done: the data, the method, and one function that runs a piece of work.

The serial engine holds one workbench, every worker of the pool another. A piece of work is a `Call`, a pure function of
what it carries, so it does not matter which workbench runs it, or when.
"""

from dataclasses import dataclass, field
from functools import cached_property
from operator import attrgetter

import numpy as np
import torch
from torch import Tensor

from pfeddsh import devices
from pfeddsh.config import EVERYONE, Config
from pfeddsh.configure import complete
from pfeddsh.data.datasets import Dataset, absolute, load
from pfeddsh.data.images import Shape
from pfeddsh.data.natural import natural
from pfeddsh.data.partition import Partition, partition
from pfeddsh.errors import UserError
from pfeddsh.mechanisms.privacy import protect, repeatable
from pfeddsh.messages import Memory, Message
from pfeddsh.methods import registry
from pfeddsh.methods.base import Method
from pfeddsh.methods.local import Local
from pfeddsh.methods.options import Options
from pfeddsh.methods.task import Task, Visit
from pfeddsh.models import registry as networks
from pfeddsh.rng import numpy_stream

CONTROL = "control"  # the job that runs a client's local-only control
CHUNK = 64  # images that are scaled at once
CPU = torch.device("cpu")
PATHS = ("data_dir", "init")  # of a configuration, beside the dataset's
SERVER = -1  # the 'client' of work that the server itself hands out


@dataclass
class Call:
    """One piece of work: a named function of the method, or of a part of it (`part.function`), and what it is given."""

    job: str
    visit: Visit
    message: Message = field(default_factory=Message)
    memory: Memory = field(default_factory=Memory)

    def __str__(self) -> str:
        who = "server" if self.visit.client == SERVER else f"client {self.visit.client}"
        return f"{self.job}, step {self.visit.step}, round {self.visit.round}, {who}"


class Shard:
    """One client's part of a dataset, as normalised float images; made when asked for, kept for one call."""

    def __init__(
        self,
        dataset: Dataset,
        train: np.ndarray,
        test: np.ndarray,
        set_aside: np.ndarray | None = None,
        layout: torch.memory_format = torch.contiguous_format,
    ) -> None:
        self._layout = layout
        self._dataset, self.trained, self._test, self._set_aside = dataset, train, test, set_aside
        pixels = dataset.x_train.dtype == np.uint8
        std = torch.from_numpy(np.maximum(dataset.std, 1e-3 if pixels else 0.0)).view(-1, 1, 1)
        self._scale = 1 / (255 * std) if pixels else 1 / std  # a channel of pixels may be constant
        self.device = CPU
        self._shift = -torch.from_numpy(dataset.mean.copy()).view(-1, 1, 1) / std

    def _select(self, images: np.ndarray, labels: np.ndarray, index: np.ndarray) -> tuple[Tensor, Tensor]:
        pixels = torch.empty((len(index), *images.shape[1:]), device=CPU, memory_format=self._layout)
        for start in range(0, len(index), CHUNK):  # planes are scaled faster than pixels, and in the cache
            raw = torch.from_numpy(images[index[start : start + CHUNK]])
            pixels[start : start + CHUNK] = raw.to(torch.float32).mul_(self._scale).add_(self._shift)
        return pixels.to(self.device), torch.from_numpy(labels[index]).long().to(self.device)

    @cached_property
    def train(self) -> tuple[Tensor, Tensor]:
        return self._select(self._dataset.x_train, self._dataset.y_train, self.trained)

    @cached_property
    def test(self) -> tuple[Tensor, Tensor]:
        return self._select(self._dataset.x_test, self._dataset.y_test, self._test)

    @property
    def held_out(self) -> tuple[Tensor, Tensor]:
        """What was set aside; else, in simulation, the training images: test images measure, and must not choose."""
        if self._set_aside is None:
            return self.train
        return self._select(self._dataset.x_train, self._dataset.y_train, self._set_aside)


def wanted_shape(config: Config) -> Shape | int | None:
    """What the model of a run takes: a shape; or any, then images keep their own or get the size that is set."""
    fixed = networks.fixed_shape(config.model)
    if fixed and config.image_size not in (0, *fixed[1:]):
        raise UserError(f"image_size = {config.image_size}: {config.model} takes images of {fixed[1]}x{fixed[2]} alone")
    return fixed or config.image_size or None


def open_data(config: Config) -> Dataset:
    """The data of a run, fitted to its model."""
    return load(
        config.dataset, config.data_dir, shape=wanted_shape(config), resize=config.resize,
        skip_unreadable=config.skip_unreadable, natural=config.partition == "natural",
    )  # fmt: skip


def settled(config: Config) -> Config:
    """The configuration as it is written down: complete, its paths hold in every folder, its device is one.

    Its clients are counted: a schedule `all` is one batch of those that the data name.
    """
    paths = {name: path.expanduser().absolute() for name in PATHS if (path := getattr(config, name)) is not None}
    device = str(devices.find(config.device))
    config = complete(config).model_copy(update={"dataset": absolute(config.dataset), "device": device, **paths})
    if config.schedule != EVERYONE:
        return config
    return config.model_copy(update={"schedule": str(len(open_data(config).client_names))})


def divide(config: Config, dataset: Dataset) -> Partition:
    """Who owns what in this run."""
    if dataset.clients_train is not None and dataset.clients_test is not None:
        return natural(
            (dataset.y_train, dataset.y_test), (dataset.clients_train, dataset.clients_test), dataset.client_names,
            classes=dataset.classes, clients=config.plan().clients,
            order=config.order if isinstance(config.order, tuple) else (),
        )  # fmt: skip
    return partition(
        dataset.y_train, dataset.y_test, classes=dataset.classes, clients=config.plan().clients,
        rule=config.partition, alpha=config.alpha, seed=config.seed,
    )  # fmt: skip


def split(own: np.ndarray, share: float, stream: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """What a client trains on, two images at least, and what it sets aside, at least one."""
    count = min(max(1, round(share * len(own))), len(own) - 2)
    order = stream.permutation(own)
    return np.sort(order[count:]), np.sort(order[:count])


class Workbench:
    """Data, partition and method of one run. Records move to the device and back once a call."""

    device = torch.device("cpu")

    def __init__(self, config: Config, dataset: Dataset | None = None) -> None:
        """`dataset`: the data of the run, where they are at hand already."""
        self.config = config = settled(config)
        self.plan = config.plan()
        self.dataset = dataset or open_data(config)
        self.parts = divide(config, self.dataset)
        self.device = devices.find(config.device)
        shape = self.dataset.shape
        self.task = Task.create(self.dataset.classes, config.seed, config.model, shape, config.init)
        self.method = registry.create(config.method, config.options, self.task)
        self.method.simulated = True

    @cached_property
    def _at_work(self) -> Method:
        """The method as calls use it; the state that `method` holds for the server stays on the CPU."""
        if self.device.type == "cpu":
            return self.method
        method = registry.create(self.config.method, self.config.options, self.task.to(self.device))
        method.simulated = True
        return method

    @cached_property
    def _local_only(self) -> Local:
        return Local(self._at_work.task, Options())

    def visit(self, step: int, round: int, client: int) -> Visit:
        c = self.config
        return Visit(
            c.seed, step, round, client, self.plan.rounds(step), self.plan.rate(step, round), c.momentum,
            c.local_epochs, c.batch_size, c.evidence, head_only=c.later == "frozen-head" and step > 1,
        )  # fmt: skip

    def shard(self, client: int) -> Shard:
        train, test, share = self.parts.train[client], self.parts.test[client], self.config.hold_out
        aside = None
        if share and len(train) > 2:
            train, aside = split(train, share, numpy_stream(self.config.seed, "set aside", client))
        return Shard(self.dataset, train, test, aside, self.task.model.memory_format)

    def pool(self, visit: Visit) -> Shard:
        """For an oracle: as many images as a cohort of this round holds on average, of all that participants hold."""
        clients = self.plan.participants(visit.step)
        own = np.sort(np.concatenate([self.shard(k).trained for k in clients]))
        count = round(len(own) * len(self.plan.cohort(visit.step, visit.round)) / len(clients))
        drawn = numpy_stream(visit.seed, "pool", visit.step, visit.round).choice(len(own), count, replace=False)
        layout = self.task.model.memory_format
        return Shard(self.dataset, own[np.sort(drawn)], self.parts.test[visit.client], layout=layout)

    def run(self, call: Call) -> tuple[Message, Memory]:
        """Do one piece of work."""
        with call.visit.seeded():
            return self._run(call)

    def _run(self, call: Call) -> tuple[Message, Memory]:
        if call.visit.client == SERVER:
            reply: Message = attrgetter(call.job)(self._at_work)(call.message.to(self.device), call.visit)
            return reply.to(CPU), Memory()
        pooled = self.method.pools_data and call.job == "local"
        data = self.pool(call.visit) if pooled else self.shard(call.visit.client)
        data.device = self.device
        if call.job == CONTROL:
            return self._control(call.visit, data)
        given = call.message.to(self.device), data, call.memory.to(self.device), call.visit
        message, memory = getattr(self._at_work, call.job)(*given)
        return self._protected(call, message.to(CPU)), memory.to(CPU)

    def _protected(self, call: Call, reply: Message) -> Message:
        """An upload as the client would let it go; what it keeps to itself it keeps as it is."""
        if call.job != "local" or not self.config.privacy.on:
            return reply
        return protect(call.message, reply, self.config.privacy, repeatable(call.visit.generator("privacy")))

    def _control(self, visit: Visit, data: Shard) -> tuple[Message, Memory]:
        """All visits of one client in its own step, alone, and its accuracy after them."""
        memory = Memory()
        for round in self.plan.visits(visit.step, visit.client):
            alone = self.visit(visit.step, round, visit.client)
            with alone.seeded():
                _, memory = self._local_only.local(Message(), data, memory, alone)
        _, memory = self._local_only.settle(Message(), data, memory, visit)
        reply, _ = self._local_only.score(Message(), data, memory, visit)
        return reply, Memory()
