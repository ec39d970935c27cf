"""FedPer (Arivazhagan et al. 2019): a shared body, and a last layer of its own for every client.

Body and head train jointly; only the body travels. A newcomer starts with the current body and the head of the common
initialisation; an existing client keeps the head of its last visit and re-reads the body.
"""

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from pfeddsh.messages import Memory, Message, State
from pfeddsh.methods.base import Method
from pfeddsh.methods.fedavg import weighted_mean
from pfeddsh.methods.options import Normalised, Options, PriorAware
from pfeddsh.methods.task import ClientData, Visit


class FedPerSettings(Normalised, PriorAware):
    """The last layer is the client's own; everything else it can be told is common to many methods."""


class FedPer(Method):
    """State: `body`. Upload: the trained `body`. Memory: `head` and statistics."""

    Settings: ClassVar[type[Options]] = FedPerSettings

    def init(self) -> State:
        return State({"body": self.task.theta0[self.model.body].clone()})

    def download(self, state: State, clients: Sequence[int]) -> dict[int, Message]:
        return dict.fromkeys(clients, Message({"body": state["body"]}))

    def weights(self, message: Message, memory: Memory) -> Tensor:
        head = memory.tensors.get("head", self.task.theta0[self.model.head])
        return torch.cat([message["body"], head])

    def local(self, message: Message, data: ClientData, memory: Memory, visit: Visit) -> tuple[Message, Memory]:
        theta = self.weights(message, memory)
        return self.reply(theta, self.train(theta, data, visit), memory)

    def reply(self, theta: Tensor, facts: dict[str, Any], memory: Memory) -> tuple[Message, Memory]:
        """What a client sends, and keeps, of the weights it trained."""
        upload = Message({"body": theta[self.model.body]}, facts)
        return upload, Memory({**memory.tensors, "head": theta[self.model.head].clone()}, memory.facts)

    def aggregate(self, state: State, uploads: dict[int, Message]) -> None:
        state["body"] = weighted_mean(uploads, "body")
