"""FedCLASS (Wu et al. 2023): FedAvg, whose clients are taught by the global model of the step before.

The label space is fixed, so its set of new classes is empty and what remains is distillation of logits, from step 2 on;
there are no exemplars, as a newcomer has no old data. As published, everyone is served the global model with pooled
statistics (FedAvg); with `local_head` the last layer and the statistics are the client's own (FedPer).
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from pydantic import Field
from torch import Tensor

from pfeddsh.messages import Memory, Message, Record, State
from pfeddsh.methods.base import Method
from pfeddsh.methods.fedavg import FedAvg
from pfeddsh.methods.fedper import FedPer
from pfeddsh.methods.options import Normalised, Options, Statistics
from pfeddsh.methods.task import ClientData, Task, Visit
from pfeddsh.models.training import cross_entropy, over_batches


class Settings(Normalised):
    """Weight and temperatures are the original's; unequal temperatures also soften the student."""

    statistics: Statistics = "pooled"
    beta: float = Field(5.0, ge=0, description="weight of the distillation")
    tau_new: float = Field(3.0, gt=0, description="temperature of the model that trains")
    tau_old: float = Field(5.0, gt=0, description="temperature of its teacher")
    local_head: bool = Field(False, description="the last layer is the client's own")  # as published


@torch.no_grad()
def divergence(logits: Tensor, target: Tensor, tau: float) -> tuple[Tensor, Tensor]:
    """Mean of KL(softmax(logits / tau) || exp(target)) and its gradient with respect to the logits."""
    logs = torch.log_softmax(logits / tau, 1)
    p, gap = logs.exp(), logs - target
    each = (p * gap).sum(1, keepdim=True)
    return each.mean(), p * (gap - each) / (tau * len(logits))


def _untaught(record: Record) -> Record:
    return Record({name: tensor for name, tensor in record.tensors.items() if name != "teacher"}, record.facts)


class FedCLASS(Method):
    """State: that of FedAvg or FedPer, the `teacher`, and the clients that have it. Memory: the teacher, during a step.

    The teacher comes once, with a client's first download of a step.
    """

    Settings = Settings
    whole_only = True
    once = frozenset({"teacher"})

    def __init__(self, task: Task, options: Options) -> None:
        super().__init__(task, options)
        assert isinstance(options, Settings)
        self.settings = options
        self.sharing: FedAvg | FedPer = (FedPer if options.local_head else FedAvg)(task, options)
        self.shared = "body" if options.local_head else "theta"
        self.teaching = task.model.trainer()

    @classmethod
    def first_rounds(cls, options: Mapping[str, Any]) -> dict[str, Any]:
        """In step 1 there is no teacher."""
        return {"local_head": options["local_head"]}

    # On the server

    def init(self) -> State:
        return self.sharing.init()

    def open_step(self, state: State, step: int, rounds: int, cards: dict[int, Message]) -> None:
        state.facts["taught"] = []
        if step > 1:
            state["teacher"] = state[self.shared].clone()

    def download(self, state: State, clients: Sequence[int]) -> dict[int, Message]:
        plain = self.sharing.download(state, clients)
        if "teacher" not in state:
            return plain
        once = {"teacher": state["teacher"]}
        taught = state.facts["taught"]
        return {k: m if k in taught else Message({**m.tensors, **once}, m.facts) for k, m in plain.items()}

    def expected(self, download: Message) -> Message:
        return self.sharing.expected(_untaught(download))

    def aggregate(self, state: State, uploads: dict[int, Message]) -> None:
        self.sharing.aggregate(state, uploads)
        state.facts["taught"] = sorted({*state.facts["taught"], *uploads})

    def personal(self, state: State, clients: Sequence[int]) -> dict[int, Message]:
        return self.sharing.personal(_untaught(state), clients)

    def alone(self, download: Message, upload: Message) -> Message:
        return self.sharing.alone(_untaught(download), upload)

    # At the client

    def weights(self, message: Message, memory: Memory) -> Tensor:
        return self.sharing.weights(message, memory)

    def local(self, message: Message, data: ClientData, memory: Memory, visit: Visit) -> tuple[Message, Memory]:
        theta = self.weights(message, memory).clone()
        teacher = message.tensors.get("teacher", memory.tensors.get("teacher"))
        if teacher is None:  # step 1
            return self.sharing.reply(theta, self.train(theta, data, visit), memory)
        old = self.weights(Message({self.shared: teacher}), memory)  # a local head reads the features of either body
        facts = self.distil(theta, old, data, visit)
        return self.sharing.reply(theta, facts, Memory({**memory.tensors, "teacher": teacher}, memory.facts))

    @torch.no_grad()
    def distil(self, theta: Tensor, old: Tensor, data: ClientData, visit: Visit) -> dict[str, Any]:
        """FedAvg's training with the divergence added; the teacher normalises each batch by itself, as the student."""
        images, labels = data.train
        velocity = torch.zeros_like(theta)

        def step(batch: Tensor) -> Tensor:
            pictures = images.index_select(0, batch)
            target = torch.log_softmax(self.teaching.forward(old, pictures) / self.settings.tau_old, 1)
            logits = self.trainer.forward(theta, pictures)
            loss, d = cross_entropy(logits, labels.index_select(0, batch))
            distance, d_distance = divergence(logits, target, self.settings.tau_new)
            gradient = self.trainer.backward(d.add_(d_distance, alpha=self.settings.beta))
            torch.add(gradient, velocity, alpha=visit.momentum, out=velocity)
            theta.add_(velocity, alpha=-visit.lr)
            return loss + self.settings.beta * distance

        return {"samples": len(labels), "loss": over_batches(visit.batches(len(labels)), step, labels.device)}

    def settle(self, message: Message, data: ClientData, memory: Memory, visit: Visit) -> tuple[Message, Memory]:
        return super().settle(message, data, _untaught(memory), visit)
