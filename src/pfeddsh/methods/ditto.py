"""Ditto (Li et al. 2021): FedAvg for everyone, and for each client a model of its own that is drawn towards it.

In a visit the client trains the global model as in FedAvg, and then its own, v -= lr (grad f(v) + lam (v - w)), on the
same batches; w is the global model as received. The own model starts from the first w that a client receives, and is
what it is served; who was never sampled is served the global model. Momentum is the protocol's, as for everyone.
"""

from pydantic import Field
from torch import Tensor

from pfeddsh.messages import Memory, Message
from pfeddsh.methods.fedavg import FedAvg
from pfeddsh.methods.options import Normalised, Options, PriorAware
from pfeddsh.methods.task import ClientData, Task, Visit
from pfeddsh.models.training import sgd_epoch


class Settings(Normalised, PriorAware):
    lam: float = Field(1.0, ge=0, description="how strongly the own model is drawn to the global one")


class Ditto(FedAvg):
    """State and messages are those of FedAvg. Memory: `own`, and statistics."""

    Settings = Settings

    def __init__(self, task: Task, options: Options) -> None:
        super().__init__(task, options)
        assert isinstance(options, Settings)
        self.settings = options

    def weights(self, message: Message, memory: Memory) -> Tensor:
        return memory.tensors.get("own", message["theta"])

    def local(self, message: Message, data: ClientData, memory: Memory, visit: Visit) -> tuple[Message, Memory]:
        own, (images, labels) = self.weights(message, memory).clone(), data.train
        sgd_epoch(
            self.trainer, own, images, labels, batches=visit.batches(len(labels)), lr=visit.lr,
            momentum=visit.momentum, part=self.model.head if visit.head_only else None, prior=self.prior(data),
            anchor=message["theta"], pull=self.settings.lam,
        )  # fmt: skip
        upload, memory = super().local(message, data, memory, visit)
        return upload, Memory({**memory.tensors, "own": own}, memory.facts)
