"""FedAvg (McMahan et al. 2017): one model for everyone, the sample-weighted mean of what sampled clients trained.

New and existing clients are served the current global model as it is, with statistics pooled over the batch that
trained last.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from pfeddsh.mechanisms import averaging, guard
from pfeddsh.messages import Memory, Message, State
from pfeddsh.methods.base import Method
from pfeddsh.methods.options import Normalised, Options, PriorAware, Statistics
from pfeddsh.methods.task import ClientData, Visit
from pfeddsh.models.training import sgd_epoch


def weighted_mean(uploads: dict[int, Message], name: str) -> Tensor:
    """Mean of one tensor over the uploads, weighted by the clients' sample counts; of equal tensors, that tensor."""
    counts = torch.tensor([float(upload.facts["samples"]) for upload in uploads.values()])
    tensors = [upload[name] for upload in uploads.values()]
    return averaging.mean([tensor.flatten() for tensor in tensors], counts / counts.sum()).view_as(tensors[0])


class Settings(Normalised, PriorAware):
    statistics: Statistics = "pooled"
    finetune: int = Field(0, ge=0, description="epochs of a client on the model it then keeps, when its step is over")
    finetune_rate: float = Field(0.001, ge=0, description="learning rate of these epochs")


class FedAvg(Method):
    """State: `theta` and `statistics`. Upload: the trained `theta`."""

    Settings: ClassVar[type[Options]] = Settings
    zero_shot = True

    @classmethod
    def first_rounds(cls, options: Mapping[str, Any]) -> dict[str, Any]:
        """Fine-tuning comes after them."""
        return {name: value for name, value in super().first_rounds(options).items() if not name.startswith("finetune")}

    def init(self) -> State:
        return State({"theta": self.task.theta0.clone()})

    def download(self, state: State, clients: Sequence[int]) -> dict[int, Message]:
        return dict.fromkeys(clients, Message({"theta": state["theta"]}))

    def local(self, message: Message, data: ClientData, memory: Memory, visit: Visit) -> tuple[Message, Memory]:
        theta = message["theta"].clone()
        return self.reply(theta, self.train(theta, data, visit), memory)

    def reply(self, theta: Tensor, facts: dict[str, Any], memory: Memory) -> tuple[Message, Memory]:
        """What a client sends, and keeps, of the weights it trained."""
        return Message({"theta": theta}, facts), memory

    def aggregate(self, state: State, uploads: dict[int, Message]) -> None:
        state["theta"] = weighted_mean(uploads, "theta")

    def keep(self, message: Message, data: ClientData, memory: Memory, visit: Visit) -> tuple[Message, Memory]:
        """With `finetune`, the client first makes the model its own; statistics are then its own as well."""
        if not (isinstance(self.options, Settings) and self.options.finetune):
            return super().keep(message, data, memory, visit)
        images, labels = data.train
        theta = self.weights(message, memory).clone()
        batches = replace(visit, epochs=self.options.finetune).batches(len(labels), "fine-tuning")
        sgd_epoch(
            self.trainer, theta, images, labels, batches=batches, lr=self.options.finetune_rate,
            momentum=visit.momentum, prior=self.prior(data),
        )  # fmt: skip
        return Message(), guard.keep(guard.Served(theta, self.calibrated(theta, message, data)), memory)
