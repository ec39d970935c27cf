"""What a method is given: the task that all share, a client's data, and the circumstances of one visit."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from pfeddsh.mechanisms.guard import Evidence
from pfeddsh.models import base as models
from pfeddsh.models import registry as networks
from pfeddsh.models.pretrained import begin
from pfeddsh.rng import derive, numpy_stream, torch_stream


@dataclass(frozen=True)
class Task:
    """What everyone knows before anyone has joined: the network, the common initialisation, the seed."""

    model: models.Model
    theta0: Tensor
    seed: int

    @staticmethod
    def create(
        classes: int,
        seed: int,
        model: str = networks.DEFAULT,
        shape: Sequence[int] | None = None,
        init: Path | None = None,
    ) -> "Task":
        """For images of this shape; without one, of the shape the model was made for. `init`: pretrained weights."""
        network = networks.create(model, classes, shape)
        theta0 = network.init(torch_stream(seed, "theta0"))
        return Task(network, theta0 if init is None else begin(network, theta0, init), seed)

    def to(self, device: torch.device) -> "Task":
        return replace(self, theta0=self.theta0.to(device))


class ClientData(Protocol):
    """A client's own data as normalised float images and labels; it never leaves the client."""

    @property
    def train(self) -> tuple[Tensor, Tensor]: ...
    @property
    def test(self) -> tuple[Tensor, Tensor]: ...
    @property
    def held_out(self) -> tuple[Tensor, Tensor]: ...  # what a client judges offers by


@dataclass(frozen=True)
class Visit:
    """The circumstances of one piece of work; all its randomness is derived from here."""

    seed: int
    step: int
    round: int
    client: int
    rounds: int = 1  # of this step
    lr: float = 0.0
    momentum: float = 0.9
    epochs: int = 1
    batch_size: int = 32
    evidence: Evidence = "shifted"  # what an existing client judges offers by
    head_only: bool = False  # the last layer alone is trained

    def generator(self, purpose: str) -> torch.Generator:
        return torch_stream(self.seed, self.step, self.round, self.client, purpose)

    @contextmanager
    def seeded(self) -> Iterator[None]:
        """Whatever draws from PyTorch's own generator in here, as dropout does, draws the same wherever it is run."""
        with torch.random.fork_rng(devices=[]):
            seed = derive(self.seed, self.step, self.round, self.client, "torch")
            if torch.cuda.is_available():
                torch.manual_seed(seed)
            else:  # without a GPU, that would write down where it was called, should one appear
                torch.default_generator.manual_seed(seed)
            yield

    def batches(self, count: int, purpose: str = "batches") -> list[Tensor]:
        """Shuffled mini-batches of all epochs of this visit; the same for every method."""
        stream = numpy_stream(self.seed, self.step, self.round, self.client, purpose)
        orders = [torch.from_numpy(stream.permutation(count)) for _ in range(self.epochs)]
        return [batch for order in orders for batch in order.split(self.batch_size)]
