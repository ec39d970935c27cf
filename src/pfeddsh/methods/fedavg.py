"""FedAvg (McMahan et al. 2017): one model for everyone, the sample-weighted mean of what sampled clients trained.

New and existing clients are served the current global model as it is, with statistics pooled over the batch that
trained last.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from pfeddsh.messages import Memory, Message, State
from pfeddsh.methods.base import ClientData, Method, Normalised, PriorAware, Statistics, Visit


def weighted_mean(uploads: dict[int, Message], name: str) -> Tensor:
    """Mean of one tensor over the uploads, weighted by the clients' sample counts; of equal tensors, that tensor."""
    counts = torch.tensor([float(upload.facts["samples"]) for upload in uploads.values()])
    stacked = torch.stack([upload[name] for upload in uploads.values()])
    return stacked[0] + (counts / counts.sum()) @ (stacked - stacked[0])


class Settings(Normalised, PriorAware):
    statistics: Statistics = "pooled"


class FedAvg(Method):
    """State: `theta` and `statistics`. Upload: the trained `theta`."""

    Settings = Settings

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
