"""pFedDSH: a hypernetwork generates every client's weights, existing clients are protected, replay improves them.

The four mechanisms are in `hypernet`, `projection` or `masks`, `replay` and `embedding`; this file composes them. Where
it departs from the paper, docs/deviations.md says why.
"""

import warnings
from collections.abc import Sequence
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from pfeddsh import embedding, hypernet, masks, projection
from pfeddsh.messages import Memory, Message, State
from pfeddsh.methods.base import ClientData, Method, Options, Task, Visit
from pfeddsh.models.fast import cross_entropy
from pfeddsh.models.lenet import GATES, STATISTICS


class Settings(Options):
    """Defaults are ours; the registry has the paper's configuration and the ablations as presets."""

    protection: Literal["projection", "gate", "snapshot", "none"] = "projection"
    freeze_trunk: bool = Field(True, description="W1 and b1 train in step 1 only")
    rate: float = Field(0.7, gt=0, description="of W2 and b2: a sampled client alone moves by 2 * rate * D")
    trunk_rate: float = Field(0.1, ge=0)
    embedding_rate: float = Field(0.1, ge=0)
    embedding: Literal["both", "image", "random"] = "both"
    histogram: bool = Field(True, description="clients tell their label histogram")
    rounding: float = Field(0.0, ge=0, description="step to which a client rounds its histogram")
    noise: float = Field(0.0, ge=0, description="scale of the Laplace noise a client adds to its histogram")


class PFedDSH(Method):
    """State: the hypernetwork; per client k its embedding `e/k`, `histogram/k`, `statistics/k`."""

    Settings = Settings
    options: Settings

    def __init__(self, task: Task, options: Settings) -> None:
        super().__init__(task, options)
        self.cards = embedding.CardOptions(options.embedding, options.histogram, options.rounding, options.noise)

    # On the server

    def init(self) -> State:
        generator = torch.Generator().manual_seed(self.task.seed)
        net = hypernet.create(self.task.theta0, generator)
        return State({**net, "basis": projection.empty(hypernet.HIDDEN)}, {"step": 0, "joined": {}})

    def expected_card(self) -> Message:
        image = torch.zeros(1, 3, 32, 32)
        card = embedding.describe(
            image, torch.zeros(1, dtype=torch.int64), self.model.classes, self.cards, 0, torch.Generator()
        )
        return Message(card)

    def open_step(self, state: State, step: int, cards: dict[int, Message]) -> None:
        state.facts["step"] = step
        if step == 1:
            fitted = embedding.fit([card.tensors for card in cards.values()], self.cards, self.task.seed)
            state.tensors |= {f"whitening/{name}": tensor for name, tensor in fitted.items()}
        whitening = {name[10:]: t for name, t in state.tensors.items() if name.startswith("whitening/")}
        for client, card in cards.items():
            state[f"e/{client}"] = embedding.embed(whitening, card.tensors)
            if "histogram" in card:
                state[f"histogram/{client}"] = card["histogram"]
            state.facts["joined"][str(client)] = step

    def keys(self, state: State, clients: Sequence[int]) -> Tensor:
        return torch.stack([hypernet.key(state.tensors, state[f"e/{k}"]) for k in clients])

    def download(self, state: State, clients: Sequence[int]) -> dict[int, Message]:
        if not clients:
            return {}
        thetas = hypernet.generate(state.tensors, self.keys(state, clients))
        return {k: Message({"theta": theta}) for k, theta in zip(clients, thetas, strict=True)}

    def expected(self, download: Message) -> Message:
        return Message({"delta": download["theta"]}, {"samples": 1})

    def alone(self, download: Message, upload: Message) -> Message:
        return Message({**download.tensors, "theta": download["theta"] - upload["delta"]})

    def aggregate(self, state: State, uploads: dict[int, Message]) -> None:
        """One plain SGD step on the hypernetwork; momentum, decay or Adam would move what must not move."""
        clients = list(uploads)
        first = state.facts["step"] == 1
        deltas = torch.stack([upload["delta"] for upload in uploads.values()])
        embeddings = torch.stack([state[f"e/{k}"] for k in clients])
        keys = self.keys(state, clients)
        gradient = hypernet.trunk_gradient(state.tensors, embeddings, deltas)
        bias_rate = self.options.rate
        if self.options.protection == "projection" and not first:
            keys, bias_rate = projection.project(state["basis"], keys), 0.0
        hypernet.update(state.tensors, deltas, keys, self.options.rate, bias_rate)
        if first or not self.options.freeze_trunk:
            state["W1"].sub_(gradient["W1"], alpha=self.options.trunk_rate)
            state["b1"].sub_(gradient["b1"], alpha=self.options.trunk_rate)
        for client, slope in zip(clients, gradient["embeddings"], strict=True):
            state[f"e/{client}"].sub_(slope, alpha=self.options.embedding_rate)

    def close_step(self, state: State, reports: dict[int, Message]) -> None:
        for client, report in reports.items():
            state[f"statistics/{client}"] = report["statistics"]
        newcomers = [int(k) for k, step in state.facts["joined"].items() if step == state.facts["step"]]
        state["basis"] = projection.extend(state["basis"], self.keys(state, newcomers))

    # At the client

    def card(self, message: Message, data: ClientData, memory: Memory, visit: Visit) -> tuple[Message, Memory]:
        images, labels = data.train
        card = embedding.describe(
            images, labels, self.model.classes, self.cards, self.task.seed, visit.generator("card")
        )
        return Message(card), memory

    def local(self, message: Message, data: ClientData, memory: Memory, visit: Visit) -> tuple[Message, Memory]:
        theta = message["theta"].clone()
        facts = self.train(theta, data, visit)
        return Message({"delta": message["theta"] - theta}, facts), memory
